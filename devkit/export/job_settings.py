"""What a job is asked to be, whatever engine runs it: the table [job] of devkit.toml, and flags of the same names."""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from devkit.errors import DevkitError
from devkit.export.quantities import parse_duration, parse_size
from devkit.export.targets import TARGET_NAMES, ExportTarget
from devkit.facts.redact import SECRETS
from devkit.facts.settings import SettingInfo, describe_settings, format_flag, validate_ranges
from devkit.render.toml_tables import TableSource, parse_table

TARGET_SPECIFIC_SETTINGS = ("models", "data", "checkpoints")
"""Settings in one engine's own words: typed for one target, they are kept in its table, [job.TARGET], alone."""


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """The wishes of one job. "" and None leave the choice to devkit, which says it with its reason.

    `gpus` are those of one node. `models`, `data` and `checkpoints` name storage in the engine's own words: a claim
    in Kubernetes, a folder in Slurm, a bucket or volume elsewhere.
    """

    name: Annotated[str, SettingInfo("Name of the job.")] = ""
    image: Annotated[str, SettingInfo("The published image.", example="REGISTRY/NAME:TAG")] = ""
    settings: Annotated[str, SettingInfo("Settings of devkit finetune, in the project.", example="FILE.toml")] = ""
    gpu: Annotated[str, SettingInfo("GPU to ask for, such as H100. The estimate is held against it.")] = ""
    gpus: Annotated[int, SettingInfo("GPUs on each node; 0 for none.", at_least=0, at_most=64)] = 1
    nodes: Annotated[int, SettingInfo("Nodes that work together.", at_least=1, at_most=4096)] = 1
    time: Annotated[str, SettingInfo("Longest run.", example="24h")] = "24h"
    grace: Annotated[str, SettingInfo("Time between the warning and the kill, for a checkpoint.", example="120s")] = (
        "120s"
    )
    spot: Annotated[bool, SettingInfo("Run on nodes that may be taken back at any time.")] = False
    cpus: Annotated[int | None, SettingInfo("Processor cores on each node.", at_least=1, at_most=4096)] = None
    memory: Annotated[str, SettingInfo("Memory of each node, in place of the estimate's.", example="64Gi")] = ""
    shm: Annotated[str, SettingInfo("Shared memory of each node.", example="8Gi")] = ""
    models: Annotated[str, SettingInfo("Where models from the hub are kept: claim, folder or volume.")] = ""
    data: Annotated[str, SettingInfo("Where the project with its data lies: claim, folder or volume.")] = ""
    checkpoints: Annotated[str, SettingInfo("Where the output goes: claim, folder or volume.")] = ""
    models_size: Annotated[str, SettingInfo("Size of new storage for models.", example="200Gi")] = ""
    data_size: Annotated[str, SettingInfo("Size of new storage for the data.", example="50Gi")] = ""
    checkpoints_size: Annotated[str, SettingInfo("Size of new storage for the output.", example="100Gi")] = ""
    env: Annotated[tuple[str, ...], SettingInfo("Variable of the container. Repeat.", example="NAME=VALUE")] = ()


SIZE_SETTINGS = ("memory", "shm", "models_size", "data_size", "checkpoints_size")

_PATH = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d+)?/)?{_PATH}(?:/{_PATH})*"
    r"(?P<tag>:\w[\w.-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
"""Source: https://github.com/distribution/reference/blob/main/regexp.go"""

_OWN_VARIABLES = re.compile(
    r"PET_\w+|HF_TOKEN_PATH|HF_HOME|HF_HUB_CACHE|DEVKIT_EXIT_FILE|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
)
"""What the image, devkit's own command and torchrun set: another value would break what they rest on."""

_SECRET_NAME = re.compile(r"(?i)(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)(_|$)")


def validate_job_settings(settings: JobSettings) -> JobSettings:
    """`settings` when they can be a job at all. Raises DevkitError for what no engine could run."""
    validate_ranges(settings)
    validate_printable(settings)
    for name in SIZE_SETTINGS:
        if text := getattr(settings, name):
            parse_size(text, format_flag(name))
    if parse_duration(settings.grace, "--grace") >= parse_duration(settings.time, "--time"):
        raise DevkitError(
            f"--grace {settings.grace} leaves nothing of --time {settings.time}",
            "The warning comes so long before the end; give more time, or a shorter grace.",
        )
    _check_image(settings.image)
    _check_variables(settings.env)
    return settings


