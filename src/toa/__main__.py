"""The program `toa`, and `python -m toa`."""

import sys

# as shells report a program that Ctrl-C has ended
INTERRUPTED = 130


def main() -> None:
    """Run the command line; Ctrl-C while its modules are imported ends it in one line too."""
    try:
        from toa.cli.main import app
    except KeyboardInterrupt:
        sys.stderr.write("stopped.\n")
        raise SystemExit(INTERRUPTED) from None
    app(prog_name="toa")


if __name__ == "__main__":
    main()
