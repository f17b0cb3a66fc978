"""The flags that say what to plan for, shared by every command that plans."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.errors import DevkitError
from devkit.facts.dependencies import NO_DEPENDENCIES, Dependencies
from devkit.facts.model import Facts
from devkit.solver.plan import Request

if TYPE_CHECKING:
    from devkit.render.devkit_toml import ProjectSettings
    from devkit.render.project import DevkitProject, PathOptions
    from devkit.solver.plan import Conflict, Machine, Plan, Request


@dataclass(frozen=True)
class PlanOptions:
    """What the selection flags say, as typed; None and empty mean "not given"."""

    facts: tuple[str, ...] = ()
    driver: str | None = None
    gpus: tuple[str, ...] = ()
    machine: str | None = None
    platform: str | None = None
    glibc: str | None = None
    torch: str | None = None
    cuda: str | None = None
    python: str | None = None
    image: str | None = None
    pins: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    vendor: str | None = None
    gpu_runtime: str | None = None

    @property
    def describes_a_machine(self) -> bool:
        """Whether the flags describe a machine, so that this one does not matter."""
        return bool(self.driver or self.gpus or self.machine or self.platform or self.glibc)


_PLAN_OPTIONS = (
    click.option("--facts", multiple=True, metavar="FILE", help="Plan for a machine saved by `devkit doctor`. Repeat."),
    click.option("--driver", metavar="VERSION", help="Plan for this NVIDIA driver, such as 570.124.06."),
    click.option(
        "--gpu", "gpus", multiple=True, metavar="NAME", help='Plan for this GPU: "RTX 4090", 9.0, MI300X. Repeat.'
    ),
    click.option("--machine", type=click.Choice(["x86_64", "aarch64"]), help="Plan for this processor."),
    click.option("--platform", type=click.Choice(["linux", "wsl2"]), help="wsl2: --driver is the Windows driver."),
    click.option("--glibc", metavar="VERSION", help="torch will run on a system with this C library."),
    click.option("--torch", metavar="VERSION", help="2.14, 2.14.1 or 2.14.1+cu126."),
    click.option("--cuda", metavar="VERSION", help="CUDA of the torch wheel, such as 13.0."),
    click.option("--python", metavar="VERSION", help="Python of the container, such as 3.12."),
    click.option("--image", metavar="REF", help="Base image to build on."),
    click.option("--pin", "pins", multiple=True, metavar="NAME==V", help="Keep a package at a version. Repeat."),
    click.option("--feature", "features", multiple=True, metavar="NAME", help="Must work: nf4, fp8, nvcc … Repeat."),
    click.option(
        "--vendor", type=click.Choice(["nvidia", "rocm", "cpu", "auto"]), help="What to compute on. Default: auto."
    ),
    click.option("--gpu-runtime", type=click.Choice(["legacy", "cdi"]), help="How the engine passes on GPUs."),
)


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a Click command the selection flags; it receives them as one argument, `selection`."""

    @wraps(command)
    def with_selection(*args: Any, **values: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
        chosen = {name: values.pop(name) for name in PlanOptions.__dataclass_fields__}
        return command(*args, selection=PlanOptions(**chosen), **values)

    wrapped: Callable[..., Any] = with_selection
    for option in reversed(_PLAN_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def build_request_from_options(selection: PlanOptions, facts: Facts | None = None) -> Request:
    """The request that the flags make.

    Machines: the saved facts and the machine that flags describe; when neither is given, this machine, as `facts`
    or as read now. Raises DevkitError for input that cannot be a request.
    """
    from devkit.solver.request import build_machine_from_facts, build_machine_from_flags, build_request

    machines = [build_machine_from_facts(_saved(path), origin=path) for path in selection.facts]
    if selection.describes_a_machine:
        machines.append(
            build_machine_from_flags(
                driver=selection.driver,
                gpus=selection.gpus,
                machine=selection.machine,
                platform=selection.platform,
                glibc=selection.glibc,
            )
        )
    if not machines:
        machines.append(build_machine_from_facts(facts or _here()))
    request = build_request(
        machines=tuple(machines),
        vendor=selection.vendor,
        torch=selection.torch,
        cuda=selection.cuda,
        python=selection.python,
        image=selection.image,
        pins=selection.pins,
        features=selection.features,
    )
    return replace(request, gpu_runtime=selection.gpu_runtime)


def _saved(path: str) -> Facts:
    from pathlib import Path

    from devkit.facts.store import parse_facts

    hint = "Save a machine's facts with `devkit doctor --save-facts FILE`."
    try:
        return parse_facts(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror}", hint) from error
    except ValueError as error:
        raise DevkitError(f"{path} does not hold saved facts: {error}", hint) from error


def _here() -> Facts:
    from devkit.probe.gather import gather_facts
    from devkit.probe.host import CachingHost

    return gather_facts(CachingHost(), only=("system", "driver", "nvml", "amd"), meanwhile=_prepare)


def _prepare() -> None:
    """What every plan needs and a driver's answer does not change: done while that answer is awaited."""
    from devkit.compat.version_tables import load_tables
    from devkit.solver import solve  # noqa: F401 - loaded, not called

    known = load_tables()
    # Asking for an array reads it.
    _ = (known.torch.releases, known.torch.wheels, known.torch.indexes, known.driver.toolkits, known.driver.branches)
    _ = (known.driver.capabilities, known.stack.packages, known.stack.bitsandbytes, known.images.python_images)


# The flags of `devkit init` that say what the container is like, and the choices that all of its flags make.

_FILE_PATH = click.Path(path_type=Path)


@dataclass(frozen=True)
class ContainerOptions:
    """What the flags say of the container, as typed; None, False and empty mean "not given"."""

    name: str | None = None
    engine: str | None = None
    devices: tuple[str, ...] = ()
    editors: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    ignore_dependencies: bool = False
    ca_certificate: Path | None = None
    wheelhouse: Path | None = None
    index: str | None = None
    torch_index: str | None = None
    hub: str | None = None

    @property
    def inputs(self) -> "PathOptions":
        """The files outside the project that they name."""
        from devkit.render.project import PathOptions

        return PathOptions(self.ca_certificate, self.wheelhouse)


def _listed(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """A repeated option whose values may hold several, with commas between them; each once, in the order given."""
    words = (word.strip() for value in given for word in value.split(","))
    return tuple(dict.fromkeys(word for word in words if word))


def _list_option(*names: str, metavar: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(*names, multiple=True, callback=_listed, metavar=metavar, help=f"{what} Repeat.")


_CONTAINER_OPTIONS = (
    click.option("--name", metavar="NAME", help="The project's name. Default: that of the directory."),
    click.option("--engine", type=click.Choice(["docker", "podman"]), help="Write for this engine alone."),
    _list_option("--device", "devices", metavar="GPU", what="Pass on this GPU alone: index, UUID, MIG UUID."),
    _list_option("--editor", "editors", metavar="NAME", what="Serve this editor: vscode, jetbrains, codespaces …"),
    _list_option("--profile", "profiles", metavar="NAME", what="Add services: jupyter, monitoring."),
    click.option("--ignore-dependencies", is_flag=True, help="Leave the project's own packages out of the image."),
    click.option(
        "--ca-certificate", metavar="FILE", type=_FILE_PATH, help="PEM file of authorities the image shall trust."
    ),
    click.option(
        "--wheelhouse", metavar="DIR", type=_FILE_PATH, help="Build from this folder of wheels, without an index."
    ),
    click.option("--index", metavar="URL", help="Mirror of the Python package index."),
    click.option("--torch-index", metavar="URL", help="Mirror of PyTorch's wheel indexes."),
    click.option("--hub", metavar="URL", help="Mirror of the Hugging Face hub."),
)


def container_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a Click command the flags of the container; it receives them as one argument, `container`."""

    @wraps(command)
    def with_container(*args: Any, **values: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
        given = {name: values.pop(name) for name in ContainerOptions.__dataclass_fields__}
        return command(*args, container=ContainerOptions(**given), **values)

    wrapped: Callable[..., Any] = with_container
    for option in reversed(_CONTAINER_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def build_settings_from_options(selection: PlanOptions, container: ContainerOptions) -> "ProjectSettings":
    """The choices that the flags make, in the form of devkit.toml."""
    from devkit.render.devkit_toml import ProjectSettings

    return ProjectSettings(
        name=container.name or "",
        driver=selection.driver or "",
        gpus=selection.gpus,
        machine=selection.machine or "",
        platform=selection.platform or "",
        glibc=selection.glibc or "",
        vendor=selection.vendor or "",
        engine=container.engine or "",
        gpu_runtime=selection.gpu_runtime or "",
        devices=container.devices,
        torch=selection.torch or "",
        cuda=selection.cuda or "",
        python=selection.python or "",
        image=selection.image or "",
        features=selection.features,
        pins=tuple(_pin(text) for text in selection.pins),
        ignore_dependencies=container.ignore_dependencies,
        editors=container.editors,
        profiles=container.profiles,
        index=container.index or "",
        torch_index=container.torch_index or "",
        hub=container.hub or "",
    )


def _pin(text: str) -> tuple[str, str]:
    package, _, version = text.partition("==")
    return package.strip(), version.strip()


def build_options_from_settings(choices: "ProjectSettings", facts: tuple[str, ...]) -> PlanOptions:
    """The selection that the choices make. Saved facts replace the machine that devkit.toml describes."""
    selection = PlanOptions(
        facts=facts,
        torch=choices.torch or None,
        cuda=choices.cuda or None,
        python=choices.python or None,
        image=choices.image or None,
        pins=tuple(f"{package}=={version}" for package, version in choices.pins),
        features=choices.features,
        vendor=choices.vendor or None,
        gpu_runtime=choices.gpu_runtime or None,
    )
    if facts:
        return selection
    return replace(
        selection,
        driver=choices.driver or None,
        gpus=choices.gpus,
        machine=choices.machine or None,
        platform=choices.platform or None,
        glibc=choices.glibc or None,
    )


# From a project to the question that its versions answer: its choices, its machines, and what its files ask for.


def build_project_request(
    project: "DevkitProject", *, facts: tuple[str, ...] = (), machines: "tuple[Machine, ...]" = ()
) -> "Request":
    """What to solve for a project. Raises DevkitError for input that cannot be a request.

    Machines: those of the saved facts; else the one that devkit.toml describes; else `machines`; else this machine.
    """
    selection = build_options_from_settings(project.settings, facts)
    if machines and not facts and not selection.describes_a_machine:
        # What stands in for the machines here is replaced: reading this one would only cost time.
        request = build_request_from_options(replace(selection, machine=machines[0].machine))
        return replace(request, machines=machines, policy=project.settings.policy)
    return replace(build_request_from_options(selection), policy=project.settings.policy)


def solve_request(request: "Request", dependencies: Dependencies = NO_DEPENDENCIES) -> "Plan | Conflict":
    """What the solver says, by the version tables, in a project with these dependencies."""
    from devkit.compat.version_tables import load_tables
    from devkit.solver.solve import solve_project

    return solve_project(request, dependencies, load_tables())
