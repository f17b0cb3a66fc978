"""Engines and toolkits that are broken on purpose: the doctor names the cause, and what it prints repairs it."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devkit.doctor.model import Finding, Found, Passed
from devkit.facts.engine import Engine as EngineFacts
from devkit.facts.model import Facts
from devkit.facts.runs import Way
from devkit.probe.engine.cdi import read_cdi
from devkit.probe.engine.compose_config import read_compose_config
from devkit.probe.engine.daemon import read_engine
from devkit.probe.engine.daemon_files import validate_daemon_file
from devkit.probe.host import LocalHost
from devkit.trial.containers import try_containers
from tests.cases import cases
from tests.doctor.machines import changed, healthy
from tests.doctor.projects import read as read_files
from tests.doctor.running import build_full_report, find_all, find_only, run_check

from . import image
from .commands import run
from .daemon import Engine, Flavor
from .test_engine import BASE, attempt

ONLY_CDI = pytest.mark.parametrize("engine", [Flavor.CDI], indirect=True, ids=str)
ONLY_NVIDIA = pytest.mark.parametrize("engine", [Flavor.NVIDIA], indirect=True, ids=str)
BY_CDI = ("--device", "nvidia.com/gpu=all", BASE, "true")
LISTED_DEADLINE_S = 10.0


@pytest.fixture
def broken(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine whose CDI folder and stand-ins for the toolkit are put back after the test."""
    image.provide(engine, BASE)
    for name, value in engine.env.items():
        monkeypatch.setenv(name, value)
    kept = {folder: engine.state / f"{folder}.kept" for folder in ("cdi", "stubs") if (engine.state / folder).is_dir()}
    for folder, copy in kept.items():
        shutil.copytree(engine.state / folder, copy)
    yield engine
    for folder, copy in kept.items():
        # The engine watches the folder itself: its files are replaced, not the folder.
        for path in (engine.state / folder).iterdir():
            path.unlink()
        for path in copy.iterdir():
            shutil.copy(path, engine.state / folder)
        shutil.rmtree(copy)


def read_facts() -> Facts:
    """A healthy machine with this engine and its CDI specifications."""
    host = LocalHost()
    engine = read_engine(host, deadline_s=LISTED_DEADLINE_S)
    assert isinstance(engine, EngineFacts)
    specs = read_cdi(host, engine_folders=engine.cdi_spec_dirs)
    here = tuple(spec for spec in specs if spec.path.startswith(engine.cdi_spec_dirs))
    return changed(healthy(), {"engine": engine, "cdi": here, "toolkit.daemon_files": ()})


