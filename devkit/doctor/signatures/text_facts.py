"""The facts that a log states, each with its line, under the names that the facts of a machine have."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from devkit.doctor.problems import build_unknown_facts
from devkit.doctor.signatures.log_text import Words
from devkit.facts.engine import Engine, EngineKind
from devkit.facts.machine import Distribution, Platform, System
from devkit.facts.model import Facts
from devkit.facts.values import ComputeCapability, Release, Unknown

MAX_READ = 128 * 1024
"""Characters at either end of a text in which facts are looked for."""
MAX_STATED = 200
"""Facts of one name that are kept."""

_LOWERED: Mapping[str, str] = {
    "driver": (
        r"(?:driver version: ?|nvidia-smi |nvrm version: nvidia unix \w{1,12} (?:kernel module )? ?"
        r"|driver[ _]version[=: ]{1,2}|nvidia[ -]drivers?:? v?)(\d{3}\.\d{1,3}(?:\.\d{1,3})?)"
    ),
    "capability": (
        r"(?:cuda capability sm_|compute capability (?:of )?|cuda capability |compute[_ ]cap(?:ability)?[=: ]{1,2})"
        r"(\d{1,2}\.\d\b|\d{2,3}\b)"
    ),
    "kernel": r"(?:linux \S{1,64} |kernel version: |kernel[:=]? |uname -r:? )(\d{1,2}\.\d{1,3}\.\d{1,4}[\w.+-]{0,40})",
    "exit_code": r"exit(?:ed)?(?: with)?(?: non-zero)? (?:code|status)[: =]{0,2}(-?\d{1,3})\b",
    # What the user typed: a program that only asks for a restart has no prompt before the word.
    "rebooted": r"[#$] (?:sudo )?(reboot|shutdown -r now|init 6)\b",
    "wsl": r"(microsoft-standard|wsl ?[12]\b|wsl\.exe|/usr/lib/wsl/|/mnt/[cd]/)",
}
"""Regular expressions for the text in lower case."""
_EXACT: Mapping[str, str] = {
    "reported_cuda": r"CUDA Version: ?(\d{1,2}\.\d)\b",
    "found_cuda": r"found version (\d{4,5})\)",
    "cuda_toolkit": r"(?:/usr/local/cuda-|\brelease |CUDA Toolkit )(1\d\.\d|9\.\d)\b",
    "torch_build": r"\btorch\S{0,3}[ =:@-]{1,3}v?\d+\.\d+[\w.]{0,20}\+(cu\d{2,3}|cpu|rocm[\d.]{1,6})",
    "gpu": (
        r"\b((?:(?:[RG]TX|[rg]tx)(?: PRO)? ?A?\d{4}|GTX \d{3}"
        r"|Tesla [KMPTV]\d{1,3}|[ABHL]\d{2,3}S?|V100|P100|T4|GB10|G?B[23]00)(?: ?(?:Ti|SUPER))?)\b"
    ),
    "python": r"\b(?:[Pp]ython|cp|py) ?(3\.?(?:[89]|1[0-9]))\b",
    "machine": r"(?<![A-Za-z0-9])(x86_64|amd64|aarch64|arm64)(?![a-z0-9])",
    "cuda_major": r"\b(?:lib(?:cublas\w{0,4}|cudart|nvrtc)\.so\.|nvidia-[a-z-]{3,20}-cu)(1[1-9])\b",
    "cuda_of_torch": r"\b(?:torch|pytorch)\b.{0,40}?\bcuda[ =:]{0,2}(\d{1,2}\.\d)\b",
    "cgroup_version": r"Cgroup Version: ?([12])\b",
    "wsl_version": r"\* [\w.-]{1,60} (?:Running|Stopped) ([12])\b",
    "wsl_distribution": r"\* ([\w.-]{1,60}) (?:Running|Stopped) [12]\b",
    "mig_devices": r"\b(No MIG devices found)\b",
    "subordinate_ids": r"\b[\w.-]{1,32}:\d{4,10}:(\d{5,10})\b",
    "wanted_gpus": r"\bRequests: (?:[\w./-]{1,60}: {1,3}\w{1,20} ){0,4}nvidia\.com/gpu: {1,3}(\d{1,2})\b",
    "mig_uuid": r"\b(MIG-[0-9a-fG][\w/-]{7,80})",
    "inside": r"(root@[0-9a-f]{12}:|/\.dockerenv|\b(?:in|inside) (?:the|my|a) container\b|docker exec -|kubectl exec )",
    "gpu_uuid": r"(?<!MIG-)\b(GPU-[0-9a-f]{8}[0-9a-f-]{0,28})",
    "resource": r"\b((?:nvidia|amd)\.com/[\w.-]{1,40})(?!=)",
    "distribution": (
        r"(?<![:/\w-])(Ubuntu|Debian|Fedora|CentOS|Rocky Linux|AlmaLinux|RHEL|Red Hat Enterprise|Amazon Linux|openSUSE|SLES"
        r"|Arch Linux|NixOS)\b|((?<=[\d_])\.(?:el|fc)\d{1,2}|-arch\d|(?<![\w/-])pacman -S|(?<![\w/-])zypper )"
    ),
}
_REPOSITORY = r"([A-Za-z][\w.-]{0,60}/[\w.-]{2,90}\w)"
_IMAGE = r"((?:[\w.-]{1,60}(?::\d{2,5})?/){0,4}[\w.-]{1,80}:[\w.-]{1,100}|(?:[\w.-]{1,60}/){1,4}[\w.-]{1,80})"
_THINGS: Mapping[str, str] = {
    "named:model": (
        rf"(?:vllm serve |--model(?:-path)?[= ]|model_name_or_path[=: ]{{1,2}}|from_pretrained\([\"']|huggingface\.co/(?:api/models/)?)"
        rf"{_REPOSITORY}(?=[\s\"'/,)]|\.?$)"
    ),
    "named:image": rf"(?:[Pp]ull(?:ing)? image [\"']?|manifest for |\bFROM |docker pull |podman pull ){_IMAGE}(?=[\s\"']|$)",
    "named:pod": r"(?:\bkubectl (?:logs|describe pods?|exec(?: -it)?) (?:-n \S{1,60} )?|\bpod/)([a-z][a-z0-9.-]{2,80}[a-z0-9])\b",
    "named:container": r"\b(?:docker|podman) (?:logs|start|restart|inspect|exec(?: -it)?) ([A-Za-z][\w.-]{2,60})(?=\s|$)",
    "named:package": (
        r"(?:\bCollecting |Building wheel for |Failed building wheel for |Failed to build |[Pp]reparing metadata for )"
        r"[`']?([A-Za-z][\w.-]{1,60}?)(?=[=<>\[!~ (`']|$)"
    ),
    "named:url": r"\b(https?://[^\s\"'<>()\[\]]{4,200}[\w/])",
    "named:job": r"(?:Submitted batch job |StepId=|\bJOB |JobId=)(\d{1,9})\b",
    "named:node": r"(?:\bNode: {1,12}|node\(?s?\)? [\"'])([a-z][\w.-]{2,60})(?=[/\"'])",
}
"""What a command of a fix asks a person for, as <model>, where the text names it."""
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(source) for name, source in (*_LOWERED.items(), *_EXACT.items(), *_THINGS.items())
}
_NEEDED_WORDS: Mapping[str, tuple[str, ...]] = {
    "driver": ("driver", "nvidia-smi", "nvrm"),
    "capability": ("capability", "compute"),
    "kernel": ("linux", "kernel", "uname"),
    "exit_code": ("exit",),
    "rebooted": ("reboot", "shutdown", "init 6"),
    "wsl": ("wsl", "microsoft", "/mnt/"),
    "cuda_toolkit": ("cuda", "release "),
    "torch_build": ("torch",),
    "machine": ("x86_64", "amd64", "aarch64", "arm64"),
    "cuda_major": ("lib", "nvidia-"),
    "cuda_of_torch": ("torch",),
    "wsl_version": ("running", "stopped"),
    "wsl_distribution": ("running", "stopped"),
    "wanted_gpus": ("requests:",),
    "mig_uuid": ("mig-",),
    "inside": ("root@", "dockerenv", "container", "docker exec", "kubectl exec"),
    "gpu_uuid": ("gpu-",),
    "named:model": ("vllm serve", "--model", "model_name_or_path", "from_pretrained", "huggingface.co"),
    "named:image": ("image ", "manifest for", "from ", "docker pull", "podman pull"),
    "named:pod": ("kubectl ", "pod/"),
    "named:container": ("docker ", "podman "),
    "named:package": ("collecting ", "building wheel", "failed to build", "metadata for "),
    "named:url": ("http",),
    "named:job": ("job", "stepid"),
    "named:node": ("node",),
    "resource": (".com/",),
    "distribution": (
        *("ubuntu", "debian", "fedora", "centos", "linux", "rhel", "red hat", "opensuse", "sles", "nixos"),
        *(".el", ".fc", "-arch", "pacman", "zypper"),
    ),
}
"""In lower case, words without one of which a pattern finds nothing: looking for them takes a hundredth of its time."""
_FIRST_COUNTS = ("gpu_uuid", "inside", "mig_uuid", "wsl")
"""Facts of which one is enough, or the first serves."""
FACT_NAMES = (*_PATTERNS, "needed_cuda", "engine", "form", "command")
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

_ENGINES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "snap",
        re.compile(
            r"/snap/(?:bin/)?docker\b|/var/snap/docker|snap\.docker|snap (?:install|list|refresh|restart) docker"
            r"|docker snap\b|snap(?:'s)? docker\b"
        ),
    ),
    (
        "kubernetes",
        re.compile(
            r"kube(?:ctl|let|adm|rnetes|-system)|\b(?:k[38]s|rke2)\b|failedscheduling|crashloopbackoff|imagepullbackoff"
            r"|failedcreatepodsandbox|gpu-operator|nvidia-device-plugin|\bpods?[/ ]|nvidia\.com/gpu[\w.]{0,12}:"
        ),
    ),
    ("podman", re.compile(r"podman\b|libpod\b")),
    ("enroot", re.compile(r"enroot\b|pyxis\b")),
    ("apptainer", re.compile(r"apptainer\b|singularity\b")),
    (
        "rootless",
        re.compile(
            r"rootless docker|docker\W{0,3}rootless|dockerd-rootless|/run/user/\d{1,9}/docker\.sock|name=rootless\b"
        ),
    ),
    ("desktop", re.compile(r"docker[ -]desktop|desktop-linux")),
    ("containerd", re.compile(r"nerdctl\b|\bctr (?:run|images?|-n)\b")),
    (
        "docker",
        re.compile(
            r"error response from daemon|docker: |docker (?:run|compose|build|exec|pull|info|ps)\b|docker-compose"
        ),
    ),
)
"""By name, the words of each engine; the first that a text has counts, but for what the user's own commands say."""
_OF_PROGRAM = {
    "kubectl": "kubernetes",
    "helm": "kubernetes",
    "k3s": "kubernetes",
    "minikube": "kubernetes",
    "podman": "podman",
    "apptainer": "apptainer",
    "singularity": "apptainer",
    "enroot": "enroot",
    "nerdctl": "containerd",
    "ctr": "containerd",
}
_DOCKERS = ("docker", "snap", "rootless", "desktop")
_FORMS = (
    ("devcontainer", re.compile(r"devcontainer|vscode-server|remote-containers")),
    ("compose", re.compile(r"docker[ -]compose|compose\.ya?ml")),
)
_DISTRIBUTIONS = {
    "ubuntu": "ubuntu",
    "debian": "debian",
    "fedora": "fedora",
    "opensuse": "opensuse",
    "sles": "suse",
    "arch linux": "arch",
    "nixos": "nixos",
}
PACKAGES = (
    *(
        "torch",
        "torchvision",
        "torchaudio",
        "triton",
        "transformers",
        "tokenizers",
        "accelerate",
        "peft",
        "trl",
        "datasets",
    ),
    *("bitsandbytes", "flash-attn", "xformers", "deepspeed", "vllm", "sglang", "numpy", "tensorflow", "jax", "jaxlib"),
    *(
        "onnxruntime-gpu",
        "safetensors",
        "huggingface-hub",
        "diffusers",
        "unsloth",
        "lightning",
        "nvidia-container-toolkit",
    ),
    *("libnvidia-container", "containerd", "runc", "docker-ce", "podman", "apptainer", "nvidia-fabricmanager"),
)
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
        return values[0] if len(values) == 1 or (values and name in _FIRST_COUNTS) else ""

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
        found = self.find("found_cuda")
        return _parse(format_cuda_number(found) if found else self.find("reported_cuda"))

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

    @property
    def python(self) -> str | None:
        """The Python release, such as 3.11."""
        found = self.find("python")
        return f"3.{found.removeprefix('3').removeprefix('.')}" if found else None

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
        if self.needed_cuda:
            known["needed_cuda"] = self.needed_cuda
        return known | {name: self.list_values(name)[0] for name in _FIRST_COUNTS if name in names}

    def as_ubuntu(self) -> "TextFacts":
        """Return these facts for Ubuntu."""
        return replace(self, stated=(*self.stated, TextFact("distribution", "ubuntu")))

    @cached_property
    def facts(self) -> Facts:
        """The facts as those of a machine, Unknown where the text says nothing."""
        base = self.machine or build_unknown_facts()
        system, engine = self._describe_system(), _describe_engine(self.engine)
        if system is not None and isinstance(base.system, Unknown):
            base = replace(base, system=system)
        if engine is not None and not isinstance(base.engine, Engine):
            base = replace(base, engine=engine)
        if base is not build_unknown_facts() and self.machine is None and not self.find("inside"):
            base = replace(base, container=None)
        return base

    def _describe_system(self) -> System | None:
        distribution = self.find("distribution")
        if not (distribution or self.find("wsl")):
            return None
        unknown = Unknown("the text does not say")
        return System(
            platform=Platform.WSL2 if self.list_values("wsl") else Platform.LINUX,
            kernel=self.find("kernel"),
            machine=self.processor or "",
            distribution=Distribution(distribution, (), "", distribution) if distribution else unknown,
            glibc=unknown,
            memory_bytes=unknown,
            is_root=False,
            in_docker_group=unknown,
            docker_group_is_active=unknown,
            runs_systemd=unknown,
        )


