"""How every command ends, completes and describes its JSON; and typical mistakes: one line and a hint, exit code 2."""

import errno
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from jsonschema import Draft202012Validator

from devkit import cli
from devkit.cli import COMMANDS
from devkit.cli.documents import DOCUMENTS
from devkit.errors import DevkitError, ExitCode
from tests.cases import cases
from tests.documents import assert_valid
from tests.forked_commands import run_devkit
from tests.hosts.golden import facts_file

# How every command ends: exit codes, one-line errors, and what is imported on the way.


FULL_DISK = Path("/dev/full")


def ended_by(monkeypatch, capsys, error):
    """Exit code and stderr when a command raises `error`."""

    def fail(**_):
        raise error

    monkeypatch.setattr(cli, "devkit", fail)
    code = cli.run_command_line()
    return code, capsys.readouterr().err


@pytest.mark.parametrize("words", [("doctor", "--list"), ("--help",)], ids=" ".join)
def test_a_reader_that_has_left_is_no_failure(words):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "devkit", *words], stdout=writer, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")


def test_a_user_error_is_one_line_and_a_hint(monkeypatch, capsys):
    code, err = ended_by(monkeypatch, capsys, DevkitError("no such GPU: rtx 9090", "Known: RTX 4090\nSee devkit plan"))
    assert code == ExitCode.WRONG_INPUT
    assert err == "Error: no such GPU: rtx 9090\n  Known: RTX 4090\n  See devkit plan\n"


def test_a_bug_shows_its_traceback_and_how_to_report_it(monkeypatch, capsys):
    code, err = ended_by(monkeypatch, capsys, ZeroDivisionError("division by zero"))
    assert code == ExitCode.BUG
    assert "Traceback" in err and "ZeroDivisionError" in err and "report it" in err.splitlines()[-1]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()], ids=["Ctrl-C", "a prompt left with Ctrl-C"])
def test_an_interrupt_ends_quietly_with_130(monkeypatch, capsys, error):
    code, err = ended_by(monkeypatch, capsys, error)
    assert (code, err) == (ExitCode.INTERRUPTED, "Interrupted.\n")


SUBCOMMANDS = {"export": ("kubernetes", "slurm", "skypilot", "daytona", "docker"), "fleet": ("doctor", "files")}


def test_an_interrupt_inside_exec_ends_with_130_and_not_by_the_signal(tmp_path):
    program = (
        "from devkit import cli\ndef raises(**_): exec('raise KeyboardInterrupt')\ncli.devkit = raises\ncli.main()\n"
    )
    (tmp_path / "interrupted.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


def test_every_command_loads_and_has_help():
    """With the lowest versions of what devkit requires, too: a type or name that is newer fails at the import."""
    for command in COMMANDS:
        for words in ((command,), *((command, each) for each in SUBCOMMANDS.get(command, ()))):
            done = run_devkit(*words, "--help")
            assert done.returncode == 0, (words, done.stderr)
            assert f"devkit {' '.join(words)}" in done.stdout


def test_help_imports_nothing_heavy():
    code = (
        "import sys, devkit.cli\n"
        "try: devkit.cli.devkit(['--help'], standalone_mode=False)\n"
        "finally: print(sorted(set(sys.modules) & {'torch', 'docker', 'pynvml', 'jinja2', 'tomlkit', 'requests'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.full
def test_a_ctrl_c_finds_its_handler_early():
    """What is imported before is not within it: neither modules that take time, nor those of a stranger's folder."""
    code = "import sys; known = set(sys.modules); sys.path.insert(0, sys.argv[1]); import devkit.__main__; print(*{*sys.modules} - known)"
    argv = [sys.executable, "-I", "-c", code, str(Path(cli.__file__).parents[2])]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"devkit", "devkit.__main__"}


@pytest.mark.skipif(not FULL_DISK.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["--help", "plan --vendor cpu"])
def test_a_full_disk_is_the_users_to_know_not_a_bug(command, tmp_path):
    with FULL_DISK.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "devkit", *command.split()],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == ExitCode.WRONG_INPUT
    assert done.stderr.startswith("Error: cannot write to standard output: No space left on device\n  ")


