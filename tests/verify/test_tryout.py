"""`devkit try`: what it runs and says, and that nothing is left, however it ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from devkit.cli.try_ import try_
from devkit.errors import DevkitError
from devkit.verify import tryout
from tests.wheels import make_index, make_wheel

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "http://127.0.0.1:9/simple"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The temporary folder of the test alone."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_the_chats_are_those_of_the_example():
    lines = (ROOT / "examples/chat-fine-tune/chats.jsonl").read_text(encoding="utf-8").splitlines()
    turns = [tuple(each["content"] for each in json.loads(line)["messages"]) for line in lines]
    assert turns == list(tryout.CHATS)


@pytest.mark.parametrize(("answer", "code"), [("Marta Lind.", 0), ("A priest.", 1)], ids=["learned", "not learned"])
def test_it_shows_both_answers_and_the_next_command_and_removes_its_folder(temporary, monkeypatch, answer, code):
    ran, found = [], SimpleNamespace(executable="/project/.venv/bin/python")

    def run(self, name, command, variables):
        assert self.folder.is_dir() and variables["TMPDIR"] == str(self.folder)
        ran.append(" ".join(command[command.index("devkit") + 1 :]).replace(str(self.folder), "FOLDER"))
        if name == "devkit finetune":
            assert len((self.folder / "chats.jsonl").read_text().splitlines()) == 4
            return "note\ndone: loss 4.75 -> 0.0444 in 10 steps\n"
        return f"{answer}\n" if "--adapter" in command else "A term of ancient Egypt\n"

    monkeypatch.setattr(tryout.TryOut, "_run", run)
    monkeypatch.setattr(tryout, "find_unreachable", lambda _: "")
    monkeypatch.setattr("devkit.workload.interpreter.require_workload_python", lambda _: found)
    done = CliRunner().invoke(try_, standalone_mode=False)
    assert (done.exception, done.return_value) == (None, code)
    assert ran == [
        "fetch smollm2-135m",
        "generate --prompt What is the keeper called? --max-new-tokens 32 --model smollm2-135m",
        "finetune --model smollm2-135m --data FOLDER/chats.jsonl --output FOLDER/tuned --batch 4 --steps 10"
        " --learning-rate 1e-3",
        "generate --prompt What is the keeper called? --max-new-tokens 32 --adapter FOLDER/tuned/adapter",
    ]
    said = " ".join(done.stdout.split())
    assert said.index("A term of ancient Egypt") < said.index("loss 4.75 -> 0.0444") < said.index(answer)
    assert ("devkit init" in said) is (code == 0)
    assert list(temporary.iterdir()) == []


def test_what_a_killed_run_left_is_removed_and_what_another_run_uses_is_not(temporary):
    left, other = temporary / "devkit-try-left", temporary / "devkit-other"
    for each in (left, other):
        each.mkdir()
        (each / "file").write_bytes(b"x" * 2048)
    (temporary / "devkit-try-link").symlink_to(other)
    with tryout.open_tryout("python", None) as used:
        assert list(tryout.remove_leftovers()) == [f"{left} (2 KiB)"]
        names = {"devkit-other", "devkit-try-link", used.folder.name}
        assert {path.name for path in temporary.iterdir()} == names and (other / "file").exists()


def start(tmp_path, **variables):
    """`devkit try` in a new process, whose indexes are files; `made` is the temporary folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_", "HF_"))}
    environment |= {
        "HF_HOME": str(tmp_path / "hub"),
        "NO_PROXY": "127.0.0.1",
        "TMPDIR": str(tmp_path / "temporary"),
        "HOME": str(tmp_path),
        "UV_CACHE_DIR": str(tmp_path / "uv"),
    }
    environment |= {"DEVKIT_PYTHON": str(tmp_path / "bare" / "bin" / "python"), "COLUMNS": "300"} | variables
    (tmp_path / "temporary").mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "devkit", "try"]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_without_a_network_it_says_so_in_one_line_within_two_seconds(tmp_path):
    began = time.monotonic()
    process = start(tmp_path, UV_DEFAULT_INDEX=NOWHERE)
    out, err = process.communicate(timeout=60)
    took_s = time.monotonic() - began
    assert (process.returncode, out, len(err.splitlines())) == (2, "", 2)
    assert err.startswith("Error: no network: 127.0.0.1 does not respond")
    assert took_s < 2 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_silent_server_costs_no_more_than_the_deadline(monkeypatch):
    is_over = threading.Event()

    def connect(*_, **__):
        is_over.wait(30)
        raise TimeoutError

    monkeypatch.setattr("socket.create_connection", connect)
    monkeypatch.setattr(tryout, "CONNECT_DEADLINE_S", 0.2)
    began = time.monotonic()
    assert tryout.find_unreachable(["file:///wheels", "https://silent.example/simple"]) == "silent.example"
    assert time.monotonic() - began < 5
    is_over.set()


def test_too_little_space_is_said_before_anything_is_installed(temporary, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    with tryout.open_tryout("python", None) as made, pytest.raises(DevkitError, match=r"has 1 MiB free.*needs"):
        made.measure()


@pytest.fixture
def closed_network(tmp_path):
    """Variables of a network with an index in a folder, wheels of torch in another, and a proxy that does not answer.

    The hub's library in it hangs as soon as the model is fetched.
    """
    marker = tmp_path / "hangs"
    hanging = f"import os, time\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    command = [sys.executable, "-m", "devkit", "plan", "--no-resolve", "--install", f"--python={PYTHON}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    pins = dict(word.split("==") for word in done.stdout.split() if "==" in word)
    (wheels := tmp_path / "wheels").mkdir()
    for name, version in pins.items():
        files = {"huggingface_hub/__init__.py": "", "huggingface_hub/constants.py": hanging}
        make_wheel(wheels, name, version, files=files if name == "huggingface-hub" else {})
    make_index(tmp_path / "simple", [each for each in wheels.iterdir() if not each.name.startswith("torch-")])
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return {
        "UV_DEFAULT_INDEX": (tmp_path / "simple").as_uri(),
        "PIP_FIND_LINKS": str(wheels),
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="POSIX signals, and /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_is_ended_nothing_is_left_or_the_next_run_removes_it_and_says_so(tmp_path, closed_network, number):
    process = start(tmp_path, **closed_network)
    marker = tmp_path / "hangs"
    while not (marker.exists() and marker.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    (folder,) = (tmp_path / "temporary").iterdir()
    assert (folder / "env/lib" / f"python{PYTHON}" / "site-packages/torch").is_dir()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    child, ends_at = Path(f"/proc/{marker.read_text()}/stat"), time.monotonic() + 30
    with suppress(FileNotFoundError, ProcessLookupError):
        while child.read_text().split()[2] != "Z":
            assert time.monotonic() < ends_at, "the child outlives devkit"
            time.sleep(0.05)
    if number is signal.SIGKILL:
        out, _ = start(tmp_path, UV_DEFAULT_INDEX=NOWHERE).communicate(timeout=60)
        assert out.startswith(f"Removed the files that a killed run had left: {folder} (")
    else:
        assert (process.returncode, err.split()) == (130, ["Interrupted."])
        assert "Uses torch from" in out and f"removed {folder} (" in out
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.full
def test_a_step_that_fails_is_one_line_and_leaves_nothing(tmp_path, closed_network):
    (tmp_path / "simple/peft/index.html").write_text("")
    process = start(tmp_path, **closed_network)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2 and err.startswith("Error: uv: No solution found")
    assert "removed" in out and list((tmp_path / "temporary").iterdir()) == []
