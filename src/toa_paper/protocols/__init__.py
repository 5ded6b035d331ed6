"""Protocols of the demixing task; `toa.experiments.protocols` finds them."""
