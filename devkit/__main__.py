"""Run the command line as `python -m devkit`."""

from devkit.cli import main

if __name__ == "__main__":
    main()
