"""Plans with the packages of a day: the torch and the Python of that time, as far as the machines run them."""

import copy
from dataclasses import replace

import pytest

from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.facts.dependencies import PackageRequirement, Refused
from devkit.facts.values import Unknown
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.resolution import is_old
from tests.solver.test_resolution import ADA, Uv, plan, project, resolved

BLACKWELL = build_machine_from_flags(driver="580.95.05", gpus=("RTX 5090",))
DAY = "2023-07-24"


def test_versions_are_those_of_the_day_and_all_of_them_are_held():
    uv = Uv(resolved("transformers==4.31.0", "numpy==1.25.1", "torch==2.0.1", "nvidia-cublas-cu11==11.10"))
    found = plan(project("transformers"), uv, as_of=DAY)
    assert (found.torch, found.variant, found.python) == ("2.0.1", "cu118", "3.10")
    assert {each.as_of for each in uv.requests} == {DAY}
    assert uv.requests[0].undated == ()
    assert uv.requests[0].constraints[0].endswith("<=2.0.1")
    assert found.limits == ("transformers==4.31.0", "numpy==1.25.1")
    assert found.as_of == DAY


def test_a_gpu_that_only_a_later_torch_serves_gets_the_first_of_these_and_packages_of_the_day():
    uv = Uv(resolved("transformers==4.31.0"), alone=lambda _: resolved("torch==2.7.0", "nvidia-nccl-cu12==2.26.2"))
    found = plan(project("transformers"), uv, machines=(BLACKWELL,), as_of=DAY)
    assert (found.torch, found.variant) == ("2.7.0", "cu128")
    assert uv.requests[0].as_of == DAY
    assert set(uv.requests[0].undated) == {"torch", "torchvision", "torchaudio", "nvidia-nccl-cu12"}


def test_a_build_that_leaves_no_doubt_goes_before_one_that_is_older():
    # In February 2023 torch had no build for CUDA 11.8, the first that knows this GPU.
    found = plan(project("diffusers"), Uv(resolved("diffusers==0.13.1", "torch==2.0.0")), as_of="2023-02-24")
    assert (found.torch, found.variant) == ("2.0.0", "cu118")


def of_guide(python, **more):
    return replace(
        project("diffusers", **more), guide_python=PackageRequirement("python", f"=={python}.*", "README.md", 7)
    )


@pytest.mark.parametrize(
    ("day", "guide", "python"),
    [
        ("2023-07-24", "3.9", "3.9"),
        pytest.param("2023-07-24", "3.11", "3.11", id="newer than a year"),
        pytest.param("2023-07-24", "3.7", "3.10", id="without fixes on that day"),
        pytest.param("2023-07-24", "3.13", "3.10", id="torch of that day has no wheel for it"),
        pytest.param(None, "3.11", "3.11", id="code of today"),
        pytest.param(None, "3.10", "3.12", id="code of today, and a Python without fixes"),
    ],
)
def test_the_python_of_a_guide_that_still_got_fixes_goes_before_others(day, guide, python):
    answer = resolved("diffusers==0.18.2", "torch==2.0.1") if day else resolved("diffusers==0.42.1")
    found = plan(of_guide(guide), Uv(answer), as_of=day)
    assert found.python == python
    assert ("README.md:7" in found.because("python")) == (guide == python)


def test_the_python_of_a_guide_gives_way_to_what_was_chosen_and_to_what_uv_refuses():
    asked = of_guide("3.11")
    assert plan(asked, Uv(resolved("diffusers==0.42.1")), python="3.13").python == "3.13"

    def answer(request):
        return Refused("diffusers has no wheel") if request.python == "3.11" else resolved("diffusers==0.42.1")

    assert plan(asked, Uv(answer)).python == "3.12"


@pytest.mark.parametrize("day", [None, "latest"])
def test_without_a_day_nothing_is_held_back(day):
    uv = Uv(resolved("transformers==5.23.0"))
    found = plan(project("transformers"), uv, as_of=day)
    assert (found.torch, found.as_of, uv.requests[0].as_of) == ("2.14.1", "", "")


@pytest.mark.full
def test_where_the_packages_of_the_day_do_not_fit_the_newest_are_planned_and_that_is_said():
    def answer(request):
        return Refused("old==1 depends on new>=2") if request.as_of else resolved("transformers==5.23.0")

    found = plan(project("transformers"), Uv(answer), as_of=DAY, python="3.11")
    assert (found.torch, found.python, found.as_of) == ("2.14.1", "3.11", "")
    assert f"the packages are the newest, because no plan fits those released by {DAY}" in found.warnings


