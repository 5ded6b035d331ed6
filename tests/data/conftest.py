from tests.data.files import home

__all__ = ["home"]
