"""What a job is asked to be, whatever engine runs it: the table [job] of devkit.toml, and flags of the same names."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from devkit.errors import DevkitError
from devkit.export.quantities import bytes_in, seconds_in
from devkit.facts.redact import SECRETS
from devkit.facts.said import Said, check_ranges, described, flag_of

ENGINE_WORDS = ("models", "data", "checkpoints")
"""Settings in one engine's own words: typed for one target, they are kept in its table, [job.TARGET], alone."""


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
    cpus: Annotated[int | None, Said("Processor cores on each node.", at_least=1, at_most=4096)] = None
    memory: Annotated[str, Said("Memory of each node, in place of the estimate's.", example="64Gi")] = ""
    shm: Annotated[str, Said("Shared memory of each node.", example="8Gi")] = ""
    models: Annotated[str, Said("Where models from the hub are kept: claim, folder or volume.")] = ""
    data: Annotated[str, Said("Where the project with its data lies: claim, folder or volume.")] = ""
    checkpoints: Annotated[str, Said("Where the output goes: claim, folder or volume.")] = ""
    models_size: Annotated[str, Said("Size of new storage for models.", example="200Gi")] = ""
    data_size: Annotated[str, Said("Size of new storage for the data.", example="50Gi")] = ""
    checkpoints_size: Annotated[str, Said("Size of new storage for the output.", example="100Gi")] = ""
    env: Annotated[tuple[str, ...], Said("Variable of the container. Repeat.", example="NAME=VALUE")] = ()


SIZES = ("memory", "shm", "models_size", "data_size", "checkpoints_size")

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


def checked(settings: JobSettings) -> JobSettings:
    """`settings` when they can be a job at all. Raises DevkitError for what no engine could run."""
    check_ranges(settings)
    check_texts(settings)
    for name in SIZES:
        if text := getattr(settings, name):
            bytes_in(text, flag_of(name))
    if seconds_in(settings.grace, "--grace") >= seconds_in(settings.time, "--time"):
        raise DevkitError(
            f"--grace {settings.grace} leaves nothing of --time {settings.time}",
            "The warning comes so long before the end; give more time, or a shorter grace.",
        )
    _check_image(settings.image)
    _check_variables(settings.env)
    return settings


def check_texts(settings: object) -> None:
    """Raises DevkitError for a control character in any text of these settings: no format writes it down alike."""
    kind: type = type(settings)
    for name in described(kind):
        for text in _texts(getattr(settings, name)):
            if any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in text):
                raise DevkitError(
                    f"{flag_of(name)} {text!r} holds a line break or another character that cannot be seen",
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


def is_moving(image: str) -> bool:
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
