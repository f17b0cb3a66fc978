"""Plans whose packages uv resolves; here a small function answers in its place, and notes what it was asked."""

import re
from dataclasses import replace

import pytest

from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import (
    NO_DEPENDENCIES,
    Dependencies,
    Framework,
    PackageIndex,
    PackageManager,
    PackageRequirement,
    Refused,
    Resolved,
)
from devkit.facts.values import Unknown
from devkit.solver.plan import CompileMode, Conflict, Plan
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.resolution import plan_project
from devkit.solver.stated import plan_stated

ADA = build_machine_from_flags(driver="570.124.06", gpus=("RTX 4090",))
NO_NETWORK = Unknown("uv cannot reach the package index")
CONFLICT = Refused("transformers==4.44.2 depends on hub<1; you require hub==2.4.0")
TOO_OLD = Refused("old==1 has no wheels with a matching Python ABI tag")


def need(text: str, line: int = 1, **more) -> PackageRequirement:
    name, separator, version = text.partition("=")
    return PackageRequirement(name, f"{separator}{version}", "requirements.txt", line, **more)


def project(*needs: str, **more) -> Dependencies:
    found = tuple(need(text, line) for line, text in enumerate(needs, 1))
    return Dependencies(
        PackageManager.PIP, "the project has requirements.txt", ("requirements.txt",), needs=found, **more
    )


def resolved(*packages: str, **more) -> Resolved:
    return Resolved(tuple(tuple(text.split("==")) for text in packages), **more)


def newest(request):
    """What is resolved alone: torch beside what the project needs, or a package for another Python."""
    return resolved(*(line if "==" in line else f"{line}=={NEWEST.get(line, '1')}" for line in request.requirements))


NEWEST = {"torch": "2.14.1", "torchvision": "0.28.0"}


class Uv:
    """Answers in turn, and keeps the requests; the last answer counts for all that follow."""

    def __init__(self, *answers, alone=newest):
        self.answers = list(answers)
        self.alone = alone
        self.requests = []
        self.requests_alone = []
        self.expected = []

    def expect(self, request):
        self.expected.append(request)

    def __call__(self, request):
        if request.is_alone:
            self.requests_alone.append(request)
            return self.alone(request)
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(request) if callable(answer) else answer


def plan(dependencies, uv, *, recorded=None, machines=(ADA,), **requested):
    return plan_project(
        build_request(machines=machines, **requested), dependencies, load_tables(), uv, recorded=recorded
    )


def limits_of(request) -> tuple[str, ...]:
    """Return the constraints of a request but for those of wheels, which tests/solver/test_cuda_wheels.py is about."""
    return tuple(
        line for line in request.constraints if not line.startswith(("vllm", "sgl", "torchcodec", "setuptools"))
    )


def test_torch_is_what_uv_chose_and_its_build_what_the_machine_runs():
    uv = Uv(resolved("diffusers==0.42.1", "torch==2.13.0"))
    found = plan(project("diffusers"), uv)
    assert (found.torch, found.variant) == ("2.13.0", "cu126")
    assert found.because("torch") == "resolved by uv with the project's packages; 2.14.1 is the newest that fits"
    assert found.packages == (("torch", "2.13.0"),)
    assert found.versions == {"torch": "2.13.0", "diffusers": "0.42.1"}
    assert found.resolution == resolved("diffusers==0.42.1", "torch==2.13.0")