@pytest.mark.full
@pytest.mark.skipif(not FULL_DISK.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(("words", "code"), [(["docter"], 2), (["doctor", "--facts", "{}", "--verbose"], 1)])
@pytest.mark.parametrize("is_pipe", [True, False], ids=["a pipe that nobody reads", "a full disk"])
def test_standard_error_that_takes_nothing_changes_no_answer(words, code, is_pipe):
    reader, refusing = os.pipe() if is_pipe else (os.open(os.devnull, os.O_RDONLY), os.open(FULL_DISK, os.O_WRONLY))
    os.close(reader)
    argv = [sys.executable, "-m", "devkit", *(each.format(facts_file("driver-lib-mismatch")) for each in words)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=refusing)
    os.close(refusing)
    assert (done.returncode, b"problem" in done.stdout) == (code, code == 1)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "no more files can be opened"),
        (
            BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
            "no more processes or threads can be started",
        ),
        (RuntimeError("can't start new thread"), "no more processes or threads can be started"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "the process has no memory left"),
    ],
)
def test_a_limit_of_the_process_is_the_users_to_know(monkeypatch, capsys, error, says):
    code, err = ended_by(monkeypatch, capsys, error)
    assert (code, err.splitlines()[0], err.count("\n")) == (ExitCode.WRONG_INPUT, f"Error: {says}", 2)


def test_without_docstrings_a_check_is_still_explained():
    env = {**os.environ, "PYTHONOPTIMIZE": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-m", "devkit", "explain", "DRV001"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "checks/DRV001/" in done.stdout


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


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_that_python_drops_in_a_finalizer_comes_again():
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (ExitCode.INTERRUPTED, "dropped\n"), done.stderr
    assert done.stderr == "Interrupted.\n"
    assert time.monotonic() - began < 15


@pytest.mark.full
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
    assert child.returncode == ExitCode.INTERRUPTED, err
    assert err.splitlines()[-1] == "Interrupted."


@pytest.mark.full
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
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "collected")


CLOSED = 'exec "$0" -m devkit explain DRV001 {0}'


@pytest.mark.full
@pytest.mark.skipif(os.name != "posix", reason="streams are closed by a POSIX shell")
@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_bug(closed):
    done = subprocess.run(
        ["sh", "-c", CLOSED.format(closed), sys.executable], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("DRV001") == (" >&-" not in f" {closed}")


@pytest.mark.full
@pytest.mark.skipif(os.name != "posix", reason="only POSIX removes a folder that is in use")
def test_a_removed_working_folder_is_the_users_to_know(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'rmdir "$1" && exec "$0" -P -m devkit doctor --only DRV001'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, str(gone)], cwd=gone, capture_output=True, text=True, check=False
    )
    assert done.returncode == ExitCode.WRONG_INPUT
    assert done.stderr.splitlines()[0] == "Error: the current directory no longer exists"


@pytest.mark.full
@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_under_a_limit_of_memory_everything_is_read_and_nothing_aborts():
    script = 'ulimit -v 300000; exec "$0" -m devkit doctor --json'
    done = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, text=True, check=False, timeout=60)
    document = json.loads(done.stdout)
    # Go's runtime, in which docker is written, does not start with so little address space.
    lost = [each for each in document["lost"] if "docker --version" not in each["reason"]]
    assert (done.stderr, lost) == ("", [])
    assert document["verdict"] in ("healthy", "no-gpu", "warnings", "incomplete", "problems")


@pytest.mark.full
@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_a_tight_limit_of_open_files_makes_a_report_that_is_not_healthy():
    script = 'ulimit -n 8; exec "$0" -m devkit doctor --json'
    done = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["verdict"] in ("incomplete", "problems")
    assert done.returncode in (ExitCode.DONE, ExitCode.ANSWER_IS_NO)


# What a shell completes, by the scripts that `devkit completion` prints.


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell):
    done = run_devkit("completion", shell)
    assert done.returncode == 0
    assert "_DEVKIT_COMPLETE" in done.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        pytest.param("devkit doc", "doctor", id="a command"),
        pytest.param("devkit doctor --tr", "--trial", id="a flag"),
        pytest.param("devkit doctor --only CTK00", "CTK001", id="the code of a check"),
        pytest.param("devkit explain drv", "DRV001", id="a code in small letters"),
        pytest.param("devkit plan --gpu 4090", "NVIDIA-GeForce-RTX-4090", id="a GPU, in one word"),
        pytest.param("devkit estimate smollm2", "HuggingFaceTB/SmolLM2-135M", id="a model"),
    ],
)
def test_names_are_completed(words, completed):
    place = len(words.split()) - 1
    done = run_devkit(_DEVKIT_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(place))
    assert completed in done.stdout, done.stderr


@pytest.mark.parametrize("variables", [{}, {"COMP_WORDS": "devkit 'doc", "COMP_CWORD": "x"}])
def test_a_shell_that_asks_wrongly_gets_no_traceback(variables):
    done = run_devkit(_DEVKIT_COMPLETE="bash_complete", **variables)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.WRONG_INPUT, "", "")


