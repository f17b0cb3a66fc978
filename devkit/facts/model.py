"""Facts: everything devkit knows about one machine, host or container, at one moment, and as JSON and back."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from devkit.facts.decode import InvalidValue, MissingValue, describe_type, get_field_decoders, get_field_types
from devkit.facts.engine import CdiSpec, Clients, Compose, Engine, EngineFailure, ResolvedService, Toolkit
from devkit.facts.gpu import Amd, Driver, Gpu, KernelLog, NvmlAnswer, NvmlFailure
from devkit.facts.machine import Container, Limits, Python, Storage, System, Wsl
from devkit.facts.project import Project
from devkit.facts.runs import Deep, Hub, ProgramFailure, Trials
from devkit.facts.values import NOT_READ, ComputeCapability, Release, Unknown
from devkit.formats.jsonc import format_json_error


@dataclass(frozen=True)
class Facts:
    """One machine at one moment. `taken_at` is ISO 8601, UTC; `devkit` the version that read it."""

    taken_at: str
    devkit: str
    system: System | Unknown
    driver: Driver | Unknown
    nvml: NvmlAnswer | NvmlFailure | Unknown
    engine: Engine | EngineFailure | Unknown
    compose: Compose | Unknown | None
    toolkit: Toolkit | Unknown
    cdi: tuple[CdiSpec, ...] | Unknown
    wsl: Wsl | Unknown | None
    """None when this is not WSL 2."""
    container: Container | Unknown | None
    """None when this is not a container."""
    python: Python | Unknown
    storage: Storage | Unknown
    kernel_log: KernelLog | Unknown = NOT_READ
    clients: Clients | Unknown = NOT_READ
    limits: Limits | Unknown = NOT_READ
    project: Project | Unknown | None = NOT_READ
    """None when no project's folder was looked into."""
    hub: Hub | Unknown = NOT_READ
    deep: Deep | Unknown = NOT_READ
    """Unknown without --deep."""
    trials: Trials | Unknown = NOT_READ
    """Unknown where no container was started."""
    compose_config: tuple[ResolvedService, ...] | ProgramFailure | Unknown = NOT_READ
    """The project's services as Compose resolves them, or why it refuses the project."""
    expected_gpus: int | Unknown = NOT_READ
    """How many GPUs should answer, where the user says so."""
    programs: tuple[ProgramFailure, ...] | Unknown = NOT_READ
    """Programs that GPU containers need and that cannot run."""
    amd: Amd | Unknown | None = NOT_READ
    """None when the kernel shows no GPU of AMD's that computes."""
    inside: "Facts | Unknown | None" = None
    """The running dev container of the project, read from its inside; None when none runs."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that answer; empty when NVML does not."""
        if not isinstance(self.nvml, NvmlAnswer):
            return ()
        return tuple(gpu for gpu in self.nvml.gpus if isinstance(gpu, Gpu))


FACTS_SCHEMA = "devkit.facts/1"
NOT_RECORDED = "not recorded"

_AS_TEXT = (Release, ComputeCapability)
_NEVER_TAGGED = (Unknown, *_AS_TEXT)


class InvalidFacts(ValueError):  # noqa: N818 - named for what was read, as a user would say it
    """A text that is not the facts of a machine. `path` is the wrong field, such as `driver.loaded`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem


def format_facts(facts: Facts) -> str:
    """Format the facts as one JSON document, versions as text and unknowns as `{"unknown": reason}`."""
    return json.dumps({"schema": FACTS_SCHEMA, **_plain_fields(facts)}, indent=2, ensure_ascii=False) + "\n"


def parse_facts(text: str | bytes) -> Facts:
    """Parse a JSON document that `format_facts` wrote, in this release or another.

    Fields that this release does not know are ignored; ones that it misses become `Unknown`. Raises InvalidFacts.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFacts("", f"not JSON: {format_json_error(error)}") from error
    return parse_facts_document(document)


def parse_facts_document(document: object) -> Facts:
    """Parse a document that is JSON already, like `parse_facts`. Raises InvalidFacts."""
    if not isinstance(document, dict):
        raise InvalidFacts("", f"expected an object, got {_named(document)}")
    if document.get("schema") != FACTS_SCHEMA:
        shown = repr(document["schema"]) if "schema" in document else "none"
        raise InvalidFacts("schema", f"expected {FACTS_SCHEMA!r}, got {shown}")
    try:
        facts: Facts = _decode_record(document, Facts)
    except InvalidValue as error:
        is_missing = isinstance(error, MissingValue)
        problem = "missing" if is_missing else f"expected {error.expected}, got {_named(error.value)}"
        raise InvalidFacts(_format_path(error.path), problem) from None
    return facts


def _plain_fields(record: Any) -> dict[str, object]:  # noqa: ANN401 - any of the fact types
    return {field.name: _plain(getattr(record, field.name)) for field in dataclasses.fields(record)}


def _plain(value: object) -> object:
    if isinstance(value, Unknown):
        return {"unknown": value.reason, **({"is_lost": True} if value.is_lost else {})}
    if isinstance(value, _AS_TEXT):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {"type": type(value).__name__, **_plain_fields(value)}
    return value


def _decode_record(value: Mapping[str, Any], kind: Any) -> Any:  # noqa: ANN401 - an instance of `kind`
    """Decode a record, ignoring fields that this release does not know; absent ones are unknown where they can be."""
    types, found = get_field_types(kind), {}
    for name, decoder in get_field_decoders(kind, _decode_object).items():
        if name in value:
            try:
                found[name] = decoder(value[name])
            except InvalidValue as error:
                raise error.within(name) from None
            if name.endswith("_bytes") and isinstance(found[name], int) and found[name] < 0:
                raise InvalidValue("a number of bytes", value[name]).within(name)
        elif Unknown in get_args(types[name]):
            found[name] = Unknown(NOT_RECORDED)
        else:
            raise MissingValue(name)
    return kind(**found)


def _decode_object(value: Mapping[str, Any], options: tuple[Any, ...]) -> Any:  # noqa: ANN401 - one of `options`
    """Decode an object as the record that its "type" names, or as an unknown value."""
    if "unknown" in value and value.keys() <= {"unknown", "is_lost"} and Unknown in options:
        if not isinstance(value["unknown"], str):
            raise InvalidValue("a reason", value["unknown"]).within("unknown")
        return Unknown(value["unknown"], value.get("is_lost") is True)
    records = [option for option in options if dataclasses.is_dataclass(option) and option not in _NEVER_TAGGED]
    record = next((option for option in records if getattr(option, "__name__", "") == value.get("type")), None)
    if record is None:
        raise InvalidValue(describe_type(*options), value.get("type", value))
    return _decode_record(value, record)


def _format_path(path: tuple[str | int, ...]) -> str:
    """Format keys as in "nvml.gpus[0].index"."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def _named(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value)
