"""The interpreter that would run the workload, and its folders."""

import re
from dataclasses import dataclass

from devkit.facts.values import Release, Unknown
from devkit.probe.host import NOT_FOUND, Host, explain_failure
from devkit.probe.machine.programs import find_program

PYTHON_VARIABLE = "DEVKIT_PYTHON"
"""The variable that names the project's interpreter, before VIRTUAL_ENV does."""

IMAGE_ENVIRONMENT = "/opt/devkit/"
"""devkit's own environment in an image, which has none of the project's packages."""

_SHARES_SYSTEM = re.compile(r"^include-system-site-packages\s*=\s*true", re.MULTILINE | re.IGNORECASE)

_VERSION = re.compile(r"^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)", re.MULTILINE)
"""Of venv, and of virtualenv and uv."""
_LIBRARY = re.compile(r"python(3\.\d+)")
"""The folder of the library, in an environment whose pyvenv.cfg is gone."""


@dataclass(frozen=True)
class WorkloadPython:
    """An interpreter and its folders."""

    executable: str
    version: Release
    site_folders: tuple[str, ...]
    include_folders: tuple[str, ...]
    user_site: str
    """The user's own site-packages, "" where this Python does not read them. It comes before the others."""


def hint_at_variable(host: Host) -> str:
    """Return the hint for a Python that does not start, by the variable that names it."""
    named = next((each for each in (PYTHON_VARIABLE, "VIRTUAL_ENV") if host.env.get(each)), "")
    return f"Correct {named}, or remove it: unset {named}" if named else "Install devkit again."


def find_workload_python(host: Host) -> WorkloadPython | Unknown:
    """Find the project's interpreter: DEVKIT_PYTHON, or that of VIRTUAL_ENV, else devkit's own.

    In an image where devkit has its own environment, the first on PATH comes before that.
    """
    executable = host.env.get(PYTHON_VARIABLE) or host.python
    environment = host.env.get("VIRTUAL_ENV", "")
    if not re.match(r"/|[A-Za-z]:[\\/]", environment):
        environment = ""  # A relative one is in the working folder, which may be a stranger's project.
    if executable.startswith(IMAGE_ENVIRONMENT):
        executable = find_program(host, "python3") or executable
    if environment and not host.env.get(PYTHON_VARIABLE):
        candidates = (f"{environment}/bin/python", f"{environment}\\Scripts\\python.exe")
        executable = next((path for path in candidates if host.stat(path) is not None), executable)
    settings = host.read(f"{get_prefix(executable)}/pyvenv.cfg")
    # A virtual environment has its version in files, so that no program of a project's folder is run to learn it.
    stated = _VERSION.search(settings or "")
    is_active = environment != "" and executable.startswith((f"{environment}/", f"{environment}\\"))
    if not stated and is_active:
        stated = next(filter(None, map(_LIBRARY.fullmatch, host.list(f"{environment}/lib"))), None)
    if stated:
        version = Release.parse(f"Python {stated[1]}")
    elif is_active:
        return Unknown(f"{executable} was not started, and no file of VIRTUAL_ENV names its version")
    else:
        command = [executable, "--version"]
        done = host.run(command)
        if done.code != 0 or not re.match(r"Python \d+\.\d", done.out):
            reason = f"{executable} --version ended with status {done.code}"
            if done.code == NOT_FOUND and host.env.get(PYTHON_VARIABLE):
                reason = f"{PYTHON_VARIABLE} is {executable}, which does not exist"
            return explain_failure(command, done, reason, is_lost=done.code != NOT_FOUND)
        version = Release.parse(done.out)
    minor = version.minor
    base = re.search(r"^home\s*=\s*(\S+)", settings or "", re.MULTILINE)
    shares_system = settings is not None and _SHARES_SYSTEM.search(settings) is not None
    # A virtual environment reads the user's own packages only with the system's, and PYTHONNOUSERSITE switches them off.
    # Source: Python documentation, module site.
    user_base = host.env.get("PYTHONUSERBASE") or f"{host.env.get('HOME', '')}/.local"
    user_site = f"{user_base}/lib/python{minor}/site-packages"
    is_read = not host.env.get("PYTHONNOUSERSITE") and (settings is None or shares_system) and user_base != "/.local"
    user_site = user_site if is_read and host.stat(user_site) is not None else ""
    own = _site_folders(executable, minor)
    shared = _site_folders(f"{base[1]}/python3", minor) if base and shares_system else ()
    # The user's folder comes before the system's, but after those of a virtual environment.
    searched = (*own, user_site, *shared) if shared else (user_site, *own)
    # lib64 is often a link to lib; what is found twice is still one folder.
    folders = dict.fromkeys(filter(None, (host.link(folder) for folder in searched if folder)))
    # Python.h is under this prefix, or under the one that a virtual environment was made from.
    prefixes = [get_prefix(executable), *([base[1].rpartition("/")[0]] if base else [])]
    prefixes += [get_prefix(real)] if (real := host.link(executable)) else []
    includes = tuple(f"{prefix}/include/python{minor}" for prefix in dict.fromkeys(prefixes))
    return WorkloadPython(executable, version, tuple(folders), includes, user_site)


def _site_folders(executable: str, minor: str) -> tuple[str, ...]:
    prefix = get_prefix(executable)
    if "\\" in executable:
        return (f"{prefix}\\Lib\\site-packages", f"{executable.rpartition(chr(92))[0]}\\Lib\\site-packages")
    folders = [f"{prefix}/{lib}/python{minor}/site-packages" for lib in ("lib", "lib64", "local/lib")]
    # Debian's own layout for the system's Python.
    folders += [f"{prefix}/local/lib/python{minor}/dist-packages", f"{prefix}/lib/python3/dist-packages"]
    return tuple(folders)


def get_prefix(executable: str) -> str:
    """Return the folder above that of an interpreter."""
    separator = "\\" if "\\" in executable else "/"
    return executable.rsplit(separator, 2)[0]
