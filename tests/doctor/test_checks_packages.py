"""The Python packages fit each other and the system under them."""

import pytest

from devkit.doctor.model import Found, Passed, Severity, Skipped
from devkit.facts.model import Copy, Library, Package
from devkit.facts.values import NOT_READ, Unknown
from tests.doctor.machines import changed, inside, r
from tests.doctor.running import find_only, run_check

LINUX = "cp312-cp312-manylinux_2_28_x86_64"


def package(name, version, tag="py3-none-any", requires=()):
    return Package(name, version, tag, requires)


def with_packages(*packages, **changes):
    return changed(inside(), {"python.packages": packages, **changes})


TORCH = package("torch", "2.9.1+cu128", LINUX, ('triton==3.5.1; platform_system == "Linux"',))


@pytest.mark.parametrize(
    ("packages", "verdict"),
    [
        pytest.param((TORCH, package("triton", "3.5.1")), Passed, id="the very version that torch pins"),
        pytest.param((TORCH, package("triton", "3.4.0")), Found, id="another version of a pinned package"),
        pytest.param((TORCH,), Passed, id="a package that is missing altogether is pip's own story"),
        pytest.param((package("torchvision", "0.24.1", LINUX, ("torch==2.9.1",)), TORCH), Passed, id="a local label"),
        pytest.param((package("x", "1", LINUX, ("torch==2.9.1+cu128",)), TORCH), Passed, id="a pinned local label"),
        pytest.param((package("torchvision", "0.23.0", LINUX, ("torch==2.8.0",)), TORCH), Found, id="left behind"),
        pytest.param(
            (package("torch", "2.9.0a0+git1", LINUX), package("peft", "1", requires=("torch>=2.9",))),
            Passed,
            id="a vendor's pre-release is that release",
        ),
        pytest.param(
            (TORCH, package("peft", "1", requires=('torch<2; sys_platform == "win32"',))), Passed, id="another system"
        ),
        pytest.param((TORCH, package("peft", "1", requires=("torch<<2",))), Passed, id="a requirement nobody can read"),
        pytest.param((TORCH, package("peft", "1", requires=('torch<2; odd == "x"',))), Passed, id="an odd marker"),
        pytest.param((package("torch", "not a version"), package("peft", "1", requires=("torch<2",))), Passed,
                     id="a version nobody can read"),
        pytest.param((TORCH, package("peft", "1", requires=NOT_READ)), Passed, id="requirements that were not read"),
        pytest.param((package("torch", "2.2.2+cu121"), package("numpy", "2.0.0")), Found, id="NumPy 2, torch 2.2"),
        pytest.param((package("torch", "2.2.2+cu121"), package("numpy", "1.26.4")), Passed, id="NumPy 1, torch 2.2"),
        pytest.param((package("torch", "2.3.0+cu121"), package("numpy", "2.0.0")), Passed, id="NumPy 2, torch 2.3"),
        pytest.param((), Skipped, id="nothing installed"),
    ],
)  # fmt: skip
def test_packages_agree(packages, verdict):
    assert isinstance(run_check("PYT007", with_packages(*packages)), verdict)


def test_numpy_is_put_back_rather_than_torch_replaced():
    finding = find_only("PYT007", with_packages(package("torch", "2.2.2+cu121"), package("numpy", "2.1.3")))
    assert finding.fix.commands == ("pip install 'numpy<2'",)


def test_uv_is_asked_where_uv_made_the_environment():
    facts = with_packages(package("torch", "2.2.2+cu121"), package("numpy", "2.1.3"), **{"python.installer": "uv"})
    assert find_only("PYT007", facts).fix.commands == ("uv pip install 'numpy<2'",)


def stack(transformers="5.0.0", bitsandbytes="0.49.2", accelerate="1.10.1", peft="0.18.0"):
    versions = {"transformers": transformers, "bitsandbytes": bitsandbytes, "accelerate": accelerate, "peft": peft}
    return with_packages(*(package(name, version) for name, version in versions.items() if version))