@pytest.mark.parametrize(
    ("packages", "limits", "compiles"),
    [
        (("mamba-ssm", "causal-conv1d"), "torch==2.10.0", []),
        (("mamba-ssm", "detectron2"), "torch==2.10.0", ["detectron2"]),
        (("detectron2",), "", ["detectron2"]),
        (("natten==0.17",), "", ["natten"]),
    ],
    ids=["all have wheels", "one has", "none has", "not of this version"],
)
def test_torch_is_one_that_the_wheels_of_compiled_packages_are_built_for(packages, limits, compiles):
    uv = Uv(lambda request: resolved("numpy==2", "torch==2.10.0" if limits in request.constraints else "torch==2.14.1"))
    found = plan(project(*packages), uv)
    assert (uv.requests[0].constraints[0] == limits) is bool(limits)
    assert [each.name for each in found.compiled if each.mode is CompileMode.COMPILED] == compiles
    assert found.because("torch").startswith("more packages have wheels for it") is bool(limits)
    # Where the others do not take it, the wheels are given up.
    refused = Uv(Refused("numpy needs torch>2.10"), resolved("numpy==2", "torch==2.14.1"))
    assert not limits or plan(project(*packages), refused).torch == "2.14.1"


def test_an_empty_project_takes_other_versions_where_a_pin_excludes_those_of_the_tables():
    uv = Uv(CONFLICT, resolved("transformers==4.44.2", "accelerate==1.2.0", "peft==0.17.0", "bitsandbytes==0.49.2"))
    found = plan(NO_DEPENDENCIES, uv, pins=("transformers==4.44.2",))
    assert uv.requests[1].requirements == ("transformers==4.44.2", "accelerate", "peft", "bitsandbytes")
    assert dict(found.packages) == {
        "torch": "2.14.1", "transformers": "4.44.2", "accelerate": "1.2.0", "peft": "0.17.0", "bitsandbytes": "0.49.2",
    }  # fmt: skip
    assert found.because("peft") == "resolved by uv with the other packages"
    assert not any("not in the tables" in warning for warning in found.warnings)


def test_a_refusal_is_a_conflict_with_its_reason_and_the_line_to_change():
    uv = Uv(lambda request: resolved("hub==0.36.2") if "hub" in request.relaxed else CONFLICT)
    own = PackageIndex("https://own.example/simple", "requirements.txt", 1)
    found = plan(replace(project("transformers", "hub==2.4.0"), indexes=(own,)), uv)
    assert isinstance(found, Conflict)
    assert [(blocker.rule, blocker.says) for blocker in found.blockers] == [("uv", f"Python 3.12: {CONFLICT.reason}")]
    assert found.nearest_changes == "change requirements.txt:2 to take hub 0.36.2, or --ignore-dependencies"
    assert found.nearest.versions["hub"] == "0.36.2"


@pytest.mark.parametrize(
    ("overrides", "absent"),
    [(("hub==9",), ()), (("hub==9", "transformers==9"), ()), ((), ("gone",)), (("hub==9",), ("gone",))],
    ids=["a version", "two versions", "a name that the index does not have", "both"],
)
def test_what_nobody_could_install_is_set_aside_and_said(overrides, absent):
    def answer(request):
        left = [each for each in overrides if each.partition("==")[0] not in request.relaxed]
        if {*absent} - {*request.absent}:
            return Refused("gone was not found in the package registry and you require gone")
        if left or len(request.relaxed) > len(overrides):
            return Refused(f"hub and transformers: {left}", "transformers==1 depends on hub<1")
        return resolved("hub==9", "transformers==9", "torch==2.13.0", absent=request.absent)

    needs = project("transformers==1", "hub==2.4.0", *absent)
    found = plan(needs, Uv(answer))
    assert (found.overrides, found.resolution.absent) == (overrides, absent)
    said = "\n".join(found.warnings)
    assert all(f"the image gets {each.replace('==', ' ')} instead" in said for each in overrides)
    assert ("gone is not installed: requirements.txt:3 requires it" in said) is bool(absent)
    recorded = plan(needs, NO_NETWORK, recorded=found)
    assert (recorded.overrides, recorded.resolution.absent) == (overrides, absent)


@pytest.mark.parametrize(
    ("requested", "asked", "changes"),
    [
        ({"pins": ("hub==2.4.0",)}, lambda request: "hub==2.4.0" not in request.requirements, "--pin hub==0.36.2"),
        ({"torch": "2.4.1"}, lambda request: "torch==2.4.1" not in request.constraints, "--torch 2.14.1+cu126"),
        ({"python": "3.13"}, lambda request: request.python != "3.13", "--python 3.12"),
    ],
)
def test_the_nearest_plan_gives_up_a_flag_first(requested, asked, changes):
    uv = Uv(lambda request: resolved("hub==0.36.2") if asked(request) else CONFLICT)
    found = plan(project("hub"), uv, **requested)
    assert isinstance(found, Conflict)
    assert found.nearest_changes == changes


