"""The Python lock and the image's: what they were made for, what each layer gets of them, and when they are stale."""

import re
from dataclasses import replace

import pytest

from devkit.errors import DevkitError
from devkit.facts.dependencies import Dependencies, PackageManager, PackageRequirement, RequirementRole
from devkit.render.container.image import render_dockerfile, render_ignore_files
from devkit.render.container.image_locks import (
    ImageLocks,
    apply_image_locks,
    collect_lock_requirements,
    collect_tool_requirements,
    find_lock_mismatch,
    parse_image_locks,
    render_image_locks,
    render_python_lock,
)
from devkit.render.container.settings import ContainerSettings, FromIndex, FromUrl, FromWheel
from devkit.render.files import DEVCONTAINER_FOLDER
from tests.cases import cases

from .plans import CPU_PLAN

PLAN = replace(CPU_PLAN, architectures=("x86_64",))
PLAIN = ContainerSettings("Demo", "demo", FromWheel("devkit_gpu-0.1.0-py3-none-any.whl", b"PK"))
DIGEST = "sha256:" + "a" * 64

RESOLVED = """\
jinja2==3.1.6 ; sys_platform == 'linux' \\
    --hash=sha256:01 \\
    --hash=sha256:02
    # via devkit-gpu, torch
markupsafe==3.0.4 \\
    --hash=sha256:03
    # via jinja2
numpy==2.4.6 ; platform_machine == 'x86_64' \\
    --hash=sha256:04
    # via peft
numpy==2.4.5 ; platform_machine == 'aarch64' \\
    --hash=sha256:05
    # via peft
peft==0.21.2 \\
    --hash=sha256:06
    # via the plan
torch==2.13.0+cpu \\
    --hash=sha256:07
    # via peft, the plan
triton==3.5 \\
    --hash=sha256:08
    # via torch
"""
RESOLVED_TOOLS = """\
click==8.5.1 \\
    --hash=sha256:11
    # via the plan
uv==0.13.9 \\
    --hash=sha256:09
    # via the plan
"""
LOCK = render_python_lock(collect_lock_requirements(PLAN, PLAIN), RESOLVED)
TOOLS_LOCK = render_python_lock(collect_tool_requirements(PLAN, PLAIN), RESOLVED_TOOLS)
LOCKED = replace(PLAIN, python_lock=LOCK, tools_lock=TOOLS_LOCK, image_digest=DIGEST)


def parts(settings: ContainerSettings = LOCKED) -> dict[str, str]:
    return {
        each.path.removeprefix(f"{DEVCONTAINER_FOLDER}/"): each.content.decode()
        for each in render_image_locks(PLAN, settings)
    }


def names(text: str) -> list[str]:
    return re.findall(r"^([\w.-]+)==", text, re.MULTILINE)


def test_torchs_layer_sees_torch_and_what_it_needs_and_no_more():
    assert names(parts()["torch.lock"]) == ["jinja2", "markupsafe", "torch", "triton"]
    assert names(parts()["installer.lock"]) == ["uv"]
    assert parts()["requirements.lock"] == LOCK
    assert parts()["tools.lock"] == TOOLS_LOCK


def test_a_package_with_two_versions_for_two_machines_keeps_both():
    lock = LOCK.replace("# via peft\n", "# via torch\n")
    assert names(parts(replace(LOCKED, python_lock=lock))["torch.lock"]).count("numpy") == 2


def test_a_file_that_is_no_lock_is_refused():
    with pytest.raises(DevkitError, match=r"requirements\.lock does not hold torch"):
        parts(replace(PLAIN, python_lock="hello\n", tools_lock=TOOLS_LOCK))
    with pytest.raises(DevkitError, match=r"tools\.lock does not hold uv"):
        parts(replace(PLAIN, python_lock=LOCK, tools_lock="hello\n"))


