"""devkit's own commands against real engines, and against engines that do not answer."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.documents import assert_valid
from tests.nvml_stub import build_stub, stub_environment
from tests.verify.stages import NOT_ON_A_CPU, not_passed

from .commands import run
from .conftest import every_flavor, one_engine
from .daemon import Flavor
from .project import DEVKIT, Clone


def devkit(
    clone: Clone, *words: str | Path, expect: int | None = 0, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run devkit against the clone's engine."""
    done = run(
        clone.engine.on_host(*DEVKIT, *words),
        env={**clone.engine.env, "NO_COLOR": "1", **changes},
        cwd=clone.folder,
        expect=expect,
    )
    assert_valid(done.stdout)
    return done


@one_engine
def test_verify_on_the_host_builds_starts_proves_and_cleans_up(clone):
    (clone.folder / "own").mkdir()
    (clone.folder / "own/__init__.py").write_text("import torch\n")
    command = "python -c 'import own, sys; sys.exit(sys.prefix != \"/opt/venv\")'"
    report = json.loads(devkit(clone, "verify", clone.folder, "--json", "--command", command).stdout)
    assert (report["verdict"], report["where"]) == ("passed", "container")
    imports, ran = report["stages"][-2:]
    assert (imports["measured"], ran["measured"]) == ({"imported": 1, "failed": 0}, {command: 0})
    assert not_passed(report) == dict.fromkeys(NOT_ON_A_CPU, "skipped")
    assert clone.engine.containers() == []


@pytest.mark.nightly
@one_engine
def test_verify_leaves_a_container_that_ran_before(clone):
    clone.look()
    clone.compose("up", "--build", "--detach")
    before = clone.container()
    assert devkit(clone, "verify", clone.folder, "--quick").returncode == 0
    assert clone.container() == before


@pytest.mark.nightly
@one_engine
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "a polite kill"])
def test_verify_leaves_no_container_when_interrupted(clone, sent):
    verify = subprocess.Popen(
        clone.engine.on_host(*DEVKIT, "verify", clone.folder),
        env=dict(clone.engine.env),
        cwd=clone.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    with verify:
        deadline = time.monotonic() + 600
        while not clone.engine.containers() and verify.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        if verify.poll() is None:
            # A terminal sends Ctrl-C to the whole group, a service manager its signal to the one process.
            (os.killpg if sent is signal.SIGINT else os.kill)(verify.pid, sent)
        said, _ = verify.communicate(timeout=90)
    assert verify.returncode == 130, said.decode(errors="replace")
    assert clone.engine.containers() == []
    assert b"Traceback" not in said


@pytest.fixture(scope="module")
def eight_gpus(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Environment in which NVML answers for eight healthy GPUs."""
    library = build_stub(tmp_path_factory.mktemp("nvml"))
    return stub_environment(library, gpus=8, name="NVIDIA H100 80GB HBM3", driver="580.65.06", cuda="13.0")


@every_flavor
def test_the_doctor_names_what_keeps_eight_gpus_out_of_this_engine(clone, eight_gpus):
    report = json.loads(devkit(clone, "doctor", "--json", expect=None, **eight_gpus).stdout)
    statuses = {outcome["code"]: outcome["status"] for outcome in report["outcomes"]}
    assert "crashed" not in statuses.values(), report
    assert {statuses[code] for code in ("GPU001", "ENG001", "ENG007")} == {"passed"}
    blamed = [code for code in report["root_causes"] if code.startswith(("DRV", "ENG", "CTK", "CDI"))]
    assert blamed == (["CTK001"] if clone.engine.flavor is Flavor.CPU else [])
    (toolkit,) = [outcome for outcome in report["outcomes"] if outcome["code"] == "CTK001"]
    assert {finding["fix"]["where"] for finding in toolkit["findings"]} <= {"host"}


@every_flavor
def test_the_facts_tell_the_engines_apart(clone):
    facts = clone.folder / "facts.json"
    devkit(clone, "doctor", "--save-facts", facts, expect=None)
    engine = json.dumps(json.loads(facts.read_text(encoding="utf-8"))["engine"])
    assert ("nvidia-container-runtime" in engine) is (clone.engine.flavor is Flavor.NVIDIA)
    assert ("nvidia.com/gpu" in engine) is (clone.engine.flavor is Flavor.CDI)


@contextmanager
def hung_socket(folder: Path) -> Iterator[Path]:
    """A socket that accepts and never answers, as an engine does whose disk is stuck."""
    path = folder / "hung.sock"
    stop = threading.Event()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0o666)
        server.listen(64)
        server.settimeout(0.2)
        kept = []

        def accept() -> None:
            while not stop.is_set():
                try:
                    kept.append(server.accept()[0])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield path
        finally:
            stop.set()
            thread.join()
            path.unlink()
            for connection in kept:
                connection.close()


def assert_one_line_and_a_hint(done: subprocess.CompletedProcess[str], clone: Clone) -> None:
    """Exit 2, an error that says what and a hint, no traceback, and nothing was started."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    error = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(error) == 1, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("  ") and line.strip()], "no hint"
    assert clone.engine.containers() == []


@one_engine
def test_verify_says_that_the_socket_hangs(clone):
    with hung_socket(clone.engine.state) as path:
        started = time.monotonic()
        done = devkit(clone, "verify", clone.folder, expect=None, DOCKER_HOST=f"unix://{path}")
        assert time.monotonic() - started < 60
    assert_one_line_and_a_hint(done, clone)


@one_engine
def test_the_doctor_says_that_the_socket_hangs(clone):
    with hung_socket(clone.engine.state) as path:
        done = devkit(clone, "doctor", "--json", expect=1, DOCKER_HOST=f"unix://{path}")
    report = json.loads(done.stdout)
    assert report["root_causes"] == ["ENG001"]


@one_engine
def test_verify_says_that_the_socket_is_closed_to_this_user(clone):
    path = clone.engine.state / "closed.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        os.chown(path, 54321, 54321)
        path.chmod(0o600)
        # Root without the right to ignore permissions stands in for a user outside the docker group.
        ordinary = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
        env = {**clone.engine.env, "DOCKER_HOST": f"unix://{path}"}
        argv = clone.engine.on_host(*ordinary, *DEVKIT, "verify", clone.folder)
        done = run(argv, env=env, cwd=clone.folder, expect=None)
    assert_one_line_and_a_hint(done, clone)
    assert "cannot open" in done.stderr