def validate_printable(settings: object) -> None:
    """Raises DevkitError for a control character in any text of these settings: no format writes it down alike."""
    kind: type = type(settings)
    for name in describe_settings(kind):
        for text in _texts(getattr(settings, name)):
            if any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in text):
                raise DevkitError(
                    f"{format_flag(name)} {text!r} holds a line break or another character that cannot be seen",
                    "Write it on one line, in characters that can be seen.",
                )


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - a setting's value
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        yield from (each for each in value if isinstance(each, str))


def _check_image(image: str) -> None:
    if image and _IMAGE.fullmatch(image) is None:
        has_scheme = "://" in image
        raise DevkitError(
            f"--image {image!r} is no name of an image",
            "Leave out what stands before ://." if has_scheme else "Write it as REGISTRY/NAME:TAG.",
        )


def has_mutable_tag(image: str) -> bool:
    """Whether the name may mean another image tomorrow: it has neither digest nor tag, or the tag latest."""
    found = _IMAGE.fullmatch(image)
    return found is not None and not found["digest"] and found["tag"] in (None, ":latest")


def _check_variables(variables: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for text in variables:
        name, mark, value = text.partition("=")
        if not mark or not name.isidentifier() or not name.isascii():
            raise DevkitError(f"--env {text!r} is no variable", "Write it as NAME=VALUE.")
        if name in seen:
            raise DevkitError(f"--env {name} is given twice", "Keep one of the two.")
        seen.add(name)
        if _OWN_VARIABLES.fullmatch(name):
            raise DevkitError(f"--env {name} is set by devkit or torchrun itself", "Leave it out.")
        if _SECRET_NAME.search(name) or any(pattern.search(value) for pattern in SECRETS):
            raise DevkitError(
                f"--env {name} looks like a secret, and would be written into devkit.toml and every file",
                "Keep it where the engine keeps secrets; the hub's token is read from a file, never from a variable.",
            )


# Names that engines take: DNS labels (RFC 1123), asked for by Kubernetes, and good enough elsewhere.

MAX_LABEL_LENGTH = 63
MAX_JOB_NAME_LENGTH = 52
"""A Job's own name is shorter: its pods add a dash and ten letters.
Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#creating-an-indexed-job"""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def validate_dns_label(name: str, flag: str, *, longest: int = MAX_JOB_NAME_LENGTH) -> str:
    """`name` when it is a DNS label. Raises DevkitError that proposes one."""
    if _LABEL.fullmatch(name) and len(name) <= longest:
        return name
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:longest].strip("-")
    hint = f"Such as {plain}." if plain else "Use a-z, 0-9 and hyphens."
    raise DevkitError(
        f"{flag} {name!r} is no DNS label: at most {longest} of a-z, 0-9 and hyphens, no hyphen at the ends", hint
    )


# The table [job] of devkit.toml: what it and typed flags wish for one target, and where typed flags are kept.

JOB_TABLE = "job"
OUTPUT_KEY = "output"
"""The key under [job.TARGET] for the folder of its files, relative to the project."""


@dataclass(frozen=True)
class ExportSettings:
    """What a target is asked to write. `own` is of its settings' class; `output` "" for its usual folder."""

    job: JobSettings
    own: Any
    output: str = ""


@dataclass(frozen=True)
class ExportOptions:
    """What was typed on the command line, by name of setting: of the job, and of the target alone."""

    job: Mapping[str, Any]
    own: Mapping[str, Any]


