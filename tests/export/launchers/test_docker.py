"""One machine over a Docker context: what it cannot run, and run.sh, run by real shells with a stand-in for docker."""

import io
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.export.docker import DockerContextSettings, render_docker
from devkit.export.task import HUB_CACHE, Task
from tests.cases import cases

from .tasks import CPU, FOUR, HOSTILE, NASTY, ONE, OUTPUT, ROCM, SPOT, TWO_NODES, WORKSPACE, texts, volumes

FAKE = Path(__file__).parent / "fake_docker.sh"
NVIDIA = '{"Runtimes":{"nvidia":{"path":"nvidia-container-runtime"}}}'
CDI = '{"DiscoveredDevices":[{"Source":"cdi","ID":"nvidia.com/gpu=all"}]}'
SLICES = ["nvidia.com/gpu=MIG-1a", "nvidia.com/gpu=0:1"]
SHELLS = [shell for shell in ("dash", "bash", "busybox", "ksh", "mksh", "yash") if shutil.which(shell)]


@dataclass(frozen=True)
class Place:
    """A project with the script in it, and the engine that the script talks to."""

    project: Path
    engine: Path

    def run(self, *words: str, shell: str = "sh", **variables: str) -> subprocess.CompletedProcess[str]:
        """The script's answer."""
        argv = [shell, *(["sh"] if shell == "busybox" else []), str(self.project / "deploy/docker/run.sh"), *words]
        path = f"{self.project.parent / 'bin'}:{os.environ['PATH']}"
        env = {"PATH": path, "LC_ALL": "C.UTF-8", "DEVKIT_WAIT_S": "0", **variables}
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)

    def calls(self, *first: str) -> list[list[str]]:
        """The calls of the engine, of the commands that begin so."""
        commands = (self.engine / "calls").read_text().split("\0\x1e\0")[:-1]
        return [words for words in (each.split("\0") for each in commands) if tuple(words[: len(first)]) == first]

    def has(self, **files: str) -> None:
        """What the engine shall answer."""
        for name, text in files.items():
            (self.engine / name).write_text(text)


def prepared(root: Path, task: Task, **settings: str) -> Place:
    """A project with the task's script below `root`, and an engine with NVIDIA's runtime whose runs succeed."""
    found = Place(root / "my project", root / "engine")
    for folder in (found.engine, root / "bin", found.project / "deploy/docker"):
        folder.mkdir(parents=True, exist_ok=True)
    docker = root / "bin/docker"
    docker.write_text(f'#!/bin/sh\nexec sh "{FAKE}" "{found.engine}" "$@"\n')
    docker.chmod(0o755)
    script = texts(render_docker(task, DockerContextSettings(**settings), "deploy/docker"))["run.sh"]
    (found.project / "deploy/docker/run.sh").write_text(script)
    (found.project / "train.jsonl").write_text("{}\n")
    (found.project / "finetuned").mkdir(exist_ok=True)
    (found.project / "finetuned/big").touch()
    found.has(info=NVIDIA, codes="0")
    return found


@pytest.fixture
def place(tmp_path):
    """Makes one for a task."""
    return partial(prepared, tmp_path)


def options(words: list[str], name: str) -> list[str]:
    """The values of an option."""
    return [words[at + 1] for at, word in enumerate(words) if word == name]


def created(found: Place) -> list[str]:
    (words,) = found.calls("create")
    return words


@cases(
    "codes, code, starts",
    {
        "it succeeds": ("0", 0, 1),
        "a failure is not tried again": ("3", 3, 1),
        "it saved, and goes on in the same container": ("75\n75\n0", 0, 3),
        "stopped again and again, it is given up": ("75\n" * 9, 75, 6),
    },
)
def test_the_exit_code_decides_if_it_is_started_again(place, codes, code, starts):
    found = place(ONE)
    found.has(codes=codes)
    done = found.run()
    assert (done.returncode, len(found.calls("start")), len(found.calls("create"))) == (code, starts, 1)
    assert ("giving up" in done.stderr) is (code == 75)


