"""The flags of `devkit init` that say what the container is like, and the choices that all of its flags make."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli.selection import Selection

if TYPE_CHECKING:
    from devkit.render.choices import Choices
    from devkit.render.project import Inputs

_FILE = click.Path(path_type=Path)


@dataclass(frozen=True)
class ContainerFlags:
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
    def inputs(self) -> "Inputs":
        """The files outside the project that they name."""
        from devkit.render.project import Inputs

        return Inputs(self.ca_certificate, self.wheelhouse)


def _listed(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """A repeated option whose values may hold several, with commas between them; each once, in the order given."""
    words = (word.strip() for value in given for word in value.split(","))
    return tuple(dict.fromkeys(word for word in words if word))


def _list_option(*names: str, metavar: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(*names, multiple=True, callback=_listed, metavar=metavar, help=f"{what} Repeat.")


_OPTIONS = (
    click.option("--name", metavar="NAME", help="The project's name. Default: that of the directory."),
    click.option("--engine", type=click.Choice(["docker", "podman"]), help="Write for this engine alone."),
    _list_option("--device", "devices", metavar="GPU", what="Pass on this GPU alone: index, UUID, MIG UUID."),
    _list_option("--editor", "editors", metavar="NAME", what="Serve this editor: vscode, jetbrains, codespaces …"),
    _list_option("--profile", "profiles", metavar="NAME", what="Add services: jupyter, monitoring."),
    click.option("--ignore-dependencies", is_flag=True, help="Leave the project's own packages out of the image."),
    click.option("--ca-certificate", metavar="FILE", type=_FILE, help="PEM file of authorities the image shall trust."),
    click.option("--wheelhouse", metavar="DIR", type=_FILE, help="Build from this folder of wheels, without an index."),
    click.option("--index", metavar="URL", help="Mirror of the Python package index."),
    click.option("--torch-index", metavar="URL", help="Mirror of PyTorch's wheel indexes."),
    click.option("--hub", metavar="URL", help="Mirror of the Hugging Face hub."),
)


def container_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a Click command the flags of the container; it receives them as one argument, `container`."""

    @wraps(command)
    def with_container(*args: Any, **values: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
        given = {name: values.pop(name) for name in ContainerFlags.__dataclass_fields__}
        return command(*args, container=ContainerFlags(**given), **values)

    wrapped: Callable[..., Any] = with_container
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def choices_of(selection: Selection, container: ContainerFlags) -> "Choices":
    """The choices that the flags make, in the form of devkit.toml."""
    from devkit.render.choices import Choices

    return Choices(
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


def selection_of(choices: "Choices", facts: tuple[str, ...]) -> Selection:
    """The selection that the choices make. Saved facts replace the machine that devkit.toml describes."""
    selection = Selection(
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
