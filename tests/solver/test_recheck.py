"""Whatever the request: a plan breaks no rule, and where there is none, nothing fits. Judged by rules written apart."""

from dataclasses import asdict, replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from devkit.compat.version_tables import load_tables
from devkit.solver.plan import Conflict, Constraint, Plan
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve
from tests.amount import LONG
from tests.solver import recheck
from tests.solver.recheck import Choice, Situation

LINUX = sorted(
    {row["linux_driver"] for row in recheck.rows("driver", "toolkit")}
    | {row["linux_driver"] for row in recheck.rows("driver", "family")}
    | {f"{row['branch']}.99.99" for row in recheck.rows("driver", "branch")}
    | {"525.60.12", "580.65.05", "450.80.01", "540.4.0", "390.157", "700.10"}
)
WINDOWS = sorted(
    {row["windows_driver"] for row in recheck.rows("driver", "toolkit") if "windows_driver" in row}
    | {f"{max(row['branches'])}.10" for row in recheck.rows("driver", "windows_branch")}
    | {"452.38", "528.32", "579.99"}
)
NVIDIA = sorted({row["name"] for row in recheck.rows("gpus", "gpu")})
CAPABILITIES = sorted({row["capability"] for row in recheck.rows("driver", "capability")})
AMD = sorted({row["name"] for row in recheck.rows("rocm", "gpu")})
VERSIONS = [row["version"] for row in recheck.rows("torch", "release")]
BUILDS = [f"{row['version']}+{label}" for row in recheck.rows("torch", "release") for label in row["variants"]]
MINORS = sorted({".".join(version.split(".")[:2]) for version in VERSIONS})
IMAGES = [
    "python:3.11-slim-bookworm",
    "python:3.14-slim-trixie",
    "nvidia/cuda:latest",
    "nvidia/cuda:11.8.0-base-ubuntu22.04",
    "nvidia/cuda:12.1.1-base-ubuntu22.04",
    "nvidia/cuda:12.4.1-devel-ubuntu22.04",
    "nvidia/cuda:12.6.3-base-ubuntu24.04",
    "nvidia/cuda:12.8.1-devel-ubuntu24.04",
    "nvidia/cuda:13.0.2-base-ubuntu24.04",
    "nvidia/cuda:13.2.1-devel-ubuntu22.04",
]
PINS = ["transformers==4.57.6", "transformers==5.23.0", "peft==0.17.1", "bitsandbytes==0.46.0", "bitsandbytes==0.49.2"]
LIMITS = [
    ("torch", "<2.5"),
    ("torch", ">=2.6,<2.12"),
    ("torch", "==2.4.1"),
    ("torch", "~=2.11.0"),
    ("torch", "==2.8.0+cu129"),
    ("python", ">=3.11"),
    ("python", "<3.12"),
    ("transformers", "<5"),
    ("peft", ">=0.20"),
    ("bitsandbytes", "<0.49"),
    ("fastapi", "<0.1"),
]
FEATURES = ["bf16", "nf4", "llm-int8", "flash-attention-2", "fp8", "nvcc"]


REQUESTED = {
    "glibc": st.sampled_from(["2.17", "2.27", "2.28", "2.36"]),
    "gpu_runtime": st.sampled_from(["legacy", "cdi"]),
    "torch": st.sampled_from(MINORS + VERSIONS + BUILDS),
    "cuda": st.sampled_from(["11.8", "12", "12.6", "12.8", "13", "13.0", "13.2"]),
    "python": st.sampled_from(["3.10", "3.11", "3.12", "3.13", "3.14"]),
    "image": st.sampled_from(IMAGES),
    "pins": st.sampled_from(PINS).map(lambda pin: (pin,)),
    "features": st.lists(st.sampled_from(FEATURES), min_size=1, max_size=2, unique=True).map(tuple),
    "constraints": st.lists(st.sampled_from(LIMITS), min_size=1, max_size=2, unique=True).map(tuple),
}


def maybe(values: list[str]) -> st.SearchStrategy[str | None]:
    return st.none() | st.sampled_from(values)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """NVIDIA machines with a wish or two: with more, hardly anything would fit."""
    platform = draw(st.sampled_from(["linux", "linux", "linux", "wsl2"]))
    drivers = st.sampled_from(WINDOWS if platform == "wsl2" else LINUX)
    gpus = draw(st.lists(st.sampled_from(NVIDIA) | st.sampled_from(CAPABILITIES), max_size=2, unique=True))
    wished = draw(st.lists(st.sampled_from(sorted(REQUESTED)), max_size=3, unique=True))
    return Situation(
        driver=draw(drivers | st.none() if gpus else drivers),
        gpus=tuple(gpus),
        machine=draw(st.sampled_from(["x86_64", "x86_64", "x86_64", "aarch64"])),
        platform=platform,
        **{name: draw(REQUESTED[name]) for name in wished},
    )


