"""Builds of a project for BuildKit to read, what it says of them, and the programs that are looked up in images."""

import json

import pytest

from devkit.probe.host import LocalHost, ProgramResult
from devkit.trial.builds import find_build_faults, list_builds
from devkit.trial.programs import list_programs
from tests.doctor.machines import changed, without_gpu
from tests.doctor.projects import read

COMPOSE = "services: {a: {build: .}}"


def list_of(folder, text, files=(), **build):
    project = read(folder, {"compose.yaml": COMPOSE, "Dockerfile": text} | dict(files))
    config = {"services": {"a": {"build": {"context": str(folder), "dockerfile": "Dockerfile"} | build}}}
    return [*list_builds(LocalHost(), config, changed(without_gpu(), {"project": project}), str(folder), "ours")]


def test_no_registry_is_asked_for_what_a_build_is_made_of(tmp_path):
    stages = "FROM $B AS C\nFROM docker.io/library/six:latest\nFROM scratch\n"
    text = f"# syntax=evil/one\nARG B=two\n{stages}COPY --from=c x y\nRUN --mount=from=three,target=/x y\n"
    arguments = {"BUILDKIT_SYNTAX": "evil/four", "A": "1", "N": None}
    (found,) = list_of(tmp_path, text, args=arguments, additional_contexts={"five": "https://evil/five"})
    assert found.target["contexts"] == dict.fromkeys(("two", "three", "five", "six"), "docker-image://ours")
    assert "evil" not in json.dumps(found.target)
    assert {*found.target["args"]} == {"A", "BUILDKIT_DOCKERFILE_CHECK"}


def test_the_base_image_is_the_one_of_the_arguments_that_compose_resolves(tmp_path):
    (found,) = list_of(tmp_path, "ARG TAG=1\nFROM x:$TAG", args={"TAG": "2"})
    assert {*found.target["contexts"]} == {"x:2"}


@pytest.mark.parametrize(
    ("text", "files", "build"),
    [
        pytest.param("FROM $UNKNOWN", (), {}, id="an image that nobody knows"),
        pytest.param("FROM --platform=linux/arm64 x", (), {}, id="another platform"),
        pytest.param("FROM x", {"Dockerfile.dockerignore": "*"}, {}, id="an ignore file of its own"),
        pytest.param("FROM x", (), {"dockerfile_inline": "FROM y"}, id="no file"),
        pytest.param("FROM x", (), {"context": "https://example.com/x.git"}, id="a build from elsewhere"),
    ],
)
def test_builds_that_buildkit_does_not_read(tmp_path, text, files, build):
    assert list_of(tmp_path, text, files, **build) == []


WARNS = """ - CopyIgnoredFile: Attempting to Copy file "kept" that is excluded by .dockerignore (line 2)
 - CopyIgnoredFile: Attempting to Copy file "kept" that is excluded by .dockerignore (line 1)
 - CopyIgnoredFile: Attempting to Copy file "kept" that is excluded by .dockerignore (line 9)
"""
REFUSED = 'ERROR: target b0: failed to solve: target stage "x" could not be found\n'
NEEDS = {"target": {"b0": {"outline": {"secrets": [{"name": "token"}], "ssh": [{"name": "default"}]}}}}


@pytest.mark.parametrize(
    ("said", "files", "build", "faults"),
    [
        (ProgramResult(1, "", REFUSED), (), {}, ['target stage "x" could not be found']),
        (ProgramResult(1, "", REFUSED.replace("b0", "b1")), (), {}, []),
        (ProgramResult(1, "", REFUSED.replace("target b0: ", "")), (), {}, ['target stage "x" could not be found']),
        (ProgramResult(1, "", "ERROR: failed to solve: x: failed to resolve source metadata for x"), (), {}, []),
        (
            ProgramResult(0, "{}", WARNS),
            {"kept": "", ".dockerignore": "*\n!a"},
            {},
            ["line 2: .dockerignore leaves kept out"],
        ),
        (
            ProgramResult(0, "{}", WARNS),
            {"kept/x": "", ".dockerignore": "*"},
            {},
            ["line 2: .dockerignore leaves kept out"],
        ),
        (ProgramResult(0, "{}", WARNS), {"kept/x": "", ".dockerignore": "*\n!kept/x"}, {}, []),
        (ProgramResult(0, "{}", WARNS), (), {}, []),
        (ProgramResult(0, json.dumps(NEEDS), ""), (), {}, ["the secret token", "the secret ssh default"]),
        (ProgramResult(0, json.dumps(NEEDS), ""), (), {"secrets": [{"source": "token"}], "ssh": ["default=/a"]}, []),
        (ProgramResult(0, "[]", ""), (), {}, []),
        (ProgramResult(125, "", "unknown flag: --call"), (), {}, []),
    ],
)
def test_what_a_build_would_not_find(tmp_path, said, files, build, faults):
    (only,) = list_of(tmp_path, "FROM x\nCOPY kept /x", files, **build)
    found = [*find_build_faults(LocalHost(), only, said, "b0")]
    assert [any(words in each for each in found) for words in faults] == [True] * len(found)


IMAGE = {"Entrypoint": ["/e"], "Cmd": ["c"], "WorkingDir": "/w"}


@pytest.mark.parametrize(
    ("service", "arguments"),
    [
        pytest.param({}, ("i",), id="the image's own"),
        pytest.param({"image": "far"}, None, id="an image that is not here"),
        pytest.param({"command": ["a", "b"]}, ("i", "a", "b"), id="a command"),
        pytest.param(
            {"entrypoint": ["x", "y"], "command": ["a"]}, ("--entrypoint=x", "i", "y", "a"), id="an entrypoint"
        ),
        pytest.param({"user": "me", "working_dir": "/v"}, ("--user=me", "--workdir=/v", "i"), id="user and folder"),
        pytest.param({"environment": {"PATH": "/p", "A": "b"}}, ("--env=PATH=/p", "i"), id="its search path"),
        pytest.param({"volumes": [{"target": "/e"}]}, None, id="a mount of the program"),
        pytest.param({"entrypoint": ["./x"], "configs": [{"target": "/w/"}]}, None, id="a mount of its folder"),
        pytest.param({"entrypoint": ["x"], "volumes": [{"target": "/usr/bin"}]}, None, id="a mount of the search path"),
        pytest.param({"volumes": [{"target": "/data"}]}, ("i",), id="a mount beside it"),
    ],
)
def test_programs_that_are_looked_up(service, arguments):
    config = {"name": "p", "services": {"a": {"image": "i"} | service}}
    assert [*list_programs(config, {"i": IMAGE, "-v": IMAGE})] == ([("a", arguments)] if arguments else [])


def test_a_name_of_an_image_is_never_an_option():
    assert not [*list_programs({"services": {"a": {"image": "-v"}}}, {"-v": IMAGE})]
