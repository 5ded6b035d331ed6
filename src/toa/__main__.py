"""`python -m toa` is `toa`."""

from toa.cli.main import app

if __name__ == "__main__":
    app(prog_name="toa")
