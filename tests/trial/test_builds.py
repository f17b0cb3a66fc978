"""Builds of a project for BuildKit to read, what it says of them, and the programs that are looked up in images."""

import json
import os

import pytest

from devkit.probe.host import LocalHost, ProgramResult
from devkit.trial.builds import find_build_faults, list_builds
from devkit.trial.programs import list_look_ups, list_misnamed, list_scripts
from devkit.trial.writers import list_writers
from tests.doctor.machines import changed, without_gpu
from tests.doctor.projects import files_of, read

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
            ["line 2 of Dockerfile: .dockerignore leaves kept out"],
        ),
        (
            ProgramResult(0, "{}", WARNS),
            {"kept/x": "", ".dockerignore": "*"},
            {},
            ["line 2 of Dockerfile: .dockerignore leaves kept out"],
        ),
        (ProgramResult(0, "{}", WARNS), {"kept/x": "", ".dockerignore": "*\n!kept/x"}, {}, []),
        (ProgramResult(0, "{}", WARNS), (), {}, []),
        (ProgramResult(0, json.dumps(NEEDS), ""), (), {}, ["mounts token, a secret", "mounts ssh default, a secret"]),
        (ProgramResult(0, json.dumps(NEEDS), ""), (), {"secrets": [{"source": "token"}], "ssh": ["default=/a"]}, []),
        (ProgramResult(0, "[]", ""), (), {}, []),
        (ProgramResult(125, "", "unknown flag: --call"), (), {}, []),
    ],
)
def test_what_a_build_would_not_find(tmp_path, said, files, build, faults):
    (only,) = list_of(tmp_path, "FROM x\nCOPY kept /x", files, **build)
    found = [fault for fault, _ in find_build_faults(LocalHost(), only, said, "b0")]
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
        pytest.param({"platform": "linux/arm64"}, ("--platform=linux/arm64", "i"), id="its platform"),
        pytest.param({"environment": {"PATH": "/p", "A": "b"}}, ("--env=PATH=/p", "i"), id="its search path"),
        pytest.param({"volumes": [{"target": "/e"}]}, None, id="a mount of the program"),
        pytest.param({"entrypoint": ["./x"], "configs": [{"target": "/w/"}]}, None, id="a mount of its folder"),
        pytest.param({"entrypoint": ["x"], "volumes": [{"target": "/usr/bin"}]}, None, id="a mount of the search path"),
        pytest.param({"volumes": [{"target": "/data"}]}, ("i",), id="a mount beside it"),
    ],
)
def test_programs_that_are_looked_up(service, arguments):
    found = look_up({"name": "p", "services": {"a": {"image": "i"} | service}})
    assert [each.words for each in found] == ([arguments] if arguments else [])


def look_up(config, folder=None, of_image=IMAGE, **keys):
    """List what is looked up of a project, with the dev container `keys`; `folder` is None on another machine."""
    facts = without_gpu()
    if keys:
        facts = changed(facts, {"project": read(folder, files_of(dev=json.dumps(keys)))})
    images = {"i": of_image, "-v": of_image}
    return [*list_look_ups(config, images, facts, LocalHost() if folder else None, str(folder))]


def test_a_name_of_an_image_is_never_an_option():
    assert not look_up({"services": {"a": {"image": "-v"}}})


