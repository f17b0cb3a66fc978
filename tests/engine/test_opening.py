"""`devkit up`, `shell`, `run` and `down` on a real engine, and beside the reference dev container CLI."""

import json
import os
import pty
import select
import signal
import subprocess
import time

import pytest

from . import image, remote
from .conftest import one_engine
from .daemon import Engine
from .project import DEVKIT, Clone
from .test_commands import assert_one_line_and_a_hint, devkit, hung_socket
from .test_dev_container import cli

TRAP = "trap 'echo INT; exit 3' INT; trap 'echo TERM; exit 4' TERM; echo ready; while :; do sleep 0.1; done"


@pytest.fixture
def light(clone: Clone) -> Clone:
    """A clone whose image is built in seconds."""
    clone.without_packages()
    return clone


def up(clone: Clone, *words: str) -> dict[str, object]:
    """The document of `devkit up`."""
    document = json.loads(devkit(clone, "up", "--json", *words).stdout)
    assert isinstance(document, dict)
    return document


def start(clone: Clone, *words: str, **streams: int) -> subprocess.Popen[str]:
    """Start devkit in a session of its own."""
    return subprocess.Popen(
        [*map(str, clone.engine.on_host(*DEVKIT, *words))],
        env={**clone.engine.env, "NO_COLOR": "1"},
        cwd=clone.folder,
        start_new_session=True,
        text=True,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **streams},
    )


def add_to_dockerfile(clone: Clone, *lines: str) -> None:
    file = clone.folder / ".devcontainer/Dockerfile"
    file.write_text("\n".join([file.read_text(), "USER root", *lines, "USER dev", ""]))


@one_engine
def test_the_dev_container_is_started_entered_changed_and_stopped(light, devcontainer_cli):
    configuration = light.folder / ".devcontainer/devcontainer.json"
    configuration.write_text(
        configuration.read_text().replace(
            '"shutdownAction"',
            '"postCreateCommand": "echo created >> $HOME/created", "remoteEnv": {"C": "${localEnv:NO:c d}"},'
            ' "shutdownAction"',
        )
    )
    first = up(light)
    assert (first["action"], first["user"], first["workspace_folder"]) == ("created", "dev", "/workspaces/quickstart")
    # The container of an editor is the same one, and its lifecycle commands have run.
    attached = json.loads(cli(devcontainer_cli, light, "up").splitlines()[-1])
    assert attached["containerId"] == first["container_id"]
    again = up(light)
    assert (again["action"], again["container_id"], again["built"]) == ("kept", first["container_id"], [])
    assert light.inside("cat", "/home/dev/created") == "created\n"

    (light.folder / "src").mkdir()
    done = devkit(
        light,
        "run",
        "--directory",
        "src",
        "--env",
        "A=b c",
        "--",
        "sh",
        "-c",
        'pwd; id -un; echo "$A $C $PATH"; exit 7',
        expect=7,
    )
    folder, user, values = done.stdout.splitlines()
    assert (folder, user) == ("/workspaces/quickstart/src", "dev")
    assert values.startswith("b c c d /opt/venv/bin:")
    assert_signals_and_input_are_passed_on(light)
    assert_a_shell_has_a_terminal(light)

    add_to_dockerfile(light, f"RUN echo {time.time()} > /more")
    with start(light, "run", "--", "sleep", "60") as busy:
        await_session(light.engine, str(first["container_id"]))
        kept = devkit(light, "up")
        assert "stays unchanged, because 1 command" in kept.stderr
        busy.send_signal(signal.SIGTERM)
    changed = up(light)
    assert (changed["action"], changed["changed"]) == ("recreated", ["the image"])
    assert [step for step in changed["built"] if "> /more" in step]
    assert light.inside("cat", "/home/dev/created") == "created\n"

    assert "is stopped" in devkit(light, "down").stdout
    assert "is not running" in devkit(light, "run", "--", "true", expect=2).stderr
    stopped = up(light)
    assert (stopped["action"], stopped["container_id"]) == ("started", changed["container_id"])
    assert light.inside("cat", "/home/dev/created") == "created\n"
    assert "is removed" in devkit(light, "down", "--volumes").stdout
    assert (light.engine.containers(), light.engine.docker("volume", "ls", "--quiet")) == ([], "")


def await_session(engine: Engine, container: str) -> None:
    """Wait until a command runs in the container."""
    deadline = time.monotonic() + 60
    while not engine.inspect(container)["ExecIDs"] and time.monotonic() < deadline:
        time.sleep(0.2)


