"""Run the command line, as `python -m devkit` and as the installed program."""

import sys


def start() -> None:
    """Run the command line. Ctrl-C while it is still being loaded prints no traceback."""
    try:
        from devkit.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    start()
