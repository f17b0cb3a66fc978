"""Problems: every name that a check yields has a row, every row is yielded, and a fix is chosen for the machine."""

import ast
import inspect
import re
from dataclasses import replace
from functools import cache
from string import Formatter

import pytest

from devkit.doctor import program_failures
from devkit.doctor.fixes import DistroFamily, load_commands
from devkit.doctor.model import Confidence, Finding, Fix, Restart, Severity, Side
from devkit.doctor.problems import (
    FixRow,
    build_unknown_facts,
    decode_fix_rows,
    describe_variant,
    find_problem_row,
    list_problem_rows,
    problem,
    render_fix,
    show_commands,
    to_finding,
)
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.facts.engine import Engine, EngineKind
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, inside
from tests.hosts import facts_of

ROWS = [(check.code, name, row) for check in CHECKS for name, row in list_problem_rows(check.code).items()]


def list_modules(code):
    """The module of a check, and those of the doctor that it hands its judgment to."""
    found = [inspect.getmodule(inspect.unwrap(BY_CODE[code].run))]
    for module in found:
        used = {inspect.getmodule(value) for value in vars(module).values() if inspect.isfunction(value)}
        found += [each for each in used if each.__name__.startswith(HELPERS) and each not in found]
    return found


HELPERS = ("devkit.doctor.checks.", "devkit.doctor.trials", "devkit.doctor.program_failures")


def test_every_row_is_yielded_by_the_modules_of_its_check():
    sources = {code: "".join(map(inspect.getsource, list_modules(code))) for code, _, _ in ROWS}
    assert [f"{code}.{name}" for code, name, _ in ROWS if f'"{name}"' not in sources[code]] == []


def test_the_last_fix_of_every_row_is_for_every_machine():
    assert [f"{code}.{name}" for code, name, row in ROWS if not row.fixes or row.fixes[-1].when] == []


def list_names(node):
    """The names of rows that an expression may be; None where only a run can tell."""
    if isinstance(node, ast.Constant):
        return [node.value]
    return [*list_names(node.body), *list_names(node.orelse)] if isinstance(node, ast.IfExp) else [None]


@cache
def read_calls(module):
    """Each call of `problem` in a module: the names that it may have, and its keywords, None for `**values`."""
    calls = (node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Call))
    found = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "problem"]
    return [(list_names(node.args[0]), {each.arg for each in node.keywords}) for node in found]


def list_fields(row):
    """The values that the templates of a row name. A command that is one name in braces may be a purpose."""
    commands = [each for fix in row.fixes for each in fix.commands if not re.fullmatch(r"\{\w+\}", each)]
    texts = [row.message, *(text for fix in row.fixes for text in (fix.summary, fix.docs)), *commands]
    return {field for text in texts for _, field, _, _ in Formatter().parse(text) if field}


def test_every_value_of_a_row_is_given_by_the_check_that_yields_it():
    without = []
    for code, name, row in ROWS:
        calls = [call for module in list_modules(code) for call in read_calls(module)]
        given = [words for names, words in calls if name in names or None in names]
        if not any(None in words or list_fields(row) <= words for words in given):
            without.append(f"{code}.{name}: {list_fields(row)}")
    assert without == []


def test_variants_ask_for_what_is_known_of_machines_or_given_by_checks():
    modules = {inspect.getmodule(inspect.unwrap(check.run)) for check in CHECKS} | {program_failures}
    given = {word for module in modules for _, words in read_calls(module) for word in words}
    known = describe_variant(build_unknown_facts()).keys() | given
    for code, name, row in ROWS:
        for each in row.fixes:
            assert each.when.keys() <= known, (code, name)
            assert each.where in ("machine", "driver", "workload", *map(str, Side)), (code, name)


def test_an_unknown_name_is_a_bug_and_says_which():
    with pytest.raises(KeyError, match=r"CTK003\.problem\.nothing"):
        find_problem_row("CTK003", "nothing")


def test_a_problem_has_the_words_of_its_row_and_the_values_of_the_machine():
    found = to_finding(
        "CTK003", problem("not-loaded", path="/etc/a b.json", evidence=["x"]), facts_of("toolkit-missing")
    )
    assert isinstance(found, Finding)
    assert (found.severity, found.evidence) == (Severity.WARNING, ("x",))
    assert found.message.startswith("/etc/a b.json registers the nvidia runtime")
    assert found.fix.commands == ("sudo systemctl restart docker",) and found.fix.root


ROWS_BY_ENGINE = (
    FixRow("rootless", ("{restart_engine}",), {"engine": ("rootless",)}),
    FixRow(
        "{count} files",
        ("rm {path}", "{install_toolkit}", "{given}"),
        where="machine",
        root=True,
        restart=Restart.ENGINE,
    ),
)


def test_the_first_fix_that_is_for_the_machine_is_chosen():
    assert render_fix(ROWS_BY_ENGINE, {}, facts_of("rootless-docker")).commands == ("systemctl --user restart docker",)


