"""Requests in every combination that matters, each with its whole answer: one line of `grid.txt` holds the sum of it.

A line that differs means that a value, a reason, a source, a warning, their order or their layout has changed: the answer
is printed. `answers.txt` shows the sentences themselves.
"""

import copy
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
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
from devkit.facts.project import Policy
from devkit.facts.values import Release, Unknown
from devkit.solver.candidates import build_problem, find_nearest_release
from devkit.solver.compiled_packages import list_compile_costs
from devkit.solver.output import format_age, format_answer, format_requirements, list_install_words, serialize_answer
from devkit.solver.plan import Conflict, Constraint, Machine, Plan, Request
from devkit.solver.project import list_choices, strip_line_numbers, validate_choice
from devkit.solver.request import build_machine_from_facts, build_machine_from_flags, build_request
from devkit.solver.resolution import _list_gone, is_old, list_dated_requests, plan_project
from devkit.solver.solve import list_fitting_torch, solve_project
from devkit.solver.why import explain_choice, format_choice, serialize_choice
from tests.hosts import MACHINES as HOSTS
from tests.hosts.golden import expected_facts
from tests.known import assert_known

GRID = Path(__file__).with_name("grid.txt")
TODAY = "2027-03-01"


def flags(*gpus: str, driver: str | None = None, **more: str) -> Machine:
    return build_machine_from_flags(driver=driver, gpus=gpus, **more)


ADA = flags("RTX 4090", driver="570.124.06")
HOPPER = flags("H100", driver="580.95.05")
BLACKWELL = flags("RTX 5090", driver="580.95.05")
OLD = flags("Tesla P40", driver="535.183.01")
MACHINES = {
    "ada": (ADA,),
    "without a driver": (flags("RTX 4090"),),
    "without a GPU": (flags(driver="550.54.15"),),
    "hopper": (HOPPER,),
    "forward": (flags("H100", driver="535.183.01"),),
    "pascal": (flags("GTX 1060 6GB", driver="580.95.05"),),
    "kepler": (flags("Tesla K80", driver="470.256.02"),),
    "turing": (flags("T4", driver="470.256.02"),),
    "blackwell": (BLACKWELL,),
    "too old": (flags("RTX 5090", driver="535.183.01"),),
    "spark": (flags("GB10", driver="580.95.05"),),
    "orin": (flags("Jetson AGX Orin", driver="540.4.0"),),
    "windows": (flags("RTX 3060", driver="551.78", platform="wsl2"),),
    "newest gpu": (flags("10.7", driver="610.43.02"),),
    "three": (flags("RTX 4090", "A100", "H100", driver="580.95.05"),),
    "two": (replace(OLD, origin="old.json"), replace(BLACKWELL, origin="new.json")),
    "both processors": (flags("GB10", driver="580.95.05"), flags("RTX 4090", driver="580.95.05")),
    "noted": (
        replace(
            ADA,
            cuda=Release.parse("12.8"),
            toolkit=Release.parse("1.16.1"),
            notes=("GPU 1 does not answer",),
            origin="a",
        ),
    ),
    "mi300": (flags("MI300X"),),
    "radeon": (flags("RX 7900 XTX", platform="wsl2"),),
    "vega": (flags("gfx906", "gfx90a"),),
    "cpu": (flags(),),
    "arm": (flags(machine="aarch64"),),
    "its glibc": (flags("RTX 4090", driver="570.124.06", glibc="2.28"),),
    "first branch": (flags("RTX 5090", driver="570.86.15"),),
    "toolkit at a limit": (replace(ADA, toolkit=Release.parse("1.17.8")),),
    "toolkit before it": (replace(ADA, toolkit=Release.parse("1.17.4")),),
    "old glibc": (flags("RTX 4090", driver="570.124.06", glibc="2.17"),),
}


def on(line: str) -> Constraint:
    name, specifier, origin = line.split(" ")
    return Constraint(name, specifier, origin)


