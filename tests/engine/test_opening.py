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
            '"shutdownAction"', '"postCreateCommand": "echo created >> $HOME/created", "shutdownAction"'
        )
    )
    first = up(light)
    assert (first["action"], first["user"]) == ("created", "dev")
    labels = light.engine.inspect(str(first["container_id"]))["Config"]["Labels"]
    assert labels["devcontainer.local_folder"] == str(light.folder)
    assert labels["devcontainer.config_file"] == str(configuration)
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
        'pwd; id -un; echo "$A $PATH"; exit 7',
        expect=7,
    )
    folder, user, values = done.stdout.splitlines()
    assert (folder, user) == ("/workspaces/quickstart/src", "dev")
    assert values.startswith("b c /opt/venv/bin:")
    assert_signals_and_input_are_passed_on(light)
    assert_a_shell_has_a_terminal(light)

    add_to_dockerfile(light, f"RUN echo {time.time()} > /more")
    with start(light, "run", "--", "sleep", "60") as busy:
        await_session(light.engine, str(first["container_id"]))
        refused = devkit(light, "up", expect=2)
        assert "1 command in it would end" in refused.stderr
        busy.send_signal(signal.SIGTERM)
    changed = up(light)
    assert (changed["action"], changed["changed"]) == ("recreated", [".devcontainer/Dockerfile"])
    assert [step for step in changed["built"] if "> /more" in step]
    assert light.inside("cat", "/home/dev/created") == "created\n"

    assert "is stopped" in devkit(light, "down").stdout
    assert "does not run" in devkit(light, "run", "--", "true", expect=2).stderr
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
    lines = [b"tty; echo $PATH; shopt -q login_shell && echo login; exit 5\n"]
    try:
        while select.select([terminal], [], [], 60)[0]:
            said += os.read(terminal, 4096)
            if lines and b"$ " in said:
                os.write(terminal, lines.pop())
    except OSError:
        pass  # the terminal is closed
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5, said
    shown = said.decode().splitlines()
    assert "/dev/pts/0" in shown and "login" in shown
    assert [line for line in shown if line.startswith("/opt/venv/bin:")]


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
def test_a_dockerfile_and_an_image_of_other_tools_are_started_too(engine, devcontainer_cli):
    image.provide(engine, image.BASE)
    # pytest's own folders are closed to other users.
    clone = Clone(engine.state / "plain", engine)
    folder = clone.folder / ".devcontainer"
    folder.mkdir(parents=True)
    user = "RUN useradd --create-home --uid 1500 $NAME && install -d -o $NAME /cache"
    (folder / "Dockerfile").write_text("\n".join([f"FROM {image.BASE}", "ARG NAME", user, ""]))
    document = {
        "build": {"dockerfile": "Dockerfile", "args": {"NAME": "vscode"}},
        "remoteUser": "vscode",
        "containerEnv": {"INSIDE": "${containerWorkspaceFolder}"},
        "remoteEnv": {"MORE": "${containerEnv:INSIDE}/more"},
        "mounts": ["source=devkit-${devcontainerId},target=/cache,type=volume"],
        "onCreateCommand": {"one": "touch one", "two": ["touch", "two"]},
        "postStartCommand": "echo started >> ../../tmp/starts",
    }
    (folder / "devcontainer.json").write_text(json.dumps(document))
    # Root starts it for the folder's owner, whose ids the user inside gets.
    for path in (clone.folder, folder, *folder.iterdir()):
        os.chown(path, 12345, 12345)
    first = up(clone)
    assert (first["action"], first["workspace_folder"]) == ("created", "/workspaces/plain")
    done = devkit(clone, "run", "--", "sh", "-c", "id -u; stat -c %u ~ /cache; echo $MORE; cat /tmp/starts; ls")
    assert done.stdout.split() == ["12345", "12345", "12345", "/workspaces/plain/more", "started", "one", "two"]
    attached = json.loads(cli(devcontainer_cli, clone, "up").splitlines()[-1])
    assert (attached["containerId"], attached["remoteUser"]) == (first["container_id"], "vscode")
    devkit(clone, "down", "--volumes")
    assert (engine.containers(), engine.docker("volume", "ls", "--quiet")) == ([], "")
    (folder / "devcontainer.json").write_text('{"image": "localhost:1/nothing"}')
    failed = devkit(clone, "up", expect=1).stderr
    assert "get the image  failed after" in failed
    assert "Error: the image can be neither built nor pulled" in failed
    (folder / "devcontainer.json").write_text(json.dumps({"image": image.BASE, "overrideCommand": False}))
    assert "the container ended at once" in devkit(clone, "up", expect=1).stderr
    engine.clear()
    (folder / "hello").mkdir()
    (folder / "hello/devcontainer-feature.json").write_text('{"id": "hello", "version": "1.0.0", "name": "Hello"}')
    (folder / "hello/install.sh").write_text("#!/bin/sh\necho from a Feature >/hello\n")
    (folder / "devcontainer.json").write_text(json.dumps({"image": image.BASE, "features": {"./hello": {}}}))
    path = os.pathsep.join([str(devcontainer_cli), engine.env["PATH"]])
    actions = [json.loads(devkit(clone, "up", "--json", PATH=path).stdout)["action"] for _ in range(2)]
    assert actions == ["created", "kept"]
    assert devkit(clone, "run", "--", "cat", "/hello").stdout == "from a Feature\n"
    engine.clear()


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
echo "$*" >>/tmp/calls
case $1 in
    verify) echo '{"conclusion": "proved in here"}' ;;
    finetune) echo '{"event": "end", "last_loss": 2.5, "tokens_per_s": 900}' ;;
