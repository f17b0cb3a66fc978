"""How every command ends: exit codes, one-line errors, and what is imported on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from devkit import cli
from devkit.cli import exit_codes
from devkit.errors import DevkitError

FULL_DISK = Path("/dev/full")


def run(*arguments, **kwargs):
    return subprocess.run([sys.executable, "-m", "devkit", *arguments], capture_output=True, text=True, **kwargs)


def ended_by(monkeypatch, capsys, error):
    """Exit code and stderr when a command raises `error`."""

    def fail(**_):
        raise error

    monkeypatch.setattr(cli, "devkit", fail)
    code = cli.run_command_line()
    return code, capsys.readouterr().err


@pytest.mark.parametrize("words", [("doctor", "--list"), ("--help",), ("explain", "CTK001")], ids=" ".join)
def test_a_reader_that_has_left_is_no_failure(words):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "devkit", *words], stdout=writer, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (exit_codes.DONE, "")


def test_a_user_error_is_one_line_and_a_hint(monkeypatch, capsys):
    code, err = ended_by(monkeypatch, capsys, DevkitError("no such GPU: rtx 9090", "Known: RTX 4090\nSee devkit plan"))
    assert code == exit_codes.WRONG_INPUT
    assert err == "Error: no such GPU: rtx 9090\n  Known: RTX 4090\n  See devkit plan\n"


def test_a_bug_shows_its_traceback_and_how_to_report_it(monkeypatch, capsys):
    code, err = ended_by(monkeypatch, capsys, ZeroDivisionError("division by zero"))
    assert code == exit_codes.BUG
    assert "Traceback" in err and "ZeroDivisionError" in err and "report it" in err.splitlines()[-1]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()], ids=["Ctrl-C", "a prompt left with Ctrl-C"])
def test_an_interrupt_ends_quietly_with_130(monkeypatch, capsys, error):
    code, err = ended_by(monkeypatch, capsys, error)
    assert (code, err) == (exit_codes.INTERRUPTED, "Interrupted.\n")


def test_an_unknown_command_is_a_usage_error():
    done = run("docter")
    assert done.returncode == exit_codes.WRONG_INPUT
    assert "docter" in done.stderr and "Traceback" not in done.stderr


def test_every_listed_command_loads_and_has_help():
    for name in cli.COMMANDS:
        done = run(name, "--help")
        assert done.returncode == 0, done.stderr
        assert f"devkit {name}" in done.stdout


def test_help_imports_nothing_heavy():
    code = (
        "import sys, devkit.cli\n"
        "try: devkit.cli.devkit(['--help'], standalone_mode=False)\n"
        "finally: print(sorted(set(sys.modules) & {'torch', 'docker', 'pynvml', 'jinja2', 'tomlkit', 'requests'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.skipif(not FULL_DISK.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["--help", "doctor --list", "plan --vendor cpu", "init --vendor cpu --dry-run"])
def test_a_full_disk_is_the_users_to_know_not_a_bug(command, tmp_path):
    with FULL_DISK.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "devkit", *command.split()],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == exit_codes.WRONG_INPUT
    assert done.stderr.startswith("Error: cannot write to standard output: No space left on device\n  ")


def test_a_reader_that_leaves_early_gets_no_traceback():
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "devkit", "doctor", "--list"], stdout=write_end, stderr=subprocess.PIPE, text=True
    )
    os.close(write_end)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


DROPPED = """
import signal, threading, time
from devkit import cli

class Callback:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def waits(**given):
    held = Callback()
    del held
    print("dropped", flush=True)
    thread = threading.Thread(target=time.sleep, args=(20,), daemon=True)
    thread.start()
    thread.join(20)

cli.devkit = waits
cli.main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_that_python_drops_in_a_finalizer_comes_again():
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (exit_codes.INTERRUPTED, "dropped\n"), done.stderr
    assert done.stderr == "Interrupted.\n"
    assert time.monotonic() - began < 15


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_during_a_real_probe_ends_with_130(tmp_path):
    """A fake docker program that never answers keeps the command busy until the signal comes."""
    (tmp_path / "docker").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "docker").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    child = subprocess.Popen(
        [sys.executable, "-m", "devkit", "doctor", "--timeout", "30"], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(1.5)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == exit_codes.INTERRUPTED, err
    assert err.splitlines()[-1] == "Interrupted."


def test_what_is_left_at_exit_is_collected():
    """A library that counts its objects at exit, as nanobind does, reports every one that is never collected."""
    script = (
        "import sys; from devkit.cli import main\n"
        "class Kept:\n"
        "    def __init__(self): self.circle = self\n"
        "    def __del__(self): sys.stderr.write('collected')\n"
        "Kept(); sys.argv = ['devkit', '--version']; main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (exit_codes.DONE, "collected")


CLOSED = 'exec "$0" -m devkit explain DRV001 {0}'


@pytest.mark.skipif(os.name != "posix", reason="streams are closed by a POSIX shell")
@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_bug(closed):
    done = subprocess.run(
        ["sh", "-c", CLOSED.format(closed), sys.executable], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("DRV001") == (" >&-" not in f" {closed}")


@pytest.mark.skipif(os.name != "posix", reason="only POSIX removes a folder that is in use")
def test_a_removed_working_folder_is_the_users_to_know(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'rmdir "$1" && exec "$0" -P -m devkit doctor --only DRV001'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, str(gone)], cwd=gone, capture_output=True, text=True, check=False
    )
    assert done.returncode == exit_codes.WRONG_INPUT
    assert done.stderr.splitlines()[0] == "Error: the current directory no longer exists"


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_under_a_limit_of_memory_everything_is_read_and_nothing_aborts():
    script = 'ulimit -v 300000; exec "$0" -m devkit doctor --json'
    done = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, text=True, check=False, timeout=60)
    document = json.loads(done.stdout)
    # Go's runtime, in which docker is written, does not start with so little address space.
    lost = [each for each in document["lost"] if "docker --version" not in each["reason"]]
    assert (done.stderr, lost) == ("", [])
    assert document["verdict"] in ("healthy", "no-gpu", "warnings", "incomplete", "problems")


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_a_tight_limit_of_open_files_makes_a_report_that_is_not_healthy():
    script = 'ulimit -n 8; exec "$0" -m devkit doctor --json'
    done = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["verdict"] in ("incomplete", "problems")
    assert done.returncode in (exit_codes.DONE, exit_codes.ANSWER_IS_NO)
