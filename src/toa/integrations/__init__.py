"""Work with other libraries: convert trained models, export to ONNX; NeuralForecast and aeon in their own modules."""

from toa.integrations.attention_parts import MultiheadAdapter, ProjectionAdapter
from toa.integrations.convert import Conversion, Kept, Replaced, convert
from toa.integrations.export import export_onnx, export_pretrained, export_program

__all__ = [
    "Conversion",
    "Kept",
    "MultiheadAdapter",
    "ProjectionAdapter",
    "Replaced",
    "convert",
    "export_onnx",
    "export_pretrained",
    "export_program",
]