REQUESTS: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
    "anything": (tuple(MACHINES), {}),
    "python 3.13": (("ada", "mi300"), {"python": "3.13"}),
    "python 3.9": (("ada", "cpu"), {"python": "3.9"}),
    "torch 2.4.1": (("blackwell", "kepler", "arm"), {"torch": "2.4.1"}),
    "torch 1.13": (("ada", "turing"), {"torch": "1.13"}),
    "torch 2.9 for CUDA 13.0": (("forward", "pascal", "spark"), {"torch": "2.9.1+cu130"}),
    "torch of no table": (("ada", "mi300", "cpu", "spark"), {"torch": "2.99.0"}),
    "a build of no table": (("ada",), {"torch": "2.99.0+cu139"}),
    "a build of ROCm": (("mi300", "cpu"), {"torch": "2.7.1+rocm6.3"}),
    "a build of ROCm of no table": (("mi300",), {"torch": "2.7.1+rocm9.9"}),
    "a build for the CPU": (("ada",), {"torch": "2.8.0+cpu"}),
    "CUDA 12.6": (("ada", "turing", "without a driver"), {"cuda": "12.6"}),
    "CUDA 13": (("ada", "forward"), {"cuda": "13.0"}),
    "a wrong CUDA": (("ada",), {"cuda": "12.8", "torch": "2.4.1"}),
    "for the CPU": (("ada", "mi300"), {"vendor": "cpu"}),
    "for AMD": (("cpu",), {"vendor": "rocm"}),
    "for NVIDIA": (("cpu",), {"vendor": "nvidia"}),
    "an old transformers": (("ada", "cpu"), {"pins": ("transformers==4.57.6",)}),
    "a transformers of no table": (("ada", "mi300"), {"pins": ("transformers==4.44.2", "peft==0.0.1")}),
    "a bitsandbytes": (("ada", "cpu", "mi300"), {"pins": ("bitsandbytes==0.44.1",)}),
    "a bitsandbytes of no table": (("ada", "cpu"), {"pins": ("bitsandbytes==0.1",)}),
    "pins that exclude each other": (("ada",), {"pins": ("transformers==5.23.0", "huggingface-hub==0.36.2")}),
    "4-bit": (("kepler", "mi300", "cpu"), {"features": ("nf4",)}),
    "8-bit floats": (("turing", "radeon"), {"features": ("fp8",)}),
    "every feature": (("three", "mi300"), {"features": ("nf4", "bf16", "flash-attn", "graphics")}),
    "nvcc": (("ada", "hopper", "cpu"), {"features": ("nvcc",)}),
    "an nvcc of another CUDA": (("ada",), {"features": ("nvcc",), "image": "nvidia/cuda:12.4.1-devel-ubuntu22.04"}),
    "an image of Python": (("ada", "cpu"), {"image": "python:3.11-slim-bookworm"}),
    "a mirror's image": (("ada",), {"image": "mirror.example.org/library/python:3.12-slim-bookworm"}),
    "an image of CUDA": (("old glibc", "windows"), {"image": "nvidia/cuda:12.8.1-base-ubuntu24.04"}),
    "an image of another CUDA": (("ada", "without a driver"), {"image": "nvidia/cuda:12.4.1-runtime-ubuntu22.04"}),
    "a new image of CUDA": (("ada", "forward", "two"), {"image": "nvidia/cuda:13.0.2-base-ubuntu24.04"}),
    "a new image by CDI": (("ada", "forward"), {"image": "nvidia/cuda:13.0.2-base-ubuntu24.04", "gpu_runtime": "cdi"}),
    "an image of no table": (("ada", "cpu"), {"image": "example.org/own:1"}),
    "an image that is gone": (("ada",), {"image": "nvidia/cuda:11.0-base-ubuntu20.04"}),
    "an old image": (("turing", "cpu"), {"image": "nvidia/cuda:11.3.1-base-ubuntu20.04"}),
    "an image of Alpine": (("cpu", "ada"), {"image": "python:3.12-alpine"}),
    "an image of a system": (("ada", "spark"), {"image": "ubuntu:22.04"}),
    "an old system": (("ada",), {"image": "debian:10"}),
    "an image of another Python": (("ada",), {"image": "python:3.11-slim-bookworm", "python": "3.12"}),
    "lines on Python": (
        ("ada", "mi300", "both processors"),
        {"constraints": ("python >=3.10,<3.12 pyproject.toml:4",)},
    ),
    "a Python that there is not": (("ada",), {"constraints": ("python <3.5 pyproject.toml:4",)}),
    "lines on torch": (("ada", "blackwell", "mi300"), {"constraints": ("torch ==2.4.* requirements.txt:1",)}),
    "a line on a build": (("ada", "cpu"), {"constraints": ("torch ==2.4.1+cu121 requirements.txt:1",)}),
    "a line on a torch of no table": (("ada",), {"constraints": ("torch >2.90,<2.91.5 requirements.txt:1",)}),
    "lines that contradict": (("ada",), {"constraints": ("peft <0.10 a.txt:1", "peft >0.15 b.txt:2")}),
    "lines on bitsandbytes": (("ada", "cpu"), {"constraints": ("bitsandbytes ==0.45.* a.txt:3",)}),
    "a bitsandbytes that there is not": (("ada",), {"constraints": ("bitsandbytes <0.2 a.txt:3",)}),
    "CUDA 11.8": (("ada", "kepler"), {"cuda": "11.8"}),
    "CUDA 12.8": (("blackwell", "pascal", "first branch"), {"cuda": "12.8"}),
    "CUDA 12.9": (("pascal",), {"cuda": "12.9"}),
    "8-bit floats at the limit": (("ada",), {"features": ("fp8",)}),
    "much at once": (("ada",), {"torch": "2.4.1", "cuda": "13.0", "python": "3.13", "pins": ("peft==0.4.0",)}),
}
CASES = [(named, machine) for named, (machines, _) in REQUESTS.items() for machine in machines]