@cases(
    "plan, says",
    {
        "the same plan": (PLAN, ""),
        "a mirror has the same files": (replace(PLAN, torch_index="https://mirror.example.org/cpu"), ""),
        "another torch": (
            replace(PLAN, packages=(("torch", "2.14.0"), *PLAN.packages[1:])),
            "made for torch==2.13.0, but the plan has torch==2.14.0",
        ),
        "CUDA": (replace(PLAN, variant="cu130"), "made for torch of cpu, but the plan has torch of cu130"),
        "Python": (replace(PLAN, python="3.12"), "Python 3.11 on x86_64, but the plan has Python 3.12"),
        "one less": (replace(PLAN, packages=PLAN.packages[:2]), "peft==0.21.2, which the plan does not"),
    },
)
def test_a_lock_says_whether_it_fits(plan, says):
    reason = find_lock_mismatch(LOCK, collect_lock_requirements(plan, PLAIN))
    assert says in reason
    assert bool(reason) is bool(says)


def test_a_stale_lock_is_refused_with_both_ways_out():
    with pytest.raises(DevkitError, match=r"requirements\.lock does not fit") as caught:
        apply_image_locks(PLAIN, replace(PLAN, python="3.12"), ImageLocks(LOCK, tools=TOOLS_LOCK))
    assert "--lock" in caught.value.hint
    assert "--no-lock" in caught.value.hint


@cases("tools", {"missing": "", "another uv": TOOLS_LOCK.replace("uv==", "uv==0.", 1)})
def test_a_lock_without_that_of_the_tools_is_stale(tools):
    with pytest.raises(DevkitError, match=r"tools\.lock does not fit"):
        apply_image_locks(PLAIN, PLAN, ImageLocks(LOCK, tools=tools))


def test_the_digest_of_another_image_is_refused():
    with pytest.raises(DevkitError, match=f"but the plan uses {re.escape(PLAN.base_image)}"):
        apply_image_locks(PLAIN, PLAN, ImageLocks(image=f"python:3.12-slim@{DIGEST}"))


@pytest.mark.parametrize("digest", ["sha256:12", "md5:1", "sha256:" + "A" * 64, ""], ids=repr)
def test_what_is_no_digest_is_refused(digest):
    if not digest:
        assert apply_image_locks(PLAIN, PLAN, ImageLocks(image=PLAN.base_image)).image_digest == ""
        return
    with pytest.raises(DevkitError, match="not a digest"):
        apply_image_locks(PLAIN, PLAN, ImageLocks(image=f"{PLAN.base_image}@{digest}"))


def test_locks_are_read_back_as_they_were_written():
    made = {each.path: each.content for each in render_image_locks(PLAN, LOCKED)}
    locks = parse_image_locks(
        *(made[f"{DEVCONTAINER_FOLDER}/{name}.lock"] for name in ("requirements", "image", "tools"))
    )
    assert apply_image_locks(PLAIN, PLAN, locks) == LOCKED
    assert parse_image_locks(None, None) == ImageLocks()


@cases("python, image", {"Python": (b"\xff\xfe", None), "image": (None, "ä".encode())})
def test_a_damaged_lock_is_said_to_be_so(python, image):
    with pytest.raises(DevkitError, match="damaged"):
        parse_image_locks(python, image)


@cases(
    "source, holds_devkit",
    {
        "from the index, like any other package": (FromIndex("0.1.0"), True),
        "a revision is its own lock": (FromUrl("git+https://example.org/d@abc"), False),
        "a wheel beside the Dockerfile": (FromWheel("devkit_gpu-0.1.0-py3-none-any.whl", b""), False),
    },
)
def test_what_devkit_itself_needs_is_locked_too(source, holds_devkit):
    lines = collect_tool_requirements(replace(PLAN, python="3.10"), replace(PLAIN, source=source)).requirements
    assert any(line.startswith("jinja2") for line in lines)
    assert ("devkit-gpu==0.1.0" in lines) is holds_devkit
    assert not any(line.startswith(("pytest", "hypothesis")) for line in lines)


