"""Settings of a job, whatever engine runs it: the table [job] of devkit.toml, and flags of the same names."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from devkit.errors import DevkitError
from devkit.export.targets import TARGETS, ExportTarget
from devkit.export.values import parse_duration, parse_size
from devkit.facts.redact import SECRETS
from devkit.facts.settings import SettingInfo, describe_settings, format_flag, validate_ranges
from devkit.render.toml_tables import TableSource, parse_table

TARGET_SPECIFIC_SETTINGS = ("models", "data", "checkpoints", "mount")
"""Settings that name an engine's own objects: flags for one target are stored in its table, [job.TARGET], alone."""


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """The settings of one job. "" and None leave the choice to devkit, which gives its reason.

    `gpus` are those of one node. `models`, `data` and `checkpoints` name storage as the engine does: a claim in
    Kubernetes, a folder in Slurm, a bucket or volume elsewhere.
    """

    name: Annotated[str, SettingInfo("Name of the job.")] = ""
    image: Annotated[str, SettingInfo("The published image.", example="REGISTRY/NAME:TAG")] = ""
    settings: Annotated[str, SettingInfo("Settings of devkit finetune, in the project.", example="FILE.toml")] = ""
    command: Annotated[
        tuple[str, ...], SettingInfo("Command to run instead of devkit finetune: after two dashes.", has_flag=False)
    ] = ()
    processes: Annotated[
        str,
        SettingInfo(
            "Processes that torchrun starts on each node with that command: a number, or auto for one for each GPU."
            " Without it, the command is started once on each node.",
            example="auto",
        ),
    ] = ""
    results: Annotated[
        str, SettingInfo("Folder in the project that the command writes to; DEVKIT_OUTPUT there.", example="DIR")
    ] = "outputs"
    foreign_image: Annotated[
        bool, SettingInfo("The image is not of this project: no devkit, no user dev and no /opt/venv in it.")
    ] = False
    gpu: Annotated[str, SettingInfo("GPU to request, such as H100. The memory estimate must fit it.")] = ""
    gpus: Annotated[int, SettingInfo("GPUs on each node; 0 for none.", at_least=0, at_most=64)] = 1
    nodes: Annotated[int, SettingInfo("Number of nodes.", at_least=1, at_most=4096)] = 1
    min_nodes: Annotated[
        int,
        SettingInfo(
            "Nodes with which the job continues when others are lost; --nodes 1:4 is short for both. 0: all of them.",
            at_least=0,
            at_most=4096,
        ),
    ] = 0
    time: Annotated[str, SettingInfo("Time limit of the run.", example="24h")] = "24h"
    grace: Annotated[
        str, SettingInfo("Grace period between SIGTERM and SIGKILL, to save a checkpoint.", example="120s")
    ] = "120s"
    spot: Annotated[bool, SettingInfo("Run on spot nodes, which may be reclaimed at any time.")] = False
    cpus: Annotated[int | None, SettingInfo("CPU cores on each node.", at_least=1, at_most=4096)] = None
    memory: Annotated[str, SettingInfo("Memory of each node, instead of the estimate.", example="64Gi")] = ""
    shm: Annotated[str, SettingInfo("Shared memory of each node.", example="8Gi")] = ""
    models: Annotated[str, SettingInfo("Storage of models from the hub: claim, folder or volume.")] = ""
    data: Annotated[str, SettingInfo("Storage of the project with its data: claim, folder or volume.")] = ""
    checkpoints: Annotated[str, SettingInfo("Storage of the output: claim, folder or volume.")] = ""
    models_size: Annotated[str, SettingInfo("Size of new storage for models.", example="200Gi")] = ""
    data_size: Annotated[str, SettingInfo("Size of new storage for the data.", example="50Gi")] = ""
    checkpoints_size: Annotated[str, SettingInfo("Size of new storage for the output.", example="100Gi")] = ""
    mount: Annotated[
        tuple[str, ...],
        SettingInfo("Other storage at a path of your own: claim, folder or volume. Repeat.", example="SOURCE:/PATH"),
    ] = ()
    workdir: Annotated[
        str, SettingInfo("Folder of the container to start in, instead of the project's.", example="/PATH")
    ] = ""
    env: Annotated[
        tuple[str, ...], SettingInfo("Environment variable of the container. Repeat.", example="NAME=VALUE")
    ] = ()


MAX_TEXT = 1000
"""YAML takes no longer key. Source: https://yaml.org/spec/1.2.2/#742-flow-mappings"""
SIZE_SETTINGS = ("memory", "shm", "models_size", "data_size", "checkpoints_size")

_PATH = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d+)?/)?{_PATH}(?:/{_PATH})*"
    r"(?P<tag>:\w[\w.-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
"""Source: https://github.com/distribution/reference/blob/main/regexp.go"""

