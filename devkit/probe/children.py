"""The programs of devkit's own that probes run as child processes."""

from pathlib import Path

from devkit.probe.host import Host

FOLDER = Path(__file__).parent


def asking(host: Host, program: str, *arguments: str) -> list[str]:
    """The command line that runs `devkit/probe/<program>.py`.

    By path, so that it works from a bare checkout too; with `-P`, so that neither the current directory, which may be
    anybody's project, nor this folder, whose `docker.py` would hide the SDK, stands on the module path.
    """
    return [host.python, "-P", str(FOLDER / f"{program}.py"), *arguments]
