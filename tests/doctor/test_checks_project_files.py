"""Checks of the project's own files: nothing is found in what devkit writes, and a repair leaves nothing of its finding."""

import json
from pathlib import Path

import pytest

from devkit.doctor.model import Passed, Skipped
from devkit.facts.engine import EngineKind
from devkit.facts.project import FileState
from devkit.probe.host import LocalHost
from devkit.probe.project.reader import read_project
from devkit.render.repair import apply_edit, compute_edits
from tests.doctor.judging import list_codes, list_wrong_projects
from tests.doctor.machines import changed, healthy, inside, windows_guest, without_gpu
from tests.doctor.projects import COMPOSE, DEV, IMAGE, compose_dev, dev, files_of, on, service
from tests.doctor.running import build_full_report, find_all, find_codes, find_only, run_check

ALL = [f"PRJ{number:03d}" for number in range(1, 32) if number != 13]


PAIR = files_of(dev=dev(), image=IMAGE)


def requiring(**requirements):
    return files_of(dev=dev(hostRequirements=requirements), image=IMAGE)


def unheard(key):
    return files_of(dev=dev(**{key: "x"}), image=IMAGE)


def beside_compose(*arguments):
    return files_of(dev=compose_dev(runArgs=[*arguments]), compose=service(), image=IMAGE)


def optional(**changes):
    return files_of(dev=dev(hostRequirements={"gpu": "optional"}, **changes), image=IMAGE)


def copying(line):
    return files_of(dev=dev(), image=f"FROM x\n{line}")


def using(feature):
    return files_of(dev=dev(features={feature: {}}), image=IMAGE)


def opening(name, compose=""):
    image = "FROM x AS Base\nFROM base AS dev"
    return files_of(dev=compose_dev(service=name), compose=compose or service(), image=image)


def building(target):
    return opening("dev", service().replace("build: .", f"build: {{context: ., target: '{target}'}}"))


INCLUDING = "include: [{}]\n" + service()
BUILT = "services: {{a: {{build: {{context: '{}', target: t}}}}}}"
OF_COMPOSE = ("gpus", "runtime", "shm_size", "environment", "deploy")

VERDICTS = [
    ("PRJ001", PAIR, "passed", "whole files"),
    ("PRJ001", {DEV: '{"a": 1 "b": 2}'}, "error", "broken devcontainer.json"),
    ("PRJ001", {DEV: "[]"}, "error", "devcontainer.json that is a list"),
    ("PRJ001", {"compose.yaml": "services: [a"}, "error", "broken Compose file"),
    ("PRJ001", {"compose.yaml": "services: [a]"}, "error", "services that are a list"),
    ("PRJ001", files_of(dev=dev()), "error", "no Dockerfile where one is named"),
    ("PRJ001", PAIR | {"pyproject.toml": "a = ["}, "warning: pyproject.toml:1", "broken TOML"),
    ("PRJ001", {"README.md": "x"}, "skipped", "no such files"),
    ("PRJ001", copying("COPY no /x"), "warning: Dockerfile references .devcontainer/no", "no source to copy"),
    ("PRJ001", copying('COPY ["a b", "/x"]') | {".devcontainer/a b": ""}, "passed", "a source with a blank"),
    ("PRJ001", copying("COPY no* <<X https://a/b ./ /x"), "passed", "sources that no file names"),
    ("PRJ001", {"Dockerfile": "FROM x\nCOPY no /x"}, "passed", "a Dockerfile that nothing builds"),
    ("PRJ001", using("./mine"), "warning: .devcontainer/mine/devcontainer-feature.json", "a feature that is not there"),
    ("PRJ001", using("./mine") | {".devcontainer/mine/devcontainer-feature.json": "{}"}, "passed", "one that is"),
    ("PRJ001", opening("dev"), "passed", "a service that is there"),
    (
        "PRJ001",
        opening("app"),
        f"error: {DEV} opens the service app, which is not defined in {COMPOSE}",
        "one that is not",
    ),
    (
        "PRJ001",
        opening("") | {DEV: '{"dockerComposeFile": "compose.yaml"}'},
        f"error: {DEV} references a Compose file",
        "none",
    ),
    ("PRJ001", opening("${localEnv:SERVICE}"), "passed", "a service that a variable names"),
    ("PRJ001", opening("app", INCLUDING.format("more.yaml")), f"error: {COMPOSE} ref", "a file that may have it"),
    ("PRJ001", opening("app", INCLUDING.format("'${MORE}'")), "passed", "a file that a variable names may have it"),
    ("PRJ001", opening("app", INCLUDING.format("https://a/b.git")), "skipped", "a file of another repository may"),
    *(("PRJ001", building(each), "passed", f"the stage {each}") for each in ("base", "DEV", "0", "${STAGE}")),
    *(
        ("PRJ001", {"compose.yaml": BUILT.format(each), "Dockerfile": "FROM x"}, "skipped", f"the context {each}")
        for each in ("../outside", "https://a/b.git", "/outside")
    ),
    ("PRJ001", building("test"), f"error: {COMPOSE} builds the stage test, which", "a stage that is not there"),
    *(
        ("PRJ009", using(each), "warning: cannot resolve", f"a feature by {each}")
        for each in ("../mine", "mine", "a/b")
    ),
    *(
        ("PRJ009", using(each), "passed", f"a feature by {each}")
        for each in ("./mine", "ghcr.io/a/b/c:1", "http://a/b.tgz")
    ),
    ("PRJ008", requiring(gpu=True), "passed", "true"),
    ("PRJ008", requiring(gpu=False), "passed", "false"),
    ("PRJ008", requiring(gpu="optional"), "passed", "optional"),
    ("PRJ008", requiring(gpu={"cores": 1000, "memory": "32gb"}), "passed", "an object"),
    ("PRJ008", requiring(gpu="all"), "warning", "all"),
    ("PRJ008", requiring(gpu=1), "warning", "a number of GPUs"),
    ("PRJ008", requiring(gpu={"memory": "32GB"}), "warning", "an object with a capital unit"),
    ("PRJ008", requiring(gpu={"count": 2}), "warning: count", "an object with a key of its own"),
    ("PRJ008", requiring(gpus=True), "warning: gpus", "gpus"),
    ("PRJ008", requiring(memory="16gb", storage="100gb", cpus=8), "passed", "small units"),
    ("PRJ008", requiring(memory="16GB"), "warning", "capital units"),
    ("PRJ008", requiring(memory="16g"), "warning", "half a unit"),
    ("PRJ008", requiring(memory=16), "warning", "memory as a number"),
    ("PRJ008", requiring(cpus="8"), "warning", "cpus as text"),
    ("PRJ008", requiring(cuda="12"), "warning: cuda", "an invented key"),
    *(("PRJ009", unheard(key), f"warning: {key}", f"{key} is a key of Compose") for key in OF_COMPOSE),
    ("PRJ009", beside_compose("--gpus", "all"), "error", "runArgs are not heard beside Compose"),
    ("PRJ009", beside_compose("--init"), "warning: remove runArgs", "nor are others"),
    ("PRJ009", beside_compose(), "passed", "none beside Compose"),
    ("PRJ010", optional(runArgs=None), "note: JetBrains", "what editors pass over is explained"),
    ("PRJ010", PAIR, "passed", "a flag alone"),
    ("PRJ010", optional(), "passed", "a flag beside it"),
]