_RESERVED_VARIABLES = re.compile(
    r"PET_\w+|HF_TOKEN_PATH|HF_HOME|HF_HUB_CACHE|DEVKIT_EXIT_FILE|DEVKIT_OUTPUT|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
)
"""Variables that the image, devkit's own command and torchrun set: another value would break them."""

JOB_TABLE = "job"
OUTPUT_KEY = "output"
"""The key under [job.TARGET] for the folder of its files, relative to the project."""

_SECRET_NAME = re.compile(r"(?i)(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)(_|$)")


@dataclass(frozen=True)
class ExportSettings:
    """The settings of one export: the job's, the target's (of its settings class), and its folder, "" by default."""

    job: JobSettings
    target: Any
    output: str = ""


@dataclass(frozen=True)
class ExportOptions:
    """The flags given on the command line, by setting: those of the job, and those of the target."""

    job: Mapping[str, Any]
    target: Mapping[str, Any]


def validate_job_settings(settings: JobSettings) -> JobSettings:
    """Return the settings. Raises DevkitError for those that no engine can run."""
    validate_ranges(settings)
    validate_printable(settings)
    for name in SIZE_SETTINGS:
        if text := getattr(settings, name):
            parse_size(text, format_flag(name))
    if parse_duration(settings.grace, "--grace") >= parse_duration(settings.time, "--time"):
        raise DevkitError(
            f"--grace {settings.grace} leaves nothing of --time {settings.time}",
            "SIGTERM comes that long before the end: give more time, or a shorter grace period.",
        )
    if settings.min_nodes > settings.nodes:
        raise DevkitError(
            f"--min-nodes {settings.min_nodes} is more than --nodes {settings.nodes}", "Give --nodes MIN:MAX."
        )
    if settings.min_nodes and settings.command and not settings.processes:
        raise DevkitError(
            "--min-nodes is for processes that torchrun starts, and starts again when a node is lost",
            "Give --processes auto, or leave it out.",
        )
    if settings.image and _IMAGE.fullmatch(settings.image) is None:
        raise DevkitError(
            f"--image {settings.image!r} is no name of an image",
            "Leave out the part before ://." if "://" in settings.image else "Write it as REGISTRY/NAME:TAG.",
        )
    _validate_variables(settings.env)
    _validate_command(settings)
    return settings


def _validate_command(settings: JobSettings) -> None:
    if not settings.command:
        for name in ("processes", "foreign_image", "workdir"):
            if getattr(settings, name):
                raise DevkitError(
                    f"{format_flag(name)} is for a command of your own: devkit finetune knows its processes, image and folder",
                    "Give the command after two dashes: -- python train.py",
                )
        return
    if settings.workdir and not PurePosixPath(settings.workdir).is_absolute():
        raise DevkitError(f"--workdir {settings.workdir!r} is no absolute path", "Such as --workdir /workspace")
    if not settings.command[0]:
        raise DevkitError("the command begins with an empty word", "Such as -- python train.py")
    if settings.processes not in ("", "auto") and not re.fullmatch(r"[1-9]\d{0,3}", settings.processes):
        raise DevkitError(f"--processes is {settings.processes!r}", "Give a number, or auto for one for each GPU.")
    if any(pattern.search(word) for word in settings.command for pattern in SECRETS):
        raise DevkitError(
            "the command holds what looks like a secret, and would be written into devkit.toml and every file",
            "Keep it where the engine keeps secrets; the hub's token is read from a file.",
        )


def validate_printable(settings: object) -> None:
    """Raise DevkitError for a control character in any text of these settings, or one too long for file formats."""
    kind: type = type(settings)
    for name in describe_settings(kind):
        value = getattr(settings, name)
        for text in value if isinstance(value, tuple) else (value,):
            if not isinstance(text, str):
                continue
            if len(text) > MAX_TEXT and name not in ("command", "env"):
                raise DevkitError(
                    f"{format_flag(name)} has {len(text)} characters", f"Give at most {MAX_TEXT}: names have fewer."
                )
            # A word of a command may be a script.
            shown = re.sub(r"[\n\t]", "", text) if name == "command" else text
            if any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in shown):
                raise DevkitError(
                    f"{format_flag(name)} {text!r} holds a line break or another invisible character",
                    "Write it on one line, in visible characters.",
                )


def has_mutable_tag(image: str) -> bool:
    """True if the name may mean another image tomorrow: it has neither digest nor tag, or the tag latest."""
    reference = _IMAGE.fullmatch(image)
    return reference is not None and not reference["digest"] and reference["tag"] in (None, ":latest")