def build(machines: tuple[Machine, ...], asked: dict) -> Request:
    more = {name: asked[name] for name in ("gpu_runtime", "policy", "framework") if name in asked}
    lines = tuple(on(line) for line in asked.get("constraints", ()))
    flagged = {name: value for name, value in asked.items() if name not in (*more, "constraints")}
    return replace(build_request(machines=machines, **flagged), constraints=lines, adds_packages=not lines, **more)


def hold(case: str, answer: Plan | Conflict, *more: object) -> None:
    """Compare everything that is said of an answer, and more, with what is known."""
    parts = [json.dumps(serialize_answer(answer, today=TODAY), indent=1)]
    parts += [format_answer(answer, width=width, today=TODAY) for width in (40, 60, 100, 180)]
    plan = answer if isinstance(answer, Plan) else answer.nearest
    if plan is not None:
        parts += [str(plan), format_requirements(plan), *list_install_words(plan, with_uv=True)]
        parts += [*list_install_words(plan, with_uv=False), *list_compile_costs(plan, cores=8, memory_gb=20)]
    text = "\n".join(map(str, (*parts, *more))).replace(load_tables().as_of, "DAY")
    verdict = f"{plan.base_image} {plan.torch or plan.framework}" if plan else "nothing fits"
    verdict = verdict if isinstance(answer, Plan) else f"{answer.blockers[0].rule}, {answer.nearest_changes or verdict}"
    hold_text(f"{case}: {verdict}", text)


def hold_text(case: str, text: str) -> None:
    line = f"{case} [{hashlib.sha256(text.encode()).hexdigest()[:16]}]"
    try:
        assert_known(GRID, {line})
    except AssertionError as error:
        raise AssertionError(f"{error}\n\n{text}") from None


@pytest.mark.parametrize(("named", "machine"), CASES)
def test_each_request_has_the_answer_that_is_known(named, machine):
    asked, tables = build(MACHINES[machine], REQUESTS[named][1]), load_tables()
    hold(f"{named} / {machine}", solve_project(asked, NO_DEPENDENCIES, tables))


@pytest.mark.parametrize(("named", "machine"), CASES[::11])
def test_what_is_said_of_each_choice(named, machine):
    asked, tables = build(MACHINES[machine], REQUESTS[named][1]), load_tables()
    answer = solve_project(asked, NO_DEPENDENCIES, tables)
    fields = ["python", "bitsandbytes", "peft", "torch", "nothing"]
    found = [each for field in fields if (each := explain_choice(asked, tables, answer, field))]
    texts = [format_choice(each, answer, width=width, today=TODAY) for each in found for width in (50, 120)]
    hold(f"why {named} / {machine}", answer, *texts, *(serialize_choice(each, answer, today=TODAY) for each in found))


