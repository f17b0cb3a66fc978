"""What a job is asked to be, whatever engine runs it: the table [job] of devkit.toml, and flags of the same names."""

from dataclasses import dataclass
from typing import Annotated

from devkit.errors import DevkitError
from devkit.export.quantities import bytes_in, seconds_in
from devkit.facts.said import Said, check_ranges, flag_of


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """The wishes of one job. "" and None leave the choice to devkit, which says it with its reason.

    `gpus` are those of one node. `models`, `data` and `checkpoints` name storage in the engine's own words: a claim
    in Kubernetes, a folder in Slurm, a bucket or volume elsewhere.
    """

    name: Annotated[str, Said("Name of the job.")] = ""
    image: Annotated[str, Said("The published image.", example="REGISTRY/NAME:TAG")] = ""
    settings: Annotated[str, Said("Settings of devkit finetune, in the project.", example="FILE.toml")] = ""
    gpu: Annotated[str, Said("GPU to ask for, such as H100. The estimate is held against it.")] = ""
    gpus: Annotated[int, Said("GPUs on each node; 0 for none.", at_least=0, at_most=64)] = 1
    nodes: Annotated[int, Said("Nodes that work together.", at_least=1, at_most=4096)] = 1
    time: Annotated[str, Said("Longest run.", example="24h")] = "24h"
    grace: Annotated[str, Said("Time between the warning and the kill, for a checkpoint.", example="120s")] = "120s"
    spot: Annotated[bool, Said("Run on nodes that may be taken back at any time.")] = False
    cpus: Annotated[int | None, Said("Processor cores on each node.", at_least=1)] = None
    memory: Annotated[str, Said("Memory of each node, in place of the estimate's.", example="64Gi")] = ""
    shm: Annotated[str, Said("Shared memory of each node.", example="8Gi")] = ""
    models: Annotated[str, Said("Where models from the hub are kept: claim, folder or volume.")] = ""
    data: Annotated[str, Said("Where the project with its data lies: claim, folder or volume.")] = ""
    checkpoints: Annotated[str, Said("Where the output goes: claim, folder or volume.")] = ""
    models_size: Annotated[str, Said("Size of new storage for models.", example="200Gi")] = ""
    data_size: Annotated[str, Said("Size of new storage for the data.", example="50Gi")] = ""
    checkpoints_size: Annotated[str, Said("Size of new storage for the output.", example="100Gi")] = ""
    env: Annotated[tuple[str, ...], Said("Variable of the container. Repeat.", example="NAME=VALUE")] = ()


def checked(settings: JobSettings) -> JobSettings:
    """`settings` when they can be a job at all. Raises DevkitError for what no engine could run."""
    check_ranges(settings)
    for name in ("memory", "shm", "models_size", "data_size", "checkpoints_size"):
        if text := getattr(settings, name):
            bytes_in(text, flag_of(name))
    if seconds_in(settings.grace, "--grace") >= seconds_in(settings.time, "--time"):
        raise DevkitError(
            f"--grace {settings.grace} leaves nothing of --time {settings.time}",
            "The warning comes so long before the end; give more time, or a shorter grace.",
        )
    for text in settings.env:
        name, mark, _ = text.partition("=")
        if not mark or not name.isidentifier() or not name.isascii():
            raise DevkitError(f"--env {text!r} is no variable", "Write it as NAME=VALUE.")
    return settings