def _validate_variables(variables: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for text in variables:
        name, mark, value = text.partition("=")
        if not mark or not name.isidentifier() or not name.isascii():
            raise DevkitError(f"--env {text!r} is no variable", "Write it as NAME=VALUE.")
        if name in seen:
            raise DevkitError(f"--env {name} is given twice", "Keep one of the two.")
        seen.add(name)
        if _RESERVED_VARIABLES.fullmatch(name):
            raise DevkitError(f"--env {name} is set by devkit or torchrun itself", "Leave it out.")
        if _SECRET_NAME.search(name) or any(pattern.search(value) for pattern in SECRETS):
            raise DevkitError(
                f"--env {name} looks like a secret, and would be written into devkit.toml and every file",
                "Keep it where the engine keeps secrets; the hub's token is read from a file, never from a variable.",
            )


def read_export_settings(
    document: Mapping[str, Any], text: str, target: ExportTarget, options: ExportOptions
) -> ExportSettings:
    """Read [job], overridden by [job.TARGET], overridden by flags.

    [job.TARGET] takes the job's settings, too: storage has another name on every engine. Raises DevkitError with line
    and column for unknown keys and wrong types.

    Args:
        document: the tables of devkit.toml.
        text: its text.
        target: the target.
        options: the flags given.
    """
    job_table, target_path = _require_table(document, (JOB_TABLE,), text), (JOB_TABLE, target.name)
    for key, value in job_table.items():
        if isinstance(value, Mapping) and key not in TARGETS:
            close = get_close_matches(key, TARGETS, n=1)
            raise DevkitError(
                f"{TableSource('devkit.toml', text, (JOB_TABLE,)).at(key)}: there is no target {key!r}",
                f"Did you mean [{JOB_TABLE}.{close[0]}]?" if close else f"The targets are {', '.join(TARGETS)}.",
            )
    target_table = _require_table(job_table, target_path, text)
    target_source = TableSource("devkit.toml", text, target_path)
    shared = {key: value for key, value in job_table.items() if key not in TARGETS}
    of_job = {
        key: value for key, value in target_table.items() if key.replace("-", "_") in describe_settings(JobSettings)
    }
    of_target = {key: value for key, value in target_table.items() if key not in of_job and key != OUTPUT_KEY}
    job = parse_table(shared, JobSettings, TableSource("devkit.toml", text, (JOB_TABLE,)))
    job |= parse_table(of_job, JobSettings, target_source) | dict(options.job)
    settings = target.settings(**parse_table(of_target, target.settings, target_source) | dict(options.target))
    validate_printable(settings)
    output = target_table.get(OUTPUT_KEY, "")
    if not isinstance(output, str):
        where = target_source.at(OUTPUT_KEY)
        raise DevkitError(f"{where}: output must be a string in quotes, not {output!r}", "Name a folder.")
    return ExportSettings(JobSettings(**job), settings, output)


def _require_table(parent: Mapping[str, Any], path: tuple[str, ...], text: str) -> Mapping[str, Any]:
    table = parent.get(path[-1], {})
    if not isinstance(table, Mapping):
        where = TableSource("devkit.toml", text, path[:-1]).at(path[-1])
        raise DevkitError(
            f"{where}: {'.'.join(path)} must be a table, not {table!r}",
            f"Write [{'.'.join(path)}] and its settings below.",
        )
    return table


def select_flags_to_store(
    document: Mapping[str, Any], target: ExportTarget, options: ExportOptions
) -> dict[tuple[str, ...], object]:
    """Return the given flags that differ from devkit.toml: their paths in it, and their values in TOML's types.

    A setting of the job is stored for all targets, in [job], unless [job.TARGET] has it, or it names an engine's own
    objects.
    """
    job_table = document.get(JOB_TABLE, {})
    target_table = job_table.get(target.name, {})
    stored: dict[tuple[str, ...], object] = {}

    def store(name: str, value: object, table: Mapping[str, Any], path: tuple[str, ...]) -> None:
        key = _find_key(name, table)
        if key not in table or table[key] != value:
            stored[*path, key] = value

    for name, value in options.job.items():
        if name in TARGET_SPECIFIC_SETTINGS or _find_key(name, target_table) in target_table:
            store(name, _to_toml(value), target_table, (JOB_TABLE, target.name))
        else:
            store(name, _to_toml(value), job_table, (JOB_TABLE,))
    for name, value in options.target.items():
        store(name, _to_toml(value), target_table, (JOB_TABLE, target.name))
    return stored


def describe_setting(path: tuple[str, ...], target: ExportTarget) -> str:
    """Return the meaning of the setting at a path in devkit.toml, for a comment beside it."""
    name = path[-1].replace("-", "_")
    settings = describe_settings(JobSettings) if name in describe_settings(JobSettings) else None
    return (settings or describe_settings(target.settings))[name][1].meaning


def _find_key(name: str, table: Mapping[str, Any]) -> str:
    """Return the setting's key as it is spelled in the table: with dashes, perhaps."""
    return next((key for key in table if key.replace("-", "_") == name), name)


def _to_toml(value: object) -> object:
    if isinstance(value, StrEnum | Path):
        return str(value)
    return [_to_toml(each) for each in value] if isinstance(value, tuple) else value