def _parse(version: str) -> Release | None:
    return Release.parse(version) if version else None


def _describe_engine(name: str) -> Engine | None:
    if name not in (*_DOCKERS, "podman"):
        return None
    from devkit.facts.engine import Endpoint

    unknown = Unknown("the text does not say")
    kinds = {"podman": EngineKind.PODMAN, "desktop": EngineKind.DOCKER_DESKTOP}
    return Engine(
        endpoint=Endpoint("", ""),
        kind=kinds.get(name, EngineKind.DOCKER),
        version=unknown,
        api_version="",
        operating_system="",
        machine="",
        runtimes=(),
        default_runtime="",
        cdi_spec_dirs=(),
        cdi_devices=unknown,
        is_rootless=name == "rootless",
        has_selinux=False,
        cgroup_driver="",
        cgroup_version="",
        root_dir="",
        is_snap=name == "snap",
        hook_on_path=unknown,
    )


def read_text_facts(words: Words) -> TextFacts:
    """Read the facts of a text in one pass over its words."""
    shown = words.shown
    spans: tuple[tuple[int, int], ...]
    if len(shown) > 2 * MAX_READ:
        spans = ((0, MAX_READ), (len(shown) - MAX_READ, len(shown)))
    else:
        spans = ((0, len(shown)),)
    stated = [
        TextFact(name, value, words.find_line(start + position))
        for start, end in spans
        for name, value, position in _read(shown[start:end], words.lowered[start:end])
    ]
    lowered = "\n".join((*(words.lowered[start:end] for start, end in spans), *dict.fromkeys(words.programs)))
    commands = tuple(_read_commands(words))
    engine = _find_engine(tuple(each.value for each in commands), lowered)
    facts = [*stated, *commands]
    if engine:
        facts.append(TextFact("engine", engine))
    form = next((form for form, pattern in _FORMS if pattern.search(lowered)), "")
    if form:
        facts.append(TextFact("form", form))
    return TextFacts(tuple(facts), lowered=lowered)