@pytest.mark.parametrize(
    ("facts", "missing"),
    [
        pytest.param(stack(), [], id="everything new enough"),
        pytest.param(stack(bitsandbytes="0.46.1"), [], id="bitsandbytes at the floor"),
        pytest.param(stack(bitsandbytes="0.46.0"), ["bitsandbytes"], id="bitsandbytes below the floor"),
        pytest.param(stack(accelerate=""), ["accelerate"], id="no accelerate"),
        pytest.param(stack(accelerate="1.1.0"), [], id="accelerate at the floor"),
        pytest.param(stack(peft=""), [], id="no peft: only adapters need it"),
        pytest.param(stack(peft="0.17.1"), ["peft"], id="an old peft"),
        pytest.param(stack("4.57.6", accelerate="0.26.0", peft="0.5.0"), [], id="the floors of transformers 4"),
        pytest.param(stack("4.57.6", accelerate="0.25.0"), ["accelerate"], id="below the floor of transformers 4"),
        pytest.param(stack("5.24.0", peft="0.19.0"), ["peft"], id="the newest floor at or below the release"),
    ],
)
def test_transformers_floors(facts, missing):
    verdict = run_check("PYT008", facts)
    assert [finding.subject for finding in getattr(verdict, "findings", ())] == missing


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(stack(bitsandbytes=""), id="no bitsandbytes, no quantised models"),
        pytest.param(stack(transformers=""), id="no transformers"),
        pytest.param(stack("4.40.0"), id="older than the tables"),
        pytest.param(stack("6.0.0"), id="a major that the tables do not know"),
    ],
)
def test_transformers_floors_are_not_judged_without_ground(facts):
    assert isinstance(run_check("PYT008", facts), Skipped)


USERS = "/home/dev/.local/lib/python3.12/site-packages"
OWN = "/venv/lib/python3.12/site-packages"


def copies(*found, user_site=""):
    return changed(inside(), {"python.copies": found, "python.user_site": user_site})


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(copies(), Passed, id="none"),
        pytest.param(copies(Copy("torch", "2.9.1", USERS), Copy("torch", "2.9.1", OWN)), Passed, id="the same version"),
        pytest.param(copies(Copy("torch", "2.9.1", USERS), Copy("torch", "2.8.0", OWN)), Found, id="two versions"),
        pytest.param(changed(inside(), {"python.copies": Unknown("no folder")}), Skipped, id="not read"),
    ],
)
def test_copies(facts, verdict):
    assert isinstance(run_check("PYT009", facts), verdict)


@pytest.mark.parametrize(
    ("user_site", "command"),
    [
        pytest.param(USERS, "export PYTHONNOUSERSITE=1", id="the user's own folder is kept out"),
        pytest.param("", "pip uninstall -y torch", id="any other copy is removed"),
    ],
)
def test_how_a_copy_goes(user_site, command):
    facts = copies(Copy("torch", "2.9.1", USERS), Copy("torch", "2.8.0", OWN), user_site=user_site)
    assert command in find_only("PYT009", facts).fix.commands


def libraries(glibc="2.36", stdcxx="6.0.30", tag=LINUX, **changes):
    library = Library("/usr/lib/libstdc++.so.6", r(stdcxx)) if isinstance(stdcxx, str) else stdcxx
    version = r(glibc) if isinstance(glibc, str) else glibc
    return with_packages(
        package("torch", "2.9.1+cu128", tag), **{"system.glibc": version, "python.libstdcxx": library, **changes}
    )


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        pytest.param(libraries(), None, id="both newer"),
        pytest.param(libraries(glibc="2.28"), None, id="glibc at the tag"),
        pytest.param(libraries(glibc="2.27"), Severity.ERROR, id="glibc below the tag"),
        pytest.param(libraries(stdcxx="6.0.24"), None, id="libstdc++ at the policy"),
        pytest.param(libraries(stdcxx="6.0.22"), Severity.WARNING, id="libstdc++ below the policy"),
        pytest.param(libraries(stdcxx=None), None, id="no libstdc++ found"),
        pytest.param(libraries(stdcxx=Unknown("?")), None, id="libstdc++ not read"),
        pytest.param(libraries(stdcxx=Library("/l", Unknown("?"))), None, id="libstdc++ without a version"),
        pytest.param(libraries(glibc=Unknown("?")), None, id="glibc not read"),
        pytest.param(
            libraries(glibc="2.27", tag="cp312-cp312-manylinux_2_17_x86_64.manylinux_2_28_x86_64"),
            None,
            id="the lowest platform of a tag counts",
        ),
    ],
)
def test_c_libraries(facts, severity):
    verdict = run_check("PYT010", facts)
    assert [finding.severity for finding in getattr(verdict, "findings", ())] == ([severity] if severity else [])


def test_wheels_without_a_platform_say_nothing():
    assert isinstance(run_check("PYT010", libraries(tag="py3-none-any")), Skipped)