esac
"""
"""Stands in for devkit inside: the proof itself runs in test_commands.py."""


@pytest.mark.nightly
@one_engine
def test_a_newcomer_is_taken_from_a_fresh_clone_to_the_first_step_and_nothing_is_done_twice(light):
    (light.folder / ".devcontainer/stub").write_text(STUB)
    ignored = light.folder / ".devcontainer/.dockerignore"
    ignored.write_text(ignored.read_text() + "!stub\n")
    add_to_dockerfile(light, "COPY --chmod=755 stub /usr/local/bin/devkit")
    (light.folder / "run.toml").write_text('model = "model"\n')
    with (light.folder / "devkit.toml").open("a") as file:
        file.write('\n[job]\nsettings = "run.toml"\n')
    first = json.loads(devkit(light, "onboard", "--json").stdout)
    steps = {step["name"]: (step["status"], step["detail"]) for step in first["steps"]}
    assert (first["verdict"], steps["up"], steps["verify"]) == ("done", ("done", "created"), ("done", "proved in here"))
    assert steps["train"] == ("done", "loss 2.5, 900 tokens/s")
    again = json.loads(devkit(light, "onboard", "--json").stdout)
    assert {step["name"]: step["status"] for step in again["steps"]} == {
        "machine": "done",
        "up": "done",
        "verify": "kept",
        "train": "kept",
    }
    calls = [line.split()[0] for line in light.inside("cat", "/tmp/calls").splitlines()]
    assert [call for call in calls if call != "doctor"] == ["verify", "finetune"]
    assert "written: " in devkit(light, "onboard", "--write").stdout
    assert light.changed().count("ONBOARDING.md") == 1


@pytest.mark.nightly
@one_engine
def test_on_another_machine_it_works_in_a_copy_that_is_kept_up_to_date(light, tmp_path):
    (light.folder / ".gitignore").write_text("not-sent\n")
    for name, text in {"not-sent": "1", "train.py": "first", "gone.py": "1", "both.py": "1"}.items():
        (light.folder / name).write_text(text)
    host = ("--host", "ssh://gpu-box")
    with remote.gpu_box(light.engine, tmp_path) as found:
        # The clone belongs to a developer, and the tests to root.
        git = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        variables = {**found, **git}

        def there(*words: str, expect: int | None = 0) -> str:
            done = devkit(light, *words, expect=expect, **variables)
            return done.stdout + done.stderr

        first = json.loads(devkit(light, "up", *host, "--json", **variables).stdout)
        mounts = light.engine.inspect(first["container_id"])["Mounts"]
        (copy,) = [mount for mount in mounts if mount["Destination"] == "/workspaces/quickstart"]
        assert (copy["Type"], copy["Name"]) == ("volume", first["volume"])
        script = "git status --porcelain; ls; id -un; stat -c %U . train.py .devcontainer; echo >>both.py; echo >result"
        said = there("run", *host, "--", "sh", "-c", script).splitlines()
        assert "not-sent" not in said and "train.py" in said
        assert said[-4:] == ["dev"] * 4

        assert "is unknown: no devkit answers there: " in there("onboard", *host, "--check")

        (light.folder / "train.py").write_text("second one")
        (light.folder / "both.py").write_text("otherwise")
        (light.folder / "gone.py").unlink()
        again = there("up", *host)
        assert "runs already" in again
        assert "copied 1 file of" in again and "removed 1 file there" in again
        assert "changed both here and there, and left there as it is: both.py" in again
        assert there("run", *host, "--", "cat", "train.py") == "second one"
        assert there("run", *host, "--", "sh", "-c", "ls gone.py result both.py 2>/dev/null", expect=2).split() == [
            "both.py",
            "result",
        ]
        assert "is removed" in there("down", *host, "--volumes")
        assert light.engine.docker("volume", "ls", "--quiet") == ""

        light.engine.docker("context", "create", "box", "--docker", "host=ssh://gpu-box")
        assert "does not run" in there("down", "--host", "box")
        assert "no container engine answers at ssh://nobody: " in there("up", "--host", "ssh://nobody", expect=2)