def needs(*lines: str, tool: PackageManager = PackageManager.PIP, **more: object) -> Dependencies:
    """A project whose requirements.txt has these lines: a name with its specifier."""
    found = []
    for number, line in enumerate(lines, 1):
        name, _, specifier = line.partition(" ")
        found.append(PackageRequirement(name, specifier, "requirements.txt", number))
    files = ("requirements.txt",) if lines else ()
    return Dependencies(tool, "the project has requirements.txt", files, needs=tuple(found), **more)


def of(framework: str, *lines: str, **more: object) -> Dependencies:
    return replace(needs(*lines, **more), framework=Framework(framework), framework_because="train.py imports it")


def python(specifier: str) -> tuple[PackageRequirement, ...]:
    return (PackageRequirement("python", specifier, "pyproject.toml", 4),)


FRAMEWORKS: dict[str, tuple[Dependencies, tuple[str, ...], dict]] = {
    "jax": (of("jax"), tuple(MACHINES), {}),
    "jax 0.4": (of("jax", "jax ==0.4.30", "flax"), ("ada", "blackwell", "pascal", "turing"), {}),
    "jax between": (of("jax", "jaxlib >=0.5,<0.7"), ("ada", "hopper"), {}),
    "a jax of no table": (of("jax", "jax ==0.1"), ("ada",), {}),
    "jax on Python": (of("jax", python=python("==3.10.*")), ("hopper", "cpu"), {}),
    "jax by flags": (of("jax"), ("ada", "hopper"), {"python": "3.13", "pins": ("jax==0.5.0",), "cuda": "12.3"}),
    "tensorflow": (of("tensorflow"), tuple(MACHINES), {}),
    "tensorflow 2.11": (of("tensorflow", "tensorflow <=2.11"), ("ada", "kepler", "turing", "blackwell"), {}),
    "tensorflow 2.14": (of("tensorflow", "tensorflow ~=2.14.0"), ("ada", "turing", "two"), {}),
    "tensorflow of CUDA": (of("tensorflow"), ("ada", "pascal"), {"cuda": "12.5"}),
    "CUDA C++": (of("cuda"), tuple(MACHINES), {}),
    "CUDA C++ 11.8": (of("cuda"), ("ada", "blackwell", "kepler", "windows"), {"cuda": "11.8"}),
    "CUDA C++ 12.9": (of("cuda"), ("pascal", "without a driver"), {"cuda": "12.9"}),
    "CUDA C++ 12.8": (of("cuda"), ("blackwell", "ada"), {"cuda": "12.8"}),
    "CUDA C++ 13.0": (of("cuda"), ("ada", "pascal", "hopper", "cpu"), {"cuda": "13.0"}),
    "CUDA C++ in an image": (of("cuda"), ("ada", "kepler"), {"image": "nvidia/cuda:12.4.1-devel-ubuntu22.04"}),
    "CUDA C++ in an old image": (of("cuda"), ("ada", "turing"), {"image": "nvidia/cuda:11.4.3-devel-ubuntu20.04"}),
    "CUDA C++ in another image": (of("cuda"), ("ada",), {"image": "example.org/own:1"}),
    "CUDA C++ on Python": (of("cuda", python=python("<3.11")), ("ada", "arm"), {}),
    "nothing": (of("none"), ("ada", "cpu", "both processors"), {}),
    "nothing on Python": (of("none", "requests", python=python("==3.9.*")), ("ada",), {"pins": ("requests==2.0",)}),
    "nothing in an image": (of("none"), ("ada",), {"image": "nvidia/cuda:13.0.2-base-ubuntu24.04"}),
    "nothing by an old Python": (of("none", python=python(">=3.13")), ("cpu",), {"python": "3.9"}),
}


@pytest.mark.parametrize("named", FRAMEWORKS)
def test_each_other_framework_has_the_answer_that_is_known(named):
    dependencies, machines, asked = FRAMEWORKS[named]
    for machine in machines:
        request = build(MACHINES[machine], asked)
        hold(f"{named} / {machine}", solve_project(request, dependencies, load_tables()))


