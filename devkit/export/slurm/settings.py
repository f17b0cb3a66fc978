"""Settings of a job in Slurm alone: the table [job.slurm], and flags."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from devkit.errors import DevkitError
from devkit.facts.settings import SettingInfo, format_flag, validate_ranges


class ContainerRuntime(StrEnum):
    """The runtime: Apptainer, its forerunner Singularity, Pyxis with enroot, NERSC's Shifter and podman-hpc, or none.

    Without one, it is the cluster's own system.
    """

    APPTAINER = "apptainer"
    SINGULARITY = "singularity"
    PYXIS = "pyxis"
    SHIFTER = "shifter"
    PODMAN_HPC = "podman-hpc"
    NONE = "none"

    @property
    def has_image_file(self) -> bool:
        """True where the image is a file that is made of it before."""
        return self in (ContainerRuntime.APPTAINER, ContainerRuntime.SINGULARITY)

    @property
    def mounts_folders(self) -> bool:
        """True where the job sees its folders at the paths of the dev container; Shifter shows the cluster's own."""
        return self not in (ContainerRuntime.NONE, ContainerRuntime.SHIFTER)


class GpuRequestStyle(StrEnum):
    """The sbatch option that requests GPUs; some sites take only one of them."""

    GRES = "gres"
    GPUS_PER_NODE = "gpus-per-node"


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """The settings of Slurm alone. "", None and () leave the choice to devkit or to the site."""

    flavor: Annotated[ContainerRuntime, SettingInfo("Container runtime of the job.")] = ContainerRuntime.APPTAINER
    gpu_request: Annotated[GpuRequestStyle, SettingInfo("The sbatch option that requests GPUs.")] = GpuRequestStyle.GRES
    gpu_type: Annotated[
        str,
        SettingInfo(
            "The cluster's name of the GPU, as sinfo -o %G shows it; any for whichever is free.", example="a100"
        ),
    ] = ""
    account: Annotated[str, SettingInfo("Account, or allocation, that pays.")] = ""
    partition: Annotated[str, SettingInfo("Partition. Without it, the cluster's default.")] = ""
    qos: Annotated[str, SettingInfo("Quality of service.")] = ""
    constraint: Annotated[str, SettingInfo("Features that nodes must have.", example="FEATURE")] = ""
    reservation: Annotated[str, SettingInfo("Reservation to run in.")] = ""
    mail: Annotated[str, SettingInfo("Address for mail on the end, failures and requeues.", example="ADDRESS")] = ""
    sbatch: Annotated[tuple[str, ...], SettingInfo("One more option of sbatch. Repeat.", example="OPTION")] = ()
    log: Annotated[str, SettingInfo("File for the output of the job.", example="FILE")] = ""
    module: Annotated[tuple[str, ...], SettingInfo("Module to load. Repeat.", example="NAME/VERSION")] = ()
    venv: Annotated[str, SettingInfo("Python environment with devkit in it, for --flavor none.", example="DIR")] = ""
    conda: Annotated[
        str, SettingInfo("Conda environment to activate, by name or folder, for --flavor none.", example="ENV")
    ] = ""
    setup: Annotated[
        tuple[str, ...], SettingInfo("Line of shell to run before the job, after modules. Repeat.", example="LINE")
    ] = ()
    image_file: Annotated[
        str,
        SettingInfo(
            "The image as a file: .sif for Apptainer and Singularity, .sqsh for Pyxis. With --foreign-image, the site's.",
            example="FILE",
        ),
    ] = ""
    prefetch: Annotated[
        tuple[str, ...],
        SettingInfo(
            "Model of the hub, or dataset:NAME, that prefetch.sh fetches on the login node; the job is then offline."
            " Repeat.",
            example="NAME",
        ),
    ] = ()
    srun_processes: Annotated[
        bool,
        SettingInfo("Let srun start a process for each GPU, for programs that read SLURM_PROCID, and not torchrun."),
    ] = False
    workspace: Annotated[
        bool, SettingInfo("Also write workspace.sh: the dev container on a node, with a terminal or a tunnel.")
    ] = False
    idle: Annotated[str, SettingInfo("Time without work after which a workspace ends.", example="2h")] = "2h"
    sweep: Annotated[
        tuple[str, ...],
        SettingInfo(
            "Values of one setting of devkit finetune to try, one task of an array each. Repeat for a grid.",
            example="SETTING=A,B",
        ),
    ] = ()
    at_once: Annotated[int | None, SettingInfo("Tasks of the array that may run at once.", at_least=1)] = None
    requeues: Annotated[
        int,
        SettingInfo(
            "Requeues in a row without a new checkpoint before it counts as a failure; 0 for none.", at_least=0
        ),
    ] = 3


_VALUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@%+=/&|()*!\[\]-]*")
"""A value that sbatch takes without quotes: no space, quote, backslash or number sign."""
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+/-]*")
_CONDA = re.compile(r"[A-Za-z0-9_.$/{}~-][A-Za-z0-9_.+/${}~-]*")
_HUB_NAME = re.compile(r"(dataset:)?[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)
_OPTION = re.compile(r"--[a-z][a-z0-9-]*(=[A-Za-z0-9_.,:@%+=/&|()*!\[\]-]+)?")
_GPU_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_LOG = re.compile(r"[A-Za-z0-9_.%/-]+")
_PATTERNS = {
    "account": _VALUE,
    "partition": _VALUE,
    "qos": _VALUE,
    "constraint": _VALUE,
    "reservation": _VALUE,
    "mail": _VALUE,
    "gpu_type": _GPU_TYPE,
    "log": _LOG,
    "module": _MODULE,
    "sbatch": _OPTION,
    "conda": _CONDA,
    "prefetch": _HUB_NAME,
}
RESERVED_OPTIONS = frozenset(
    {"array", "cpus-per-task", "gpus-per-node", "gres", "job-name", "mem", "nodes", "no-requeue", "ntasks-per-node"}
    | {"open-mode", "output", "requeue", "signal", "time"}
)
"""Options that devkit sets."""


def validate_job_name(name: str, flag: str) -> str:
    """Return `name` if Slurm takes it as the name of a job, which the log's file is named by. Raises DevkitError."""
    if _NAME.fullmatch(name):
        return name
    raise DevkitError(f"{flag} {name!r} is no name for a job", "Use letters, digits, dots, underscores and hyphens.")


def validate_slurm_settings(settings: SlurmSettings) -> SlurmSettings:
    """Return the settings. Raises DevkitError for values that would end a line or an option of the script early."""
    validate_ranges(settings)
    for name, pattern in _PATTERNS.items():
        value = getattr(settings, name)
        for text in (value,) if isinstance(value, str) else value:
            if text and not pattern.fullmatch(text):
                raise DevkitError(
                    f"{format_flag(name)} {text!r} is not valid in a batch script", f"Its form is {pattern.pattern}."
                )
    for text in settings.sbatch:
        if text[2:].partition("=")[0] in RESERVED_OPTIONS:
            raise DevkitError(f"--sbatch {text} is set by devkit itself", "Use the setting of devkit export for it.")
    if settings.venv and settings.flavor is not ContainerRuntime.NONE:
        raise DevkitError(f"--venv is not used with --flavor {settings.flavor}", "The image has its own Python.")
    if settings.conda and (settings.venv or settings.flavor is not ContainerRuntime.NONE):
        raise DevkitError(
            "--conda is for --flavor none, in the place of --venv", "Keep one: the image has its own Python."
        )
    if settings.at_once is not None and not settings.sweep:
        raise DevkitError("--at-once says nothing without an array", "Add --sweep SETTING=A,B, or leave it out.")
    return settings
