"""The facts that a log states, each with its line, under the names that the facts of a machine have."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from devkit.compat.specifiers import canonicalize_name
from devkit.doctor.problems import build_unknown_facts, build_unread
from devkit.doctor.signatures.log_text import Words
from devkit.facts.decode import decode_fields
from devkit.facts.engine import Endpoint, Engine, EngineKind
from devkit.facts.machine import Distribution, Platform, System
from devkit.facts.model import Facts
from devkit.facts.values import ComputeCapability, Release, Unknown
from devkit.formats.documents import load

MAX_READ = 128 * 1024
"""Characters at either end of a text in which facts are looked for."""
MAX_ABOVE = 20
"""Lines above an error in which a value belongs to it where a text has others."""
MOST = 0.75
"""Share of a GPU's used memory from which one process is why it is full."""
MAX_STATED = 200
"""Facts of one name that are kept."""


@dataclass(frozen=True)
class _Reading:
    """How a fact is found, as `facts.toml` says it."""

    pattern: str
    is_lowered: bool = False
    words: tuple[str, ...] = ()
    takes_first: bool = False

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)


READINGS: Mapping[str, _Reading] = {
    name: _Reading(**decode_fields(row, _Reading)) for name, row in load(__package__, "facts").items()
}
_TAKE_FIRST = tuple(name for name, each in READINGS.items() if each.takes_first)
_COMPUTED = ("needed_cuda", "isolated_build", "held_here")
FACT_NAMES = (*READINGS, *_COMPUTED, "solved", "moved", "tried", "engine", "form", "command")
"""Names that conditions and sentences of rows may use, besides the captures of their texts."""
_VARIABLE = re.compile(
    r"\b((?:CUDA|NCCL|NVIDIA|TORCH|PYTORCH|HF|VLLM|BNB|XLA|UV|PIP|LD|TF|OMP|GLOO|SLURM|DOCKER)_[A-Z0-9_]{2,50})"
    r"(?: set by environment to |=)[\"']?([^\s\"']{1,200})"
)
_COMMAND = re.compile(
    r"(?:^|(?<=\s))(?:[\w.-]{1,40}@[\w.-]{1,60}:?[^\s$#]{0,80}[$#] ?|\([\w.-]{1,30}\) [^$#\n]{0,60}[$#] ?|[$#>] )?"
    r"((?:sudo )?(?:docker(?:-compose)?|podman|nerdctl|ctr|kubectl|helm|k3s|minikube|apptainer|singularity|srun|sbatch|enroot"
    r"|pip3?|uv|conda|mamba|apt-get|apt|dnf|yum|zypper|pacman|snap|torchrun|accelerate|vllm|python3?|devcontainer) .{1,200})"
)
_PROMPT = re.compile(r"^(?:[\w.-]{1,40}@[\w.-]{1,60}:?[^\s$#]{0,80}[$#]|\([\w.-]{1,30}\) .{0,60}[$#]|[$#>+]) ?")

_SIGNS = load(__package__, "engines")
_ENGINES = {name: re.compile(words) for name, words in _SIGNS["words"].items()}
_FORMS = {name: re.compile(words) for name, words in _SIGNS["form"].items()}
_DOCKERS = ("docker", "snap", "rootless", "desktop")
_NOT_SHOWN = "the text does not show it"
PACKAGES = (
    "torch", "torchvision", "torchaudio", "triton", "transformers", "tokenizers", "accelerate", "peft", "trl",
    "datasets", "bitsandbytes", "flash-attn", "xformers", "deepspeed", "vllm", "sglang", "numpy", "tensorflow", "jax",
    "jaxlib", "onnxruntime-gpu", "safetensors", "huggingface-hub", "diffusers", "unsloth", "lightning",
    "nvidia-container-toolkit", "libnvidia-container", "containerd", "runc", "docker-ce", "podman", "apptainer",
    "nvidia-fabricmanager",
)  # fmt: skip
"""Packages whose versions are facts of a text; `find_version` finds those of any other."""


@dataclass(frozen=True)
class TextFact:
    """A fact that a text states, and the number of the line (0: unknown)."""

    name: str
    value: str
    line: int = 0


