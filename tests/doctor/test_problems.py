"""Problems: every name that a check yields has a row, every row is yielded, and a fix is chosen for the machine."""

import inspect
import re
from dataclasses import replace
from string import Formatter

import pytest

from devkit.doctor.model import Finding, Restart, Severity, Side
from devkit.doctor.problems import (
    FixRow,
    build_unknown_facts,
    describe_variant,
    find_problem_row,
    list_problem_rows,
    problem,
    render_fix,
    to_finding,
)
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.facts.model import Engine, EngineKind
from tests.doctor.machines import changed, inside
from tests.hosts import facts_of

ROWS = [(check.code, name, row) for check in CHECKS for name, row in list_problem_rows(check.code).items()]


def test_every_row_is_yielded_by_the_module_of_its_check():
    sources = {code: inspect.getsource(inspect.getmodule(inspect.unwrap(BY_CODE[code].run))) for code, _, _ in ROWS}
    assert [f"{code}.{name}" for code, name, _ in ROWS if f'"{name}"' not in sources[code]] == []


def test_the_last_fix_of_every_row_is_for_every_machine():
    assert [f"{code}.{name}" for code, name, row in ROWS if not row.fixes or row.fixes[-1].when] == []


def test_variants_ask_for_what_is_known():
    known = describe_variant(build_unknown_facts()).keys()
    for code, name, row in ROWS:
        values = {field for _, field, _, _ in Formatter().parse(row.message) if field}
        for each in row.fixes:
            assert each.when.keys() <= known | values or re.search(r"\w", each.summary), (code, name)
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


def test_a_machine_without_a_fix_is_a_bug():
    with pytest.raises(LookupError):
        render_fix(ROWS_BY_ENGINE[:1], {}, facts_of("toolkit-missing"))