def _read(text: str, lowered: str) -> Iterator[tuple[str, str, int]]:
    for name, pattern in _PATTERNS.items():
        needed = _NEEDED_WORDS.get(name)
        if needed and not any(word in lowered for word in needed):
            continue
        for count, found in enumerate(pattern.finditer(lowered if name in _LOWERED else text)):
            if count == MAX_STATED:
                break
            value = found[found.lastindex or 1]
            yield name, _name_distribution(found) if name == "distribution" else value, found.start()
    for found in _VARIABLE.finditer(text):
        yield f"variable:{found[1]}", found[2], found.start()
    for package in PACKAGES:
        if package in lowered or package.replace("-", "_") in lowered:
            for version, position in read_versions(lowered, package).items():
                yield f"package:{package}", version, position


def _name_distribution(found: re.Match[str]) -> str:
    if found[2]:
        signs = {".fc": "fedora", "-arch": "arch", "pacman": "arch", "zypper": "opensuse"}
        return next((name for sign, name in signs.items() if sign in found[0]), "rhel")
    return _DISTRIBUTIONS.get(found[1].lower(), "rhel")


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


def _read_commands(words: Words) -> Iterator[TextFact]:
    """Yield the command lines of the user, where the text has lines."""
    bounds = (*words.starts[1:], len(words.shown) + 1)
    for start, end, line in zip(words.starts[:4000], bounds, words.lines, strict=False):
        text = words.shown[start : min(end - 1, start + 400)]
        found = _PROMPT.match(text)
        command = _COMMAND.match(text[found.end() :] if found else text)
        if command and (found or not re.search(r": |\berror\b", text[:60], re.IGNORECASE)):
            yield TextFact("command", command[1].strip(), line)


def _find_engine(commands: tuple[str, ...], text: str) -> str:
    """Return the engine of a text: that of the user's own commands, and among Docker's kinds the one that the text names."""
    named = [name for name, pattern in _ENGINES if pattern.search(text)]
    programs = [command.removeprefix("sudo ").split(" ", 1)[0] for command in commands]
    own = [engine for program in programs if (engine := _OF_PROGRAM.get(program))]
    if own:
        return own[0]
    if any(program.startswith("docker") for program in programs):
        return next((name for name in named if name in _DOCKERS), "docker")
    if "error response from daemon" in text:
        return next((name for name in named if name in _DOCKERS), "docker")
    return named[0] if named else ""


def format_cuda_number(digits: str) -> str:
    """Format the number by which the CUDA API counts a version: 12080 is 12.8."""
    return f"{int(digits) // 1000}.{int(digits) % 1000 // 10}"


def parse_capability(text: str) -> ComputeCapability:
    """Parse 8.6, 86, sm_86 or compute_120a."""
    text = re.sub(r"^(?:sm|compute)?_?", "", text).rstrip("af")
    return ComputeCapability.parse(text if "." in text else f"sm_{text}")
