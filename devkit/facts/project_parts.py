"""Parts of a project's container files, each with the file and the line where it stands."""

from enum import StrEnum

from devkit.facts.record import record


class RequestForm(StrEnum):
    """How a file asks for a GPU."""

    GPUS_FLAG = "--gpus"
    RUNTIME = "runtime"
    CDI = "cdi"
    RESERVATION = "reservation"
    GPUS_KEY = "gpus"


@record
class GpuRequest:
    """One request for GPUs. `key` is the path of its value in the document, as a repair names it.

    `capabilities` is None where the form has none to give, () where they are missing.
    `condition` is the variable that decides whether this request is used, "" when it always is.
    """

    form: RequestForm
    path: str
    line: int
    key: tuple[str, ...]
    driver: str = ""
    count: str = ""
    device_ids: tuple[str, ...] = ()
    capabilities: tuple[str, ...] | None = None
    condition: str = ""


@record
class Key:
    """A key and the line where it stands."""

    name: str
    path: str
    line: int


@record
class Setting:
    """A key with its plain value."""

    name: str
    value: str
    path: str
    line: int


@record
class HostRequirement:
    """A key of hostRequirements; those of an object have names such as "gpu.memory".

    `kind` is how JSON types the value: text, number, bool, null, object, list. `value` is "" unless it is plain.
    """

    name: str
    kind: str
    value: str
    path: str
    line: int


@record
class RunArgument:
    """One item of runArgs. Values of environment variables in it are blanked."""

    text: str
    line: int


class Origin(StrEnum):
    """Where the value of a variable comes from."""

    LITERAL = "literal"
    VARIABLE = "variable"
    """Another variable, or the host's variable of the same name."""
    EMPTY = "empty"
    """Nothing, or a stand-in such as "changeme"."""


@record
class Variable:
    """An environment variable or build argument by name. `value` only for names that hold no secrets.

    `place` is what defines it: "ARG", "ENV", "environment", "containerEnv", "remoteEnv", "build argument".
    """

    name: str
    place: str
    path: str
    line: int
    origin: Origin
    value: str
    names_secret: bool
    holds_token: bool
    """Whether the value has the shape of an access token."""


@record
class Build:
    """How an image is built: paths relative to the project. `args` are its build arguments."""

    dockerfile: str
    context: str
    target: str
    args: tuple[Variable, ...]
    path: str
    line: int


@record
class Mount:
    """A volume or bind mount. `source` is "" for an anonymous volume; a variable in it stays as text.

    `exists` and `owner_uid` tell of the source of a bind mount on this side; None where they cannot be known.
    """

    kind: str
    source: str
    target: str
    path: str
    line: int
    exists: bool | None
    owner_uid: int | None


@record
class Command:
    """A lifecycle command: its stage, whether it runs nvidia-smi and would fail without."""

    stage: str
    path: str
    line: int
    needs_gpu: bool


@record
class Requirement:
    """A package for GPUs as a requirement file or a command names it, and the version that it asks for."""

    name: str
    specifier: str
    path: str
    line: int
