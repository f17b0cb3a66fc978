"""One answer of the machine at a time is damaged, in every way; the doctor must end as it always does."""

import dataclasses
import re

import pytest

from devkit.probe.host import ProgramResult, Stat
from tests.faults.allowed import is_allowed
from tests.faults.damage import ERRNOS, NESTED, Damaged, Vanishing, Watched, listings, outputs, texts
from tests.faults.examining import broken, examine, examine_anew
from tests.faults.probes import PROBES
from tests.hosts import description_of, machine

WHOLE = ("ubuntu-4090-ok", "cdi-only-h100x8", "in-container-ok", "wsl2-desktop")
"""Every answer of these is damaged; of the others only what they answer differently from the first."""
MACHINES = (
    *WHOLE,
    "amd-mi300x",
    "driver-lib-mismatch",
    "in-container-no-gpu-injected",
    "macos-desktop",
    "mig-a100",
    "no-gpu-laptop",
    "podman-behind-docker-socket",
    "rootless-docker",
    "snap-docker",
    "windows",
    "wsl2-linux-driver-inside",
)


DOCUMENTS = (".json", ".yaml", ".yml", ".toml")


def watched(name):
    """What each probe asks a machine, by question and what it is about."""
    host = machine(name)
    asked = {}
    for field, probe in PROBES.items():
        watching = Watched(host)
        probe(watching)
        for question, about in watching.asked.items():
            for what in about:
                asked.setdefault(question, {}).setdefault(what, []).append(field)
    return asked


SOUND = {name: examine(machine(name), project=machine(name).project) for name in MACHINES}
ASKED = {name: watched(name) for name in MACHINES}


def questions(question):
    return [
        pytest.param(name, what, id=f"{name}: {' '.join(what) if isinstance(what, tuple) else what}")
        for name in MACHINES
        for what in sorted(ASKED[name].get(question, ()))
        if (name in WHOLE or answers_otherwise(name, question, what)) and not is_one_of_many(what)
        if name == WHOLE[0] or question not in ("stat", "link") or getattr(machine(name), question)(what) is not None
    ]


def is_one_of_many(what):
    """Whether this is a GPU of eight, behind the first one."""
    return isinstance(what, str) and re.search(r"/dev/nvidia[1-9]|0000:(?:2|3[08]|[4-9]|a|b|c|d|e|f)", what) is not None


def answers_otherwise(name, question, what):
    """Whether a machine gives an answer of its own to something that only its files and programs can tell."""
    if question not in ("read", "run"):
        return False
    said, first = (getattr(machine(other), question)(what) for other in (name, WHOLE[0]))
    return said != first and said is not None


def survives(name, faults, count):
    """Examine each damaged host; nothing may break, and no healthy machine may be accused for certain."""
    is_healthy = not description_of(name)["finds"]
    problems = []
    for fault, (question, what, host) in faults.items():
        seen = examine_anew(SOUND[name], host, ASKED[name][question][what])
        problems += [f"{fault}: {problem}" for problem in broken(seen)]
        new = sorted(seen.accusations - SOUND[name].accusations)
        wrong = [code for code in new if not is_allowed(code, question, what, fault)]
        if is_healthy and wrong:
            problems.append(f"{fault}: a healthy machine is accused of {wrong}")
    count(len(faults))
    assert not problems, "\n".join(("", *problems))


def damaged(name, question, what, answers):
    sound = machine(name)
    return {
        fault: (question, what, Damaged(sound, question, what, lambda _, answer=answer: answer))
        for fault, answer in answers.items()
    }


@pytest.mark.parametrize(("name", "path"), questions("read"))
@pytest.mark.turns(6)
def test_any_file_may_hold_anything(name, path, count):
    sound = machine(name)
    text = sound.read(path)
    faults = texts(text) if text is not None else {key: texts("")[key] for key in ("empty", "binary", "noise")}
    faults |= NESTED if path.endswith(DOCUMENTS) else {}
    cases = damaged(name, "read", path, faults)
    if text is not None:
        cases["vanishing"] = ("read", path, Vanishing(sound, path))
    survives(name, cases, count)


@pytest.mark.parametrize(("name", "argv"), questions("run"))
@pytest.mark.turns(3)
def test_any_program_may_say_anything(name, argv, count):
    nested = {fault: ProgramResult(0, text, "") for fault, text in NESTED.items()}
    survives(name, damaged(name, "run", argv, outputs(machine(name).run(argv)) | nested), count)


@pytest.mark.parametrize(("name", "path"), questions("list"))
@pytest.mark.turns(3)
def test_any_folder_may_list_anything(name, path, count):
    survives(name, damaged(name, "list", path, listings(machine(name).list(path))), count)


@pytest.mark.parametrize(("name", "path"), questions("stat"))
@pytest.mark.turns(3)
def test_any_path_may_be_of_any_kind(name, path, count):
    sound = machine(name).stat(path)
    kinds = {kind: Stat(kind, 0o755, 0, 0, 0) for kind in ("file", "directory", "character", "socket", "other")}
    if sound is None:
        kinds = {kind: kinds[kind] for kind in ("file", "directory")}
    else:
        kinds |= {"absent": None, "closed": dataclasses.replace(sound, mode=0, uid=12345)}
    survives(name, damaged(name, "stat", path, kinds), count)


@pytest.mark.parametrize(("name", "path"), questions("link"))
@pytest.mark.turns(3)
def test_any_link_may_lead_anywhere(name, path, count):
    targets = {"absent": None, "the root": "/", "a file without a version": "/opt/libx.so", "noise": "/\ufffd\n.so.x.y"}
    if machine(name).link(path) is None:
        targets = {"noise": targets["noise"]}
    survives(name, damaged(name, "link", path, targets), count)


@pytest.mark.parametrize(("name", "path"), questions("open_error"))
def test_any_device_may_refuse_in_any_way(name, path, count):
    survives(name, damaged(name, "open_error", path, {error: error for error in ERRNOS}), count)


@pytest.mark.parametrize(("name", "path"), questions("free_bytes"))
def test_any_amount_of_disk_may_be_left(name, path, count):
    amounts = {"none": 0, "one byte": 1, "not known": None, "an exabyte": 1 << 60}
    survives(name, damaged(name, "free_bytes", path, amounts), count)
