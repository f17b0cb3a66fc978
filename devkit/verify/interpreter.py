"""Which Python runs the proof: the one that has torch."""

from dataclasses import dataclass

from devkit.errors import DevkitError
from devkit.facts.values import Release, Unknown
from devkit.probe.host import Host
from devkit.probe.python import workload_python

INSTALL = "pip install 'devkit-gpu[workload]'"
OLDEST = Release.read("3.11")

_LOOK = (
    "import importlib.util, platform; "
    "print(platform.python_version(), 'torch' if importlib.util.find_spec('torch') else '-')"
)


@dataclass(frozen=True)
class _Answer:
    version: Release
    has_torch: bool


def proof_python(host: Host) -> str:
    """The active virtual environment's Python if torch is there, else devkit's own if torch is there.

    Raises DevkitError when neither has torch, or its Python is too old to run the proof.
    """
    active = workload_python(host)
    executables = [host.python] if isinstance(active, Unknown) else [active.executable, host.python]
    for executable in dict.fromkeys(executables):
        answer = _ask(host, executable)
        if answer is None or not answer.has_torch:
            continue
        if answer.version < OLDEST:
            raise DevkitError(
                f"{executable} has torch, but is Python {answer.version}; the proof needs {OLDEST} or newer",
                f"activate an environment with Python {OLDEST} or newer, then: {INSTALL}",
            )
        return executable
    raise DevkitError(f"torch is not installed for {executables[0]}", INSTALL)


def _ask(host: Host, executable: str) -> _Answer | None:
    done = host.run([executable, "-P", "-c", _LOOK])
    if done.code != 0:
        # Before Python 3.11 there is no -P.
        done = host.run([executable, "-I", "-c", _LOOK])
    words = done.out.split()
    return _Answer(Release.read(words[0]), words[1] == "torch") if done.code == 0 and len(words) == 2 else None
