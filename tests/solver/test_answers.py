"""Whole answers to a few well-chosen requests, as one text: each sentence, source and warning where it is first said.

A sentence that stands further up already is only named, by the field that it is about.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import (
    NO_DEPENDENCIES,
    CondaPackage,
    Dependencies,
    DependencyChoice,
    ExcludedPackage,
    Framework,
    LocalBuild,
    LocalPackage,
    PackageIndex,
    PackageManager,
    PackageRequirement,
    Refused,
    RequirementRole,
    ResolutionRequest,
    Resolved,
    SystemPackage,
    UnreadableRequirement,
)
from devkit.facts.values import Unknown
from devkit.solver.compiled_packages import list_compile_costs
from devkit.solver.output import describe_plan, list_install_words
from devkit.solver.plan import Conflict, Constraint, Machine, Plan, Request
from devkit.solver.project import list_choices
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.resolution import plan_project
from tests.golden import assert_golden

pytestmark = pytest.mark.golden

ANSWERS = Path(__file__).with_name("answers.txt")


def on(*gpus: str, driver: str | None = None, **more: str) -> Machine:
    return build_machine_from_flags(driver=driver, gpus=gpus, **more)


ADA = on("RTX 4090", driver="570.124.06")
HOPPER = on("H100", driver="580.95.05")
SPARK = on("GB10", driver="580.95.05")
MI300 = on("MI300X")
CPU = on()
CUDA_BASE = "nvidia/cuda:13.0.2-base-ubuntu24.04"
REQUESTS: dict[str, tuple[tuple[Machine, ...], dict[str, object]]] = {
    "a GeForce": ((ADA,), {}),
    "a GPU without a driver": ((on("RTX 4090"),), {}),
    "a driver without a GPU": ((on(driver="550.54.15"),), {}),
    "an Arm machine of its own": ((SPARK,), {}),
    "a Jetson": ((on("Jetson AGX Orin", driver="540.4.0"),), {}),
    "WSL": ((on("RTX 3060", driver="551.78", platform="wsl2"),), {}),
    "a GPU of the newest kind": ((on("10.7", driver="615.71.09"),), {}),
    "a GPU that no driver serves": ((on("RTX 5090", driver="535.183.01"),), {}),
    "Kepler": ((on("Tesla K80", driver="470.256.02"),), {}),
    "two machines": ((replace(SPARK, origin="spark.json"), replace(HOPPER, origin="h100.json")), {}),
    "AMD": ((MI300,), {}),
    "an old AMD GPU": ((on("gfx906", "gfx90a"),), {}),
    "the CPU": ((CPU,), {}),
    "CUDA by forward compatibility": ((on("H100", driver="535.183.01"),), {"cuda": "13.0"}),
    "a CUDA that the driver does not run": ((ADA,), {"cuda": "13.0"}),
    "a torch of no table": ((ADA,), {"torch": "2.99.0"}),
    "a torch without code for the GPU": ((on("Tesla P40", driver="580.95.05"),), {"torch": "2.15"}),
    "a Python without wheels": ((ADA,), {"torch": "2.4.1", "python": "3.13"}),
    "pins that exclude each other": ((ADA,), {"pins": ("transformers==5.23.0", "huggingface-hub==0.36.2")}),
    "a bitsandbytes without a library": ((ADA,), {"pins": ("bitsandbytes==0.44.1",), "features": ("nf4",)}),
    "features on three GPUs": ((on("RTX 4090", "A100", "H100", driver="580.95.05"),), {"features": ("nf4", "fp8")}),
    "features that are there": ((HOPPER,), {"features": ("nvcc", "graphics", "flash-attn")}),
    "a new image": ((ADA,), {"image": CUDA_BASE}),
    "a new image by CDI": ((ADA,), {"image": CUDA_BASE, "gpu_runtime": "cdi"}),
    "an image of no table": ((ADA,), {"image": "example.org/own:1"}),
    "an image that is gone": ((ADA,), {"image": "nvidia/cuda:11.0-base-ubuntu20.04"}),
    "lines that contradict": ((ADA,), {"constraints": ("torch <2.5 a.txt:1", "torch >2.6 b.txt:2")}),
    "lines of a project": ((ADA,), {"constraints": ("torch ==2.4.* a.txt:1", "python >=3.10,<3.12 b.toml:4")}),
}


def build(machines: tuple[Machine, ...], asked: dict[str, object]) -> Request:
    flags = {name: value for name, value in asked.items() if name not in ("constraints", "gpu_runtime")}
    lines = tuple(Constraint(*line.split(" ")) for line in asked.get("constraints", ()))
    request = replace(build_request(machines=machines, **flags), constraints=lines, adds_packages=not lines)
    return replace(request, gpu_runtime=asked.get("gpu_runtime"))


def needs(*lines: str, tool: PackageManager = PackageManager.PIP, **more: object) -> Dependencies:
    """A project whose requirements.txt has these lines: a name with its specifier."""
    found = tuple(
        PackageRequirement(name, specifier, "requirements.txt", number)
        for number, (name, _, specifier) in enumerate((line.partition(" ") for line in lines), 1)
    )
    return Dependencies(tool, "the project has requirements.txt", ("requirements.txt",), needs=found, **more)


def of(framework: str, *lines: str, **more: object) -> Dependencies:
    return replace(needs(*lines, **more), framework=Framework(framework), framework_because="train.py imports it")


EXTENSION = LocalBuild(".", "tiny-ext", "setup.py:3", has_cuda=True, requires=("numpy",))
SUBMODULE = LocalBuild("third/ext", "", ".gitmodules", has_cuda=True, requires=(), cxx=17)
MUCH = needs(
    "torch",
    tool=PackageManager.CONDA,
    system=tuple(SystemPackage(name, "README.md", 9) for name in ("libsndfile1-dev", "sox", "git", "odd1", "odd2")),
    conda=(CondaPackage("hmmer", "environment.yml", 3), CondaPackage("bioconda::hhsuite", "environment.yml", 4)),
    conda_channels=("bioconda", "conda-forge"),
    local=(LocalPackage("packages/core", "requirements.txt", 7),),
    missing_submodules=("third/ext",),
    extras=("train", "eval"),
    extras_origin="README.md:3",
    unread=tuple(UnreadableRequirement("requirements.txt", line, "no requirement") for line in range(1, 12)),
    left_out=tuple(ExcludedPackage(f"one{number}", "setup.py", 1, "it is for Windows") for number in range(11)),
    indexes=(
        PackageIndex("https://download.pytorch.org/whl/cu118", "requirements.txt", 2),
        PackageIndex("https://download.pytorch.org/whl/cu121/", "requirements.txt", 3),
        PackageIndex("https://pypi.org/simple", "requirements.txt", 4),
    ),
    available=DependencyChoice(("train", "eval", "docs"), ("dev",), ("more.txt",)),
    uses_lfs=True,
)
LOCKED = replace(
    needs("diffusers", tool=PackageManager.UV, lock="uv.lock"),
    needs=(
        *needs("diffusers").needs,
        PackageRequirement("torch", "==2.6.0", "uv.lock", 5, role=RequirementRole.CONSTRAINT),
        PackageRequirement("diffusers", "==0.8.5", "uv.lock", 9, role=RequirementRole.CONSTRAINT),
    ),
)
PYTHON_27 = (PackageRequirement("python", "==2.7.*", "setup.py", 4),)
FLAGS = {"python": "3.11", "pins": ("peft==0.17.0",), "apt": ("libsndfile1", "jq-")}
PROJECTS: dict[str, tuple[Dependencies, str, Machine, dict[str, object]]] = {
    "nothing yet": (NO_DEPENDENCIES, "newest", ADA, {}),
    "packages, and flags": (needs("transformers", "datasets"), "newest", SPARK, FLAGS),
    "much of everything": (MUCH, "newest", ADA, {"python": "3.11"}),
    "packages of a day": (needs("requests", "numpy <3"), "brings torch", ADA, {"as_of": "2024-05-15"}),
    "a Python without a resolution": (needs("torch", "torchvision"), "no wheel", ADA, {}),
    "an index without torch": (needs("torch", "torchaudio"), "without torch", ADA, {}),
    "an old torch": (needs("torch ==2.0.1", "transformers", "torchaudio"), "newest", ADA, {"python": "3.11"}),
    "packages that compile": (needs("flash-attn", "deepspeed", "xformers", "mamba-ssm"), "newest", HOPPER, {}),
    "packages that compile on AMD": (needs("flash-attn", "mamba-ssm"), "no network", MI300, {}),
    "code of its own": (needs("torch", builds=(EXTENSION, SUBMODULE), builds_itself=True), "newest", ADA, {}),
    "wheels of one CUDA": (needs("vllm", "sglang"), "newest", HOPPER, {}),
    "code of other years": (needs("basicsr", "torchvision", "pandas ==1.5.3"), "newest", ADA, {}),
    "a lock": (LOCKED, "newest", ADA, {}),
    "wheels for another Python": (needs("soundfile", "opencv-python"), "from source", ADA, {}),
    "a Python that is gone": (needs("torch", python=PYTHON_27), "newest", ADA, {}),
    "JAX": (of("jax", "jax", "flax"), "newest", ADA, {}),
    "JAX that uv refuses": (of("jax", "jax"), "refused", HOPPER, {"pins": ("jax==0.4.30",)}),
    "what uv refuses in part": (needs("torch", "transformers"), "refused in part", ADA, {}),
    "TensorFlow of an old CUDA": (of("tensorflow", "tensorflow <=2.11"), "no network", ADA, {}),
    "CUDA C++": (of("cuda"), "newest", ADA, {}),
    "CUDA C++ on a GPU before it": (of("cuda"), "newest", on("GTX 1080", driver="580.95.05"), {"cuda": "13.0"}),
    "no framework": (of("none", "requests"), "no wheel", ADA, {}),
}
NEWEST = {"torch": "2.14.1", "torchvision": "0.28.0", "torchaudio": "2.11.0", "numpy": "2.5", "transformers": "5.23.0"}
NEWEST |= {"jax": "0.5.0", "vllm": "0.11.0", "opencv-python": "4.4.0.46"}


class Index:
    """Answers each request in one way, and keeps what it was asked."""

    def __init__(self, kind: str, dependencies: Dependencies) -> None:
        self.kind, self.dependencies, self.asked = kind, dependencies, []

    def expect(self, request):
        """It answers only what it is asked."""

    def __call__(self, request: ResolutionRequest) -> Resolved | Refused | Unknown:
        self.asked.append(request)
        match self.kind:
            case "no network":
                return Unknown("uv cannot reach the package index")
            case "refused":
                return Refused("numpy==1 depends on old and you require numpy==2")
            case "refused in part" if not request.relaxed and not request.is_alone:
                return Refused("transformers==4.44.2 depends on hub<1; you require torch==2.0 and requests==3")
            case "no wheel" if request.python not in ("3.10", "3.13"):
                return Refused("old==1 has no wheels with a matching Python ABI tag")
            case "without torch" if "torch" in request.requirements:
                return Refused("torch was not found in the package registry")
        return self.resolve(request)

    def resolve(self, request: ResolutionRequest) -> Resolved:
        """Every package that is named, in the one version that there is but where another is asked for."""
        lines = [*request.requirements, *request.constraints]
        named = list(request.requirements)
        if not request.is_alone:
            project = [need.text.partition(" ;")[0] for need in self.dependencies.needs]
            lines, named = lines + project, named + project
        exact = {name: version for name, _, version in (line.partition("==") for line in lines) if version}
        below = {line.partition("<")[0] for line in lines if "<" in line and ">" not in line}
        plain = dict.fromkeys(re_name(line) for line in named)
        versions = {name: exact.get(name, "0.9" if name in below else NEWEST.get(name, "1")) for name in plain}
        if self.kind == "brings torch" and not request.is_alone:
            versions |= {"torch": "2.2.0", "nvidia-nccl-cu12": "2.2"}
        unread = ("a, which comes from a URL",) if self.kind == "brings torch" else ()
        from_source = sorted(versions)[:2] if self.kind == "from source" and request.python != "3.11" else ()
        return Resolved(tuple(sorted(versions.items())), tuple(from_source), unread)


def re_name(line: str) -> str:
    """The name in a requirement."""
    for mark in "=<>[!~ ":
        line = line.partition(mark)[0]
    return line


def describe(answer: Plan | Conflict) -> str:
    """The values of an answer, in a line."""
    if isinstance(answer, Conflict):
        nearest = f"{describe_plan(answer.nearest)}, {answer.nearest.base_image}" if answer.nearest else "nothing"
        return f"CONFLICT: {answer.wanted}; nearest: {nearest}; {answer.nearest_changes}"
    return f"{' '.join(list_install_words(answer, with_uv=True))} | {answer.python} {answer.base_image}"


def sentences(answer: Plan | Conflict) -> list[tuple[str, str]]:
    """Everything else that is said: what each is about, and its text."""
    if isinstance(answer, Conflict):
        return [(each.rule, f"{each.rule}: {each.says} [{each.source}]") for each in answer.blockers]
    found = [
        (each.field, f"{each.field} {each.value}: {each.because} [{each.source}, {each.confidence}]")
        for each in answer.reasons
    ]
    found += [("compiles", str(each)) for each in answer.compiled]
    found += [("costs", f"costs: {line}") for line in list_compile_costs(answer, cores=8, memory_gb=20)]
    rest = (answer.cuda, answer.rocm, answer.nvcc, answer.gpu_request, answer.architectures, answer.capabilities)
    found.append(("values", f"values: {rest} {answer.is_graphical} {answer.additions} {answer.limits}"))
    return found + [("warning", f"! {warning}") for warning in answer.warnings]


def show(named: str, answer: Plan | Conflict, more: list[str], said: set[str]) -> list[str]:
    """The lines of an answer, without the sentences that were `said` before."""
    every = sentences(answer)
    again = [about for about, text in every if text in said]
    lines = [f"# {named}: {describe(answer)}", *(f"  {text}" for _, text in every if text not in said)]
    lines += [f"  {line}" for line in more]
    said.update(text for _, text in every)
    return [*lines, f"  as before: {' '.join(again)}"] if again else lines


def test_whole_answers_are_these():
    tables, said, lines = load_tables(), set(), []
    for named, (machines, asked) in REQUESTS.items():
        answer = plan_project(build(machines, asked), NO_DEPENDENCIES, tables, Unknown("there is no network"))
        lines += show(named, answer, [], said)
    for named, (dependencies, kind, machine, asked) in PROJECTS.items():
        index = Index(kind, dependencies)
        answer = plan_project(build((machine,), asked), dependencies, tables, index)
        more = [f"choice: {choice}" for choice in list_choices(dependencies)]
        more += [f"uv: {show_request(request)}" for request in index.asked[:3]]
        lines += show(f"a project with {named}", answer, more, said)
    assert_golden(ANSWERS, "\n".join(lines).replace(tables.as_of, "DAY") + "\n")


def show_request(request: ResolutionRequest) -> str:
    """What uv is asked for, but for the wheels of one CUDA, which tests/solver/test_cuda_wheels.py is about."""
    limits = [line for line in request.constraints if not line.startswith(("vllm", "sgl", "torchcodec"))]
    day = f"as of {request.as_of} but for {' '.join(request.undated)}" if request.as_of else ""
    kind = " alone" if request.is_alone else f" without {' '.join(request.relaxed)}" if request.relaxed else ""
    return f"{' '.join(request.requirements)} | {' '.join(limits)} | {request.python} {request.machine} {request.glibc}{kind} {day}".strip()