def test_a_mount_stands_in_for_its_source_where_the_image_may_have_something_else(tmp_path):
    (tmp_path / "file").write_text("")
    folder, file = {"type": "bind", "source": f"{tmp_path}"}, {"type": "bind", "source": f"{tmp_path}/file"}
    absent = {"type": "bind", "source": f"{tmp_path}/absent"}
    mounts = [
        folder | {"target": "/a/"},
        file | {"target": "/b"},
        absent | {"target": "/c"},
        {"type": "volume", "target": "/d"},
    ]
    mounts += [file | {"target": "/dev/x"}, absent | {"target": "/f", "bind": {"create_host_path": False}}]
    config = {"services": {"a": {"image": "i", "volumes": mounts}}}
    (found,) = look_up(config, tmp_path)
    assert [word for word in found.words if "--mount" in word] == [
        "--mount=type=tmpfs,target=/a",
        "--mount=type=bind,readonly,source=/dev/null,target=/b",
        "--mount=type=tmpfs,target=/c",
        "--mount=type=tmpfs,target=/d",
    ]
    assert "does not exist, so" in found.mounts["/c"] and "is a file, and /b is a folder" in found.mounts["/b"]
    assert look_up(config)[0].words == ("i",)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"image": "i", "remoteUser": "me"}, ["--user me"]),
        ({"image": "i", "remoteUser": "me", "features": {"x": {}}}, []),
        ({"image": "i", "containerUser": "${localEnv:USER}"}, []),
        ({"image": "far", "remoteUser": "me"}, []),
        ({"image": "i", "workspaceFolder": "/work"}, ["--workdir /work"]),
        ({"image": "i", "workspaceFolder": "/workspaces/${localWorkspaceFolderBasename}/"}, []),
        ({"image": "i", "workspaceFolder": "/workspaces/PROJECT/src"}, []),
        ({"image": "i", "workspaceFolder": "/workspaces/PROJECT/gone"}, ["--workdir /workspaces/PROJECT/gone"]),
        ({"image": "i", "workspaceFolder": "/work", "workspaceMount": "source=a,target=/work,type=volume"}, []),
        ({"image": "i", "workspaceFolder": "/workspaces/repository/PROJECT"}, []),
        ({"image": "i", "workspaceFolder": "/x,source=/,type=volume"}, []),
        ({"image": "i", "workspaceFolder": "/work/a", "mounts": ["source=a,target=/work,type=volume"]}, []),
    ],
)
def test_the_user_and_the_folder_of_a_dev_container_are_looked_up_in_its_image(tmp_path, keys, told):
    (tmp_path / "src").mkdir()
    keys = json.loads(json.dumps(keys).replace("PROJECT", tmp_path.name))
    found = [" ".join(each.arguments[1:]) for each in look_up({}, tmp_path, **keys)]
    assert found == [each.replace("PROJECT", tmp_path.name) for each in told]


METADATA = json.dumps([{"remoteUser": "vscode"}, {"id": "x"}])


@pytest.mark.parametrize(
    ("of_image", "keys", "told"),
    [
        ({"User": "me"}, {}, ["/data"]),
        ({"Labels": {"devcontainer.metadata": METADATA}}, {}, ["/data"]),
        ({"Labels": {"devcontainer.metadata": "{"}}, {"remoteUser": "me"}, ["/data"]),
        ({"User": "me"}, {"remoteUser": "root"}, []),
        ({}, {}, []),
        ({"User": "me"}, {"mounts": ["source=old,target=/data,type=volume"]}, []),
        ({"User": "me"}, {"mounts": ["source=${devcontainerId},target=/data,type=volume"]}, []),
        ({"User": "me"}, {"mounts": ["source=/data,target=/data,type=bind"]}, []),
        ({"User": "me"}, {"postCreateCommand": "sudo chown me /data"}, []),
        ({"User": "me"}, {"features": {"x": {}}}, []),
    ],
)
def test_a_new_volume_belongs_to_root_unless_the_image_has_the_folder(tmp_path, of_image, keys, told):
    keys = {"image": "i", "mounts": ["source=new,target=/data,type=volume"], **keys}
    facts = changed(without_gpu(), {"project": read(tmp_path, files_of(dev=json.dumps(keys)))})
    found = list_writers({}, {"i": of_image}, facts, LocalHost(), str(tmp_path), {"old"})
    asked = [word for each in found for word in each.words if word.endswith("/.") and word != "~/."]
    assert asked == [f"{each}/." for each in told]