def test_of_older_pythons_the_one_with_wheels_is_taken():
    def answer(request):
        if request.python == "3.12" and not request.is_alone:
            return TOO_OLD
        built = () if request.python == "3.10" else ("tokenizers",)
        return resolved("tokenizers==0.12.1", "torch==2.14.1", from_source=built)

    found = plan(project("tokenizers==0.12.1"), Uv(answer, alone=answer))
    assert (found.python, found.because("python")) == ("3.10", "tokenizers: no wheel for Python 3.11")


@pytest.mark.parametrize("more", [{}, {"as_of": "2024-06-01"}], ids=["the newest", "as of a day"])
def test_other_pythons_are_resolved_for_beside_each_other(more):
    uv = Uv(TOO_OLD)
    plan(project("old==1", "torchvision==0.21.0"), uv, **more)
    assert len(uv.expected) >= 4
    # What is begun is what is asked for in the end, word for word; otherwise it would be resolved twice.
    assert [each for each in uv.expected if each not in uv.requests] == []


def test_what_a_package_needs_of_another_python_alone_is_met_by_that_python():
    """opencv-python 4.9.0.80 takes numpy 1.24.4 up to Python 3.11, and uv's reason does not name the Python."""
    refusal = Refused("opencv-python==4.9.0.80 depends on numpy>=1.26.0 and you require numpy==1.24.4")
    uv = Uv(lambda request: refusal if request.python == "3.12" else resolved("opencv-python==4.9.0.80"))
    found = plan(project("opencv-python==4.9.0.80", "numpy==1.24.4"), uv)
    assert isinstance(found, Plan)
    assert found.python == "3.11"


def test_a_package_that_does_not_exist_is_looked_for_once():
    refusal = Refused("nope was not found in the package registry and you require nope==1")
    uv = Uv(lambda request: NO_NETWORK if request.relaxed else refusal)
    plan(project("nope==1"), uv)
    assert {request.python for request in uv.requests} == {"3.12"}


def build_on_wheels_of(python):
    def answer(request):
        return resolved(
            "tokenizers==0.13.3", "torch==2.14.1", from_source=() if request.python == python else ("tokenizers",)
        )

    return Uv(answer, alone=answer)


def test_a_requested_python_stays_and_the_missing_wheel_is_said():
    found = plan(project("tokenizers"), build_on_wheels_of("3.11"), python="3.12")
    assert found.python == "3.12"
    assert found.warnings[-1] == (
        "tokenizers: no wheel for Python 3.12, so the image build compiles it; Python 3.11 has a wheel"
    )


@pytest.mark.parametrize("elsewhere", [(), (("fire", ()),)], ids=["not known", "known"])
def test_what_has_no_wheels_anywhere_changes_no_python(elsewhere):
    answer = resolved("fire==0.5.0", "torch==2.14.1", from_source=("fire",), elsewhere=elsewhere)
    uv = Uv(answer, alone=lambda _: answer)
    found = plan(project("fire"), uv)
    assert (found.python, found.warnings) == ("3.12", ())
    assert {each.python for each in uv.requests_alone} == (set() if elsewhere else {"3.11", "3.10"})


def test_a_python_further_away_is_taken_for_a_wheel_only_with_the_same_torch():
    def answer(request):
        versions = ("old==1", f"torch=={'2.8.0' if request.python == '3.9' else '2.14.1'}")
        built = () if request.python in ("3.9", "3.14") else ("old",)
        return resolved(*versions, from_source=built, elsewhere=tuple((each, ("3.9", "3.14")) for each in built))

    found = plan(project("old"), Uv(answer, alone=answer))
    assert (found.python, found.torch) == ("3.14", "2.14.1")


