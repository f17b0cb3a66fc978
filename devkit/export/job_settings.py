"""Settings of a job, whatever engine runs it: the table [job] of devkit.toml, and flags of the same names."""

import re
import shlex
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from devkit.errors import DevkitError
from devkit.export.targets import TARGETS, ExportTarget
from devkit.export.values import parse_duration, parse_size
from devkit.facts.secrets import contains_token, holds_secret
from devkit.facts.settings import SettingInfo, describe_settings, format_option, validate_ranges
from devkit.render.devkit_toml import DEVKIT_TOML
from devkit.render.toml_tables import TableSource, parse_table
from devkit.text import find_similar, suggest

WHAT, MACHINES = "What runs", "Machines"
"""The sections of the job's settings in the help."""


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """The settings of one job. "" and None leave the choice to devkit, which gives its reason.

    `gpus` are those of one node. `models`, `data` and `checkpoints` name storage as the engine does: a claim in
    Kubernetes, a folder in Slurm, a bucket or volume elsewhere.
    """

    name: Annotated[str, SettingInfo("Name of the job.", section=WHAT)] = ""
    image: Annotated[str, SettingInfo("The published image.", example="REGISTRY/NAME:TAG", section=WHAT)] = ""
    settings: Annotated[
        str, SettingInfo("Settings file for devkit finetune, in the project.", example="FILE.toml", section=WHAT)
    ] = ""
    command: Annotated[
        tuple[str, ...], SettingInfo("Command to run instead of devkit finetune: after two dashes.", has_flag=False)
    ] = ()
    processes: Annotated[
        str,
        SettingInfo(
            "Processes that torchrun starts on each node for your own command: a number, or auto for one per GPU. "
            "Without it, the command starts once on each node.",
            example="auto",
            has_flag=False,
        ),
    ] = ""
    foreign_image: Annotated[
        bool,
        SettingInfo("The image is not this project's: it has no devkit, no user dev and no /opt/venv.", has_flag=False),
    ] = False
    env: Annotated[
        tuple[str, ...],
        SettingInfo("Environment variable for the container. May be repeated.", example="NAME=VALUE", section=WHAT),
    ] = ()
    gpu: Annotated[
        str,
        SettingInfo(
            "GPU to request, such as H100. The memory estimate must show that the job fits on it.", section=MACHINES
        ),
    ] = ""
    gpus: Annotated[int, SettingInfo("GPUs on each node; 0 for none.", at_least=0, at_most=64, section=MACHINES)] = 1
    nodes: Annotated[int, SettingInfo("Number of nodes.", at_least=1, at_most=4096, section=MACHINES)] = 1
    time: Annotated[str, SettingInfo("Time limit for the run.", example="24h", section=MACHINES)] = "24h"
    grace: Annotated[
        str, SettingInfo("Time between SIGTERM and SIGKILL, to save a checkpoint.", example="120s", has_flag=False)
    ] = "120s"
    spot: Annotated[bool, SettingInfo("Run on spot nodes, which may be reclaimed at any time.", has_flag=False)] = False
    cpus: Annotated[int | None, SettingInfo("CPU cores on each node.", at_least=1, at_most=4096, has_flag=False)] = None
    memory: Annotated[
        str, SettingInfo("Memory of each node, instead of the estimate.", example="64Gi", has_flag=False)
    ] = ""
    models: Annotated[str, SettingInfo("Models from the hub: claim, folder or volume.", has_flag=False)] = ""
    data: Annotated[str, SettingInfo("The project with its data: claim, folder or volume.", has_flag=False)] = ""
    checkpoints: Annotated[str, SettingInfo("The output: claim, folder or volume.", has_flag=False)] = ""
    mount: Annotated[
        tuple[str, ...],
        SettingInfo(
            "Other storage, mounted at your own path. May be repeated.", example="SOURCE:/PATH", has_flag=False
        ),
    ] = ()
    workdir: Annotated[str, SettingInfo("Folder in the container where your own command starts.", has_flag=False)] = ""
    results: Annotated[str, SettingInfo("Folder in the project that your own command writes to.", has_flag=False)] = (
        "outputs"
    )
    shm: Annotated[str, SettingInfo("Shared memory of each node.", has_flag=False)] = ""
    models_size: Annotated[str, SettingInfo("Size of new storage for models.", has_flag=False)] = ""
    data_size: Annotated[str, SettingInfo("Size of new storage for the data.", has_flag=False)] = ""
    checkpoints_size: Annotated[str, SettingInfo("Size of new storage for the output.", has_flag=False)] = ""


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
class StoredSetting:
    """A setting that devkit.toml decided, and its place there: FILE:LINE."""

    name: str
    value: Any
    where: str

    def __str__(self) -> str:
        """Return NAME VALUE: FILE:LINE."""
        value = shlex.join(self.value) if isinstance(self.value, tuple) else self.value
        return f"{self.name} {str(value).lower() if isinstance(value, bool) else value}: {self.where}"


