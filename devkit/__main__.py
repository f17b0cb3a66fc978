"""Run the command line, as `python -m devkit` and as the installed program."""

# ruff: noqa: PTH100, PTH117, PTH120 - pathlib takes longer to load than most commands to end

import os
import sys


def start() -> None:
    """Run the command line. Ctrl-C while it is still being loaded prints no traceback.

    `launch` is none of its commands: a signal that comes while these are loaded would be lost.
    """
    try:
        _leave_out_working_folder()
        if sys.argv[1:2] == ["launch"]:
            from devkit.workload.launch import launch

            sys.exit(launch(sys.argv[2:]))
        from devkit.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


def _leave_out_working_folder() -> None:
    """Look for modules and programs in absolute folders alone: the working folder may be a stranger's project.

    Python looks there first for `python -m`, and so it does for an empty or relative entry of PATH or PYTHONPATH.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(filter(os.path.isabs, folders)) or os.defpath
    own = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.path.dirname(os.__file__))
    relative = ("", *(each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if not os.path.isabs(each)))
    try:
        here = {os.path.abspath(each) for each in relative}.difference(own)
        sys.path[:] = [each for each in sys.path if os.path.abspath(each) not in here]
    except FileNotFoundError:
        return  # the working folder was removed, and what was in it


if __name__ == "__main__":
    start()