EXTENSION = LocalBuild(".", "tiny-ext", "setup.py:3", has_cuda=True, requires=("numpy",))
SUBMODULE = LocalBuild("third/ext", "", ".gitmodules", has_cuda=True, requires=(), cxx=17)
SYSTEM = tuple(
    SystemPackage(name, "README.md", 9, is_from_ci=name == "xclip")
    for name in ("libsndfile1-dev", "ffmpeg", "sox", "xclip", "git", "libglfw3-dev", *(f"odd{n}" for n in range(10)))
)
LOCK = (
    PackageRequirement("torch", "==2.6.0", "uv.lock", 5, role=RequirementRole.CONSTRAINT),
    PackageRequirement("diffusers", "==0.8.5", "uv.lock", 9, role=RequirementRole.CONSTRAINT),
)


def many(count: int) -> dict[str, object]:
    """So many of everything that is named in a list."""
    names = tuple(f"one{number}" for number in range(count))
    return {
        "unread": tuple(
            UnreadableRequirement("requirements.txt", line, "no requirement") for line in range(1, count + 1)
        ),
        "left_out": tuple(ExcludedPackage(name, "setup.py", 1, "it is for Windows") for name in names),
        "indexes": (
            PackageIndex("https://download.pytorch.org/whl/cu118", "requirements.txt", 2),
            PackageIndex("https://download.pytorch.org/whl/cu121/", "requirements.txt", 3),
            PackageIndex("https://pypi.org/simple", "requirements.txt", 4),
        ),
        "available": DependencyChoice(names, names[:1], (f"{names[0]}.txt",)),
    }


PROJECTS: dict[str, Dependencies] = {
    "empty": NO_DEPENDENCIES,
    "open": needs("transformers", "datasets"),
    "plain": needs("requests", "numpy <3"),
    "eight": needs("torch", system=tuple(SystemPackage(f"odd{n}", "README.md", 9) for n in range(8)), **many(8)),
    "full": needs(
        "torch",
        tool=PackageManager.CONDA,
        system=SYSTEM,
        conda=(CondaPackage("hmmer", "environment.yml", 3), CondaPackage("bioconda::hhsuite", "environment.yml", 4)),
        conda_channels=("bioconda", "conda-forge"),
        local=(LocalPackage("packages/core", "requirements.txt", 7),),
        missing_submodules=("third/ext",),
        extras=("train", "eval"),
        extras_origin="README.md:3",
        **many(11),
    ),
    "torch open": needs("torch", "torchvision", "numpy"),
    "torch 2.2": needs("torch ==2.2.2", "numpy"),
    "torch 2.0": needs("torch ==2.0.1", "transformers", "torchaudio"),
    "bound vision": needs("torchvision ==0.21.0", "bitsandbytes", "peft"),
    "compiled": needs("flash-attn", "deepspeed", "xformers", "mamba-ssm"),
    "own build": needs("torch", builds=(EXTENSION, SUBMODULE), builds_itself=True, name="tiny-ext"),
    "own nvcc": needs("torch", cuda_build="Makefile:69"),
    "of one CUDA": needs("vllm", "sglang"),
    "old code": needs("basicsr", "torchvision", "pandas ==1.5.3"),
    "marked": replace(
        needs("torch"),
        needs=(
            PackageRequirement("torch", "<2.5", "r.txt", 1, marker='python_version < "3.11"'),
            PackageRequirement("peft", "", "r.txt", 2, marker='platform_machine == "aarch64"'),
            PackageRequirement("mne", "", "r.txt", 3, marker='sys_platform == "win32"'),
        ),
    ),
    "locked": replace(
        needs("diffusers", tool=PackageManager.UV, lock="uv.lock"), needs=(*needs("diffusers").needs, *LOCK)
    ),
    "with system": needs("soundfile", "opencv-python", "torch", system=SYSTEM, uses_lfs=True),
    "python 3.10": needs("torch", python=python("==3.10.*")),
    "python not": needs("torch", python=python("==2.7.*")),
    "jax": of("jax", "jax", "flax"),
    "none": of("none", "requests", "numpy <2"),
}
NEWEST = {"torch": "2.14.1", "torchvision": "0.28.0", "torchaudio": "2.11.0", "numpy": "2.5", "transformers": "5.23.0"}
NEWEST |= {"jax": "0.5.0", "vllm": "0.11.0", "bitsandbytes": "0.44.1", "peft": "0.15.0", "opencv-python": "4.4.0.46"}


