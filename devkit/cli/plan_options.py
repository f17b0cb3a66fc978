"""Options of `devkit plan` and `devkit init`: the settings and the solver's request that they make."""

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli.command import FILE, FOLDER, Decorator, PathType, complete_gpus, group_options, section
from devkit.errors import DevkitError
from devkit.facts.dependencies import NO_DEPENDENCIES, Dependencies
from devkit.facts.model import Facts
from devkit.render.devkit_toml import PathOptions, ProjectSettings, parse_assignment
from devkit.solver.plan import Conflict, Machine, Plan, Request
from devkit.text import join_words

if TYPE_CHECKING:
    from devkit.render.project import DevkitProject


_MACHINE_FIELDS = ("driver", "gpus", "machine", "platform", "glibc")


def refuse_contradiction(options: ProjectSettings) -> None:
    """Raise DevkitError for flags that contradict each other."""
    if options.vendor == "cpu" and options.gpus:
        says = f"--vendor cpu plans without a GPU, but --gpu requests {join_words(options.gpus)}"
        raise DevkitError(says, "Remove one of them.")


def _parse_pins(_ctx: click.Context, _param: click.Parameter, pins: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name.strip(), version.strip()) for name, _, version in (pin.partition("==") for pin in pins))


def _refuse_empty(_ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the value. Raises DevkitError for an empty one, as of a variable that is not set."""
    if value == "":
        raise DevkitError(f"{param.opts[0]} is empty", "Give a value, or leave the option out.")
    return value


def _remember_indexes(_ctx: click.Context, _param: click.Parameter, urls: tuple[str, ...]) -> tuple[str, ...]:
    """Remember that the user allows these. Raises DevkitError for anything that is not an index URL."""
    if urls:
        from devkit.probe.package_indexes import remember_indexes

        if wrong := [url for url in urls if not re.fullmatch(r"https?://[^/\s@]+(?:/\S*)?|(?:file://|/)\S+", url)]:
            raise DevkitError(
                f"--allow-index cannot be {wrong[0]!r}",
                "Write it like https://pypi.example.org/simple, without a login.",
            )
        remember_indexes(urls)
    return urls


allow_index_option = partial(
    click.option,
    "--allow-index",
    "allow_indexes",
    multiple=True,
    metavar="URL",
    callback=_remember_indexes,
    help="Permanently allow this package index for the project.",
)


def _list_requirements(_ctx: click.Context, _param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """List what the stacks of these names require. Raises DevkitError for an unknown one."""
    if not names:
        return ()
    from devkit.compat.version_tables import load_tables

    stacks = load_tables().stack.stacks
    for name in names:
        if name not in stacks:
            raise DevkitError(f"unknown stack {name!r}", f"Known: {', '.join(stacks)}.")
    return tuple(dict.fromkeys(each for name in names for each in stacks[name].requires))


_MACHINE = (
    click.option(
        "--facts",
        "facts_files",
        multiple=True,
        metavar="FILE",
        type=PathType(dir_okay=False),
        help="Plan for a machine saved by `devkit doctor`.",
    ),
    click.option("--driver", metavar="VERSION", help="Plan for this NVIDIA driver, such as 570.124.06."),
    click.option(
        "--gpu",
        "gpus",
        multiple=True,
        metavar="NAME",
        shell_complete=complete_gpus,
        help='Plan for this GPU: "RTX 4090", 9.0 or MI300X.',
    ),
    click.option(
        "--vendor", type=click.Choice(["nvidia", "rocm", "cpu", "auto"]), help="Accelerator vendor. Default: auto."
    ),
)
_MACHINE_DETAILS = (
    click.option("--machine", type=click.Choice(["x86_64", "aarch64"]), help="Plan for this CPU architecture."),
    click.option(
        "--platform",
        type=click.Choice(["linux", "wsl2", "windows"]),
        help="Plan for this platform. With wsl2 and windows, --driver is the Windows driver.",
    ),
    click.option("--glibc", metavar="VERSION", help="Plan for a system with this C library."),
    click.option("--gpu-runtime", type=click.Choice(["legacy", "cdi"]), help="How the engine exposes GPUs."),
)
"""What `devkit init` takes by --set."""
_VERSIONS = (
    click.option("--torch", metavar="VERSION", callback=_refuse_empty, help="2.14, 2.14.1 or 2.14.1+cu126."),
    click.option(
        "--cuda", metavar="VERSION", callback=_refuse_empty, help="CUDA version of the torch wheel, such as 13.0."
    ),
    click.option(
        "--python", metavar="VERSION", callback=_refuse_empty, help="Python version of the container, such as 3.12."
    ),
    click.option("--image", metavar="REF", callback=_refuse_empty, help="Base image to build on."),
    click.option(
        "--pin", "pins", multiple=True, metavar="NAME==V", callback=_parse_pins, help="Pin a package to a version."
    ),
    click.option(
        "--as-of",
        metavar="DAY",
        help="Use packages released by this date, such as 2023-07-24, or the newest ones: latest.",
    ),
    click.option(
        "--feature", "features", multiple=True, metavar="NAME", help="Require this feature: nf4, fp8, nvcc, graphics …"
    ),
)
_PROJECT = (
    click.option("--extra", "extras", multiple=True, metavar="NAME", help="Also install this extra."),
    click.option("--group", "groups", multiple=True, metavar="NAME", help="Also install this group."),
    click.option("--requirements", multiple=True, metavar="FILE", help="Install only this requirements file."),
    click.option(
        "--stack",
        "packages",
        multiple=True,
        metavar="NAME",
        callback=_list_requirements,
        help="Add the packages that this stack needs: vllm, sglang, jax …",
    ),
    click.option(
        "--apt", multiple=True, metavar="NAME", help="Debian package to add to the image; NAME- leaves one out."
    ),
)


def plan_options(*, with_details: bool) -> Decorator:
    """Return a decorator that adds the options to a command, which receives `facts_files` and all others as `options`."""
    machine = section("Machine", *_MACHINE, *(_MACHINE_DETAILS if with_details else ()))
    # init has 34 others; the line that refuses an index names this one.
    allow = allow_index_option(hidden=not with_details)
    groups = (machine, section("Versions", *_VERSIONS), section("Project", *_PROJECT, allow))
    return group_options(groups, ProjectSettings, "options")


def build_request_from_settings(
    settings: ProjectSettings, facts_files: Iterable[str] = (), machines: tuple[Machine, ...] = ()
) -> Request:
    """Build the solver's request. Raises DevkitError for input that cannot be a request.

    Its machines are those of saved facts and the one that the settings describe; without either `machines`, else this one.
    """
    from devkit.probe.saved_facts import load_saved_facts
    from devkit.solver.request import build_machine_from_facts, build_machine_from_flags, build_request

    driver = settings.driver
    major = driver.partition(".")[0]
    if major.isdigit() and int(major) < 100:
        raise DevkitError(
            f"--driver {driver} is a CUDA version, not a driver version",
            f"Driver versions look like 570.124.06, the first value that nvidia-smi prints. For CUDA: --cuda {driver}",
        )
    found = [build_machine_from_facts(load_saved_facts([Path(path)]), origin=path) for path in facts_files]
    if described := {name: value for name in _MACHINE_FIELDS if (value := getattr(settings, name))}:
        found.append(build_machine_from_flags(**described))
    machines = (*found,) or machines or (build_machine_from_facts(_read_this_machine()),)
    wanted = ("vendor", "torch", "cuda", "python", "image", "features", "apt", "as_of")
    given = {name: value for name in wanted if (value := getattr(settings, name))}
    pins = tuple(f"{name}=={version}" for name, version in settings.pins)
    request = build_request(machines=machines, pins=pins, **given)
    return replace(request, gpu_runtime=settings.gpu_runtime or None, no_hold=settings.no_hold)


def _read_this_machine() -> Facts:
    from devkit.probe.gather import gather_facts
    from devkit.probe.host import CachingHost

    def preload() -> None:
        """Load what every plan needs while the driver's answer is awaited."""
        from devkit.compat.version_tables import load_tables
        from devkit.solver import solve  # noqa: F401 - loaded, not called

        known = load_tables()
        # Arrays are parsed on first access.
        _ = (known.torch.releases, known.torch.wheels, known.torch.indexes, known.driver.toolkits)
        _ = (known.driver.branches, known.driver.capabilities, known.stack.packages, known.stack.bitsandbytes)
        _ = known.images.python_images

    return gather_facts(CachingHost(), only=("system", "driver", "nvml", "amd"), meanwhile=preload)


container_options = group_options(
    (
        click.option("--ignore-dependencies", is_flag=True, help="Leave the project's own packages out of the image."),
        click.option("--ca-certificate", metavar="FILE", type=FILE, help="CA bundle (PEM) to trust in the image."),
        click.option(
            "--wheelhouse", metavar="DIR", type=FOLDER, help="Build from this folder of wheels, not an index."
        ),
        click.option(
            "--set",
            "assignments",
            multiple=True,
            metavar="KEY=VALUE",
            help="Any other setting in devkit.toml: engine=podman, editors=jetbrains …",
        ),
    ),
    PathOptions,
    "paths",
    title="Dev container",
)
"""Decorates a Click command, which receives those that name files as `paths`."""


def build_settings_from_options(options: ProjectSettings, assignments: Iterable[str]) -> ProjectSettings:
    """Build the settings of devkit.toml from the flags."""
    named = ProjectSettings()
    for assignment in assignments:
        parsed = parse_assignment(assignment)
        lists: dict[str, Any] = {
            each.name: (*getattr(named, each.name), *value)
            for each in fields(parsed)
            if isinstance(value := getattr(parsed, each.name), tuple)
        }
        named = replace(named.with_flags(parsed), **lists)
    if mirrors := [url for url in (named.index, named.torch_index) if url]:
        from devkit.probe.dependencies.requirements import strip_login
        from devkit.probe.package_indexes import remember_indexes

        # An address that the user types is one that the user allows; one that stands in a project's file is not.
        remember_indexes(map(strip_login, mirrors))
    return named.with_flags(options)


def build_project_request(
    project: "DevkitProject", *, facts_files: tuple[str, ...] = (), machines: tuple[Machine, ...] = ()
) -> Request:
    """Build the request of a project. Raises DevkitError for input that cannot be a request.

    Its machines are those of the saved facts, else the one that devkit.toml describes, else `machines`, else this one.
    """
    settings = project.settings
    if facts_files:
        settings = replace(settings, driver="", gpus=(), machine="", platform="", glibc="")
    return build_request_from_settings(settings, facts_files, machines)


def solve_request(request: Request, dependencies: Dependencies = NO_DEPENDENCIES) -> Plan | Conflict:
    """Solve the request by the version tables, for a project with these dependencies."""
    from devkit.compat.version_tables import load_tables
    from devkit.solver.solve import solve_project

    return solve_project(request, dependencies, load_tables())