def test_an_empty_project_is_what_the_tables_know_without_a_network():
    found = plan(NO_DEPENDENCIES, NO_NETWORK)
    assert found.warnings == ()
    assert found.resolution == NO_NETWORK
    unknown = plan(NO_DEPENDENCIES, NO_NETWORK, pins=("transformers==4.44.2",))
    assert any("transformers==4.44.2 is not in the tables" in warning for warning in unknown.warnings)
    # What it needs of the hub is unknown.
    assert "huggingface-hub" not in unknown.versions


def test_torchvision_follows_the_torch_that_the_others_need():
    uv = Uv(resolved("diffusers==0.42.1", "torch==2.13.0"))
    found = plan(project("torchvision", "diffusers"), uv)
    assert uv.requests[0].requirements == ()
    (alone,) = uv.requests_alone
    assert alone.requirements == ("torchvision",)
    assert {"torch==2.13.0", "diffusers==0.42.1"} <= set(alone.constraints)
    assert found.versions == {"torch": "2.13.0", "diffusers": "0.42.1", "torchvision": "0.28.0"}


def test_what_torch_itself_needs_is_checked_with_the_rest():
    refusal = Refused("torch==2.14.1 depends on sympy>=1.13.3; you require sympy==1.10")
    uv = Uv(resolved("sympy==1.10"), resolved("sympy==1.10", "torch==2.4.1"), alone=lambda _: refusal)
    found = plan(project("torch", "sympy==1.10"), uv)
    assert limits_of(uv.requests_alone[0]) == ("torch>=2.2.0,<=2.14.1", "sympy==1.10")
    assert uv.requests[1].requirements == ("torch",)
    assert found.torch == "2.4.1"


def test_a_torchvision_that_is_bound_binds_torch():
    uv = Uv(resolved("torch==2.6.0", "torchvision==0.21.0"))
    plan(project("torchvision==0.21.0"), uv)
    assert uv.requests[0].requirements == ("torchvision==0.21.0",)
    assert len(uv.requests) == 1


@pytest.mark.parametrize("own", [(), ("setuptools==82",)])
def test_pkg_resources_stays_unless_the_project_names_setuptools(own):
    uv = Uv(resolved("torch==2.13.0"))
    plan(project("old", *own), uv)
    assert ("setuptools<82" in uv.requests[0].constraints) is not bool(own)


def test_what_only_the_tables_know_becomes_a_limit():
    uv = Uv(resolved("torch==2.2.2", "numpy==2.5"), resolved("torch==2.2.2", "numpy==1.26.4"))
    found = plan(project("torch==2.2.2", "numpy"), uv)
    assert limits_of(uv.requests[1]) == ("torch==2.2.2",)
    assert uv.requests[1].requirements == ("numpy<2",)
    assert found.versions["numpy"] == "1.26.4"
    assert found.limits == ("numpy<2", "numpy==1.26.4")


def test_what_the_project_excludes_is_warned_of():
    uv = Uv(resolved("torch==2.2.2", "numpy==2.5"), CONFLICT)
    found = plan(project("torch==2.2.2", "numpy==2.5"), uv)
    assert "torch 2.2.2 runs only with numpy<2, but the project's packages need numpy 2.5" in found.warnings
    assert found.limits == ("numpy==2.5",)


def test_transformers_needs_at_run_time_what_its_metadata_does_not_say():
    uv = Uv(resolved("transformers==5.23.0", "peft==0.15.0"), resolved("transformers==5.23.0", "peft==0.21.2"))
    found = plan(project("transformers", "peft"), uv)
    assert found.limits == ("peft>=0.20.0", "peft==0.21.2", "transformers==5.23.0")