@pytest.mark.parametrize("code", list_codes(VERDICTS))
def test_the_verdict_on_each_file(tmp_path, code):
    assert list_wrong_projects(tmp_path, code, VERDICTS) == []


def test_the_place_of_the_mistake_is_named(tmp_path):
    finding = find_only("PRJ001", on(tmp_path, {DEV: '{\n  "name": "a"\n  "image": "b"\n}'}))
    assert (finding.location.path, finding.location.line) == (DEV, 3)
    assert "expected a comma" in finding.message


def test_files_outside_of_the_project_are_left_alone_and_not_called_readable(tmp_path):
    files = files_of(dev=dev(build={"dockerfile": "../../elsewhere/Dockerfile"}))
    facts = on(tmp_path / "project", files)
    assert [file.state for file in facts.project.files] == [FileState.READ, FileState.OUTSIDE]
    verdict = run_check("PRJ001", facts)
    assert (verdict.is_lost, "elsewhere/Dockerfile was not read" in verdict.reason) == (True, True)


@pytest.mark.parametrize("make", [lambda path: path.symlink_to(path), lambda path: path.write_text("#" * (2 << 20))])
def test_a_compose_file_that_cannot_be_read_is_not_called_readable(tmp_path, make):
    make(tmp_path / "compose.yaml")
    verdict = run_check("PRJ001", on(tmp_path, {}))
    assert (verdict.is_lost, "compose.yaml was not read" in verdict.reason) == (True, True)


@pytest.mark.parametrize(
    ("requirements", "repaired"),
    [
        pytest.param({"memory": "16 GB"}, [], id="a unit in capitals"),
        pytest.param({"gpus": True}, [("set", "gpu", "true"), ("remove", "gpus", "")], id="a key in the plural"),
        pytest.param({"gpus": "optional"}, [("set", "gpu", '"optional"'), ("remove", "gpus", "")], id="and optional"),
        pytest.param({"cpus": "8"}, [], id="text instead of a number"),
    ],
)
def test_a_misspelled_gpu_is_repaired_and_anything_else_is_named(tmp_path, requirements, repaired):
    finding = find_only("PRJ008", on(tmp_path, requiring(**requirements)))
    assert [(one.kind.value, one.key[-1], one.value) for one in finding.fix.repairs] == repaired


@pytest.mark.parametrize(
    "machine", [healthy(), without_gpu(), windows_guest(), inside()], ids=["host", "laptop", "wsl", "container"]
)
def test_a_project_without_container_files_is_skipped_with_a_reason(tmp_path, machine):
    facts = on(tmp_path, {"main.py": "print()"}, machine)
    for code in ALL:
        verdict = run_check(code, facts)
        assert isinstance(verdict, Skipped | Passed)
        assert code == "PRJ031" or verdict.reason