def test_the_projects_lock_holds_no_package_of_devkits_and_theirs_is_for_every_python_of_devkits():
    wanted = collect_lock_requirements(PLAN, PLAIN)
    assert not any(re.match(r"(uv|jinja2|click)\b", line) for line in wanted.requirements)
    tools = collect_tool_requirements(replace(PLAN, python="3.10"), PLAIN)
    assert "Python 3.11 or later on x86_64" in tools.lines
    assert tools.requires_python == ">=3.11"


def project_that_asks(*needs: PackageRequirement, **more: object) -> ContainerSettings:
    found = Dependencies(PackageManager.PIP, "requirements.txt", needs=needs, lists=("requirements.txt",), **more)
    return replace(PLAIN, dependencies=found)


TRL = PackageRequirement("trl", ">=0.20", "requirements.txt", 3)


def test_what_the_project_asks_for_is_locked_and_then_installed_from_the_lock_alone():
    limit = PackageRequirement("numpy", "<3", "constraints.txt", 1, role=RequirementRole.CONSTRAINT)
    settings = project_that_asks(TRL, limit)
    wanted = collect_lock_requirements(PLAN, settings)
    assert "trl>=0.20" in wanted.requirements
    assert wanted.constraints == ("numpy<3",)
    assert "does not contain trl>=0.20" in find_lock_mismatch(LOCK, wanted)
    locked = replace(settings, python_lock=render_python_lock(wanted, RESOLVED))
    assert "from=project" in render_dockerfile(PLAN, settings)
    assert "from=project" not in render_dockerfile(PLAN, locked)


def test_a_project_with_a_lock_of_its_own_is_held_to_that():
    settings = replace(PLAIN, dependencies=Dependencies(PackageManager.UV, "uv.lock", lock="uv.lock", needs=(TRL,)))
    assert not any("trl" in line for line in collect_lock_requirements(PLAN, settings).requirements)
    assert "from=project" in render_dockerfile(PLAN, replace(settings, python_lock=LOCK))


@cases("url", {"git": "git+https://example.org/x@main", "file": "file:///home/x", "path": "../x"})
def test_what_has_no_hash_is_named(url):
    with pytest.raises(DevkitError, match=r"requirements\.txt:3 gets trl"):
        collect_lock_requirements(PLAN, project_that_asks(replace(TRL, specifier="", url=url)))


def test_a_locked_image_holds_every_installation_to_its_hashes():
    text = render_dockerfile(PLAN, LOCKED)
    assert f"FROM {PLAN.base_image}@{DIGEST}\n" in text
    installs = re.findall(r"pip install [^&]*", text)
    *packages, devkit = installs
    assert len(packages) == 4
    assert all("--require-hashes" in each for each in packages)
    assert "/mnt/devcontainer/tools.lock" in packages[-1]
    assert "--no-deps" in devkit
    assert 'case "$(uname -m)" in x86_64)' in text


def test_the_build_sees_the_locks_and_git_keeps_them():
    made = {each.path: each.content.decode() for each in render_ignore_files(PLAN, LOCKED)}
    for name in ("installer.lock", "torch.lock", "requirements.lock", "tools.lock"):
        assert f"!{name}" in made[f"{DEVCONTAINER_FOLDER}/.dockerignore"].splitlines()
        assert re.search(rf"source={name},|/mnt/devcontainer/{name}", render_dockerfile(PLAN, LOCKED))
    assert "!*.lock" in made[f"{DEVCONTAINER_FOLDER}/.gitignore"].splitlines()


def test_a_lock_keeps_to_the_versions_that_the_plan_holds():
    held = replace(PLAN, limits=("transformers==4.31.0", "numpy==1.25.1"))
    assert set(held.limits) <= set(collect_lock_requirements(held, PLAIN).constraints)