@pytest.fixture
def repair(tmp_path: Path) -> Callable[[Finding], None]:
    """Run what a finding prints, with a sudo that only hands on."""
    (tmp_path / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (tmp_path / "sudo").chmod(0o755)

    def act(finding: Finding) -> None:
        for command in finding.fix.commands:
            subprocess.run(["sh", "-c", f"PATH={tmp_path}:$PATH; {command}"], check=True)

    return act


def roots(facts: Facts) -> list[str]:
    return [shown.check.code for shown in build_full_report(facts).roots if shown.finding.severity == "error"]


@ONLY_CDI
def test_two_files_of_one_device_are_named_and_one_is_put_aside(broken, repair):
    shutil.copy(broken.state / "cdi/nvidia.json", broken.state / "cdi/nvidia2.json")
    code, said = attempt(broken, *BY_CDI)
    assert (code, "unresolvable CDI devices" in said) == (125, True)
    facts = read_facts()
    assert roots(facts) == ["CDI009"]
    repair(find_only("CDI009", facts))
    assert isinstance(run_check("CDI009", read_facts()), Passed)
    assert attempt(broken, *BY_CDI) == (0, "")


@ONLY_CDI
@cases("text", {"empty": "", "cut off": '{"cdiVersion": "0.5.0", "kind"'})
def test_a_broken_file_beside_a_good_one_is_put_aside(broken, repair, text):
    (broken.state / "cdi/nvidia2.json").write_text(text)
    repair(find_only("CDI003", read_facts()))
    assert isinstance(run_check("CDI003", read_facts()), Passed)
    assert attempt(broken, *BY_CDI) == (0, "")


@ONLY_CDI
@cases(
    "damage, cause",
    {
        "cut off": (lambda text: text[: len(text) // 2], "CDI003"),
        "another vendor": (lambda text: text.replace("nvidia.com/gpu", "acme.com/gpu"), "CDI010"),
        "an unknown field": (lambda text: text.replace('"deviceNodes"', '"deviceNode"'), "CDI010"),
        "no version": (lambda text: text.replace('"0.5.0"', '"five"'), "CDI003"),
    },
)
def test_a_specification_that_the_engine_refuses_is_the_cause(broken, damage, cause):
    path = broken.state / "cdi/nvidia.json"
    # The driver's own library, by which a specification of another vendor is known as one of a GPU.
    mount = '"mounts": [{"hostPath": "/usr/lib/libcuda.so.580.95.05", "containerPath": "/x"}, '
    path.write_text(damage(path.read_text().replace('"mounts": [', mount)))
    facts = read_facts()
    assert (attempt(broken, *BY_CDI)[0], roots(facts)[0]) == (125, cause)


@ONLY_NVIDIA
def test_a_runtime_whose_program_is_gone_is_named(broken):
    assert isinstance(run_check("CTK014", read_facts()), Passed)
    (broken.state / "stubs/nvidia-container-runtime").unlink()
    code, said = attempt(broken, "--runtime=nvidia", BASE, "true")
    assert (code, "nvidia-container-runtime" in said) == (127, True)
    assert isinstance(run_check("CTK014", read_facts()), Found)


@ONLY_NVIDIA
def test_the_engines_own_reason_reaches_the_report(broken):
    hook = broken.state / "stubs/nvidia-container-runtime-hook"
    hook.write_text("#!/bin/sh\necho 'the GPU is on holiday' >&2\nexit 1\n")
    facts = read_facts()
    trials = try_containers(LocalHost(), facts, deadline_s=60)
    findings = find_all("CTK013", changed(facts, {"trials": trials}))
    assert any("the GPU is on holiday" in finding.message for finding in findings)
    assert "--help" not in " ".join(reading for finding in findings for reading in finding.evidence)


WAITS = "services: {a: {image: x, depends_on: {b: {condition: service_healthy}}}, b: {image: devkit-test-base, %s}}"
IN_NETWORK = (
    "services: {a: {image: x, networks: {n: {ipv4_address: %s}}}}\nnetworks: {n: {ipam: {config: [{subnet: %s}]}}}"
)


@ONLY_CDI
@cases(
    "compose, refusal",
    {
        "an address of its network": (IN_NETWORK % ("10.9.0.7", "10.9.0.0/24"), ""),
        "an address outside of its network": (IN_NETWORK % ("10.8.0.7", "10.9.0.0/24"), "10.8.0.7"),
        "a range that another network has": (IN_NETWORK % ("10.9.1.7", "10.9.1.0/24"), "devkit-test-taken already"),
        "a service with a health check": (WAITS % "healthcheck: {test: [CMD, x]}", ""),
        "a service without a health check": (WAITS % "init: true", "no healthcheck"),
    },
)
def test_compose_and_the_engine_say_what_they_refuse_of_a_project(broken, tmp_path, compose, refusal):
    (tmp_path / "compose.yaml").write_text(compose.replace("devkit-test-base", BASE))
    broken.clear()
    broken.docker("network", "create", "--subnet=10.9.1.0/25", "devkit-test-taken")
    before = list_made(broken)
    facts = changed(read_facts(), {"compose_config": read_compose_config(LocalHost(), project=str(tmp_path))})
    found = try_containers(LocalHost(), facts, deadline_s=60, project=str(tmp_path))
    whole = {("compose", "up"), ("network", "create", "--subnet", "devkit-test-taken")}
    (own,) = (each for each in found.tried if each.arguments in whole)
    assert (bool(own.code), refusal in own.err) == (bool(refusal), True)
    assert list_made(broken) == before


ONE = "services: {a: {image: devkit-test-base, %s}}"
BUILD = "services: {a: {build: {context: ., %s}}}"
DOCKERFILE = """# syntax=registry.invalid/frontend:1
FROM docker.io/library/devkit-none:latest AS one
COPY kept /x
RUN --mount=type=secret,id=token exit 1
"""


@ONLY_CDI
@cases(
    "compose, refusal",
    {
        "a program that would say so if it ran": (ONE % "command: [sh, -c, 'exit 126']", ""),
        "no execute bit": (ONE % "entrypoint: [/etc/passwd]", "permission denied"),
        "a program that the image does not have": (ONE % "command: [nowhere]", "not found in $PATH"),
        "a user that the image does not have": (ONE % "user: nobody-here", "unable to find user"),
        "a program that a mount lacks": (ONE % "entrypoint: [/w/x], volumes: ['.:/w']", "does not exist"),
        "a folder onto a file": (ONE % "volumes: ['./absent:/etc/passwd']", "is a file in the image"),
        "a file onto a folder": (ONE % "volumes: ['./kept:/etc']", "is a folder in the image"),
        "mounts that fit": (ONE % "volumes: ['.:/w', './kept:/etc/passwd', 'v:/v']", ""),
        "another platform": (ONE % "platform: linux/arm64", "does not match"),
        "a driver that the engine lacks": (ONE % "logging: {driver: nowhere}", "no log driver nowhere"),
        "a file that is left out of the build": (BUILD % "secrets: [token]", "leaves kept out"),
        "a stage that the Dockerfile does not have": (BUILD % "target: two", "could not be found"),
    },
)
def test_images_and_dockerfiles_are_looked_into_and_nothing_of_them_runs(broken, tmp_path, compose, refusal):
    files = {
        "compose.yaml": compose.replace("devkit-test-base", BASE)
        + "\nsecrets: {token: {file: kept}}\nvolumes: {v: {}}\n"
    }
    files |= {"Dockerfile": DOCKERFILE, "kept": "", ".dockerignore": "kept\n"}
    project = read_files(tmp_path, files)
    before = list_made(broken)
    config = read_compose_config(LocalHost(), project=str(tmp_path))
    facts = changed(read_facts(), {"compose_config": config, "project": project})
    started = time.monotonic()
    found = try_containers(LocalHost(), facts, deadline_s=60, project=str(tmp_path))
    faults = [each.err for each in found.tried if each.way is Way.PROJECT and each.code]
    assert [refusal in each for each in faults] == ([True] if refusal else [])
    # A registry that does not exist would be waited for.
    assert time.monotonic() - started < 10
    assert list_made(broken) == before


@ONLY_CDI
def test_no_registry_is_asked_for_a_base_image_whose_name_devkit_does_not_see(broken, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as registry:
        port = registry.getsockname()[1]
        files = {"compose.yaml": "services: {a: {build: .}}"}
        files["Dockerfile"] = f"FROM scratch\nCOPY --from=127.0.0.1:\\\n{port}/base /x /x\n"
        project = read_files(tmp_path, files)
        config = read_compose_config(LocalHost(), project=str(tmp_path))
        facts = changed(read_facts(), {"compose_config": config, "project": project})
        found = try_containers(LocalHost(), facts, deadline_s=60, project=str(tmp_path))
        registry.settimeout(0)
        with pytest.raises(BlockingIOError):
            registry.accept()
    assert [each.code for each in found.tried if each.arguments[:1] == ("build",)] == [0]


def list_made(engine: Engine) -> list[str]:
    """List containers, networks, images and the machine's routes, each in any order."""
    listed = [engine.docker(*words, "--quiet") for words in (("ps", "--all"), ("network", "ls"), ("image", "ls"))]
    return sorted(line for text in (run(["ip", "route"]).stdout, *listed) for line in text.splitlines())


@ONLY_CDI
@cases(
    "settings, flags, refusal",
    {
        "nothing": ({}, (), ""),
        "a setting": ({"debug": True}, (), ""),
        "an unknown key": ({"default_runtime": "nvidia"}, (), "default_runtime"),
        "a wrong type": ({"runtimes": {"nvidia": "x"}}, (), "cannot unmarshal string"),
        "hosts beside a flag": ({"hosts": ["unix:///x"]}, ("-H", "fd://"), "hosts: (from flag"),
    },
)
def test_dockerd_says_what_it_refuses(broken, tmp_path, settings, flags, refusal):
    path = tmp_path / "daemon.json"
    path.write_text(json.dumps(settings))
    said = validate_daemon_file(LocalHost(), str(path), flags)
    assert (refusal in said) if refusal else said == ""
    done = run(["dockerd", "--validate", *flags, f"--config-file={path}"], env=broken.env, expect=None)
    assert refusal in done.stdout + done.stderr