def test_commands_quote_values_and_stand_for_those_of_the_machine():
    values = {"count": 2, "path": "a b; reboot", "given": ("one", "two")}
    facts = facts_of("toolkit-missing")
    fix = render_fix(ROWS_BY_ENGINE, values, facts)
    assert fix.summary == "2 files" and fix.commands[0] == "rm 'a b; reboot'" and fix.commands[-2:] == ("one", "two")
    assert any("nvidia-container-toolkit" in command for command in fix.commands)
    assert (fix.where, fix.restart) == (Side.HOST, Restart.ENGINE)
    podman = (
        replace(facts, engine=replace(facts.engine, kind=EngineKind.PODMAN))
        if isinstance(facts.engine, Engine)
        else facts
    )
    assert render_fix(ROWS_BY_ENGINE, values, podman).restart is Restart.NONE
    kubelets = (FixRow("", ("sudo systemctl restart containerd",), restart=Restart.ENGINE),)
    assert render_fix(kubelets, {}, podman).restart is Restart.ENGINE


def test_a_problem_may_bring_the_fix_of_an_error_that_it_recognized():
    found = to_finding("CTK003", problem("not-registered", fix=(own := Fix("Do this."))), facts_of("toolkit-missing"))
    assert found.fix == own


def test_commands_of_the_distribution_quote_values():
    rows = (FixRow("Remove them.", ("{remove_packages}",)),)
    fix = render_fix(rows, {"packages": ("one", "two; reboot")}, facts_of("toolkit-missing"))
    assert fix.commands == ("sudo apt-get purge -y one 'two; reboot'",)


def test_a_page_may_be_that_of_a_value():
    rows = (FixRow("Accept the license.", docs="https://huggingface.co/{model}"),)
    assert render_fix(rows, {"model": "a/b"}, facts_of("toolkit-missing")).docs == "https://huggingface.co/a/b"


def test_pages_name_the_values_of_commands_and_keep_the_braces_of_the_shell():
    shown = show_commands(FixRow("Finish it.", ("{finish_driver}",)), family=DistroFamily.UBUNTU)
    assert any("grep -E 'nvidia.*[0-9]{3}' | grep -v <branch>" in command for command in shown)


def test_every_fix_is_shown_for_every_distribution():
    shown = [
        command
        for _, _, row in ROWS
        for fix in row.known_fixes
        for family in DistroFamily
        for command in show_commands(fix, family=family)
    ]
    assert any("[0-9]{3}" in command and "<branch>" in command for command in shown)


@pytest.mark.parametrize(
    ("command", "by_uv"),
    [
        ("pip install --force-reinstall {package}", "uv pip install --reinstall 'torch<3'"),
        ("pip uninstall -y {package}", "uv pip uninstall 'torch<3'"),
        ("echo pip install {package}", "echo pip install 'torch<3'"),
    ],
)
def test_where_uv_made_the_environment_its_commands_are_shown(command, by_uv):
    facts, values = inside(), {"package": "torch<3"}
    (by_pip,) = render_fix([FixRow("", (command,))], values, facts).commands
    assert by_pip == command.replace("{package}", "'torch<3'")
    assert render_fix([FixRow("", (command,))], values, changed(facts, {"python.installer": "uv"})).commands == (by_uv,)


def test_commands_of_the_distribution_may_have_braces_of_their_own():
    shown = [
        show_commands(FixRow("", (f"{{{purpose}}}",)), family=family)
        for purpose in load_commands()
        for family in DistroFamily
    ]
    assert any("<branch>" in command for commands in shown for command in commands)


def test_a_machine_without_a_fix_is_a_bug():
    with pytest.raises(LookupError):
        render_fix(ROWS_BY_ENGINE[:1], {}, facts_of("toolkit-missing"))


def test_a_row_may_use_a_shared_fix_under_a_condition():
    both = decode_fix_rows([{"when": {"count": "2"}, "use": "reload-engine"}, {"summary": "Nothing."}])
    facts = facts_of("rootless-docker")
    assert [row.when for row in both] == [{"count": ("2",), "engine": ("rootless",)}, {"count": ("2",)}, {}]
    assert render_fix(both, {"count": 2}, facts).commands == ("systemctl --user restart docker",)
    assert render_fix(both, {"count": 3}, facts).summary == "Nothing."


def test_a_machine_whose_system_was_not_read_is_not_one_that_nothing_is_known_of():
    assert describe_variant(build_unknown_facts())["machine"] == "unknown"
    assert describe_variant(replace(facts_of("toolkit-missing"), system=Unknown("not read")))["machine"] == "known"


LEAVES_A_CHOICE = re.compile(
    r"[;,.] or (?!newer|older|later|more)|\botherwise\b|\beither\b|\bunless\b|^If |Frequent causes|most likely|probably",
    re.IGNORECASE,
)


def test_what_is_certain_leaves_no_choice_open():
    """Words that name alternatives: a cause that was not asked for, or a fix that the reader must choose."""
    open_rows = [
        f"{code}.{name}: {text}"
        for code, name, row in ROWS
        if row.confidence is Confidence.CERTAIN
        for text in (row.message, *(fix.summary for fix in row.known_fixes))
        if LEAVES_A_CHOICE.search(text)
    ]
    assert open_rows == []