# `devkit schema`, and that what its schemas are for is judged: a document with a wrong field is refused.


@pytest.mark.parametrize("name", [*DOCUMENTS, "plan"])
def test_a_schema_is_printed_by_either_name(name):
    schema = json.loads(run_devkit("schema", name).stdout)
    Draft202012Validator.check_schema(schema)
    assert name in schema["title"]


def test_an_unknown_document_is_answered_with_those_there_are():
    done = run_devkit("schema", "plam")
    assert (done.returncode, done.stdout) == (ExitCode.WRONG_INPUT, "")
    assert "plan" in done.stderr
    assert "devkit.plan/1" in run_devkit("schema").stdout


def test_a_document_with_a_wrong_or_missing_field_is_refused():
    plan = json.loads(run_devkit("plan", "--vendor", "cpu", "--no-resolve", "--json").stdout)
    for wrong in (plan | {"verdict": "perhaps"}, {name: plan[name] for name in plan if name != "warnings"}):
        with pytest.raises(AssertionError, match=r"devkit\.plan/1"):
            assert_valid(json.dumps(wrong, indent=2))


# Typical mistakes: each gets one line and a hint, exit code 2, and leaves nothing behind.


@cases(
    "words, says",
    {
        "a misspelled command": (["docter"], "'docter'.\n  Did you mean devkit doctor?"),
        "a numeronym": (["export", "k8s"], "'k8s'.\n  Did you mean devkit export kubernetes?"),
        "a CPU's GPU": (["init", "x", "--vendor=cpu", "--gpu=T4"], "Remove one of them."),
        "the same": (["plan", "--vendor=cpu", "--gpu=T4"], "without a GPU, but --gpu requests T4"),
        "a misspelled value": (["init", "x", "--vendor", "nvidai"], "Did you mean nvidia?"),
        "a value that resembles none": (["plan", "--vendor=intel"], "'auto'.\n  devkit plan --help\n"),
        "no value": (["estimate", "--gpu"], "requires an argument.\n  devkit estimate --gpu NAME\n"),
        "a word for a number": (["doctor", "--timeout", "soon"], "'soon' is not a number"),
        "CUDA": (["plan", "--driver=12.8"], "--driver 12.8 is a CUDA version, not a driver version"),
        "no model": (["verify", "--here", "--model=gone"], "model gone was not found: it is neither"),
        "no hosts": (["fleet", "doctor"], "or reports (--reports DIR)"),
        "a misspelled flag": (["doctor", "--jsn"], "--json"),
        "help with one dash": (["doctor", "-help"], "Did you mean --help?"),
        "help as a command": (["help", "doctor"], "Did you mean devkit doctor --help?"),
        "docker's word": (["exec", "--", "ls", "a b"], "devkit run -- ls 'a b' or devkit shell?"),
        "a word that a command resembles": (["version"], "Did you mean devkit --version?"),
        "what an option does": (["merge"], "Did you mean devkit generate --merge DIR?"),
        "a word of no tool": (["frobnicate"], "'frobnicate'.\n  devkit --help\n"),
        "an option before its command": (["--json", "doctor"], "mean devkit doctor --json?\n"),
        "an option of others before one alike": (["doctor", "--gpu", "T4"], "mean devkit init --gpu or"),
        "an option without its dashes": (["doctor", "list"], "Did you mean --list?"),
        "seconds with a unit": (["doctor", "--timeout", "1.5m"], "mean --timeout 90?"),
        "tokens with a unit": (["estimate", "x", "--max-length", "8k"], "mean --max-length 8192?"),
        "a unit of nothing": (["estimate", "x", "--rank", "16x"], "number.\n  devkit estimate --help"),
        "GPUs in Slurm's way": (["export", "slurm", "--gpus", "H100:8"], "mean --gpu H100 --gpus 8?"),
        "no argument": (["fetch"], "devkit fetch smollm2-135m\n"),
        "an empty variable": (["finetune", "--model", "--data", "x"], "argument, but --data follows."),
        "a name without quotes": (["plan", "--gpu", "RTX", "4090"], "mean --gpu 'RTX 4090'?"),
        "a longer one": (["estimate", "--gpu", "A", "B", "C"], "mean --gpu 'A B C'?"),
        "a folder for a file": (["plan", "--facts", os.fspath(cli.__path__[0])], "__init__.py"),
        "a misspelled setting": (["init", "--set", "engin=podman"], "Did you mean engine?"),
        "one of the estimate": (["estimate", "x", "--set", "los=chunked"], "Did you mean loss?"),
        "one of the run": (["finetune", "--set", "optimiser=x"], "Did you mean optimizer?"),
        "a folder without a container": (["down"], "Name the project's folder: devkit down DIR\n"),
        "the same, without a terminal": (["shell"], "Name the project's folder: devkit shell DIR\n"),
        "torch's word for a value": (["estimate", "x", "--dtype", "float16"], "Did you mean fp16?"),
        "no shell to complete": (["completion"], "from: bash, zsh, fish\n  devkit completion --help\n"),
        "a word for a Python": (["plan", "--python", "abc"], "such as 3.12."),
        "a file that is no model": (["verify", "--here", "--model", __file__], "is a file, but a model is a"),
        "a width without end": (["estimate", "--shape", f"x={'9' * 5000}"], "a number is too large"),
        "the initials of a flag": (["finetune", "--lr", "1"], "Did you mean --learning-rate?"),
        "another program's words": (["estimate", "x", "--seq-len", "1"], "Did you mean --max-length?"),
        "a flag before its command": (["export", "--gpu", "T4", "slurm"], "devkit export slurm --gpu?"),
        "a decimal comma": (["finetune", "--learning-rate", "0,5"], "learning-rate 0.5?"),
        "a command that resembles none of a few": (["export", "nomad"], "One of kubernetes, slurm"),
        "the letter of a flag": (["doctor", "--fix", "-y"], "Did you mean --yes?"),
        "what the command does": (["update", "--upgrade"], "without an option: devkit update\n"),
        "nearly what the command does": (["up", "--build"], "Did you mean --rebuild"),
        "the part of a file": (["explain", "--tail", "5", __file__], f"Leave it out: devkit explain {__file__}"),
        "a value as a flag": (["estimate", "--bf16"], "Did you mean --dtype bf16 or"),
        "the value of another flag": (["estimate", "--method", "sft"], "Did you mean --objective sft?"),
        "more words than a flag has": (["plan", "--gpu-name", "T4"], "Did you mean --gpu or"),
        "a flag of others": (["update", "--torch", "2"], "devkit init --torch or devkit plan --torch"),
        "a folder without its flag": (["doctor", "."], "Did you mean --project .?"),
        "a text without its flag": (["generate", "Who are you?"], "Did you mean --prompt 'Who are you?' or"),
        "a file for a folder": (["plan", __file__], f"--requirements {__file__}"),
        "a flag that resembles none of a few": (["up", "-z"], "Options: --config, --context,"),
        "options of docker": (["run", "-it", "--rm", "--gpus=all", "--", "x", "-it"], "docker: devkit run -- x -it\n"),
        "more than the highest": (["fleet", "doctor", "a", "--parallel", "5000"], "Did you mean --parallel 1000?"),
        "percent": (["generate", "--prompt", "x", "--top-p", "90"], "Did you mean --top-p 0.9?"),
        "an argument of a command without any": (["try", "x"], "devkit try takes no arguments."),
        "a time with a typo": (["export", "slurm", "--time", "4x"], "'4x', which is not a duration"),
        "half a command": (["fleet"], "Missing argument 'COMMAND'.\n  One of compare,"),
        "memory for a GPU": (["estimate", "llama-3.1-8b", "--gpu", "24GB"], "RTX 4090"),
        "a folder for a log": (["explain", "."], ". is a folder"),
        "a lost folder": (["down", "typo"], "does not exist.\n  Check the path, which is relative to /"),
        "an empty file of facts": (["doctor", "--facts", os.devnull], "not JSON: it is empty"),
        "a file as project": (
            ["doctor", "--project", __file__],
            f"--project {Path(__file__).parent} or --facts {__file__}?",
        ),
        "a folder for the report": (["doctor", "--output", "."], "directory.\n  Name a file in it: --output FILE\n"),
        "a folder for the proof": (["verify", "--here", "--output", "."], "Name a file in it: --output FILE"),
        "an empty path": (["bundle", "--output", ""], "--output: the path is empty"),
        "an empty folder": (["plan", ""], "devkit plan: the path is empty"),
        "a URL as the project": (["onboard", "https://x.org/me/demo.git"], "demo.git && devkit onboard demo\n"),
        "ssh as the project": (["init", "git@x.org:me/demo"], "git clone git@x.org:me/demo && devkit init demo\n"),
        "a program for a folder": (["shell", "sh"], "Did you mean devkit run -- sh?"),
        "a setting far from all": (["export", "daytona", "--set", "x=1"], "memory"),
        "a time of two words": (["export", "slurm", "--time", "2", "days"], "Did you mean --time 2d?"),
        "an option of the engine": (["export", "slurm", "--qos", "high"], "to sbatch: --sbatch=--qos=high\n"),
        "the same, joined": (["export", "slurm", "--mail-type=END"], "to sbatch: --sbatch=--mail-type=END\n"),
        "a switch of the engine": (
            ["export", "slurm", "--exclusive", "--time=1h"],
            "to sbatch: --sbatch=--exclusive\n",
        ),
        "the engine's GPUs": (["export", "slurm", "--gres", "gpu:1"], "devkit sets --gres from --gpus.\n"),
        "devkit's": (["export", "slurm", "--mem", "64"], "memory=VALUE?\n  devkit sets --mem from --set memory.\n"),
        "a page on the hub": (["fetch", "https://huggingface.co/me/demo"], "Did you mean me/demo?"),
        "a key of no config": (["estimate", "--shape", "layers=32"], "has 'layers'\n  Did you mean num_hidden_layers?"),
        "a file that no server reads": (["serve", __file__], "is a file, but a model is a folder"),
        "a dash of a web page": (
            ["shell", "\u2014context", "x"],
            "Use plain dashes: devkit shell --context x\n  devkit shell",
        ),
        "its quotes": (["serve", "\u201csmollm2-135m\u201d"], "Use plain quotes: devkit serve smollm2-135m\n"),
        "its quotes around two words": (["plan", "--gpu", "\u201cRTX", "4090\u201d"], "devkit plan --gpu 'RTX 4090'\n"),
        "a prompt and a comment": (
            ["$", "devkit", "tables", "#", "rows"],
            "Leave out the prompt and the comment: devkit tables\n",
        ),
        "no lock and one": (["init", "x", "--no-lock", "--lock-only=image"], "contradict each other\n  Remove"),
        "an empty name": (["estimate", ""], "the model '' is not known\n  An argument is empty"),
        "a placeholder": (["serve", "<model>"], "Replace <model> with"),
        "a path of Windows": (["up", r"C:\x\y"], "This is a Windows path; in WSL it is /mnt/c/x/y.\n"),
        "an option close to one, before a text": (["explain", "--no-fact", "x"], "Did you mean --no-facts?"),
        "a long dash after a text": (["explain", "an error", "\u2014json"], "explain 'an error' --json\n"),
        "an option of no such name": (
            ["explain", "CTK001", "--style", "x"],
            "to an error text, put the text in quotes.",
        ),
        "a host with a long dash": (["fleet", "doctor", "a", "\u2013json"], "devkit fleet doctor a --json\n"),
        "an option of the server": (
            ["serve", "x", "--max-num-seqs", "4", "--dry-run"],
            "two dashes: devkit serve x --dry-run -- --max-num-seqs 4\n",
        ),
        "one option twice": (
            ["generate", "--prompt", "a", "--prompt=b"],
            "--prompt is given twice: a and b\n  For several, use --file FILE: ",
        ),
        "a switch and its opposite": (
            ["doctor", "--trial", "--no-trial"],
            "--trial and --no-trial contradict each other\n  Remove",
        ),
        "a folder before its command": (["my", "up", "--json"], "Did you mean devkit up my --json?"),
        "a folder before its target": (["export", "my", "slurm"], "Did you mean devkit export slurm my?"),
        "a command for a folder": (["shell", "--", "nvidia-smi"], "Did you mean devkit run -- nvidia-smi?"),
        "a backslash before a space": (
            ["finetune", "--model", "x", " --batch", "4", " "],
            "Leave out the backslash before a space: devkit finetune --model x --batch 4\n",
        ),
        "a comment": (["try", "#", "teach"], "Leave out the comment: devkit try\n"),
        "quotes and dashes": (
            ["plan", "“x”", "—json"],
            "Use plain quotes and plain dashes: devkit plan x --json\n",
        ),
        "an option of transformers": (["finetune", "--load_in_4bit"], "Did you mean --method qlora?"),
        "hosts with commas": (["fleet", "doctor", "a,", "b"], "separate hosts\n  devkit fleet doctor a b\n"),
        "a command and its group": (["doctor", "fleet", "gpu01"], "Did you mean devkit fleet doctor gpu01?"),
        "settings and a command": (
            ["export", "slurm", "--settings", "run.toml", "--", "x"],
            "--settings and the command after -- contradict each other\n  Remove",
        ),
        "an option's own name": (["doctor", "--project", "project"], "Check the path, which is relative to "),
        "a word longer than the option": (["run", "--enviroment", "A=1", "--", "x"], "Did you mean --env?"),
        "an option of docker run": (["run", "--shm-size=1g", "--", "x"], "The container's own settings are in its dev"),
        "a GPU without its option": (["plan", "RTX", "4090"], "Did you mean --gpu 'RTX 4090'?"),
        "a requirement for a folder": (["init", "python=3.11"], "python=3.11 is not a folder\n  Versions: --python V"),
        "a list of hosts": (
            ["fleet", "doctor", "gpu[01-04]"],
            "gpu[01-04] is a list of hosts\n  scontrol show hostnames 'gpu[01-04]' | devkit fleet doctor --hosts-file -\n",
        ),
        "an unknown context": (["up", "--context", "gpu-box"], "no Docker context is named 'gpu-box'\n  List the"),
        "a model with a comma": (["fetch", "me/x,"], "the model 'me/x,' does not exist\n  Did you mean me/x?"),
        "a model's page": (["estimate", "https://huggingface.co/me/x/tree/main"], "Did you mean me/x?"),
        "a rank for all weights": (
            ["finetune", "--model", "x", "--data", "y", "--method", "full", "--rank", "64"],
            "no adapter to configure\n  Remove --rank.",
        ),
        "a job without an image": (
            ["export", "slurm", "--gpu", "H100", "--", "python", "x.py"],
            ":1 --gpu H100 -- python x.py\n",
        ),
        "a report in no folder": (
            ["doctor", "--output", "a/b/c.txt"],
            "the folder a/b does not exist\n  mkdir -p a/b\n",
        ),
        "a model that no folder is": (["serve", "merged"], "the model merged does not exist\n  Give"),
        "an argument too many": (["bundle", ".", "x"], "devkit bundle takes only [DIR].\n"),
        "a flag for the argument": (["fleet", "files", "-o", "x"], "mean [DIR] without a flag?"),
        "no hosts in a file": (
            ["fleet", "doctor", "--hosts-file", __file__],
            "is not a host\n  Write one host per line.",
        ),
    },
)
def test_a_mistake_is_one_line_and_a_hint(tmp_path, words, says):
    done = run_devkit(*words, cwd=tmp_path, HF_HOME=str(tmp_path / "hf"))
    assert (done.returncode, done.stdout) == (ExitCode.WRONG_INPUT, "")
    assert says in done.stderr
    first, *hints = done.stderr.splitlines()
    assert first.startswith("Error: ")
    assert hints and all(line.startswith("  ") for line in hints)
    assert list(tmp_path.iterdir()) == []