@st.composite
def image_situations(draw: st.DrawFn) -> Situation:
    """CUDA images, and CUDA newer than the driver, where everything else fits."""
    return Situation(
        driver=draw(st.sampled_from([driver for driver in LINUX if 470 <= int(driver.split(".")[0]) < 600])),
        gpus=(draw(st.sampled_from([*NVIDIA, "7.5", "8.0", "8.6"])),),
        image=draw(st.none() | st.sampled_from([image for image in IMAGES if "nvidia/cuda" in image])),
        cuda=draw(st.none() | maybe(["12.6", "13.0", "13.2"])),
        gpu_runtime=draw(maybe(["legacy", "cdi"])),
        features=draw(st.sampled_from([(), (), ("nvcc",)])),
    )


@st.composite
def amd_situations(draw: st.DrawFn) -> Situation:
    return Situation(
        gpus=tuple(draw(st.lists(st.sampled_from(AMD), max_size=2, unique=True))),
        vendor="rocm",
        machine=draw(st.sampled_from(["x86_64", "x86_64", "x86_64", "aarch64"])),
        torch=draw(maybe(MINORS + VERSIONS)),
        python=draw(maybe(["3.10", "3.12", "3.13"])),
        features=tuple(draw(st.lists(st.sampled_from(["nf4", "fp8"]), max_size=1))),
        constraints=tuple(draw(st.lists(st.sampled_from(LIMITS), max_size=1))),
    )


def answer(situation: Situation) -> Plan | Conflict:
    requested = asdict(situation)
    machine = {name: requested.pop(name) for name in ("driver", "gpus", "machine", "platform", "glibc")}
    runtime, limits = requested.pop("gpu_runtime"), requested.pop("constraints")
    request = build_request(machines=(build_machine_from_flags(**machine),), **requested)
    constraints = tuple(Constraint(name, specifier, "requirements.txt:1") for name, specifier in limits)
    request = replace(request, gpu_runtime=runtime, constraints=constraints, adds_packages=not constraints)
    return solve(request, load_tables())


def choice_of(plan: Plan) -> Choice:
    packages = tuple(pair for pair in plan.packages if pair[0] != "torch")
    return Choice(plan.torch, plan.variant, plan.python, plan.base_image, packages)


def agree(situation: Situation, build: str) -> None:
    found = answer(situation)
    if isinstance(found, Plan):
        assert recheck.violations(choice_of(found), situation) == set(), found
    else:
        assert found.blockers
        assert recheck.fits(situation, build) is None, found.blockers


MANY = settings(max_examples=250 if LONG else 30, deadline=None, suppress_health_check=list(HealthCheck))


@MANY
@given(situations())
@example(Situation("535.183.01", ("NVIDIA GeForce RTX 4090",), image="nvidia/cuda:12.8.1-devel-ubuntu24.04"))
@example(Situation("570.124.06", ("NVIDIA GB200",), machine="aarch64"))
def test_a_plan_for_nvidia_breaks_no_rule_and_a_conflict_has_no_way_out(situation):
    agree(situation, "cpu" if (situation.torch or "").endswith("+cpu") else "cu")


@MANY
@given(image_situations())
def test_a_plan_with_a_newer_cuda_breaks_no_rule_and_a_conflict_has_no_way_out(situation):
    agree(situation, "cu")


@MANY
@given(amd_situations())
def test_a_plan_for_amd_breaks_no_rule_and_a_conflict_has_no_way_out(situation):
    agree(situation, "rocm")


@settings(max_examples=100 if LONG else 15, deadline=None, suppress_health_check=list(HealthCheck))
@given(situations())
def test_the_nearest_plan_breaks_no_rule_of_the_machine(situation):
    found = answer(situation)
    if isinstance(found, Conflict) and found.nearest is not None:
        bare = Situation(situation.driver, situation.gpus, situation.machine, situation.platform, situation.glibc)
        bare = replace(bare, gpu_runtime=situation.gpu_runtime)
        assert recheck.violations(choice_of(found.nearest), bare) - {"requested"} == set(), found


@pytest.mark.parametrize(
    ("situation", "choice", "rule"),
    [
        pytest.param(
            Situation("570.124.06", ("NVIDIA GeForce RTX 4090",)),
            Choice("2.15.0", "cu130", "3.12", "python:3.12-slim-bookworm", ()),
            "R4",
            id="a driver of the major before",
        ),
        pytest.param(
            Situation("580.95.05", ("Tesla P40",)),
            Choice("2.14.1", "cu130", "3.12", "python:3.12-slim-bookworm", ()),
            "A1",
            id="a wheel without code for the GPU",
        ),
        pytest.param(
            Situation("580.95.05", ("Tesla T4",), features=("nf4",)),
            Choice("2.15.0", "cu130", "3.12", "python:3.12-slim-bookworm", (("bitsandbytes", "0.47.0"),)),
            "B1",
            id="a bitsandbytes without a library for the CUDA",
        ),
        pytest.param(
            Situation("580.95.05", ("Tesla T4",)),
            Choice("2.15.0", "cu130", "3.10", "python:3.10-slim-bookworm", ()),
            "W7",
            id="a Python without a wheel",
        ),
        pytest.param(
            Situation("535.183.01", ("NVIDIA GeForce RTX 4090",)),
            Choice("2.14.1", "cu126", "3.12", "nvidia/cuda:12.8.1-base-ubuntu24.04", ()),
            "I2",
            id="an image that the runtime refuses",
        ),
    ],
)
def test_the_second_opinion_sees_a_broken_rule(situation, choice, rule):
    assert rule in recheck.violations(choice, situation)