class Index:
    """Answers each request in one way, and keeps what it was asked."""

    def __init__(self, kind: str, dependencies: Dependencies) -> None:
        self.kind, self.dependencies, self.asked = kind, dependencies, []

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
            case "gone" if "grain" not in request.undated:
                return Refused("no release", "there are no versions of grain and `grain` was filtered by exclude-newer")
            case "cut off" if len(self.asked) > 1:
                return Unknown("uv ended")
        return self.resolve(request)

    def resolve(self, request: ResolutionRequest) -> Resolved:
        lines = [*request.requirements, *request.constraints]
        if not request.is_alone:
            lines += [need.text.partition(" ;")[0] for need in self.dependencies.needs]
        exact = {name: version for name, _, version in (line.partition("==") for line in lines) if version}
        below = {name for name, _, version in (line.partition("<") for line in lines) if version and ">" not in name}
        names = [line.partition(mark)[0] for line in lines for mark in ("==",) if line not in request.constraints]
        plain = dict.fromkeys(name.split("<")[0].split(">")[0].split("[")[0] for name in names)
        versions = {name: exact.get(name, "0.9" if name in below else NEWEST.get(name, "1")) for name in plain}
        if self.kind == "brings torch" and not request.is_alone:
            versions |= {"torch": "2.4.1", "nvidia-nccl-cu12": "2.2", "grain": "1"}
        unread = ("a, which comes from a URL",) if self.kind == "brings torch" else ()
        odd = self.kind == "from source" and request.python != "3.11"
        return Resolved(tuple(sorted(versions.items())), tuple(sorted(versions))[:2] if odd else (), unread)


FLAGS = {"python": "3.11", "pins": ("peft==0.17.0",), "apt": ("libsndfile1", "jq-")}
DATED = {"as_of": "2024-05-15"}
RUNS: tuple[tuple[str, str, str, dict], ...] = (
    ("empty", "newest", "ada", {}),
    ("empty", "no network", "two", FLAGS),
    ("open", "newest", "both processors", FLAGS),
    ("plain", "brings torch", "ada", FLAGS | DATED),
    ("plain", "gone", "blackwell", FLAGS | DATED),
    ("full", "newest", "ada", {"python": "3.11"}),
    ("full", "no network", "cpu", {}),
    ("eight", "no network", "ada", {}),
    ("compiled", "newest", "ada", {"image": "nvidia/cuda:12.6.3-devel-ubuntu24.04"}),
    ("compiled", "no network", "ada", {"image": "nvidia/cuda:12.4.1-devel-ubuntu22.04"}),
    ("open", "cut off", "blackwell", {}),
    ("torch open", "newest", "cpu", {}),
    ("torch open", "without torch", "ada", FLAGS),
    ("torch open", "no wheel", "ada", {}),
    ("torch 2.2", "newest", "ada", {}),
    ("torch 2.0", "newest", "ada", {"python": "3.11"}),
    ("torch 2.0", "no network", "blackwell", DATED),
    ("bound vision", "brings torch", "ada", {}),
    ("compiled", "newest", "hopper", {}),
    ("compiled", "no network", "mi300", {}),
    ("own build", "newest", "three", {}),
    ("own build", "no network", "cpu", {}),
    ("own nvcc", "newest", "ada", {}),
    ("of one CUDA", "newest", "hopper", FLAGS),
    ("of one CUDA", "no network", "ada", {}),
    ("old code", "newest", "ada", FLAGS),
    ("marked", "newest", "spark", {"python": "3.10"}),
    ("locked", "newest", "ada", {}),
    ("with system", "from source", "ada", {}),
    ("with system", "no network", "mi300", FLAGS),
    ("python 3.10", "newest", "ada", {}),
    ("python not", "newest", "ada", {}),
    ("jax", "newest", "ada", {}),
    ("jax", "refused", "hopper", {"pins": ("jax==0.4.30",)}),
    ("jax", "refused in part", "hopper", {}),
    ("jax", "no network", "mi300", {}),
    ("none", "newest", "cpu", DATED),
    ("none", "brings torch", "ada", {}),
    ("none", "no wheel", "ada", {}),
)