@dataclass(frozen=True)
class TextFacts:
    """The facts that a text states. One that it states several times with different values counts as not stated.

    `machine` are the facts of the machine that the text comes from, where they are known.
    """

    stated: tuple[TextFact, ...] = ()
    machine: Facts | None = None
    lowered: str = ""
    read: Mapping[str, str] = field(default_factory=dict)
    """What the releases of a library that were read say about a name that the text misses, and `evidence` how it was seen."""
    evidence: tuple[str, ...] = ()

    def list_values(self, name: str) -> tuple[str, ...]:
        """Return the values of a fact, in the order of the text."""
        return tuple(dict.fromkeys(each.value for each in self.stated if each.name == name))

    def find(self, name: str) -> str:
        """Return the value of a fact, "" where the text states none or several."""
        values = self.list_values(name)
        return values[0] if len(values) == 1 or (values and name in _TAKE_FIRST) else ""

    def find_above(self, name: str, line: int) -> str:
        """Return the last value of a fact in the lines directly above one, "" for none."""
        near = (each.value for each in reversed(self.stated) if each.name == name and 0 <= line - each.line < MAX_ABOVE)
        return next(near, "")

    def find_version(self, package: str) -> str:
        """Return the version of a package, in any form in which tools print it; "" for none or several."""
        versions = set(read_versions(self.lowered, package))
        return versions.pop() if len(versions) == 1 else ""

    @cached_property
    def driver(self) -> Release | None:
        """The driver's version."""
        return _parse(self.find("driver"))

    @cached_property
    def reported_cuda(self) -> Release | None:
        """The newest CUDA that the driver runs."""
        if found := self.find("found_cuda"):  # The number by which the CUDA API counts a version: 12080 is 12.8.
            return Release.parse(f"{int(found) // 1000}.{int(found) % 1000 // 10}")
        return _parse(self.find("reported_cuda"))

    @cached_property
    def capabilities(self) -> tuple[ComputeCapability, ...]:
        """The compute capabilities of the GPUs."""
        return tuple(sorted({parse_capability(text) for text in self.list_values("capability")}))

    @cached_property
    def needed_cuda(self) -> str:
        """The first CUDA that knows the GPU of the text, where the CUDA that it names is older; "" for none."""
        named = self.find("cuda_of_torch") or self.find("torch_build").removeprefix("cu")
        if not named or not (self.find("gpu") or self.capabilities):
            return ""
        from devkit.compat.gpus import find_gpu
        from devkit.compat.version_tables import load_tables

        gpu = find_gpu(self.find("gpu")) if self.find("gpu") else None
        capabilities = self.capabilities or ((gpu.capability,) if gpu else ())
        rows = [row for each in capabilities if (row := load_tables().driver.capabilities.get(each))]
        cuda = Release.parse(named if "." in named else f"{named[:-1]}.{named[-1]}") if named[0].isdigit() else None
        first = max((row.first_cuda for row in rows), default=None)
        return str(first) if first is not None and cuda is not None and cuda < first else ""

    @cached_property
    def isolated_build(self) -> str:
        """The package of the text that compiles against torch, and that pip builds isolated from the installed one; "" for none."""
        named = {canonicalize_name(each) for each in self.list_values("named:package")}
        if not named or "no-build-isolation" in self.lowered:
            return ""
        from devkit.compat.version_tables import load_tables

        rows = load_tables().imports.compiled
        return min(named.intersection(name for row in rows for name in row.distributions), default="")

    @property
    def held_here(self) -> str:
        """Say that the process itself holds most of what is used of a full GPU, by the numbers of the text; "" otherwise."""
        # torch writes "1.12 GiB".
        sizes = (self.find(name).partition(" ") for name in ("gpu_memory", "free_memory", "held_memory"))
        total, free, held = (float(size or 0) * {"GiB": 1024, "MiB": 1}.get(unit, 0) for size, _, unit in sizes)
        shown = f"this process holds {self.find('held_memory')} of {self.find('gpu_memory')}"
        return shown if total and held > MOST * (total - free) else ""

    @property
    def python(self) -> str | None:
        """The Python release, such as 3.11."""
        return self.find("python") or None

    @property
    def processor(self) -> str | None:
        """The processor architecture: x86_64 or aarch64."""
        found = {{"amd64": "x86_64", "arm64": "aarch64"}.get(each, each) for each in self.list_values("machine")}
        return found.pop() if len(found) == 1 else None

    @property
    def engine(self) -> str:
        """The engine that runs the containers, "" for none."""
        return self.find("engine")

    def complete(self, other: "TextFacts") -> "TextFacts":
        """Return these facts, with those of `other` where there are none."""
        names = {each.name for each in self.stated}
        if names & {"driver", "reported_cuda", "found_cuda"}:
            names |= {"driver", "reported_cuda"}
        added = tuple(each for each in other.stated if each.name not in names)
        return replace(self, stated=self.stated + added, machine=self.machine or other.machine)

    def as_captures(self) -> dict[str, str]:
        """Return the facts that a text states once, by name, for conditions and sentences."""
        names = dict.fromkeys(each.name for each in self.stated if ":" not in each.name)
        known = {name: value for name in names if (value := self.find(name))}
        known |= {name: value for name in _COMPUTED if (value := getattr(self, name))}
        return known | {name: self.list_values(name)[0] for name in _TAKE_FIRST if name in names}

    @cached_property
    def facts(self) -> Facts:
        """The facts as those of a machine, Unknown where the text says nothing."""
        base = self.machine or build_unknown_facts()
        distribution, engine = self.find("distribution"), self.engine
        if (distribution or self.find("wsl")) and isinstance(base.system, Unknown):
            system = build_unread(
                System,
                _NOT_SHOWN,
                platform=Platform.WSL2 if self.list_values("wsl") else Platform.LINUX,
                kernel=self.find("kernel"),
                machine=self.processor or "",
                distribution=Distribution(distribution, (), "", distribution) if distribution else Unknown(_NOT_SHOWN),
            )
            base = replace(base, system=system)
        if engine in (*_DOCKERS, "podman") and not isinstance(base.engine, Engine):
            kinds = {"podman": EngineKind.PODMAN, "desktop": EngineKind.DOCKER_DESKTOP}
            shown = build_unread(
                Engine,
                _NOT_SHOWN,
                endpoint=Endpoint("", ""),
                kind=kinds.get(engine, EngineKind.DOCKER),
                is_rootless=engine == "rootless",
                is_snap=engine == "snap",
            )
            base = replace(base, engine=shown)
        if base is not build_unknown_facts() and self.machine is None and not self.find("inside"):
            base = replace(base, container=None)
        return base