def test_a_package_is_older_where_the_project_holds_what_it_would_need_another_version_of():
    uv = Uv(
        resolved("transformers==5.23.0", "peft==0.15.0"), CONFLICT, resolved("transformers==4.57.6", "peft==0.15.0")
    )
    found = plan(project("transformers", "peft==0.15.0"), uv)
    assert (found.limits[0], found.versions["transformers"]) == ("transformers<5.0.0", "4.57.6")
    assert not any("runs only with" in each for each in found.warnings)


@pytest.mark.parametrize(("torch", "limit"), [("2.0.1", "4.52.1"), ("2.3.1", "5.1.0"), ("2.5.1", "5.20.0")])
def test_transformers_is_old_enough_for_the_torch_whose_older_releases_it_ignores(torch, limit):
    def answer(request):
        is_limited = any(line.startswith("transformers<") for line in request.requirements)
        return resolved(f"transformers=={'4.48.3' if is_limited else '5.22.0'}", f"torch=={torch}")

    assert plan(project(f"torch=={torch}", "transformers"), Uv(answer)).limits[0] == f"transformers<{limit}"


OLD_VISION = Refused("torchvision<0.17 has no wheels with a matching Python version tag")


@pytest.mark.parametrize(
    ("machine", "torch", "warnings"),
    [
        pytest.param(ADA, "2.1.2", [], id="an older torch runs on the GPU"),
        pytest.param(
            build_machine_from_flags(driver="580.95.05", gpus=("RTX 5090",)),
            "2.14.1",
            ["basicsr 1.4.2 runs only with torchvision<0.17, but the project's packages need torchvision 0.28.0"],
            id="no torch that is old enough has code for the GPU",
        ),
    ],
)
def test_a_package_that_imports_what_torchvision_removed_gets_an_older_torch(machine, torch, warnings):
    """Real-ESRGAN issue 777: basicsr has no upper bound, and ends at its import with torchvision 0.17 and newer."""

    def answer(request):
        if "basicsr<1.0.0" in request.requirements:
            return CONFLICT  # the index has none
        if "torchvision<0.17" not in request.constraints + request.requirements:
            return resolved("basicsr==1.4.2", "torch==2.14.1", "torchvision==0.28.0")
        runs_old_torch = any(line.startswith("torch>=2.0") for line in request.constraints)
        if request.python != "3.11" or not runs_old_torch:
            return OLD_VISION
        return resolved("basicsr==1.4.2", "torch==2.1.2", "torchvision==0.16.2")

    found = plan(project("basicsr", "torchvision"), Uv(answer), machines=(machine,))
    assert (found.torch, [each for each in found.warnings if "basicsr" in each]) == (torch, warnings)


@pytest.mark.parametrize(
    ("package", "limits"),
    [("opencv-python==4.4.0.46", ("numpy<2",)), ("opencv-python==4.10.0.84", ()), ("pandas==1.5.3", ("numpy<2",))],
)
def test_a_wheel_that_was_compiled_with_numpy_1_gets_it(package, limits):
    """opencv-python 4.4 has no upper bound, and its import ends with NumPy 2."""

    def answer(request):
        is_limited = "numpy<2" in request.constraints + request.requirements
        return resolved(package, "torch==2.3.1", f"numpy=={'1.26.4' if is_limited else '2.0.0'}")

    found = plan(project(package), Uv(answer)).limits
    assert tuple(each for each in found if "<" in each) == limits


def test_a_torchaudio_whose_metadata_names_no_torch_is_not_newer_than_torch():
    uv = Uv(
        resolved("torch==2.9.1", "torchaudio==2.11.0"),
        resolved("torch==2.9.1", "torchaudio==2.9.1"),
        alone=lambda _: NO_NETWORK,
    )
    found = plan(project("torch==2.9.1", "torchaudio"), uv)
    assert found.limits == ("torchaudio<2.11.0",)
    uv = Uv(resolved("torch==2.14.1", "torchaudio==2.11.0"))
    assert plan(project("torch==2.14.1", "torchaudio"), uv).limits == ()
    # Its CUDA, which that of an older torch is not, says nothing of the one that is taken.
    uv = Uv(
        resolved("torch==2.0.0", "torchaudio==2.11.0"),
        resolved("torch==2.0.0", "torchaudio==2.0.1"),
        alone=lambda _: NO_NETWORK,
    )
    assert plan(project("torch==2.0.0", "torchaudio"), uv, python="3.11").limits == ("torchaudio<2.11.0",)