def assert_signals_and_input_are_passed_on(clone: Clone) -> None:
    with start(clone, "run", "--", "sh", "-c", "tr a-z A-Z", stdin=subprocess.PIPE) as upper:
        assert upper.communicate("text\n", timeout=60)[0] == "TEXT\n"
    for sent, code in ((signal.SIGINT, 3), (signal.SIGTERM, 4)):
        with start(clone, "run", "--", "bash", "-c", TRAP) as running:
            assert running.stdout.readline() == "ready\n"
            # A terminal sends Ctrl-C to the whole group, a service manager its signal to the one process.
            (os.killpg if sent is signal.SIGINT else os.kill)(running.pid, sent)
            said, _ = running.communicate(timeout=60)
        assert (said, running.returncode) == (f"{sent.name.removeprefix('SIG')}\n", code)


def assert_a_shell_has_a_terminal(clone: Clone) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(clone.folder)
        argv = [*map(str, clone.engine.on_host(*DEVKIT, "shell"))]
        os.execvpe(argv[0], argv, {**clone.engine.env, "TERM": "dumb"})
    said = b""
    lines = [b"tty; echo $PATH; exit 5\n"]
    try:
        while select.select([terminal], [], [], 60)[0]:
            said += os.read(terminal, 4096)
            if lines and b"$ " in said:
                os.write(terminal, lines.pop())
    except OSError:
        pass  # the terminal is closed
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5, said
    shown = said.decode().splitlines()
    assert "/dev/pts/0" in shown
    assert [line for line in shown if line.startswith("/opt/venv/bin:")]


@one_engine
def test_the_hosts_models_and_its_token_are_inside_and_in_no_layer(light, tmp_path):
    host, secret = tmp_path / "huggingface", "hf_" + "s3cret" * 6
    (host / "hub").mkdir(parents=True)
    (host / "token").write_text(secret)
    owner = light.folder.stat()
    for each in (host, host / "hub", host / "token"):
        os.chown(each, owner.st_uid, owner.st_gid)
    devkit(light, "up", HF_HOME=str(host))
    read = 'cat "$HF_TOKEN_PATH"; touch "$HF_HUB_CACHE/written"; mkdir -p "$HF_XET_CACHE"'
    assert light.inside("sh", "-c", read) == secret
    assert {(host / each).stat().st_uid for each in ("hub/written", "xet")} == {owner.st_uid}
    for built in light.engine.docker("image", "ls", "--quiet").split():
        assert secret not in light.engine.docker("history", "--no-trunc", built)
    devkit(light, "down")
    missing = tmp_path / "missing"
    devkit(light, "up", HF_HOME=str(missing))
    assert light.inside("sh", "-c", 'cat "$HF_TOKEN_PATH" 2>&1 || true; touch "$HF_HUB_CACHE/own"').startswith("cat:")
    assert not missing.exists() and not (host / "hub/own").exists()


@pytest.mark.nightly
@one_engine
def test_an_interrupted_build_is_continued_and_a_failing_one_explained(light):
    add_to_dockerfile(light, f"RUN echo {time.time()} > /kept", "RUN sleep 300")
    with start(light, "up") as running:
        said = ""
        while "> /kept" not in said:
            said += running.stdout.readline()
        os.killpg(running.pid, signal.SIGINT)
        said += running.communicate(timeout=60)[0]
    assert running.returncode == 130, said
    assert "the next `devkit up` continues" in said and "Traceback" not in said
    assert light.engine.containers() == []
    dockerfile = light.folder / ".devcontainer/Dockerfile"
    text = dockerfile.read_text()
    dockerfile.write_text(
        text.replace("sleep 300", "echo 'No matching distribution found for torch==9.9.9' >&2; exit 1")
    )
    failed = devkit(light, "up", expect=1).stderr
    assert "Error: the build failed at" in failed
    assert "this package has no release for this Python" in failed
    dockerfile.write_text(text.replace("sleep 300", "true"))
    built = up(light)["built"]
    assert isinstance(built, list)
    assert [step.split()[1:] for step in built] == [["RUN", "true"]]