def test_names_that_lie_beside_the_wrong_one_are_proposed(tmp_path):
    names = (
        "theirs/.devcontainer/devcontainer.json",
        "proj/.devcontainer/x",
        "proj/adapter_config.json",
        "facts/gpu01.json",
        "train.jsonl",
        "other.jsonl",
    )
    for name in (*names, "empty.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n" * (name in names))
    (tmp_path / "image.log").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9)
    (tmp_path / "old.log.gz").write_bytes(gzip.compress(b"RuntimeError"))
    for link, target in (("loop", "ring"), ("ring", "loop"), ("lost", "gone"), ("far", "lost")):
        (tmp_path / link).symlink_to(target)
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged/pyproject.toml").write_text("[project]\n<<<<<<< HEAD\nname = 'a'\n=======\n>>>>>>> b\n")
    (tmp_path / "filled").mkdir()
    (tmp_path / "filled/.devcontainer").write_text("x")
    (tmp_path / "filled/devcontainer.json").touch()
    (tmp_path / "a.json").touch()
    (tmp_path / "run.yaml").write_text("model: x\n")
    (tmp_path / "model.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    for words, says in (
        (["run", "proj", "python", "a b.py"], "devkit run --directory proj -- python 'a b.py'\n"),
        (["run", "python", "main.py"], "devkit run --directory proj -- python main.py\n"),
        (["down"], "devkit down proj\n"),
        (["bundle", "--output", "proj", "b"], "Did you mean devkit bundle --output b proj?"),
        (["down", "loop"], "loop is a link in a loop of links\n"),
        (["down", "lost"], "lost is a link to gone, which leads to nothing\n"),
        (["down", "far"], "far is a link to lost, which leads to nothing\n"),
        (["verify", "--command", "proj", "python a.py"], "Did you mean devkit verify proj --command 'python a.py'?"),
        (["finetune", "proj", "train.jsonl"], "Did you mean --model proj --data train.jsonl?"),
        (["serve", "proj"], "proj is an adapter, not a model\n  Merge it into its base model first: devkit generate"),
        (["verify", "theirs"], "theirs/.devcontainer/devcontainer.json was not written by devkit\n"),
        (["explain", "old.log.gz"], "old.log.gz is compressed\n  gzip -dc old.log.gz | devkit explain -\n"),
        (["plan", "merged"], "pyproject.toml:2: it is not TOML: a merge conflict is not resolved\n"),
        (["doctor", "--facts", "facts"], "Did you mean facts/gpu01.json?"),
        (["doctor", "--facts", "facts/gpu1.json"], "Did you mean facts/gpu01.json?"),
        (["onboard", "porj"], "Did you mean proj?"),
        (["serve", r".\proj"], "Did you mean proj?"),
        (["generate", "--adapter", "porj", "--prompt", "x"], "Did you mean proj?"),
        (["generate", "--adapter", "proj/adapter_config.json", "--prompt", "x"], "Did you mean --adapter proj or"),
        (["fleet", "compare", "fact"], "Did you mean facts?"),
        (["doctor", "--facts", "nowhere/a.json"], "The folder nowhere does not exist either."),
        (["explain", "empty.log"], "empty.log is empty: nothing to explain\n  Write all the output"),
        (["finetune", "--model", "proj", "--data", "trian.json"], "Did you mean train.jsonl?"),
        (["finetune", "--model", "proj", "--data", "absent.jsonl"], "Check the path; "),
        (["estimate", "./porj"], "the model './porj' does not exist\n  Did you mean proj?"),
        (["explain", "emtpy.log"], "Did you mean empty.log?"),
        (["onboard", "train.jsonl"], "Did you mean .?\n"),
        (["export", "slurm", "--output", "train.jsonl"], "is a file.\n  Choose another place: --output DIR\n"),
        (["fleet", "files", "train.jsonl/x"], "cannot write train.jsonl/x: train.jsonl is a file, not a folder\n"),
        (["generate", "--merge", "train.jsonl/x"], "not a folder\n  Choose another place: --merge DIR\n"),
        (["verify", "--here", "--output", "gone/x.json"], "the folder gone does not exist\n  mkdir -p gone\n"),
        (["explain", "image.log"], "image.log is not text\n"),
        (["doctor", "--facts", "model.gguf"], "model.gguf is a Git LFS pointer, not the file\n"),
        (["run", "--config", "run.yaml", "--", "x"], "run.yaml is a Compose file, not a devcontainer.json\n  Leave"),
        (["explain", "image.log", "a.json"], "one at a time\n  devkit explain --facts a.json image.log\n"),
        (
            ["serve", "model.gguf"],
            "model.gguf is a Git LFS pointer, not the file\n  git -C . lfs pull --include model.gguf\n",
        ),
        (["run", "--config", "filled", "--", "x"], "Did you mean filled/devcontainer.json or "),
        (["finetune", "--settings", "run.yaml"], "By its name it is YAML: write TOML"),
        (["doctor", "--output", "~/gone/x"], "the folder gone does not exist\n  mkdir -p gone\n"),
        *(
            (
                [*command, where],
                f"is part of a dev container, not a project\n  The project is the folder above: {place} proj\n",
            )
            for command, place in ((["update"], "devkit update"), (["doctor", "--project"], "devkit doctor --project"))
            for where in ("proj/.devcontainer", "proj/.devcontainer/x")
        ),
        (["init", "filled"], "filled/.devcontainer is a file, but "),
    ):
        done = run_devkit(*words, cwd=tmp_path, HOME=str(tmp_path))
        assert (done.returncode, says in done.stderr) == (ExitCode.WRONG_INPUT, True), done.stderr


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="root may write everywhere without it")
@pytest.mark.parametrize(
    "words", [["doctor", "--output", "ro/x"], ["generate", "--merge", "ro/x"], ["export", "slurm", "--output", "ro"]]
)
def test_what_may_not_be_written_is_said_before_any_work(tmp_path, words):
    (tmp_path / "ro").mkdir(mode=0o555)
    humbly = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*humbly, sys.executable, "-m", "devkit", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (ExitCode.WRONG_INPUT, "")
    assert f"cannot write {words[-1]}: this user may not write into ro\n" in done.stderr