def read_export_settings(
    document: Mapping[str, Any], text: str, target: ExportTarget, typed: ExportOptions
) -> ExportSettings:
    """[job], over it [job.TARGET], over both the flags. `text` is what `document` was read from.

    [job.TARGET] knows the job's settings, too: storage has another name on every engine. Raises DevkitError with line
    and column for unknown keys and wrong types.
    """
    table = _table(document, (JOB_TABLE,), text)
    _check_targets(table, text)
    common = {key: value for key, value in table.items() if key not in TARGET_NAMES}
    inner = _table(table, (JOB_TABLE, target.table), text)
    wished = _values(common, JobSettings, text, (JOB_TABLE,))
    of_job = {key: value for key, value in inner.items() if _name(key) in describe_settings(JobSettings)}
    own = {key: value for key, value in inner.items() if key not in of_job and key != OUTPUT_KEY}
    wished |= _values(of_job, JobSettings, text, (JOB_TABLE, target.table)) | dict(typed.job)
    settings = target.settings(**_values(own, target.settings, text, (JOB_TABLE, target.table)) | dict(typed.own))
    validate_printable(settings)
    return ExportSettings(JobSettings(**wished), settings, _output(inner, text, target))


def select_flags_to_store(
    document: Mapping[str, Any], target: ExportTarget, typed: ExportOptions
) -> dict[tuple[str, ...], object]:
    """Where typed flags belong in devkit.toml, and their values in TOML's own types; only those that differ.

    A setting of the job belongs to all targets, in [job], unless [job.TARGET] has it, or it names storage in the
    target's own words.
    """
    common = document.get(JOB_TABLE, {})
    inner = common.get(target.table, {})
    found = dict(_kept(common, inner, target, typed))
    return {path: value for path, value in found.items() if _at(document, path) != value}


def _kept(
    common: Mapping[str, Any], inner: Mapping[str, Any], target: ExportTarget, typed: ExportOptions
) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in typed.job.items():
        spelled = _spelled(name, inner)
        if name in TARGET_SPECIFIC_SETTINGS or spelled in inner:
            yield (JOB_TABLE, target.table, spelled), _plain(value)
        else:
            yield (JOB_TABLE, _spelled(name, common)), _plain(value)
    for name, value in typed.own.items():
        yield (JOB_TABLE, target.table, _spelled(name, inner)), _plain(value)


def describe_setting(path: tuple[str, ...], target: ExportTarget) -> str:
    """What the setting at a path of `kept` means, for a comment beside it."""
    name = _name(path[-1])
    known = describe_settings(JobSettings)
    return (known[name] if name in known else describe_settings(target.settings)[name])[1].meaning


def _check_targets(table: Mapping[str, Any], text: str) -> None:
    """Raises DevkitError for a table of no target."""
    for key, value in table.items():
        if isinstance(value, Mapping) and key not in TARGET_NAMES:
            close = get_close_matches(key, TARGET_NAMES, n=1)
            raise DevkitError(
                f"{TableSource('devkit.toml', text, (JOB_TABLE,)).at(key)}: there is no target {key!r}",
                f"Did you mean [{JOB_TABLE}.{close[0]}]?" if close else f"The targets are {', '.join(TARGET_NAMES)}.",
            )


def _table(holder: Mapping[str, Any], path: tuple[str, ...], text: str) -> Mapping[str, Any]:
    found = holder.get(path[-1], {})
    if not isinstance(found, Mapping):
        raise DevkitError(
            f"{TableSource('devkit.toml', text, path[:-1]).at(path[-1])}: {'.'.join(path)} must be a table, not {found!r}",
            f"Write [{'.'.join(path)}] and its settings below.",
        )
    return found


def _values(table: Mapping[str, Any], settings: type, text: str, path: tuple[str, ...]) -> dict[str, Any]:
    return parse_table(table, settings, TableSource("devkit.toml", text, path))


def _output(inner: Mapping[str, Any], text: str, target: ExportTarget) -> str:
    found = inner.get(OUTPUT_KEY, "")
    if not isinstance(found, str):
        where = TableSource("devkit.toml", text, (JOB_TABLE, target.table)).at(OUTPUT_KEY)
        raise DevkitError(f"{where}: output must be a string in quotes, not {found!r}", "Name a folder.")
    return found


def _name(key: str) -> str:
    return key.replace("-", "_")


def _spelled(name: str, table: Mapping[str, Any]) -> str:
    """The setting's key as it stands in the table already: with dashes, perhaps."""
    return next((key for key in table if _name(key) == name), name)


def _plain(value: object) -> object:
    if isinstance(value, StrEnum | Path):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _at(document: Mapping[str, Any], path: tuple[str, ...]) -> object:
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
