"""How packages are installed in this very Python: pip, uv or conda's pip, with the index that carries the build."""

import shlex

from devkit.doctor.applies import is_in_container
from devkit.doctor.model import Side
from devkit.doctor.wheels import FittingWheel
from devkit.facts.model import Facts
from devkit.facts.values import Unknown

_UV = "uv pip install"
_PIP = "pip install"


def workload_side(facts: Facts) -> Side:
    """Where the workload's packages are installed."""
    return Side.CONTAINER if is_in_container(facts) else Side.HOST


def uses_uv(facts: Facts) -> bool:
    """Whether uv made this environment. It brings no pip of its own."""
    return not isinstance(facts.python, Unknown) and facts.python.installer == "uv"


def install(facts: Facts, *requirements: str, index: str = "", replace: bool = False, more: str = "") -> str:
    """The command that installs `requirements`; `replace` puts them in place of the same version of another build.

    `more` holds options that pip and uv share, such as --no-deps.
    """
    words = [_UV if uses_uv(facts) else _PIP]
    if replace:
        words.append("--reinstall" if uses_uv(facts) else "--force-reinstall")
    words += [more] if more else []
    words += [shlex.quote(requirement) for requirement in requirements]
    words += [f"--index-url {index}"] if index else []
    return " ".join(words)


def install_wheel(facts: Facts, wheel: FittingWheel) -> str:
    """The command that puts exactly this build of torch in place of the present one."""
    return install(facts, f"torch=={wheel.version}", index=wheel.index_url, replace=True)


def upgrade(facts: Facts, *requirements: str) -> str:
    """The command that brings `requirements` up to date."""
    return install(facts, *requirements, more="--upgrade")


def uninstall(facts: Facts, *names: str) -> str:
    """The command that removes distributions."""
    return f"{'uv pip uninstall' if uses_uv(facts) else 'pip uninstall -y'} {' '.join(names)}"
