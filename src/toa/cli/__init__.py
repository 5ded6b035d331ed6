"""The command line: one file per command group. Each parses its options, calls the library and prints the result."""

from toa.cli.main import app

__all__ = ["app"]
