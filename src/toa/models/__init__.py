"""Backbones; each takes any attention of `toa.nn` by name."""

from toa.models.point_encoder import PointEncoder, PointEncoderConfig

__all__ = ["PointEncoder", "PointEncoderConfig"]
