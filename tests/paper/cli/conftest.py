"""Commands draw no pictures without the fixture `pictures`."""

from tests.cli.conftest import _no_pictures, pictures

__all__ = ["_no_pictures", "pictures"]
