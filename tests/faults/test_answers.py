"""One answer of the machine at a time is damaged, in every way; the doctor must end as it always does."""

import dataclasses
import functools
import re

import pytest

from devkit.probe.host import MAX_FILE_BYTES, ProgramResult, Stat
from tests.faults.allowed import is_allowed
from tests.faults.damage import ERRNOS, NESTED, Damaged, Vanishing, Watched, huge, listings, outputs, texts
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
AS_LARGE_AS_CAN_BE = ("/etc/docker/daemon.json", "/proc/mounts", "/var/log/dpkg.log", "/var/run/cdi/nvidia.yaml")


@functools.cache
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


@functools.cache
def examine_sound(name):
    """What doctor finds on a machine of which nothing is damaged."""
    return examine(machine(name), project=machine(name).project)


def list_questions(name, question):
    """What of a machine is damaged: what others answer alike is damaged on the first of them."""
    return [
        what
        for what in sorted(watched(name).get(question, ()))
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


def assert_survives(name, question, faults_of):
    """Examine each damaged machine; nothing may break, and no healthy machine may be accused for certain."""
    is_healthy, sound = not description_of(name)["finds"], examine_sound(name)
    problems = []
    for what in list_questions(name, question):
        for fault, host in faults_of(name, what).items():
            seen = examine_anew(sound, host, watched(name)[question][what])
            problems += [f"{what}: {fault}: {problem}" for problem in broken(seen)]
            new = sorted(seen.accusations - sound.accusations) if is_healthy else []
            wrong = [code for code in new if not is_allowed(code, question, what, fault)]
            problems += [f"{what}: {fault}: a healthy machine is accused of {code}" for code in wrong]
    assert not problems, "\n".join(("", *problems))


def damage(name, question, what, answers):
    return {
        fault: Damaged(machine(name), question, what, lambda _, answer=answer: answer)
        for fault, answer in answers.items()
    }


def damage_file(name, path):
    text = machine(name).read(path)
    faults = texts(text) if text is not None else {key: texts("")[key] for key in ("empty", "binary", "noise")}
    faults |= NESTED if path.endswith(DOCUMENTS) else {}
    vanishing = {"vanishing": Vanishing(machine(name), path)} if text is not None else {}
    return damage(name, "read", path, faults) | vanishing


def damage_program(name, argv):
    nested = {fault: ProgramResult(0, text, "") for fault, text in NESTED.items()}
    return damage(name, "run", argv, outputs(machine(name).run(argv)) | nested)


def damage_folder(name, path):
    return damage(name, "list", path, listings(machine(name).list(path)))


def damage_kind(name, path):
    sound = machine(name).stat(path)
    kinds = {kind: Stat(kind, 0o755, 0, 0, 0) for kind in ("file", "directory", "character", "socket", "other")}
    if sound is None:
        kinds = {kind: kinds[kind] for kind in ("file", "directory")}
    else:
        kinds |= {"absent": None, "closed": dataclasses.replace(sound, mode=0, uid=12345)}
    return damage(name, "stat", path, kinds)


def damage_link(name, path):
    targets = {"absent": None, "the root": "/", "a file without a version": "/opt/libx.so", "noise": "/\ufffd\n.so.x.y"}
    if machine(name).link(path) is None:
        targets = {"noise": targets["noise"]}
    return damage(name, "link", path, targets)


def damage_device(name, path):
    return damage(name, "open_error", path, {error: error for error in ERRNOS})


DAMAGE = {
    "read": damage_file,
    "run": damage_program,
    "list": damage_folder,
    "stat": damage_kind,
    "link": damage_link,
    "open_error": damage_device,
}


@pytest.mark.parametrize("question", DAMAGE)
@pytest.mark.parametrize("name", MACHINES)
def test_any_answer_may_be_anything(name, question):
    assert_survives(name, question, DAMAGE[question])


@pytest.mark.parametrize("name", WHOLE)
def test_any_amount_of_disk_may_be_left(name):
    amounts = {"none": 0, "one byte": 1, "not known": None, "an exabyte": 1 << 60}
    assert_survives(name, "free_bytes", lambda name, path: damage(name, "free_bytes", path, amounts))


@pytest.mark.parametrize("name", ("ubuntu-4090-ok", "in-container-ok"))
def test_any_file_may_be_huge(name):
    """To the full 32 MiB that are read of a larger file, or to a part, for the tests' time."""

    def make_huge(name, path):
        text = machine(name).read(path)
        size_bytes = MAX_FILE_BYTES if path in AS_LARGE_AS_CAN_BE else 1 << 18
        return damage(name, "read", path, huge(text, size_bytes=size_bytes)) if text else {}

    assert_survives(name, "read", make_huge)
