"""The Compose file, and the host's script that requests the GPU in the form that its container engine knows."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from devkit.errors import DevkitError
from devkit.release import __version__
from devkit.render.container.settings import ContainerSettings, FromWheel, may_need_login
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Plan, Vendor

ENGINES = ("docker", "podman")

_INDEX = re.compile(r"\d{1,3}", re.ASCII)
_UUID = re.compile(r"GPU-[0-9a-fA-F-]{4,36}", re.ASCII)
_MIG = re.compile(r"\d{1,3}:\d{1,2}|MIG-[0-9a-fA-F-]{4,36}", re.ASCII)


@dataclass(frozen=True)
class GpuMode:
    """One way to pass on GPUs, for the plans of one vendor and some engines.

    `machine` is the only architecture that it is for, "" for every one.
    """

    name: str
    vendor: str
    engines: tuple[str, ...]
    machine: str = ""


CPU_MODE = "cpu"
GPU_MODES = (
    GpuMode("nvidia", "nvidia", ("docker",)),
    GpuMode("cdi", "nvidia", ("docker",)),
    GpuMode("podman", "nvidia", ("podman",)),
    GpuMode("jetson", "nvidia", ("docker",), "aarch64"),
    GpuMode("rocm", "rocm", ENGINES),
)
"""Every way to pass on GPUs. A file never requests another vendor's."""


def find_gpu_modes(plan: Plan, engine: str) -> tuple[str, ...]:
    """Find the ways to pass on GPUs of a plan: none first, then each that fits the vendor and the engine.

    `engine` is docker or podman; "" is either. Raises DevkitError for another.
    """
    if engine not in ("", *ENGINES):
        raise DevkitError(f"target.engine is {engine!r}", 'Use "docker" or "podman", or omit it for both.')
    fitting = (
        mode.name
        for mode in GPU_MODES
        if mode.vendor == plan.vendor.value
        and (not engine or engine in mode.engines)
        and mode.machine in ("", *plan.architectures)
    )
    return (CPU_MODE, *fitting)


def validate_devices(devices: Sequence[str], vendor: str, engine: str = "") -> tuple[str, ...]:
    """Return the GPUs to pass on. Raises DevkitError for a name that no engine takes, and for one given twice."""
    forms = (_INDEX, _UUID) if vendor == "rocm" else (_INDEX, _UUID, _MIG)
    for device in devices:
        if not any(form.fullmatch(device) for form in forms):
            migs = "" if vendor == "rocm" else ", a MIG slice such as 0:1, or its MIG-… UUID"
            raise DevkitError(f"{device!r} does not identify a GPU", f"Give an index such as 0, a GPU-… UUID{migs}.")
        if engine == "podman" and ":" in device:
            # Compose splits a device's name at its colons before Podman sees it.
            raise DevkitError(f"Podman rejects a MIG slice by the name {device}", "Give the slice's MIG-… UUID.")
        if devices.count(device) > 1:
            raise DevkitError(f"the GPU {device} is given twice", "List each GPU only once.")
    return tuple(devices)


def render_devcontainer_compose(plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """Render the Compose file and the host's script.

    Raises: DevkitError for an engine or a GPU's name that does not exist.
    """
    text = render_template(
        "devcontainer/docker-compose.yml.j2",
        slug=settings.slug,
        uses_wheelhouse=settings.uses_wheelhouse,
        uses_project=bool(settings.dependencies.lists or settings.dependencies.is_locked),
        may_need_login=may_need_login(settings),
        sudo=settings.sudo,
        **_build_context(plan, settings.engine),
    )
    yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/docker-compose.yml", text)
    yield from render_gpu_files(
        plan,
        DEVCONTAINER_FOLDER,
        engine=settings.engine,
        devices=settings.devices,
        slug=settings.slug,
        for_windows=settings.for_windows,
        wheel=f"wheels/{settings.source.filename}" if isinstance(settings.source, FromWheel) else "",
    )


def render_gpu_files(
    plan: Plan,
    folder: str,
    *,
    engine: str = "",
    devices: Sequence[str] = (),
    slug: str = "",
    wheel: str = "",
    for_windows: bool = False,
) -> Iterator[Artifact]:
    """Render the script that finds out how a host passes on GPUs, also for PowerShell where a host has no POSIX shell.

    Without a `slug` it belongs to a Compose project of somebody else's, whose .env it writes into. `wheel` is the
    path of devkit's wheel in `folder`, "" where the image takes devkit from elsewhere.
    Raises: DevkitError for an engine or a GPU's name that does not exist.
    """
    named = validate_devices(devices, plan.vendor.value, engine)
    context = _build_context(plan, engine) | {"slug": slug, "is_adopted": not slug, "wheel": wheel, "devices": named}
    flags = [f"--modes={','.join(find_gpu_modes(plan, engine))}"]
    flags += [
        f"--{name}={value}"
        for name, value in (("engine", engine), ("slug", slug), ("devices", ",".join(named)))
        if value
    ]
    flags += ["--graphical"] if plan.is_graphical else []
    context["flags"] = "" if plan.vendor is Vendor.CPU else " ".join(flags)
    script = render_template("devcontainer/gpu.sh.j2", is_whole=False, **context)
    yield Artifact.from_text(f"{folder}/gpu.sh", script, 0o755)
    if for_windows:
        yield Artifact.from_text(f"{folder}/gpu.ps1", render_template("devcontainer/gpu.ps1.j2", **context))


def render_gpu_script(
    *, vendor: str, modes: Sequence[str], engine: str, slug: str, devices: Sequence[str], is_graphical: bool
) -> str:
    """Render the script that knows every host, which `devkit gpu-request` runs in the place of the project's gpu.sh."""
    return render_template(
        "devcontainer/gpu.sh.j2",
        devkit_version=__version__,
        vendor=vendor,
        is_graphical=is_graphical,
        engine=engine,
        modes=modes,
        slug=slug,
        is_adopted=not slug,
        wheel="",
        devices=validate_devices(devices, vendor, engine),
        flags="",
        is_whole=True,
    )


def _build_context(plan: Plan, engine: str) -> dict[str, object]:
    return {
        "devkit_version": __version__,
        "vendor": plan.vendor.value,
        "is_graphical": plan.is_graphical,
        "engine": engine,
        "modes": find_gpu_modes(plan, engine),
    }


# The .env file beside the Compose file, kept out of version control.


def parse_env_value(text: str, name: str) -> str:
    """Return the value of `name` without its quotes, "" when it is not set; the last line counts, as in Compose."""
    values = re.findall(rf"^(?:export )?{re.escape(name)}=(.*)$", text, re.MULTILINE)
    value = str(values[-1]).strip() if values else ""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def set_env_value(text: str, name: str, value: str) -> str:
    """Return `text` with `name` set to `value`, every other line as it was.

    Compose takes text between single quotes literally, and has no way to write a single quote there. A backslash at the
    end would escape the closing quote.
    Raises: DevkitError for a value with a single quote, a line break or a backslash at its end.
    """
    if "'" in value or "\n" in value or "\r" in value or value.endswith("\\"):
        raise DevkitError(
            f"the path {value!r} cannot be written to an .env file",
            "Use a path without single quotes, line breaks, or a trailing backslash.",
        )
    line = f"{name}='{value}'"
    pattern = re.compile(rf"^(?:export )?{re.escape(name)}=.*$", re.MULTILINE)
    if pattern.search(text):
        return pattern.sub(lambda _: line, text)
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n"
