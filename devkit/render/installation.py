"""How the image installs Python packages: with what, from where, and held to which hashes."""

from dataclasses import dataclass

from devkit.compat.load import tables
from devkit.render.mirrors import may_need_login, torch_index
from devkit.render.plain import plain
from devkit.render.settings import Settings
from devkit.solver.model import Plan, Vendor

INSTALLER = "uv"
_CACHE = "--mount=type=cache,id=devkit-uv,target=/root/.cache/uv"
_LOGIN = "--mount=type=secret,id=netrc,target=/root/.netrc"
_WHEELHOUSE = "--mount=type=bind,from=wheelhouse,target=/mnt/wheelhouse"
_FROM_WHEELHOUSE = "--no-index --find-links=/mnt/wheelhouse "
_REQUIRE_HASHES = "--require-hashes "


@dataclass(frozen=True)
class Installation:
    """Words of the Dockerfile's RUN instructions. Options end with a space where others follow them.

    `mounts` are what every installation sees, and `source` where its wheels come from. `torch` and `packages` are
    options of two of them. `torch_fits` is an expression of Python. `machines` are those that a lock is for.
    """

    mounts: str
    source: str
    installer: str
    torch: str
    torch_fits: str
    device: str
    packages: str
    requirements: str
    is_locked: bool
    machines: tuple[str, ...]


def installation(plan: Plan, settings: Settings) -> Installation:
    """How to install the plan's packages with these settings. Raises DevkitError for a version that is none."""
    locked = bool(settings.python_lock)
    torch_fits, device = _torch_fits(plan)
    return Installation(
        mounts=_mounts(settings),
        source=_FROM_WHEELHOUSE if settings.uses_wheelhouse else "",
        installer=f"{INSTALLER}=={installer_version(plan)}",
        torch=_torch(plan, settings),
        torch_fits=torch_fits,
        device=device,
        packages=_locked(plan, settings) if locked else "",
        requirements="requirements.lock" if locked else "requirements.txt",
        is_locked=locked,
        machines=plan.architectures,
    )


def installer_version(plan: Plan) -> str:
    """The version of uv that the user pinned, or the one in the tables."""
    pinned = dict(plan.packages).get(INSTALLER)
    row = next(row for row in tables().images.tools if row.name == INSTALLER)
    return plain("version", pinned or row.version)


def _mounts(settings: Settings) -> str:
    mounts = [_CACHE]
    mounts += [_WHEELHOUSE] if settings.uses_wheelhouse else []
    mounts += [_LOGIN] if may_need_login(settings) else []
    return " \\\n    ".join(mounts)


def _torch(plan: Plan, settings: Settings) -> str:
    """The index is named to the letter: what a build finds by itself is no GPU, and torch for the CPU."""
    if not settings.python_lock:
        index = "" if settings.uses_wheelhouse else f"--default-index={torch_index(plan, settings)} "
        return f"{index}torch=={plan.torch}"
    return f"{_locked(plan, settings)}--requirement=/mnt/torch.lock"


def _locked(plan: Plan, settings: Settings) -> str:
    """Either index may offer a package, because the hashes alone decide which file is the right one."""
    if settings.uses_wheelhouse:
        return _REQUIRE_HASHES
    return f"--index={torch_index(plan, settings)} --index-strategy=unsafe-best-match {_REQUIRE_HASHES}"


def _torch_fits(plan: Plan) -> tuple[str, str]:
    """What Python says of a torch that is built for the plan's device, `built` being its version.py; and the device."""
    if plan.vendor is Vendor.CPU:
        return "not built['cuda'] and not built.get('hip')", "the CPU"
    if plan.cuda:
        cuda = plain("version", plan.cuda)
        return f"built['cuda'] == '{cuda}'", f"CUDA {cuda}"
    # HIP has ROCm's first two numbers; the third is a count of its own: ROCm 6.2.4 says 6.2.41134.
    major, minor = plain("version", plan.variant).removeprefix("rocm").split(".")[:2]
    return f"str(built.get('hip')).startswith('{major}.{minor}.')", f"ROCm {major}.{minor}"