@pytest.mark.parametrize(("named", "kind", "machine", "asked"), RUNS)
def test_each_project_has_the_plan_that_is_known(named, kind, machine, asked):
    dependencies, index = PROJECTS[named], Index(kind, PROJECTS[named])
    answer = plan_project(build(MACHINES[machine], asked), dependencies, load_tables(), index)
    plan = answer if isinstance(answer, Plan) else answer.nearest
    stored = strip_line_numbers(plan, dependencies) if plan else None
    hold(
        f"{named} / {machine} / {kind} / {', '.join(asked)}", answer, stored, *list_choices(dependencies), *index.asked
    )


POLICIES = {
    "mirror": Policy(registries=("mirror.example.org",), mirrors=(("docker.io", "mirror.example.org/hub"),)),
    "closed": Policy(registries=("docker.io/library",)),
    "nvidia": Policy(registries=("docker.io/nvidia",)),
    "shut": Policy(registries=("example.org",)),
}


@pytest.mark.parametrize("named", POLICIES)
def test_each_policy_has_the_plan_that_is_known(named):
    for machine, label, dependencies in (
        ("forward", "nothing", NO_DEPENDENCIES),
        ("ada", "compiled", PROJECTS["compiled"]),
        ("mi300", "nothing", NO_DEPENDENCIES),
    ):
        request = build(MACHINES[machine], {"policy": POLICIES[named]})
        hold(f"policy {named} / {machine} / {label}", solve_project(request, dependencies, load_tables()))


@pytest.mark.parametrize("start", range(8))
def test_each_recorded_machine_is_read_as_it_is_known(start):
    found = {name: str(build_machine_from_facts(expected_facts(name))) for name in sorted(HOSTS)[start::8]}
    for name, machine in found.items():
        hold_text(f"machine {name}", machine)