def test_a_bitsandbytes_without_a_library_for_the_cuda_is_avoided():
    uv = Uv(resolved("bitsandbytes==0.44.1"), resolved("bitsandbytes==0.50.2"))
    found = plan(project("bitsandbytes"), uv)
    assert "!=0.44.1" in found.limits[0]
    assert "!=0.50.2" not in found.limits[0]


def test_every_processor_is_resolved_with_one_torch():
    spark = build_machine_from_flags(driver="580.95.05", gpus=("GB10",), machine="aarch64")
    ada = build_machine_from_flags(driver="580.95.05", gpus=("RTX 4090",))
    uv = Uv(resolved("torch==2.13.0"))
    found = plan(project("diffusers"), uv, machines=(ada, spark))
    assert [request.machine for request in uv.requests] == ["aarch64", "x86_64"]
    assert "torch==2.13.0" in uv.requests[1].constraints
    assert found.torch == "2.13.0"


def test_what_the_index_has_for_another_system_alone_is_left_out_of_the_image_and_said():
    absent = {"absent": ("pywin32",)}
    says = "requires it, but the package index does not have it for Linux"
    found = plan(project("pywin32==306", "hub"), Uv(resolved("hub==1", "torch==2.13.0", **absent)))
    recorded = plan(project("pywin32==306", "hub"), NO_NETWORK, recorded=found)
    of_uv = replace(project("hub==1", "pywin32==306"), tool=PackageManager.UV, lock="uv.lock")
    locked = plan(of_uv, Uv(None, alone=lambda _: resolved("hub==1", **absent)))
    for each in (found, recorded, locked):
        assert ([one.name for one in each.compiled], any(says in one for one in each.warnings)) == (["pywin32"], True)
    assert plan(of_uv, NO_NETWORK, recorded=locked) == locked


def test_what_brings_cuda_to_the_release_that_uv_chose_is_resolved_and_held():
    whole = resolved("jax==0.4.38", "jaxlib==0.4.38", "nvidia-cublas-cu12==12.6.4.1")
    uv = Uv(resolved("jax==0.4.38"), whole)
    wanted = project("jax", framework=Framework.JAX, framework_because="requirements.txt:1 names jax")
    found = plan(wanted, uv, machines=(build_machine_from_flags(driver="580.95", gpus=("RTX 4090",)),))
    assert [each.requirements for each in uv.requests] == [("jax[cuda13]",), ("jax[cuda12]",)]
    assert (found.additions, found.resolution.packages) == (("jax[cuda12]",), whole.packages)
    assert "nvidia-cublas-cu12==12.6.4.1" in found.limits


def test_what_was_resolved_before_counts_where_there_is_no_network():
    uv = Uv(lambda request: resolved("torch==2.13.0", "diffusers==0.42.1") if request.python == "3.11" else TOO_OLD)
    recorded = plan(project("diffusers"), uv)
    found = plan(project("diffusers"), NO_NETWORK, recorded=recorded)
    assert found == recorded
    assert (found.python, found.torch) == ("3.11", "2.13.0")


def state(*stated: str, python: str = "", needs: tuple[str, ...] = ("numpy", "scipy")) -> Dependencies:
    lines = [
        PackageRequirement(*re.split("(?==)", text, maxsplit=1), "README.md", line)
        for line, text in enumerate(stated, 1)
    ]
    guide = PackageRequirement("python", f"=={python}.*", "README.md", 9) if python else None
    return replace(project(*needs), stated=tuple(lines), guide_python=guide)


def plan_with_stated(dependencies, uv, **requested):
    found = plan_stated(build_request(machines=(ADA,), **requested), dependencies, load_tables(), uv)
    return found, [each for each in found.warnings if each.startswith("README.md")]


