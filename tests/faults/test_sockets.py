"""Real sockets that behave like no engine: the real child asks them, and the whole doctor judges what it says."""

import contextlib
import io
import itertools
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from devkit.facts.engine import Engine
from devkit.facts.values import Unknown
from devkit.probe.children.ask_engine import emit_lists
from devkit.probe.host import ProgramResult, run_program
from tests.faults.damage import Damaged
from tests.faults.examining import broken, examine, examine_anew
from tests.faults.sockets import WRONG, listening, only
from tests.faults.test_answers import examine_sound
from tests.faults.test_transcripts import asking, places, reshaped
from tests.hosts import machine

pytestmark = pytest.mark.clock

SIDE_BY_SIDE = 6
"""More of them would keep each other waiting beyond the deadlines."""
MACHINE = "ubuntu-4090-ok"


class AtSocket:
    """A recorded machine whose engine is a real socket, queried by the real child."""

    def __init__(self, url):
        self._machine, self._url = machine(MACHINE), url

    def __getattr__(self, name):
        return getattr(self._machine, name)

    @property
    def env(self):
        return {**self._machine.env, "DOCKER_HOST": self._url}

    def run(self, argv, *, deadline_s=5.0, without=()):
        if not any(word.endswith("ask_engine.py") for word in argv):
            return self._machine.run(argv, deadline_s=deadline_s)
        return run_program([sys.executable, *argv[1:]], deadline_s=deadline_s)


AT_ONE_PLACE = ("never answers", "closes in the middle", "has an error", "is not JSON", "is nested deeply", "is a list")


def cases():
    for name, wrong in WRONG.items():
        yield f"everything {name}", wrong
    for place, name in itertools.product(("/version", "/info", "/containers/json?all=1"), AT_ONE_PLACE):
        yield f"{place} {name}", only(place, WRONG[name])


def test_whatever_listens_the_doctor_ends(tmp_path):
    def tried(numbered):
        number, (name, answer) = numbered
        with listening(tmp_path / f"{number}.sock", answer) as url:
            return name, examine(AtSocket(url), project=machine(MACHINE).project, clock=time.monotonic)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        seen = dict(pool.map(tried, enumerate(cases())))
    problems = {name: broken(each) for name, each in seen.items()}
    assert not {name: found for name, found in problems.items() if found}
    silent = {name: each.facts.engine for name, each in seen.items() if isinstance(each.facts.engine, Unknown)}
    slow = {name for name, unread in silent.items() if unread.is_lost and "not its settings" in unread.reason}
    assert set(silent) == slow, "each of them is an engine, or says why it is none"
    assert all(name.startswith("/info") for name in slow)
    engines = {name for name, each in seen.items() if isinstance(each.facts.engine, Engine)}
    assert {name for name in engines if not name.startswith("/containers")} <= {"everything is an empty object"}
    assert len(engines) >= len(AT_ONE_PLACE)


LISTS = {
    "/containers/json?all=1": [
        {"Id": "c1", "State": "running", "Labels": {"devcontainer.local_folder": "/home/dev/project"}},
        {"Id": "c2", "State": "exited", "Labels": {"devcontainer.local_folder": "/home/dev/other"}},
    ],
    "/containers/c1/json": {
        "Name": "/dev",
        "Image": "sha256:1",
        "State": {"Running": True, "Status": "running", "Health": {"Status": "healthy"}},
        "Config": {"Image": "dev", "User": "vscode", "Env": ["NVIDIA_VISIBLE_DEVICES=all"], "Labels": {"a": "b"}},
        "HostConfig": {
            "Runtime": "nvidia",
            "ShmSize": 67108864,
            "DeviceRequests": [{"Driver": "nvidia", "Count": -1, "Capabilities": [["gpu"]]}],
            "Devices": [{"PathOnHost": "/dev/nvidia0"}],
            "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
            "SecurityOpt": ["label=disable"],
        },
        "Mounts": [{"Source": "/var/run/docker.sock"}],
    },
    "/containers/c2/json": {"State": {"Running": False, "ExitCode": 137, "OOMKilled": True, "Error": "x"}},
    "/images/json": [{"Id": "sha256:1", "Created": 3}, {"Id": "sha256:2", "Created": 4}],
    "/images/sha256:1/json": {
        "Id": "sha256:1",
        "RepoTags": ["dev:1"],
        "Architecture": "amd64",
        "Config": {"Env": ["NVIDIA_REQUIRE_CUDA=cuda>=12.8"], "Labels": {"devcontainer.metadata": "[]"}},
    },
}
SHAPES = (None, True, -1, 7, "x", [], [7], [None], {}, {"a": 1})


@pytest.mark.parametrize("resource", LISTS)
def test_any_value_of_a_list_may_have_any_shape(resource):
    host, argv = machine(MACHINE), asking(MACHINE, "ask_engine")
    sound = host.run(argv)
    problems = []
    for path, shape in itertools.product(places(LISTS[resource]), SHAPES):
        lists = {**LISTS, resource: reshaped(LISTS[resource], path, shape)}

        def ask(wanted, lists=lists):
            known = wanted.partition("?filters")[0]
            if known not in lists:
                raise ValueError(f"{wanted} was answered with 404")
            return lists[known]

        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            emit_lists(ask)
        told = ProgramResult(0, sound.out + said.getvalue(), "")
        damaged = Damaged(host, "run", argv, lambda _, told=told: told)
        seen = examine_anew(examine_sound(MACHINE), damaged, ("engine",))
        problems += [f"{path}: {shape!r}: {problem}" for problem in broken(seen)]
        if isinstance(seen.facts.engine, Unknown):
            problems.append(f"{path}: {shape!r}: {seen.facts.engine.reason}")
    assert not problems, "\n".join(("", *problems))
