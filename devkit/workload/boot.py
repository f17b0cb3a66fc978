"""Run a module of this devkit in another environment's Python: `python -P boot.py FOLDERS MODULE [ARGUMENT …]`.

That environment's packages come first. devkit itself is this one, whatever else is called devkit there, and what it
requires is looked up last, in FOLDERS: as in PATH, "" for none.
"""

import os
import runpy
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def main(folders: str, module: str) -> None:
    """Make this devkit importable and run one of its modules as the main program."""
    sys.path.extend(filter(None, folders.split(os.pathsep)))
    package = Path(__file__).parents[1]
    spec = spec_from_file_location("devkit", package / "__init__.py", submodule_search_locations=[str(package)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{package} is not a package")
    sys.modules["devkit"] = devkit = module_from_spec(spec)
    spec.loader.exec_module(devkit)
    sys.argv = [sys.argv[0], *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