def test_only_other_settings_make_another_container_and_one_that_runs_is_left_alone(place):
    found = place(ONE)
    found.has(codes="1\n0")
    assert [found.run().returncode, found.run().returncode] == [1, 0]
    assert len(found.calls("create")) == 1
    other = place(replace(ONE, shm_bytes=1 << 20))
    assert other.run().returncode == 0
    assert (len(other.calls("create")), len(other.calls("container", "rm"))) == (2, 1)
    other.has(container="other running 0")
    done = other.run()
    assert (done.returncode, len(other.calls("container", "rm"))) == (2, 1)
    assert "runs with other settings" in done.stderr


def test_an_engine_that_cannot_be_reached_is_tried_again(place):
    found = place(ONE)
    found.has(codes="75\n0")
    script = found.project / "deploy/docker/run.sh"
    # It is away for one question, when the first start has ended.
    absent, was = found.engine / "absent", found.engine / "was"
    away = f'if [ "$now" = "exited 75" ] && [ ! -e "{was}" ]; then echo 1 | tee "{absent}" >"{was}"; now=$(state); fi'
    script.write_text(script.read_text().replace("        now=$(state)\n", f"        now=$(state)\n{away}\n", 1))
    done = found.run()
    assert ("cannot be reached" in done.stderr, done.returncode) == (True, 0)


@cases(
    "task, info, variables, expected",
    {
        "the nvidia runtime": (FOUR, NVIDIA, {}, {"--gpus": ["4"]}),
        "CDI": (FOUR, CDI, {}, {"--device": [f"nvidia.com/gpu={n}" for n in range(4)]}),
        "CDI by hand": (ONE, "{}", {"DEVKIT_GPU": "cdi"}, {"--device": ["nvidia.com/gpu=0"]}),
        "some by number": (ONE, NVIDIA, {"DEVKIT_DEVICES": "2,3"}, {"--gpus": ['"device=2,3"']}),
        "slices": (ONE, CDI, {"DEVKIT_DEVICES": "MIG-1a,0:1"}, {"--device": SLICES}),
        "none by hand": (ONE, "{}", {"DEVKIT_GPU": "cpu"}, {}),
        "none wanted": (CPU, "{}", {}, {}),
        "device nodes": (ROCM, NVIDIA, {}, {"--device": ["/dev/kfd", "/dev/dri"], "--group-add": ["44", "992"]}),
    },
)
def test_gpus_are_passed_on_as_the_engine_can(place, task, info, variables, expected):
    found = place(task)
    found.has(info=info)
    done = found.run(**variables)
    assert done.returncode == 0, done.stderr
    words = created(found)
    names = ("--gpus", "--device", "--group-add")
    assert {name: options(words, name) for name in names if options(words, name)} == expected
    assert ("ROCR_VISIBLE_DEVICES=0,1" in options(words, "--env")) is (task is ROCM)


@cases(
    "task, variables, files, message",
    {
        "no way to a GPU": (ONE, {}, {"info": "{}"}, "neither the nvidia runtime nor CDI"),
        "no AMD GPU": (ROCM, {}, {"no-devices": ""}, "has no /dev/kfd"),
        "a mode that is none": (ONE, {"DEVKIT_GPU": "tpu"}, {}, "is not one of nvidia, cdi, cpu"),
        "no GPUs": (ONE, {"DEVKIT_DEVICES": "0;reboot"}, {}, "does not list GPUs"),
        "a comma at the end": (ONE, {"DEVKIT_DEVICES": "0,"}, {}, "does not list GPUs"),
    },
)
def test_what_cannot_be_passed_on_is_said_and_nothing_is_started(place, task, variables, files, message):
    found = place(task)
    found.has(**files)
    done = found.run(**variables)
    assert (done.returncode, found.calls("start")) == (2, [])
    assert message in done.stderr


def test_the_container_has_no_more_rights_than_it_needs(place):
    found = place(ONE, context="big-box", user="1234:5")
    assert '    docker --context big-box "$@"\n' in (found.project / "deploy/docker/run.sh").read_text()
    assert found.run().returncode == 0
    words = created(found)
    assert options(words, "--security-opt") == ["no-new-privileges:true"]
    asked = next(each for each in found.calls("run") if 'echo "$(id -u):$(id -g)"' in each)
    assert options(words, "--user") == options(asked, "--user") == ["1234:5"]
    assert "--init" in words and "--restart" not in words
    other = place(ONE)
    other.run()
    assert "--user" not in other.calls("create")[-1]