@dataclass(frozen=True)
class ExportSettings:
    """The settings of one export: the job's, the target's (of its settings class), and its folder, "" by default.

    `stored` are those that no flag gave.
    """

    job: JobSettings
    target: Any
    output: str = ""
    stored: tuple[StoredSetting, ...] = ()


def validate_job_settings(settings: JobSettings) -> JobSettings:
    """Return the settings. Raises DevkitError for those that no engine can run."""
    validate_ranges(settings)
    validate_printable(settings)
    for name in SIZE_SETTINGS:
        if text := getattr(settings, name):
            parse_size(text, format_option(JobSettings, name))
    if parse_duration(settings.grace, "--set grace") >= parse_duration(settings.time, "--time"):
        raise DevkitError(
            f"--set grace={settings.grace} leaves no time in --time {settings.time}",
            "SIGTERM comes that long before the end: allow more time, or a shorter grace period.",
        )
    if settings.gpu and not settings.gpus:
        raise DevkitError(f"--gpu {settings.gpu} and --gpus 0 contradict each other", "Remove one of them.")
    if settings.image and _IMAGE.fullmatch(settings.image) is None:
        raise DevkitError(
            f"--image {settings.image!r} is not an image name",
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
                    f"{format_option(JobSettings, name)} applies only to your own command; devkit finetune sets it automatically",
                    "Give the command after two dashes: -- python train.py",
                )
        return
    if settings.workdir and not PurePosixPath(settings.workdir).is_absolute():
        raise DevkitError(f"--set workdir {settings.workdir!r} is not an absolute path", "For example /workspace.")
    if not settings.command[0]:
        raise DevkitError("the command begins with an empty word", "Example: -- python train.py")
    if settings.processes not in ("", "auto") and not re.fullmatch(r"[1-9]\d{0,3}", settings.processes):
        raise DevkitError(f"--set processes is {settings.processes!r}", "Give a number, or auto for one per GPU.")
    if any(contains_token(word) for word in settings.command) or holds_secret(" ".join(settings.command)):
        raise DevkitError(
            "the command seems to contain a secret, which would be written into devkit.toml and every file",
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
                    f"{format_option(kind, name)} has {len(text)} characters",
                    f"Give at most {MAX_TEXT}: names are shorter.",
                )
            # A word of a command may be a script.
            shown = re.sub(r"[\n\t]", "", text) if name == "command" else text
            if any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in shown):
                raise DevkitError(
                    f"{format_option(kind, name)} {text!r} contains a line break or another invisible character",
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
            raise DevkitError(f"--env {text!r} is not a variable", "Write it as NAME=VALUE.")
        if name in seen:
            raise DevkitError(f"--env {name} is given twice", "Remove one of them.")
        seen.add(name)
        if _RESERVED_VARIABLES.fullmatch(name):
            raise DevkitError(f"--env {name} is set by devkit or torchrun itself", "Leave it out.")
        if _SECRET_NAME.search(name) or holds_secret(f"{name}={value}"):
            raise DevkitError(
                f"--env {name} looks like a secret, which would be written into devkit.toml and every file",
                "Keep it where the engine keeps secrets; the hub's token is read from a file, never from a variable.",
            )


def read_export_settings(
    document: Mapping[str, Any], text: str, target: ExportTarget, given: Mapping[str, Any]
) -> ExportSettings:
    """Read [job], overridden by [job.TARGET], overridden by flags.

    [job.TARGET] takes the job's settings, too: storage has another name on every engine. `document` are the tables of
    devkit.toml, `text` its text. Raises DevkitError with line and column for unknown keys and wrong types.
    """
    job_table = _require_table(document, (JOB_TABLE,), text)
    for key, value in job_table.items():
        if isinstance(value, Mapping) and key not in TARGETS:
            close = [f"[{JOB_TABLE}.{each}]" for each in find_similar(key, TARGETS, count=1)]
            raise DevkitError(
                f"{TableSource(DEVKIT_TOML, text, (JOB_TABLE,)).at(key)}: the target {key!r} does not exist",
                suggest(close, f"The targets are {', '.join(TARGETS)}."),
            )
    own_path = (JOB_TABLE, target.name)
    own_table = _require_table(job_table, own_path, text)
    source, own_source = (TableSource(DEVKIT_TOML, text, path) for path in (own_path[:1], own_path))
    shared = {key: value for key, value in job_table.items() if key not in TARGETS}
    of_job = {key: value for key, value in own_table.items() if _to_name(key) in describe_settings(JobSettings)}
    of_target = {key: value for key, value in own_table.items() if key not in of_job and key != OUTPUT_KEY}
    values = parse_table(shared, JobSettings, source)
    values |= parse_table(of_job, JobSettings, own_source) | parse_table(of_target, target.settings, own_source)
    places = {_to_name(key): source.at(key) for key in shared} | {
        _to_name(key): own_source.at(key) for key in own_table
    }
    stored = tuple(
        StoredSetting(name, value, places[name].rpartition(":")[0])
        for name, value in values.items()
        if name not in given
    )
    values |= given
    settings = target.settings(
        **{name: values.pop(name) for name in describe_settings(target.settings) if name in values}
    )
    validate_printable(settings)
    output = own_table.get(OUTPUT_KEY, "")
    if not isinstance(output, str):
        where = own_source.at(OUTPUT_KEY)
        raise DevkitError(f"{where}: output must be a string in quotes, not {output!r}", "Name a folder.")
    return ExportSettings(JobSettings(**values), settings, output, stored)


def _require_table(parent: Mapping[str, Any], path: tuple[str, ...], text: str) -> Mapping[str, Any]:
    table = parent.get(path[-1], {})
    if not isinstance(table, Mapping):
        where = TableSource(DEVKIT_TOML, text, path[:-1]).at(path[-1])
        raise DevkitError(
            f"{where}: {'.'.join(path)} must be a table, not {table!r}",
            f"Write [{'.'.join(path)}] and its settings below.",
        )
    return table


def select_flags_to_store(
    document: Mapping[str, Any], target: ExportTarget, given: Mapping[str, Any]
) -> dict[tuple[str, ...], object]:
    """Return the given flags that differ from [job.TARGET]: their paths in devkit.toml, and their values in TOML's types.

    They are stored for this target alone: a job for another one is another job.
    """
    table = document.get(JOB_TABLE, {}).get(target.name, {})
    stored: dict[tuple[str, ...], object] = {}
    for name, value in given.items():
        key = next((key for key in table if _to_name(key) == name), name)
        if key not in table or table[key] != _to_toml(value):
            stored[JOB_TABLE, target.name, key] = _to_toml(value)
    return stored


def describe_setting(name: str, target: ExportTarget) -> str:
    """Return the meaning of a setting, for a comment beside it in devkit.toml."""
    return (describe_settings(JobSettings) | describe_settings(target.settings))[_to_name(name)][1].meaning


def _to_name(key: str) -> str:
    """Return the setting's name of a key that may be spelled with dashes."""
    return key.replace("-", "_")


def _to_toml(value: object) -> object:
    if isinstance(value, StrEnum | Path):
        return str(value)
    return [_to_toml(each) for each in value] if isinstance(value, tuple) else value