def _parse(version: str) -> Release | None:
    return Release.parse(version) if version else None


def read_text_facts(words: Words) -> TextFacts:
    """Read the facts of a text in one pass over its words."""
    shown = words.shown
    spans = [(0, len(shown))]
    if len(shown) > 2 * MAX_READ:
        spans = [(0, MAX_READ), (len(shown) - MAX_READ, len(shown))]
    stated = [
        TextFact(name, value, words.find_line(start + position))
        for start, end in spans
        for name, value, position in _read(shown[start:end], words.lowered[start:end])
    ]
    lowered = "\n".join((*(words.lowered[start:end] for start, end in spans), *dict.fromkeys(words.programs)))
    for line, whole, _ in islice(words.list_lines(), 4000):  # the command lines of the user
        text = whole[:400]
        found = _PROMPT.match(text)
        command = _COMMAND.match(text[found.end() :] if found else text)
        if command and (found or not re.search(r": |\berror\b", text[:60], re.IGNORECASE)):
            stated.append(TextFact("command", command[1].strip(), line))
    engine = _find_engine([each.value for each in stated if each.name == "command"], lowered)
    form = next((form for form, pattern in _FORMS.items() if pattern.search(lowered)), "")
    stated += [TextFact(name, value) for name, value in (("engine", engine), ("form", form)) if value]
    return TextFacts(tuple(stated), lowered=lowered)


def _read(text: str, lowered: str) -> Iterator[tuple[str, str, int]]:
    for name, each in READINGS.items():
        # Looking for words takes a hundredth of the time that a pattern takes.
        if each.words and not any(word in lowered for word in each.words):
            continue
        for count, found in enumerate(each.compiled.finditer(lowered if each.is_lowered else text)):
            if count == MAX_STATED:
                break
            value = found[found.lastindex or 1]
            if name == "distribution" and found[2]:
                signs = {".fc": "fedora", "-arch": "arch", "-zen": "arch", "pacman": "arch", "zypper": "opensuse"}
                value = next((each for sign, each in signs.items() if sign in found[0]), "rhel")
            elif name == "distribution":
                value = str(_SIGNS["distribution"].get(found[1].lower(), "rhel"))
            elif name == "python":  # a tag such as cp311 has no dot
                value = f"3.{value[1:].removeprefix('.')}"
            yield name, value, found.start()
    for found in _VARIABLE.finditer(text):
        yield f"variable:{found[1]}", found[2], found.start()
    for package in PACKAGES:
        if package in lowered or package.replace("-", "_") in lowered:
            for version, position in read_versions(lowered, package).items():
                yield f"package:{package}", version, position


def read_versions(lowered: str, package: str) -> dict[str, int]:
    """Return the installed versions of a package that a text in lower case names, with their positions.

    A bound of a requirement (>=, <) is not the version of an installed package, and neither is what another package requires.
    """
    name = re.escape(package).replace(r"\-", "[-_]")
    pattern = re.compile(
        rf"(?<![\w./-])(?<!requires )(?:{name})(?:==| {{0,20}}[:@] ?v?| {{1,40}}\(?v?|-|[ :]+version[: ]+| {{0,3}}[|│] {{0,20}})"
        rf"(\d{{1,4}}\.\d{{1,4}}(?:[\w.]*\w)?(?:\+[\w.]{{1,20}})?)(?!\w|\.\w)"
    )
    found: dict[str, int] = {}
    for each in pattern.finditer(lowered):
        before = lowered[max(0, each.start() - 24) : each.start()]
        if not re.search(r"(?:requires?|needs?|depends on|because|and|or|you require) $", before) or "have" in before:
            found.setdefault(each[1], each.start())
    return found


def _find_engine(commands: list[str], text: str) -> str:
    """Return the engine of a text: that of the user's own commands, and among Docker's kinds the one that the text names."""
    named = [name for name, pattern in _ENGINES.items() if pattern.search(text)]
    programs = [command.removeprefix("sudo ").split(" ", 1)[0] for command in commands]
    own = [str(_SIGNS["program"][program]) for program in programs if program in _SIGNS["program"]]
    if own:
        return own[0]
    if any(program.startswith("docker") for program in programs) or "error response from daemon" in text:
        return next((name for name in named if name in _DOCKERS), "docker")
    return named[0] if named else ""


def parse_capability(text: str) -> ComputeCapability:
    """Parse 8.6, 86, sm_86 or compute_120a."""
    text = re.sub(r"^(?:sm|compute)?_?", "", text).rstrip("af")
    return ComputeCapability.parse(text if "." in text else f"sm_{text}")
