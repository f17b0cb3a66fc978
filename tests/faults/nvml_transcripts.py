"""What devkit's NVML child prints for each fault, as a program: the real nvidia-ml-py on the stand-in, many times over.

Reads one JSON object of environment variables a line, and prints a JSON list with the lines of the child for each.
A process for each fault would take a minute; the faults that hang or crash need theirs all the same.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "devkit" / "probe" / "children"))
import ask_nvml


def main():
    for line in sys.stdin:
        settings = json.loads(line)
        os.environ.update(settings)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            try:
                ask_nvml.main(0)
            except Exception as error:  # noqa: BLE001 - a traceback is a finding of the test, whatever raised it
                said.write(f"Traceback: {type(error).__name__}: {error}\n")
        for name in settings:
            del os.environ[name]
        sys.stdout.write(json.dumps(said.getvalue()) + "\n")


if __name__ == "__main__":
    main()