@pytest.mark.parametrize(
    ("of_image", "service", "keys", "ends"),
    [
        ({"Cmd": ["bash"]}, {}, {}, True),
        ({"Entrypoint": ["/usr/bin/python3.12"]}, {}, {}, True),
        ({"Cmd": ["bash"]}, {"tty": True}, {}, False),
        ({"Cmd": ["bash"]}, {"stdin_open": True}, {}, False),
        ({"Cmd": ["bash"]}, {"command": ["sleep", "infinity"]}, {}, False),
        ({"Cmd": ["bash"]}, {"entrypoint": ["serve"]}, {}, False),
        ({"Cmd": ["bash"], "Entrypoint": ["/start"]}, {}, {}, False),
        ({"Cmd": ["bash"]}, {}, {"overrideCommand": True}, False),
        ({"Cmd": ["bash"]}, {"build": {"context": "."}}, {}, False),
        ({"Cmd": ["serve"]}, {}, {}, False),
    ],
)
def test_a_shell_without_input_ends_a_dev_container_of_compose(tmp_path, of_image, service, keys, ends):
    keys = {"dockerComposeFile": "../compose.yaml", "service": "a", **keys}
    found = look_up({"services": {"a": {"image": "i"} | service}}, tmp_path, of_image, **keys)
    assert [each.arguments[-1] for each in found if each.arguments[1] == "--interactive"] == ["a"] * ends


@pytest.mark.parametrize(("said", "ends"), [(False, True), (True, False), (None, False)])
def test_a_dev_container_of_an_image_keeps_running_unless_told_otherwise(tmp_path, said, ends):
    found = look_up({}, tmp_path, {"Cmd": ["bash"]}, image="i", **({} if said is None else {"overrideCommand": said}))
    assert bool([each for each in found if each.arguments[1] == "--interactive"]) is ends


@pytest.mark.parametrize(
    ("test", "condition", "more", "told"),
    [
        (["CMD-SHELL", "curl -f http://x || exit 1"], "service_healthy", {}, ["curl"]),
        (["CMD", "/usr/bin/pg_isready", "-q"], "service_healthy", {}, ["/usr/bin/pg_isready"]),
        (["CMD-SHELL", "curl -f http://x"], "service_started", {}, []),
        (["CMD-SHELL", "[ -f /x ]"], "service_healthy", {}, []),
        (["CMD-SHELL", "$TEST"], "service_healthy", {}, []),
        (["CMD", "curl"], "service_healthy", {"volumes": [{"target": "/x"}]}, ["curl"]),
        (["CMD", "curl"], "service_healthy", {"volumes": [{"target": "/opt/bin"}]}, []),
        (["CMD", "/x/curl"], "service_healthy", {"volumes": [{"target": "/x"}]}, []),
        (["CMD", "curl"], "service_healthy", {"image": "far"}, []),
    ],
)
def test_the_program_of_a_health_check_is_looked_up_if_others_wait_for_it(test, condition, more, told):
    watched = {"image": "i", "healthcheck": {"test": test}} | more
    waiting = {"image": "far", "depends_on": {"a": {"condition": condition}}}
    found = look_up({"services": {"a": watched, "b": waiting}})
    assert [each.arguments[-1] for each in found if each.arguments[1] == "--health-cmd"] == told


@pytest.mark.parametrize(
    ("started", "keys", "told"),
    [("b", {}, ["--profile a"]), ("a", {}, []), ("b", {"runServices": ["a"]}, [])],
    ids=["it starts another one", "it starts it", "the dev container names it"],
)
def test_the_service_of_a_dev_container_is_one_that_compose_starts(tmp_path, started, keys, told):
    dev = {"dockerComposeFile": "../compose.yaml", "service": "a", **keys}
    files = files_of(dev=json.dumps(dev)) | {"compose.yaml": "services: {a: {image: x, profiles: [p]}, b: {image: x}}"}
    facts = changed(without_gpu(), {"project": read(tmp_path, files)})
    found = list_look_ups({"services": {started: {"image": "x"}}}, {}, facts, None, "")
    assert [" ".join(each.arguments[1:]) for each in found] == told


@pytest.mark.parametrize(
    ("target", "more", "told"),
    [("/app", {}, ["--workdir /work"]), ("/work", {}, []), ("/app", {"build": {"context": "."}}, [])],
    ids=["elsewhere", "a mount", "an image that is built again"],
)
def test_the_folder_of_a_dev_container_may_be_a_mount_of_its_service(tmp_path, target, more, told):
    mounts = [{"type": "bind", "source": str(tmp_path), "target": target}]
    config = {"services": {"a": {"image": "i", "volumes": mounts} | more}}
    keys = {"dockerComposeFile": "../compose.yaml", "service": "a", "workspaceFolder": "/work"}
    found = look_up(config, tmp_path, **keys)
    assert [" ".join(each.arguments[1:]) for each in found if each.absence] == told


