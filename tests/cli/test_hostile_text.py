"""Every text of a saved machine is hostile: the bytes that each command prints are text, and command nothing."""

import json
import re

import pytest

from devkit.cli.fleet import _parse_report
from devkit.errors import DevkitError
from devkit.facts.model import format_facts, parse_facts
from devkit.render.devkit_lock import parse_lock, parse_locked_plan
from tests.forked_commands import run_devkit
from tests.hosts import MACHINES, facts_of

HOSTILE = "\x1b]0;own\x07\x9b2J\u202e\n::error::x\r ::set-output name=a::b ##vso[task]\u2028<script>alert(1)</script>`$(touch owned)"
UNTOUCHED = ("type", "schema", "taken_at")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
OF_CI = re.compile(r"(?m)^\s*::[a-z-]+|##(?:vso)?\[")
"""GitHub passes over spaces before a command, and both look for ##[ anywhere."""
ADA = ("--gpu", "RTX 4090", "--driver", "570.124.06")
MODEL = "meta-llama/Llama-3.2-1B"
COMMANDS = (
    *(("doctor", "--format", style) for style in ("text", "json", "sarif", "markdown", "html", "prometheus", "line")),
    *(("plan", "--no-resolve", *words) for words in ((), ("--json",), ("--why", "torch"))),
    *(("estimate", MODEL, *words) for words in ((), ("--json",))),
    ("init", ".", "--dry-run", "--diff", "--no-resolve"),
    ("explain", f"{HOSTILE} CUDA error: out of memory"),
    ("explain", f"{HOSTILE} CUDA error: out of memory", "--json"),
    ("explain", f"RuntimeError: odd {HOSTILE} thing"),
)


def poison(document, parse) -> int:
    """Add the hostile text to each text of a machine that stays readable with it. Returns how many these are."""
    count = 0
    places = [(document, key) for key in document]
    while places:
        holder, key = places.pop()
        value = holder[key]
        if isinstance(value, dict):
            places += [(value, each) for each in value]
        elif isinstance(value, list):
            places += [(value, each) for each in range(len(value))]
        elif isinstance(value, str) and key not in UNTOUCHED:
            holder[key] = value + HOSTILE
            try:
                parse(json.dumps(document))
                count += 1
            except ValueError:
                holder[key] = value
    return count


def find_commands_to_others(text: str, style: str) -> list[str]:
    """Find what a terminal, a CI system or a browser would act on in what was printed."""
    found = [ascii(each[0]) for pattern in (CONTROLS, OF_CI) for each in pattern.finditer(text)]
    return found + (["<script>"] if style == "html" and "<script>alert" in text else [])


@pytest.mark.parametrize(
    "name", ["cdi-of-old-driver", *(pytest.param(each, marks=pytest.mark.full) for each in MACHINES[::8])]
)
def test_no_command_passes_on_what_a_machine_would_have_others_do(tmp_path, name):
    document = json.loads(format_facts(facts_of(name)))
    assert poison(document, parse_facts) > 50
    (tmp_path / "facts.json").write_text(json.dumps(document))
    (tmp_path / "requirements.txt").write_text("torch\n")
    for words in COMMANDS:
        done = run_devkit(*words, "--facts", "facts.json", cwd=tmp_path, COLUMNS="60", HOME=str(tmp_path))
        assert done.returncode in (0, 1, 2) and "Traceback" not in done.stderr, (words, done.stderr)
        assert find_commands_to_others(done.stdout + done.stderr, words[-1]) == [], words
    assert not (tmp_path / "owned").exists()


def passed_on(tmp_path, commands) -> list[tuple[object, ...]]:
    """Run the commands in a folder. Returns those whose output commands something, or that did not end well.

    At least one must show the text, or nothing was tried.
    """
    found, shown = [], False
    for words in commands:
        done = run_devkit(*words, cwd=tmp_path, COLUMNS="60", HOME=str(tmp_path))
        shown |= "alert(1)" in done.stdout + done.stderr
        hostile = find_commands_to_others(done.stdout + done.stderr, words[-1])
        if hostile or done.returncode not in (0, 1, 2) or "Traceback" in done.stderr:
            found.append((words, hostile, done.returncode, done.stderr[-500:]))
    assert shown
    return found + ([("owned",)] if (tmp_path / "owned").exists() else [])


def test_no_command_passes_on_what_a_lock_would_have_others_do(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch\n")
    assert run_devkit("init", ".", "--yes", "--no-resolve", *ADA, cwd=tmp_path).returncode == 0
    lock = json.loads((tmp_path / "devkit.lock").read_text())
    bundled = {**lock, "plan": {**lock["plan"], "variant": HOSTILE}}
    (tmp_path / "devkit.lock").write_text(json.dumps(bundled))
    assert passed_on(tmp_path, [("bundle", ".", "--dry-run")]) == []

    def parse(text: str) -> None:
        try:
            parse_locked_plan(parse_lock(text.encode()).plan)
        except DevkitError as error:
            raise ValueError from error

    assert poison(lock, parse) > 20
    (tmp_path / "devkit.lock").write_text(json.dumps(lock))
    plan = (("update", ".", "--check"), ("init", ".", "--dry-run", "--diff", "--no-resolve"), ("doctor", "--no-trial"))
    export = (("export", "docker", ".", "--dry-run"), ("export", "slurm", ".", "--dry-run"))
    assert passed_on(tmp_path, (*plan, *export, ("onboard", "."), ("update", ".", "--yes", "--no-resolve"))) == []


def test_no_command_passes_on_what_a_report_would_have_others_do(tmp_path):
    (tmp_path / "facts.json").write_text(format_facts(facts_of("cdi-of-old-driver")))
    sound = run_devkit("doctor", "--facts", "facts.json", "--json", cwd=tmp_path).stdout
    report = json.loads(sound)

    def parse(text: str) -> None:
        if _parse_report("a", text, problem="no report").problem:
            raise ValueError(text)

    assert poison(report, parse) > 50
    (tmp_path / "reports").mkdir()
    for name, text in {"a": sound, "b": sound, "c": json.dumps(report)}.items():
        (tmp_path / f"reports/{name}.json").write_text(text)
    fleet = [("fleet", each, *words) for each in ("doctor", "compare") for words in ((), ("--json",))]
    argument = {"doctor": ("--reports", "reports"), "compare": ("reports",)}
    assert passed_on(tmp_path, [(*words, *argument[words[1]]) for words in fleet]) == []


def test_no_command_passes_on_what_a_model_would_have_others_do(tmp_path):
    folder = tmp_path / f"model{HOSTILE.replace('/', '')}"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": f"x{HOSTILE}"}))
    words = ("estimate", f"./{folder.name}", "--gpu", "T4")
    generate = ("generate", "--model", f"./{folder.name}", "--prompt", "x")
    assert passed_on(tmp_path, (words, (*words, "--json"), generate)) == []
