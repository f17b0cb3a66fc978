"""Settings specific to Slurm: the table [job.slurm], and flags."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from devkit.errors import DevkitError
from devkit.facts.settings import SettingInfo, format_option, validate_ranges


class ContainerRuntime(StrEnum):
    """The runtime: Apptainer, its forerunner Singularity, Pyxis with enroot, or none: the cluster's own system."""

    APPTAINER = "apptainer"
    SINGULARITY = "singularity"
    PYXIS = "pyxis"
    NONE = "none"

    @property
    def has_image_file(self) -> bool:
        """True where the image is a file that is made of it before."""
        return self in (ContainerRuntime.APPTAINER, ContainerRuntime.SINGULARITY)

    @property
    def is_container(self) -> bool:
        """True where the job sees its folders at the paths of the dev container."""
        return self is not ContainerRuntime.NONE


class GpuRequestStyle(StrEnum):
    """The sbatch option that requests GPUs; some sites take only one of them."""

    GRES = "gres"
    GPUS_PER_NODE = "gpus-per-node"


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """The settings specific to Slurm. "", None and () leave the choice to devkit or to the site."""

    flavor: Annotated[ContainerRuntime, SettingInfo("Container runtime for the job.")] = ContainerRuntime.APPTAINER
    partition: Annotated[str, SettingInfo("Partition. Default: the cluster's.")] = ""
    account: Annotated[str, SettingInfo("Account or allocation to charge.")] = ""
    gpu_type: Annotated[
        str,
        SettingInfo(
            "The cluster's name for the GPU, as shown by sinfo -o %G; use any for any free GPU.",
            example="a100",
            has_flag=False,
        ),
    ] = ""
    module: Annotated[tuple[str, ...], SettingInfo("Module to load. May be repeated.", example="NAME/VERSION")] = ()
    venv: Annotated[
        str, SettingInfo("Python environment that contains devkit, for --flavor none.", example="DIR", has_flag=False)
    ] = ""
    conda: Annotated[
        str,
        SettingInfo(
            "Conda environment to activate, by name or folder, for --flavor none.", example="ENV", has_flag=False
        ),
    ] = ""
    sbatch: Annotated[
        tuple[str, ...], SettingInfo("Another sbatch option: --sbatch=--qos=high. May be repeated.", example="OPTION")
    ] = ()
    setup: Annotated[
        tuple[str, ...],
        SettingInfo("Shell line to run before the job, after loading modules. May be repeated.", has_flag=False),
    ] = ()
    image_file: Annotated[
        str,
        SettingInfo(
            "The image as a file: .sif for Apptainer and Singularity, .sqsh for Pyxis. "
            "For a foreign image, any file that the site's runtime accepts.",
            has_flag=False,
        ),
    ] = ""
    gpu_request: Annotated[
        GpuRequestStyle, SettingInfo("The sbatch option that requests GPUs: gres or gpus-per-node.", has_flag=False)
    ] = GpuRequestStyle.GRES
    srun_processes: Annotated[
        bool,
        SettingInfo(
            "Let srun, not torchrun, start a process for each GPU, for programs that read SLURM_PROCID: true or false.",
            has_flag=False,
        ),
    ] = False
    requeues: Annotated[
        int,
        SettingInfo(
            "Consecutive requeues without a new checkpoint before the job counts as failed; 0 for none.",
            at_least=0,
            has_flag=False,
        ),
    ] = 3


_VALUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@%+=/&|()*!\[\]-]*")
"""A value that sbatch takes without quotes: no space, quote, backslash or number sign."""
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+/-]*")
_CONDA = re.compile(r"[A-Za-z0-9_.$/{}~-][A-Za-z0-9_.+/${}~-]*")
_OPTION = re.compile(r"--[a-z][a-z0-9-]*(=[A-Za-z0-9_.,:@%+=/&|()*!\[\]-]+)?")
_GPU_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_PATTERNS = {
    "account": _VALUE,
    "partition": _VALUE,
    "gpu_type": _GPU_TYPE,
    "module": _MODULE,
    "sbatch": _OPTION,
    "conda": _CONDA,
}
RESERVED_OPTIONS = {
    **{"gres": "--gpus", "gpus-per-node": "--gpus", "nodes": "--nodes", "time": "--time", "job-name": "--name"},
    **{"cpus-per-task": "--set cpus", "mem": "--set memory", "ntasks-per-node": "--set processes"},
    **dict.fromkeys(("requeue", "no-requeue", "open-mode"), "--set requeues"),
    **{"signal": "--set grace", "array": "its own requests"},
}
"""Options of sbatch that devkit sets -> from what."""


def validate_job_name(name: str, flag: str) -> str:
    """Return `name` if Slurm takes it as the name of a job, which the log's file is named by. Raises DevkitError."""
    if _NAME.fullmatch(name):
        return name
    raise DevkitError(f"{flag} {name!r} is not a valid job name", "Use letters, digits, dots, underscores and hyphens.")


def validate_slurm_settings(settings: SlurmSettings) -> None:
    """Raise DevkitError for values that would end a line or an option of the script early."""
    validate_ranges(settings)
    for name, pattern in _PATTERNS.items():
        value = getattr(settings, name)
        for text in (value,) if isinstance(value, str) else value:
            if text and not pattern.fullmatch(text):
                raise DevkitError(
                    f"{format_option(SlurmSettings, name)} {text!r} is not valid in a batch script",
                    f"Its form is {pattern.pattern}.",
                )
    for text in settings.sbatch:
        if text[2:].partition("=")[0] in RESERVED_OPTIONS:
            raise DevkitError(
                f"--sbatch {text} is set by devkit itself",
                "Use the setting of devkit export for it: --help lists them.",
            )
    if settings.venv and settings.flavor is not ContainerRuntime.NONE:
        raise DevkitError(f"--set venv is not used with --flavor {settings.flavor}", "The image has its own Python.")
    if settings.conda and (settings.venv or settings.flavor is not ContainerRuntime.NONE):
        raise DevkitError(
            "--set conda is for --flavor none, in place of --set venv",
            "Remove one of them: the image has its own Python.",
        )