@pytest.mark.parametrize(
    ("dockerfile", "service", "told"),
    [
        ('FROM x\nCOPY run.sh /\nENTRYPOINT ["/run.sh"]', {}, ["run.sh"]),
        ("FROM x\nCOPY . /app\nCMD /app/tools/run.sh", {}, ["tools/run.sh"]),
        ("FROM x\nCOPY unix.sh /\n# run.sh", {}, []),
        ("FROM x\nCOPY run.sh /\nRUN dos2unix /run.sh", {}, []),
        ("FROM x\nRUN sed -i 's/\\r//' run.sh", {}, []),
        ("FROM x", {"command": ["./run.sh", "--fast"]}, ["run.sh"]),
    ],
)
def test_scripts_with_windows_line_endings_have_no_interpreter(tmp_path, dockerfile, service, told):
    for name in ("run.sh", "tools/run.sh", "unix.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"#!/bin/sh\n" if name == "unix.sh" else b"#!/bin/sh\r\necho\r\n")
    facts = changed(without_gpu(), {"project": read(tmp_path, {"compose.yaml": COMPOSE, "Dockerfile": dockerfile})})
    found = [*list_scripts({"services": {"a": service}}, facts, LocalHost(), str(tmp_path))]
    assert [each.arguments[-1] for each in found][: len(told)] == told and bool(found) is bool(told)


@pytest.mark.parametrize(
    ("dockerfile", "text", "told"),
    [
        ('FROM x\nCOPY run.sh /\nENTRYPOINT ["/run.sh"]', "exec train\n", ["run.sh"]),
        ('FROM x\nCOPY run.sh /\nENTRYPOINT ["/run.sh"]', "#!/bin/sh\n", []),
        ('FROM x\nCOPY run.sh /\nENTRYPOINT ["sh", "/run.sh"]', "exec train\n", []),
        ("FROM x\nCOPY run.sh /\nENTRYPOINT /run.sh", "exec train\n", []),
    ],
    ids=["no shell reads it", "it names one", "a shell is named", "the form of the shell"],
)
def test_a_script_that_an_image_starts_with_names_its_interpreter(tmp_path, dockerfile, text, told):
    files = {"compose.yaml": COMPOSE, "Dockerfile": dockerfile, "run.sh": text}
    facts = changed(without_gpu(), {"project": read(tmp_path, files)})
    found = list_scripts({"services": {"a": {}}}, facts, LocalHost(), str(tmp_path))
    assert [each.arguments[-1] for each in found] == told


@pytest.mark.parametrize(
    ("command", "told"),
    [("./setup.sh --fast", ["setup.sh"]), ("bash setup.sh", []), ("chmod +x setup.sh && ./setup.sh", [])],
)
def test_a_script_that_a_dev_container_runs_by_its_path_is_executable(tmp_path, command, told):
    files = files_of(dev=json.dumps({"image": "i", "postCreateCommand": command})) | {"setup.sh": "#!/bin/sh\n"}
    facts = changed(without_gpu(), {"project": read(tmp_path, files)})
    assert [each.arguments[-1] for each in list_scripts({}, facts, LocalHost(), str(tmp_path))] == told
    (tmp_path / "setup.sh").chmod(0o755)
    assert not [*list_scripts({}, facts, LocalHost(), str(tmp_path))]


@pytest.mark.parametrize(
    ("text", "mode", "service", "told"),
    [
        ("#!/bin/sh\n", 0o644, {}, "--exec"),
        ("#!/bin/sh\r\n", 0o755, {}, "--entrypoint"),
        ("echo\n", 0o755, {}, "--interpreter"),
        (None, 0, {}, "--target"),
        ("#!/usr/bin/env python3\n", 0o755, {}, "--entrypoint=python3"),
        ("#!/bin/sh\n", 0o644, {"entrypoint": ["sh", "/app/run"]}, ""),
        ("#!/bin/sh\n", 0o644, {"volumes": [{"type": "volume", "target": "/app/run"}]}, ""),
    ],
)
def test_a_program_that_a_bind_mount_brings_is_looked_at_on_this_machine(tmp_path, text, mode, service, told):
    if text is not None:
        (tmp_path / "run").write_text(text)
        (tmp_path / "run").chmod(mode)
    mounts = [{"type": "bind", "source": str(tmp_path), "target": "/app"}, *service.pop("volumes", ())]
    config = {"services": {"a": {"image": "i", "entrypoint": ["/app/run"], "volumes": mounts} | service}}
    found = [each for each in look_up(config, tmp_path) if each.absence or "=python3" in each.words[:1][-1][-8:]]
    assert [(each.words or each.arguments[1:])[0] for each in found] == [told] * bool(told)


def test_a_name_that_the_engine_refuses_is_told_with_the_variable_that_decides_it(tmp_path):
    project = read(
        tmp_path, {"compose.yaml": "services: {a: {image: 'x:${T}'}, b: {image: 'X'}, c: {image: 'y:${T:-}'}}"}
    )
    facts = changed(without_gpu(), {"project": project})
    images = {
        "a": {"image": "x:", "environment": {"T": "1"}},
        "b": {"image": "X"},
        "c": {"image": "y:"},
        "d": {"image": "z"},
    }
    found = list_misnamed({"services": images}, facts, dict.fromkeys(("x:", "X", "y:"), "no"))
    assert [each.arguments[1:] for each in found] == [("--env-file", "T=1"), ("pull", "b"), ("pull", "c")]


def ask(folder, service, said, of_image=IMAGE, files=(), **keys):
    """Return who is asked where they may write, and what is told of what the shell says, or None."""
    project = read(folder, dict(files) | (files_of(dev=json.dumps(keys)) if keys else {}))
    facts = changed(without_gpu(), {"project": project})
    config = {"services": {"a": {"image": "i"} | service}} if service else {}
    (each,) = list_writers(config, {"i": of_image}, facts, LocalHost(), str(folder))
    told = each.judge([("map", "0"), *said])
    return each.words, told and " ".join(told[0]).replace(str(folder), "P")


ME = ("user", "4321")


def test_the_health_check_that_a_mount_brings_is_looked_for_here(tmp_path):
    mount = {"type": "bind", "source": str(tmp_path), "target": "/app"}
    watched = {"image": "i", "healthcheck": {"test": ["CMD", "/app/gone"]}, "volumes": [mount]}
    waiting = {"image": "i", "depends_on": {"a": {"condition": "service_healthy"}}}
    found = [each.absence for each in look_up({"services": {"a": watched, "b": waiting}}, tmp_path) if each.absence]
    assert found == [f"the health check of a runs {tmp_path}/gone, which does not exist"]


@pytest.mark.parametrize(("lines", "told"), [("WORKDIR /w", ["/w/venv/"]), ("WORKDIR /w\nRUN chown me /w", [])])
def test_the_lifecycle_of_a_dev_container_that_is_built_is_held_against_its_image(tmp_path, lines, told):
    keys = {"build": {"dockerfile": "Dockerfile"}, "remoteUser": "me", "postCreateCommand": "mkdir -p /w/venv"}
    files = {**files_of(dev=json.dumps(keys)), ".devcontainer/Dockerfile": f"FROM i\n{lines}\n"}
    facts = changed(without_gpu(), {"project": read(tmp_path, files)})
    (found,) = list_writers({}, {"i": {}}, facts, LocalHost(), str(tmp_path))
    assert [each for each in found.words[found.words.index("sh") + 1 :] if each.startswith("/w")] == told


def test_the_image_is_asked_as_its_user_without_its_variables(tmp_path):
    service = {"command": ["sh", "-c", "mkdir -p $$D/x"], "user": "me", "group_add": ["7"]}
    of_image = {"Env": ["D=/data", "LD_AUDIT=evil", "HOME=/h"]}
    words, told = ask(tmp_path, service, [ME, ("refused0", "/data/x/")], of_image)
    assert {"--user=me", "--env=LD_AUDIT=", "--group-add=7", "--env=D="} < {*words}
    assert not {"--env=HOME="} & {*words}
    assert words[-1] == "/data/x/"
    assert told == "exec --user me /data/x"
    assert ask(tmp_path, service, [("user", "0")], of_image)[1] is None


@pytest.mark.parametrize(
    ("lines", "asked"),
    [
        ("WORKDIR /app\nUSER me\nCMD ./run.sh", ["/app/logs/"]),
        ('FROM i AS x\nWORKDIR /app\nFROM x\nUSER me\nENTRYPOINT ["sh", "run.sh"]', ["/app/logs/"]),
        ("WORKDIR /app\nRUN chown me .\nUSER me\nCMD ./run.sh", []),
        ("RUN ./setup.sh\nUSER me\nCMD ./run.sh", []),
        ("WORKDIR /app\nCMD ./run.sh", []),
    ],
)
def test_what_a_dockerfile_says_of_an_image_that_is_not_built(tmp_path, lines, asked):
    files = {"Dockerfile": f"FROM i\n{lines}\n", "run.sh": "mkdir logs\n"}
    project = read(tmp_path, files)
    config = {"name": "p", "services": {"a": {"build": {"context": str(tmp_path)}}}}
    found = list_writers(config, {"i": {}}, changed(without_gpu(), {"project": project}), LocalHost(), str(tmp_path))
    assert [path for each in found for path in each.words[each.words.index("sh") + 1 :]] == asked


@pytest.mark.parametrize(
    ("mount", "command", "said", "told"),
    [
        ({}, "true", [ME], "run --volume P/out"),
        ({}, "true", [("user", str(os.getuid() or 1))], None if os.getuid() else "run --volume P/out"),
        ({}, "true", [ME, ("map", "1")], None),
        ({"read_only": True, "target": "/o"}, "touch /x", [ME], None),
        ({"source": "full"}, "true", [ME], "create --volume P/full"),
        ({"source": "full"}, "touch /out/x", [ME], "run --volume P/full"),
        ({"source": "open"}, "touch /out/x", [ME], None),
        ({"source": "none"}, "true", [ME], "run --volume P/none"),
    ],
)
def test_the_owner_of_a_bind_mount_is_held_against_the_user(tmp_path, mount, command, said, told):
    for name, mode in (("out", 0o755), ("full", 0o755), ("open", 0o777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (tmp_path / "full/x").touch()
    given = {"type": "bind", "target": "/out"} | mount | {"source": f"{tmp_path}/{mount.get('source', 'out')}"}
    service = {"user": "me", "command": ["sh", "-c", command], "volumes": [given]}
    assert ask(tmp_path, service, said)[1] == told


@pytest.mark.parametrize(
    ("volume", "more", "told"),
    [
        ({"source": "v"}, {}, "exec --user me /data"),
        ({"source": "v", "read_only": True}, {}, None),
        ({"source": "v"}, {"volumes": {"v": {"name": "p_v", "external": True}}}, None),
        ({"source": "v"}, {"services": {"b": {"image": "i", "command": ["chown", "me", "/data"]}}}, None),
    ],
)
def test_a_service_may_not_write_to_a_new_volume_of_root(tmp_path, volume, more, told):
    service = {
        "image": "i",
        "user": "me",
        "command": ["touch", "/x"],
        "volumes": [{"type": "volume", "target": "/data"} | volume],
    }
    config = {"volumes": {"v": {"name": "p_v"}}} | more
    config["services"] = {"a": service} | more.get("services", {})
    (each,) = list_writers(config, {"i": {}}, without_gpu(), LocalHost(), str(tmp_path))
    found = each.judge([ME, ("refused0", "/data/.")]) if "/data/." in each.words else None
    assert (" ".join(found[0]) if found else None) == told


def test_an_editor_needs_the_home_of_its_user(tmp_path):
    keys = {"image": "i", "remoteUser": "me", "containerEnv": {"HOME": "/root"}, "postCreateCommand": "touch ~/x"}
    words, told = ask(tmp_path, {}, [ME, ("refused0", "/root/.")], **keys)
    assert words[-2:] == ("~/.", "~/x")
    keys["mounts"] = ["source=v,target=/data,type=volume"]
    told_of = [ask(tmp_path / n, {}, [ME, ("refused1", "/data/."), (n, "there")], **keys)[1] for n in ("sudo", "su")]
    assert told_of == ["run --mount /data", "exec --user me /data"]
    assert "--env=HOME=/root" in words
    assert told == "exec --env HOME"