def test_a_package_of_which_nothing_of_that_day_is_left_is_newer_and_the_others_are_not():
    def answer(request):
        # The nearest day on which the index has one.
        if "grain-nightly=122" in request.undated or not request.as_of:
            return resolved("transformers==4.31.0", "grain-nightly==0.2.16", "torch==2.0.1")
        # As uv 0.13.9 says for google/maxtext of 2024, whose nightly builds were deleted.
        hint = "hint: `grain-nightly` was filtered by `exclude-newer` to only include packages uploaded before 2023"
        return Refused("no versions", f"Because there are no versions of grain-nightly and you require it.\n\n{hint}")

    uv = Uv(answer)
    found = plan(project("transformers", "grain-nightly"), uv, as_of=DAY)
    assert (found.as_of, {each.as_of for each in uv.requests}) == (DAY, {DAY})
    later = [each for request in uv.requests for each in request.undated if each.startswith("grain-nightly=")]
    assert list(dict.fromkeys(later)) == ["grain-nightly=31", "grain-nightly=122"]
    assert f"grain-nightly is newer than {DAY}: the index has no wheel from that day that fits" in found.warnings


@pytest.mark.parametrize(("pin", "version"), [("", "1.26.4"), ("==1.16.3", "1.16.3")], ids=["open", "pinned"])
def test_a_package_of_the_day_that_has_wheels_for_other_pythons_alone_is_newer_unless_it_is_pinned(pin, version):
    def answer(request):
        # Half a year after Python 3.8, the oldest for which there is a torch that these machines run.
        if "numpy=2020-04-01" in request.undated:
            return resolved("numpy==1.26.4", "torch==2.0.0")
        has = (("numpy", ("2.7", "3.7")),)
        return resolved("numpy==1.16.3", "torch==2.0.0", from_source=("numpy",), elsewhere=has)

    uv = Uv(answer)
    found = plan(project(f"numpy{pin}"), uv, as_of="2018-10-02")
    assert (found.resolved["numpy"], found.python, found.torch) == (version, "3.8", "2.0.0")
    later = {each for request in uv.requests for each in request.undated if each.startswith("numpy")}
    assert later == (set() if pin else {"numpy=2020-04-01"})
    said = "numpy is newer than 2018-10-02: the index has no wheel from that day that fits"
    assert (said in found.warnings) == (not pin)


def test_jax_moves_with_a_jaxlib_that_the_index_no_longer_has_of_that_day():
    def answer(request):
        if {"jax=122", "jaxlib=122"} <= {*request.undated}:
            return resolved("jax==0.4.18", "jaxlib==0.4.18", "torch==2.0.1")
        hint = "`jaxlib` was filtered by `exclude-newer`"
        return Refused("no versions", f"Because there are no versions of jaxlib and you require it.\n\n{hint}")

    found = plan(project("jax"), Uv(answer), as_of=DAY)
    assert (found.as_of, found.resolved["jax"]) == (DAY, "0.4.18")


def test_jaxlib_is_never_newer_than_jax():
    def answer(request):
        return resolved(
            "jax==0.4.12", "jaxlib==0.4.12" if "jaxlib<=0.4.12" in request.constraints else "jaxlib==0.4.18"
        )

    assert plan(project("jax==0.4.12"), Uv(answer)).resolved["jaxlib"] == "0.4.12"
    ahead = resolved("jax==0.4.12", "jaxlib==0.4.18")
    found = plan(
        project("jax==0.4.12"),
        Uv(lambda asked: Refused("no") if asked.constraints[-1:] == ("jaxlib<=0.4.12",) else ahead),
    )
    assert "jax 0.4.12 does not accept a newer jaxlib" in found.blockers[0].says


@pytest.mark.full
def test_a_version_that_is_newer_than_the_day_is_no_deleted_package():
    def answer(request):
        hint = "hint: `transformers` was filtered by `exclude-newer` to only include packages uploaded before 2023"
        because = f"Because there are no versions of transformers>=5 and you require it.\n\n{hint}"
        return Refused("no versions", because) if request.as_of else resolved("transformers==5.23.0")

    assert plan(project("transformers"), Uv(answer), as_of=DAY, python="3.11").as_of == ""


def test_an_earlier_plan_of_the_day_counts_without_an_answer():
    recorded = plan(project("transformers"), Uv(resolved("transformers==4.31.0", "torch==2.0.1")), as_of=DAY)
    found = plan(project("transformers"), Uv(Unknown("no network")), as_of=DAY, recorded=recorded)
    assert (found.torch, found.limits, found.as_of) == ("2.0.1", recorded.limits, DAY)


@pytest.mark.parametrize("text", ["yesterday", "2023-13-01", "2023"])
def test_what_is_no_day_is_refused(text):
    with pytest.raises(DevkitError, match=f"--as-of '{text}' is not a date"):
        build_request(machines=(ADA,), as_of=text)


def test_code_of_the_last_half_year_is_not_old():
    tables = copy.copy(load_tables())
    tables.torch = copy.copy(tables.torch)
    tables.torch.as_of = "2026-02-21"
    assert is_old("2025-08-20", tables)
    assert not is_old("2025-08-21", tables)
