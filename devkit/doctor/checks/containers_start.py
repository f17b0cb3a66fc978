"""Checks of what will keep a dev container from starting, and of what ended the last one."""

import re
from collections.abc import Iterator

from devkit.compat.rules import CudaSupport
from devkit.doctor.applies import gpu_engine, known, nvml_answer, outside_of_containers
from devkit.doctor.checks.requirement import unmet
from devkit.doctor.containers import dev_containers, is_of_project, workspace_of
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.doctor.wheels import DriverCuda, driver_cuda_of
from devkit.facts.model import Engine, Facts, LocalImage, StoppedContainer

COMPATIBILITY_GUIDE = "https://docs.nvidia.com/deploy/cuda-compatibility/"
_LONGEST = 160


@check(
    "CON008",
    "The driver meets what the project's images require",
    covers=("F03",),
    symptoms=(
        "requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer version,"
        " or use an earlier cuda container",
    ),
    causes=("CON011", "CUD001"),
)
def driver_meets_images(facts: Facts) -> Iterator[Finding]:
    """The driver satisfies NVIDIA_REQUIRE_CUDA of the images that this project's containers are made of.

    Why it matters: under the legacy hook such a container does not start at all; by CDI it starts, and the first CUDA
    call may fail. It shows here before anybody tries.
    How it is seen: the variable in the engine's description of local images, against the driver's CUDA version, its
    branch, and the kind of GPU.
    Source: NVIDIA/nvidia-container-toolkit issue 152; libnvidia-container, requirement syntax.
    """
    outside_of_containers(facts)
    engine = gpu_engine(facts)
    nvml_answer(facts)
    driver = driver_cuda_of(facts)
    if driver is None:
        raise NotApplicable("the driver's version is not known")
    images = _images_of_project(facts, engine)
    if not images:
        raise NotApplicable("the engine has no image of this project")
    names = tuple(gpu.name for gpu in facts.gpus)
    for image in images:
        if not isinstance(image.require_cuda, str):
            continue
        wanted = unmet(image.require_cuda, driver, names)
        if wanted is not None:
            is_safe = driver.runs(wanted) in (CudaSupport.FULL, CudaSupport.MINOR)
            yield Finding(
                Severity.WARNING if is_safe and not _was_refused(facts, engine, image) else Severity.ERROR,
                f"the image {image.name} requires a driver for CUDA {wanted}, but {_driver(driver)}",
                _meet(driver, is_safe=is_safe),
                subject=image.name,
                evidence=(f"NVIDIA_REQUIRE_CUDA={image.require_cuda[:_LONGEST]}", f"driver {driver.release}"),
                confidence=Confidence.CERTAIN if driver.says else Confidence.LIKELY,
            )


def _images_of_project(facts: Facts, engine: Engine) -> tuple[LocalImage, ...]:
    """Those of its containers, and those named as dev container tools name them after its folder."""
    used = {one.image_id for one in known(engine.containers) if is_of_project(facts, one.folder)}
    names = {one.image for one in known(engine.stopped) if is_of_project(facts, one.folder)}
    base = re.sub(r"[^a-z0-9_.-]", "", workspace_of(facts).replace("\\", "/").rpartition("/")[2].lower())
    made = (f"vsc-{base}-", f"{base}_devcontainer-", f"{base}-")

    def is_own(image: LocalImage) -> bool:
        name = image.name.removeprefix("localhost/")
        by_name = bool(base) and image.is_dev_container is True and name.startswith(made)
        return image.id in used or image.name in names or by_name

    return tuple(image for image in known(engine.images) if is_own(image))


def _was_refused(facts: Facts, engine: Engine, image: LocalImage) -> bool:
    """Whether the hook has refused this very image already."""
    own = (one for one in known(engine.stopped) if is_of_project(facts, one.folder))
    return any("unsatisfied condition" in one.error and one.image in image.name for one in own)


def _driver(driver: DriverCuda) -> str:
    newest = f"CUDA {driver.cuda}" if driver.cuda else "an older CUDA"
    return f"driver {driver.release} is for {newest}"


def _meet(driver: DriverCuda, *, is_safe: bool) -> Fix:
    newest = f"CUDA {driver.cuda}" if driver.cuda else "the driver's CUDA"
    advice = (
        " Minor version compatibility holds here, so NVIDIA_DISABLE_REQUIRE=1 is safe except for PTX."
        if is_safe
        else " NVIDIA_DISABLE_REQUIRE=1 would only move the failure to the first CUDA call."
    )
    return Fix(
        f"Build from an image without CUDA (torch's wheels bring their own) or one for {newest}, or update the"
        f" driver.{advice}",
        where=Side.IMAGE,
        docs=COMPATIBILITY_GUIDE,
    )


@check(
    "CON011",
    "The project's last dev container ended well",
    covers=("I08",),
    symptoms=("exit code 137", "Exited (137)"),
)
def last_dev_container_ended_well(facts: Facts) -> Iterator[Finding]:
    """Where no dev container of this project runs, the last one could start, and was not killed for its memory.

    Why it matters: editors show little more than "failed to start"; the engine keeps the reason.
    How it is seen: State.Error and State.OOMKilled of the newest stopped container with the project's label. The error
    is explained as `devkit explain` would.
    Source: Docker Engine API, `ContainerState`.
    """
    engine = gpu_engine(facts)
    if dev_containers(facts, engine):
        raise NotApplicable("a dev container of this project runs")
    stopped = [one for one in known(engine.stopped) if is_of_project(facts, one.folder)]
    if not stopped:
        raise NotApplicable("no dev container of this project was stopped")
    last = stopped[0]
    if last.error:
        yield _could_not_start(last)
    elif last.out_of_memory:
        yield Finding(
            Severity.WARNING,
            f"the dev container {last.name} was ended by the kernel, because it needed more memory than it may use",
            Fix(
                "Raise the memory limit of the service or of the virtual machine around the engine, or load models from"
                " safetensors files, which are mapped and not copied.",
                where=Side.PROJECT,
            ),
            subject=last.name,
            evidence=(f"OOMKilled: true, exit code {last.exit_code}",),
        )


def _could_not_start(last: StoppedContainer) -> Finding:
    from devkit.doctor.signatures import matches

    known_errors = matches(last.error)
    best = known_errors[0] if known_errors else None
    text = " ".join(last.error.split())
    return Finding(
        Severity.ERROR,
        f"the dev container {last.name} could not start: {best.cause.rstrip('.') if best else text[:_LONGEST]}",
        best.fix
        if best
        else Fix("Read the engine's error, and start the container again.", (f"docker start -a {last.name}",)),
        subject=last.name,
        evidence=(f"State.Error: {text[: 2 * _LONGEST]}",),
        confidence=best.confidence if best else Confidence.CERTAIN,
    )
