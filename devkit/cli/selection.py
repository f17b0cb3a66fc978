"""The flags that say what to plan for, shared by every command that plans."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import click

from devkit.errors import DevkitError
from devkit.facts.model import Facts
from devkit.solver.model import Request


@dataclass(frozen=True)
class Selection:
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


_OPTIONS = (
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


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a Click command the selection flags; it receives them as one argument, `selection`."""

    @wraps(command)
    def with_selection(*args: Any, **values: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
        chosen = {name: values.pop(name) for name in Selection.__dataclass_fields__}
        return command(*args, selection=Selection(**chosen), **values)

    wrapped: Callable[..., Any] = with_selection
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def request_from(selection: Selection, facts: Facts | None = None) -> Request:
    """The request that the flags make.

    Machines: the saved facts and the machine that flags describe; when neither is given, this machine, as `facts`
    or as read now. Raises DevkitError for input that cannot be a request.
    """
    from devkit.solver.machine import machine_from_facts, machine_from_flags
    from devkit.solver.request import request_of

    machines = [machine_from_facts(_saved(path), origin=path) for path in selection.facts]
    if selection.describes_a_machine:
        machines.append(
            machine_from_flags(
                driver=selection.driver,
                gpus=selection.gpus,
                machine=selection.machine,
                platform=selection.platform,
                glibc=selection.glibc,
            )
        )
    if not machines:
        machines.append(machine_from_facts(facts or _here()))
    request = request_of(
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

    from devkit.facts.store import from_json

    hint = "Save a machine's facts with `devkit doctor --save-facts FILE`."
    try:
        return from_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror}", hint) from error
    except ValueError as error:
        raise DevkitError(f"{path} does not hold saved facts: {error}", hint) from error


def _here() -> Facts:
    from devkit.probe.gather import gather
    from devkit.probe.host import OnceHost

    return gather(OnceHost(), only=("system", "driver", "nvml", "amd"), meanwhile=_prepare)


def _prepare() -> None:
    """What every plan needs and a driver's answer does not change: done while that answer is awaited."""
    from devkit.compat.load import tables
    from devkit.solver import solve  # noqa: F401 - loaded, not called

    known = tables()
    # Asking for an array reads it.
    _ = (known.torch.releases, known.torch.wheels, known.torch.indexes, known.driver.toolkits, known.driver.branches)
    _ = (known.driver.capabilities, known.stack.packages, known.stack.bitsandbytes, known.images.python_images)