def test_one_broken_file_hides_no_other(tmp_path):
    files = files_of(dev=compose_dev(), compose=service(request=""), image=IMAGE)
    files["pyproject.toml"] = "x = ["
    assert [finding.subject for finding in find_all("PRJ001", on(tmp_path, files))] == ["pyproject.toml:1"]
    assert find_codes(on(tmp_path, files)) == ["PRJ001", "PRJ005"]


def test_a_message_never_carries_the_value_of_a_variable(tmp_path):
    text = json.dumps({"image": "python:3.12", "containerEnv": {"HF_TOKEN": "hf_" + "a" * 30}})
    facts = on(tmp_path, {DEV: text, COMPOSE: ""})
    assert "aaaa" not in repr(facts)


# What devkit itself writes gets no finding: neither its examples nor its own dev container.


ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = sorted((ROOT / "examples").glob("*/expected/.devcontainer"))
"""Other examples expect other files."""
EXAMPLES = {path.parents[1].name: path.parent for path in CONTAINERS} | {"devkit itself": ROOT}
MACHINES = {
    "a desktop": healthy(),
    "a laptop without a GPU": without_gpu(),
    "WSL": windows_guest(),
    "a dev container": inside(),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("folder", EXAMPLES.values(), ids=EXAMPLES)
def test_files_that_devkit_writes_get_no_finding(folder, machine):
    facts = changed(machine, {"project": read_project(LocalHost(), project=str(folder))})
    assert facts.project.dev_containers
    assert facts.project.services
    assert [code for code in find_codes(facts) if code.startswith("PRJ")] == []
    assert not [one for one in build_full_report(facts).findings if one.check.code.startswith("PRJ")]


def test_they_are_looked_at_all_the_same():
    facts = changed(healthy(), {"project": read_project(LocalHost(), project=str(ROOT))})
    judged = [f"PRJ{number:03d}" for number in (1, 2, 4, 5, 7, 9, 12, 14, 15, 16, 17, 19, 20, 25, 26, 28)]
    assert not [code for code in judged if isinstance(run_check(code, facts), Skipped)]


# A repair, made, leaves nothing of its finding: on the very files that showed it.


COMMENTED = """\
{
  // GPUs of the lab
  "build": { "dockerfile": "Dockerfile" }, // one image
  %s,
  "remoteUser": "dev",
}
"""
PODMAN = changed(healthy(), {"engine.kind": EngineKind.PODMAN})


def commented(line):
    return files_of(dev=COMMENTED % line, image=IMAGE)


CASES = {
    "a flag in one string": ("PRJ002", commented('"runArgs": ["--gpus all", "--init"]'), healthy()),
    "a list without quotes": ("PRJ003", commented('"runArgs": ["--gpus", "device=0,1"]'), healthy()),
    "a flag beside hostRequirements": (
        "PRJ004",
        commented('"hostRequirements": {"gpu": true}, "runArgs": ["--gpus=all"]'),
        healthy(),
    ),
    "nothing asks": ("PRJ005", commented('"runArgs": ["--shm-size=8g"]'), healthy()),
    "hostRequirements with Docker Desktop": ("PRJ006", commented('"hostRequirements": {"gpu": true}'), windows_guest()),
    "hostRequirements with Podman": ("PRJ006", commented('"hostRequirements": {"gpu": "optional"}'), PODMAN),
    "a key in the plural": ("PRJ008", commented('"hostRequirements": {"gpus": true, "cpus": 4}'), healthy()),
    "a flag on a laptop": ("PRJ011", commented('"runArgs": ["--gpus", "all"]'), without_gpu()),
    "shared memory in runArgs": ("PRJ020", commented('"runArgs": ["--gpus", "all"]'), healthy()),
}


@pytest.mark.parametrize(("code", "files", "machine"), CASES.values(), ids=CASES)
def test_a_repair_leaves_nothing_of_its_finding(tmp_path, code, files, machine):
    findings = find_all(code, on(tmp_path, files, machine))
    repairs = [repair for finding in findings for repair in finding.fix.repairs]
    assert repairs
    for edit in compute_edits(repairs, tmp_path, home=tmp_path):
        apply_edit(edit)
    repaired = {path: (tmp_path / path).read_text(encoding="utf-8") for path in files}
    assert isinstance(run_check(code, on(tmp_path, repaired, machine)), Passed | Skipped)
    assert "// GPUs of the lab" in repaired[DEV]


def test_a_compose_file_is_never_edited(tmp_path):
    broken = service("privileged: true\n    ipc: host", request="    gpus: all\n", shm="")
    facts = on(tmp_path, files_of(dev=compose_dev(), compose=broken, image=IMAGE))
    findings = build_full_report(facts).findings
    assert {"PRJ014", "PRJ015"} <= {one.check.code for one in findings}
    assert not [one.finding.fix.repairs for one in findings if one.finding.fix.repairs]