def test_the_first_start_alone_makes_the_volumes_and_copies_the_project_and_the_token(place):
    found = place(ONE)
    assert found.run(DEVKIT_PROJECT="/missing").returncode != 0
    assert not (found.engine / "volume-demo-data").exists()
    done = found.run(HF_TOKEN="hf_secret")
    with tarfile.open(fileobj=io.BytesIO((found.engine / "piped-tar").read_bytes())) as archive:
        names = archive.getnames()
    assert "./train.jsonl" in names and not [name for name in names if "finetuned" in name]
    assert (found.engine / "piped-token").read_text() == "hf_secret"
    assert "hf_secret" not in (found.engine / "calls").read_text() + done.stdout + done.stderr
    names = {words[-1] for words in found.calls("volume", "create")}
    assert names == {f"demo-{of}" for of in ("checkpoints", "data", "models", "token")}
    assert {HUB_CACHE, WORKSPACE, OUTPUT} <= {words[-1] for words in found.calls("run") if "chown" in words}
    (found.engine / "piped-tar").unlink()
    (found.engine / "calls").unlink()
    found.run()
    assert not (found.engine / "piped-tar").exists()
    assert found.calls("volume", "create") == [words for words in found.calls("run") if "chown" in words] == []


def test_a_wrong_word_is_refused_and_a_script_elsewhere_needs_the_projects_folder(place, tmp_path):
    done = place(ONE).run("frobnicate")
    assert (done.returncode, "unknown command `frobnicate`" in done.stderr) == (2, True)
    (tmp_path / "run.sh").write_text(texts(render_docker(ONE, DockerContextSettings(), "/elsewhere"))["run.sh"])
    done = subprocess.run(["sh", tmp_path / "run.sh", "fetch"], capture_output=True, text=True, check=False)
    assert "This script is outside the project" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_hands_on_the_words_as_they_are(place, shell):
    found = place(HOSTILE)
    done = found.run(shell=shell)
    assert done.returncode == 0, done.stderr
    words = created(found)
    assert words[words.index(HOSTILE.image) + 1 :] == list(HOSTILE.command)
    assert f"NASTY={NASTY}" in options(words, "--env")


def test_folders_and_volumes_that_are_there_are_mounted_and_left_as_they_are(place):
    task = replace(ONE, needs_token=False, volumes=volumes(models="hub", data='/srv/a,"b" c', checkpoints="/srv/out"))
    found = place(task)
    assert found.run().returncode == 0
    assert options(created(found), "--mount") == [
        f"type=volume,source=hub,target={HUB_CACHE}",
        f'type=bind,"source=/srv/a,""b"" c",target={WORKSPACE}',
        f"type=bind,source=/srv/out,target={OUTPUT}",
    ]
    assert found.calls("volume", "create") == []
    assert found.run("copy").returncode == found.run("fetch").returncode == 2


HERE = "deploy/docker"


def test_what_nobody_limits_or_restarts_there_is_said():
    spot = render_docker(SPOT, DockerContextSettings(), "a b")
    assert "48 GiB of memory and 8 cores" in spot.notes[0] and "does not restart automatically" in spot.notes[1]
    assert spot.next_steps == ("sh 'a b/run.sh'",)


@cases(
    "task, settings, message",
    {
        "two nodes": (TWO_NODES, {}, "a Docker context is one machine, but the job needs 2"),
        "a context with a space": (ONE, {"context": "a b"}, "is not a context name"),
        "a context of two lines": (ONE, {"context": "x\nfoo"}, "is not a context name"),
        "a user with a command": (ONE, {"user": "root; id"}, "is not a user"),
        "half a path": (replace(ONE, volumes=volumes(models="a/b")), {}, "neither a volume nor a folder"),
    },
)
def test_what_one_machine_cannot_run_is_refused_in_one_line(task, settings, message):
    with pytest.raises(DevkitError, match=message) as refused:
        render_docker(task, DockerContextSettings(**settings), HERE)
    assert "\n" not in str(refused.value)
    assert refused.value.hint
