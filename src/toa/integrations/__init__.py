"""Other libraries' models and formats: attention replaced inside trained models."""

from toa.integrations.adapters import MultiheadAdapter, ProjectionAdapter
from toa.integrations.convert import Conversion, Kept, Replaced, convert

__all__ = [
    "Conversion",
    "Kept",
    "MultiheadAdapter",
    "ProjectionAdapter",
    "Replaced",
    "convert",
]