def test_stated_versions_hold_where_they_fit():
    uv = Uv(
        lambda asked: (
            resolved("numpy==1.24.1", "scipy==1.9.0")
            if "numpy==1.24.1" in asked.constraints
            else resolved("numpy==2.0.0")
        ),
        alone=lambda asked: resolved("torch==2.6.0" if "torch==2.6.0" in asked.constraints else "torch==2.14.1"),
    )
    found, says = plan_with_stated(state("numpy==1.24.1", "torch==2.6.0", "gym==0.16.0", python="3.11"), uv)
    assert (found.torch, found.resolved["numpy"], found.python) == ("2.6.0", "1.24.1", "3.11")
    assert says == ["README.md:3 names gym 0.16.0, which nothing here installs"]
    # What the user asks for goes before.
    assert plan_with_stated(state("torch==2.6.0"), uv, torch="2.14.1")[0].torch == "2.14.1"


def test_a_stated_version_holds_beside_what_is_set_aside():
    def answer(asked):
        if "hub" not in asked.relaxed:
            return Refused("hub==2.4.0 fits nothing")
        return resolved("hub==9", "numpy==1.24.1" if "numpy==1.24.1" in asked.constraints else "numpy==2.0.0")

    found, says = plan_with_stated(
        replace(state("numpy==1.24.1"), needs=(need("hub==2.4.0"), need("numpy"))), Uv(answer)
    )
    assert (found.overrides, found.resolved["numpy"], says) == (("hub==9",), "1.24.1", [])


def test_a_stated_version_that_does_not_fit_is_given_up_alone_and_said_with_its_reason():
    def answer(asked):
        if "numpy==1.11.0" in asked.constraints:
            return Refused("numpy==1.11.0 has no usable file")
        return resolved("numpy==2.0.0", "scipy==1.9.0" if "scipy==1.9.0" in asked.constraints else "scipy==1.17.0")

    found, says = plan_with_stated(state("numpy==1.11.0", "scipy==1.9.0", "torch==1.2.0", python="3.5"), Uv(answer))
    assert found.resolved["scipy"] == "1.9.0"
    assert says[0] == (
        "README.md:1 asks for numpy 1.11.0: the plan has 2.0.0, because Python 3.12: numpy==1.11.0 has no usable file"
    )
    assert says[1].startswith("README.md:3 asks for torch 1.2.0: the plan has 2.14.1, because torch 1.2.0")
    assert says[2:] == ["README.md:9 asks for Python 3.5: the plan has 3.12, because no image here has it"]


def test_a_stated_version_is_not_built_where_another_has_a_wheel():
    def answer(asked):
        is_old = "scipy==1.0.0" in asked.constraints
        built = ("gym", *(["scipy"] if is_old else []))
        gym = "gym==0.16.0" if "gym==0.16.0" in asked.constraints else "gym==0.26.2"
        return resolved(gym, "scipy==1.0.0" if is_old else "scipy==1.17.0", from_source=built)

    found, says = plan_with_stated(
        state("gym==0.16.0", "scipy==1.0.0", needs=("gym", "scipy")), Uv(answer), python="3.12"
    )
    assert found.resolved["gym"] == "0.16.0", "no version of it has one"
    assert says == ["README.md:2 asks for scipy 1.0.0: the plan has 1.17.0, because it has no wheel for Python 3.12"]


def test_stated_versions_do_not_cost_the_packages_of_the_day():
    def answer(asked):
        return Refused("no") if asked.as_of and "numpy==1.24.1" in asked.constraints else resolved("numpy==1.25.0")

    found, says = plan_with_stated(
        state("numpy==1.24.1"), Uv(answer, alone=lambda _: resolved("torch==2.0.1")), as_of="2023-07-24"
    )
    assert (found.as_of, found.resolved["numpy"]) == ("2023-07-24", "1.25.0")
    assert says == ["README.md:1 asks for numpy 1.24.1: the plan has 1.25.0, because no plan of 2023-07-24 has it"]