def test_one_value_given_twice_and_a_text_with_options_are_no_mistakes():
    assert run_devkit("doctor", "--only", "DRV001", "--timeout=9", "--timeout", "9", "--list").returncode == 0
    assert "unknown flag: --gpus" in run_devkit("explain", "--no-facts", "unknown", "flag:", "--gpus").stdout


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        *(
            (name, ["plan", "--vendor", "cpu"])
            for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "PIP_INDEX_URL", "UV_FIND_LINKS")
        ),
        *(("HF_ENDPOINT", words) for words in (["estimate", "me/x"], ["serve", "me/x"], ["fetch", "me/x"])),
    ],
)
def test_a_variable_that_holds_no_address_is_named(tmp_path, variable, words):
    (tmp_path / "requirements.txt").write_text("numpy\n")
    done = run_devkit(*words, cwd=tmp_path, **{"HF_HOME": str(tmp_path / "hf"), variable: "me:secret@banana/simple"})
    assert (done.returncode, done.stdout) == (ExitCode.WRONG_INPUT, "")
    assert f"Error: {variable} is banana/simple, which is not a URL" in done.stderr
    assert f"unset {variable}\n" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("requirements.txt", "numpy\ntorch = 2.5\n", "txt:2: torch = 2.5 is not a requirement\n  Write torch==2.5."),
        ("requirements.txt", "numpy=>1.0\n", "Write numpy>=1.0."),
        ("requirements.txt", "see README\n", "Write a name and a version, such as torch==2.5."),
        ("pyproject.toml", "[project\n", "pyproject.toml:1: it is not TOML"),
        (
            "pyproject.toml",
            '[project]\ndependencies = [\n"a"\n\n[tool.x]\n',
            "toml:2: it is not TOML: the array that opens here",
        ),
        ("pyproject.toml", "[project]\nname = demo\n", "toml:2: it is not TOML: put text in quotes"),
        ("requirements.txt", None, "txt: it is not a text file that this user can read\n  Make it readable"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "init"])