MISTAKES: tuple[dict, ...] = (
    {"torch": "new"},
    {"torch": "2"},
    {"cuda": "12.x"},
    {"cuda": "12.99"},
    {"cuda": "99"},
    {"python": "three"},
    {"python": "3.99"},
    {"python": "2.7.18"},
    {"image": "UPPER:1"},
    {"pins": ("transformers>=4",)},
    {"vendor": "cpu", "cuda": "12.6"},
    {"torch": "2.8.0+cpu", "cuda": "12.6"},
    {"vendor": "rocm", "cuda": "12.6"},
    {"vendor": "nvidia", "torch": "2.8.0+cpu"},
    {"vendor": "cpu", "torch": "2.8.0+cu126"},
    {"as_of": "2023-13-01"},
    {"as_of": "2023"},
    {"apt": ("Big",)},
    {"features": ("speed",)},
    {"vendor": "rocm"},
    {"vendor": "rocm", "machine": "mi300", "features": ("nvcc",)},
    {"vendor": "nvidia", "machine": "mi300"},
    {"machine": "mixed"},
    {"machine": "mixed driver"},
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_each_mistake_in_a_request_is_answered_as_it_is_known(mistake):
    mixed = {
        "mixed": (flags("RTX 4090"), flags("MI300X")),
        "mixed driver": (flags(driver="580.95.05"), flags("gfx942")),
    }
    machines = (MACHINES | mixed)[mistake.get("machine", "ada")]
    with pytest.raises(DevkitError) as error:
        build_request(machines=machines, **{name: value for name, value in mistake.items() if name != "machine"})
    hold_text(
        f"mistake {mistake}",
        f"{error.value} {error.value.args} {vars(error.value)}".replace(load_tables().as_of, "DAY"),
    )


@pytest.mark.parametrize(
    "chosen", [{"extras": ("trian",)}, {"groups": ("x",)}, {"requirements": ("one.txt",)}], ids=str
)
@pytest.mark.parametrize("named", ["full", "empty"])
def test_each_mistake_in_a_choice_is_answered_as_it_is_known(named, chosen):
    with pytest.raises(DevkitError) as error:
        validate_choice(DependencyChoice(**chosen), PROJECTS[named])
    hold_text(f"choice {named} {chosen}", f"{error.value} {error.value.args} {vars(error.value)}")


@pytest.mark.parametrize(
    ("named", "chosen"), [("full", {"extras": ("Train", "one1"), "groups": ("one0",)}), ("empty", {})]
)
def test_what_the_project_has_can_be_chosen(named, chosen):
    validate_choice(DependencyChoice(**chosen), PROJECTS[named])


@pytest.mark.parametrize(
    ("version", "nearest"),
    [
        ("1.7.0", "1.7.1"),
        ("2.4.9", "2.4.1"),
        ("2.5.0", "2.5.0"),
        ("1.3.0", "1.4.0"),
        ("2.99.0", "2.15.0"),
        ("1.14.0", "1.13.1"),
    ],
)
def test_the_nearest_release_is_of_the_same_minor_or_before_it(version, nearest):
    assert str(find_nearest_release(Release.parse(version), load_tables()).version) == nearest


NO_VERSIONS = "Because there are no versions of {} and you require it. hint: `{}` was filtered by exclude-newer"


@pytest.mark.parametrize(
    ("details", "undated", "gone"),
    [
        (NO_VERSIONS.format("grain-nightly", "grain-nightly"), (), ["grain-nightly"]),
        (NO_VERSIONS.format("grain-nightly", "grain-nightly"), ("grain-nightly",), []),
        (NO_VERSIONS.format("grain-nightly", "other"), (), []),
        (NO_VERSIONS.format("grain==2", "grain"), (), []),
        (2 * NO_VERSIONS.format("grain", "grain"), (), ["grain"]),
        ("", (), []),
    ],
)
def test_what_has_no_release_of_the_day_is_found_once(details, undated, gone):
    assert _list_gone(Refused("refused", details), undated) == gone


@pytest.mark.parametrize("day", ["2019-09-30", "2021-10-01", "2023-09-30", "2026-10-01"])
@pytest.mark.parametrize("machine", ["ada", "blackwell"])
def test_the_requests_of_a_day_are_known(day, machine):
    asked, tables = build(MACHINES[machine], {"as_of": day}), load_tables()
    dated = [each.constraints for each in list_dated_requests(asked, NO_DEPENDENCIES, tables)]
    fitting = list_fitting_torch(asked, tables)
    assert all(build_problem(each, tables).gpus for each in (asked,))
    hold_text(f"day {day} / {machine}", f"{dated} {fitting}")


def tables_of(day: str):
    """The tables as if the releases of torch had last been checked on a day."""
    tables = copy.copy(load_tables())
    tables.torch = copy.copy(tables.torch)
    tables.torch.as_of = day
    return tables


@pytest.mark.parametrize(("day", "expected"), [("2025-08-20", True), ("2025-08-21", False), ("2025-03-01", True)])
def test_code_is_old_after_six_months(day, expected):
    assert is_old(day, tables_of("2026-02-21")) is expected


@pytest.mark.parametrize("framework", ["torch", "none"])
@pytest.mark.parametrize(("month", "is_warned"), [("2026-10", False), ("2026-11", True)])
def test_a_python_is_old_from_the_month_after_its_last(framework, month, is_warned):
    plan = solve_project(build(MACHINES["ada"], {"python": "3.10"}), of(framework), tables_of(f"{month}-21"))
    assert any("no more security fixes" in each for each in plan.warnings) is is_warned


def test_the_age_of_the_tables_is_said_in_days():
    plan = solve_project(build(MACHINES["cpu"], {}), NO_DEPENDENCIES, load_tables())
    plan = replace(plan, data_as_of="2026-11-21")
    ages = {day: format_age(plan, day) for day in (None, "2026-11-20", "2026-11-21", "2026-11-22", "2026-11-30")}
    assert ages == {
        None: "Version tables as of 2026-11-21.",
        "2026-11-20": "Version tables as of 2026-11-21, today.",
        "2026-11-21": "Version tables as of 2026-11-21, today.",
        "2026-11-22": "Version tables as of 2026-11-21, 1 day ago.",
        "2026-11-30": "Version tables as of 2026-11-21, 9 days ago.",
    }
    assert "--gpu" in format_answer(plan, width=80)
    assert "--gpu" not in format_answer(plan, width=80, is_cpu_requested=True)