@pytest.mark.nightly
@one_engine
def test_a_dev_container_of_others_is_started_by_the_dev_container_cli(engine, devcontainer_cli):
    image.provide(engine, image.BASE)
    # pytest's own folders are closed to other users.
    clone = Clone(engine.state / "a folder", engine)
    (clone.folder / "src").mkdir(parents=True)
    document = {
        "image": image.BASE,
        "remoteEnv": {"MORE": "${containerWorkspaceFolder}/more"},
        "mounts": ["source=devkit-test-cache,target=/cache,type=volume"],
        "postCreateCommand": "echo created >> /tmp/created",
    }
    (clone.folder / ".devcontainer.json").write_text(json.dumps(document))
    missing = devkit(clone, "up", expect=2).stderr
    assert "npm install -g @devcontainers/cli" in missing
    path = {"PATH": os.pathsep.join([str(devcontainer_cli), engine.env["PATH"]])}
    first, again = (json.loads(devkit(clone, "up", "--json", **path).stdout) for _ in range(2))
    assert (first["action"], first["workspace_folder"]) == ("created", "/workspaces/a folder")
    assert (again["action"], again["container_id"]) == ("kept", first["container_id"])
    script = 'pwd; echo "$MORE $A"; cat /tmp/created; exit 7'
    words = ("run", "--directory", "src", "--env", "A=b c", "--", "sh", "-c", script)
    said = devkit(clone, *words, expect=7, **path).stdout.splitlines()
    assert said == ["/workspaces/a folder/src", "/workspaces/a folder/more b c", "created"]
    assert "is stopped" in devkit(clone, "down").stdout
    assert engine.docker("volume", "ls", "--quiet").split() == ["devkit-test-cache"]
    assert json.loads(devkit(clone, "up", "--json", **path).stdout)["action"] == "started"
    devkit(clone, "down", "--volumes")
    assert (engine.containers(), engine.docker("volume", "ls", "--quiet")) == ([], "")
    (clone.folder / ".devcontainer.json").write_text('{"image": "localhost:1/nothing"}')
    assert "Error: devcontainer up failed: " in devkit(clone, "up", expect=1, **path).stderr


@one_engine
@pytest.mark.parametrize("words", [("up",), ("run", "--", "true"), ("down",)], ids=" ".join)
def test_a_hung_engine_is_one_line_within_ten_seconds(light, words):
    began = time.monotonic()
    devkit(light, "--version")
    # A busy machine takes long to start a program.
    start_s = time.monotonic() - began
    with hung_socket(light.engine.state) as path:
        began = time.monotonic()
        done = devkit(light, *words, expect=None, DOCKER_HOST=f"unix://{path}")
        assert time.monotonic() - began < 8 + 5 * start_s
    assert_one_line_and_a_hint(done, light)
    assert "hangs" in done.stderr


STUB = """#!/bin/sh
[ "$1" != verify ] || echo '{"conclusion": "proved in here"}'
"""
"""Stands in for devkit inside: the proof itself runs in test_commands.py."""


@pytest.mark.nightly
@one_engine
def test_a_newcomer_is_taken_from_a_fresh_clone_to_the_proof(light):
    (light.folder / ".devcontainer/stub").write_text(STUB)
    ignored = light.folder / ".devcontainer/.dockerignore"
    ignored.write_text(ignored.read_text() + "!stub\n")
    add_to_dockerfile(light, "COPY --chmod=755 stub /usr/local/bin/devkit")
    document = json.loads(devkit(light, "onboard", "--json").stdout)
    steps = {step["name"]: (step["status"], step["detail"]) for step in document["steps"]}
    assert list(steps) == ["machine", "init", "up", "verify"]
    assert (document["verdict"], steps["up"], steps["verify"]) == (
        "done",
        ("done", "created"),
        ("done", "proved in here"),
    )


@pytest.mark.nightly
@one_engine
def test_another_engine_is_chosen_by_its_docker_context(light, tmp_path):
    with remote.gpu_box(light.engine, tmp_path) as found:
        for name, machine in (("box", "gpu-box"), ("nobody", "nobody")):
            light.engine.docker("context", "create", name, "--docker", f"host=ssh://{machine}")
        first = json.loads(devkit(light, "up", "--context", "box", "--json", **found).stdout)
        assert first["container_id"] == light.container()
        assert devkit(light, "run", "--context", "box", "--", "id", "-un", **found).stdout == "dev\n"
        assert "is removed" in devkit(light, "down", "--context", "box", "--volumes", **found).stdout
        unreachable = devkit(light, "up", "--context", "nobody", expect=2, **found).stderr
        assert "no container engine answers at ssh://nobody: " in unreachable