def test_a_list_that_no_installer_takes_is_not_planned_over(tmp_path, command, name, text, says):
    if text is None:
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).write_text(text)
    words = (command, ".", "--vendor", "cpu", "--no-resolve", *(["--dry-run"] if command == "init" else []))
    done = run_devkit(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout, says in done.stderr) == (ExitCode.WRONG_INPUT, "", True), done.stderr
    assert run_devkit(*words, "--ignore-dependencies", cwd=tmp_path).returncode == ExitCode.DONE


@pytest.mark.parametrize("command", ["plan", "init", "update"])
@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("name: x\ndependencies:\n  - python=3.11\n  - pip:\n    - peft\n", "it is a conda environment"),
        ("[tool]\nx = 1\n", "it is a TOML file"),
        ("\x89PNG\r\n\x1a\n\0\0", "it is not text"),
    ],
)
def test_a_chosen_file_without_a_requirement_is_not_planned_over(tmp_path, command, text, because):
    words = (command, ".", "--no-resolve")
    if command == "update":
        assert run_devkit("init", ".", "--vendor", "cpu", "--yes", "--no-resolve", cwd=tmp_path).returncode == 0
        with (tmp_path / "devkit.toml").open("a") as file:
            file.write('\n[project]\nrequirements = ["environment.yml"]\n')
    else:
        words += ("--vendor", "cpu", "--requirements", "environment.yml")
    (tmp_path / "environment.yml").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    done = run_devkit(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (ExitCode.WRONG_INPUT, "")
    assert done.stderr.startswith(f"Error: environment.yml is not a requirements file: {because}\n  Leave it")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.full
def test_files_are_written_though_the_reader_of_the_output_leaves(tmp_path):
    reader, output = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "devkit", "init", "project", "--vendor", "cpu", "--yes", "--no-resolve"]
    done = subprocess.run(command, cwd=tmp_path, stdout=output, stderr=subprocess.PIPE, check=False)
    os.close(output)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "project/.devcontainer/devcontainer.json").is_file()


def test_the_plan_is_installed_by_one_command(tmp_path):
    done = run_devkit("plan", "--gpu", "RTX 4090", "--driver", "580.95.05", "--pip", cwd=tmp_path)
    first, torch, *others = done.stdout.splitlines()
    assert first == "--extra-index-url https://download.pytorch.org/whl/cu130"
    assert torch.startswith("torch==")
    assert torch.endswith("+cu130")
    assert {line.partition("==")[0] for line in others} >= {"transformers", "peft", "accelerate", "bitsandbytes"}
    refused = run_devkit("plan", "--gpu", "RTX 4090", "--torch", "2.1.0", "--driver", "390.1", "--pip", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (ExitCode.ANSWER_IS_NO, "")
    assert "conflict" in refused.stderr
