"""`devkit mcp` with the protocol's own client, in a process of its own."""

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import ElicitResult

from devkit.cli.mcp_server import MAX_ANSWER_CHARACTERS, MAX_REQUEST_BYTES, build_answer
from devkit.facts.model import format_facts
from tests.hosts import facts_of

READING = ["doctor", "check_project", "explain", "plan", "estimate", "preview_init", "propose_fix"]
BROKEN = '{\n  "image": "ubuntu", // ours\n  "runArgs": ["--gpus all"]\n}\n'
MENDED = BROKEN.replace("--gpus all", "--gpus=all")
DEV_CONTAINER = ".devcontainer/devcontainer.json"


def connect(*words, cwd, **options) -> Client:
    """Start a server, and connect the protocol's own client to it."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "devkit", "mcp", *map(str, words)], env=dict(os.environ), cwd=str(cwd)
    )
    return Client(stdio_client(server), **options)


class Answer(NamedTuple):
    """What a tool answered."""

    is_error: bool
    text: str
    document: dict


def call(steps, *words, cwd, **options) -> list:
    """Return what each of `steps`, (tool, arguments), answered; a step may be a function of the answers so far."""

    async def run() -> list:
        async with connect(*words, cwd=cwd, **options) as client:
            answers = []
            for step in steps:
                name, arguments = step(answers) if callable(step) else step
                if name == "resource":
                    answers.append(Answer(False, (await client.read_resource(arguments)).contents[0].text, {}))
                elif name == "list":
                    answers.append((await client.list_tools()).tools)
                else:
                    result = await client.call_tool(name, arguments)
                    answers.append(
                        Answer(bool(result.is_error), result.content[0].text, result.structured_content or {})
                    )
            return answers

    return asyncio.run(asyncio.wait_for(run(), 120))


def apply(number):
    """A step that applies what an earlier step proposed."""
    return lambda answers: ("apply_fix", {"token": answers[number].document["token"]})


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / ".devcontainer").mkdir(parents=True)
    (folder / DEV_CONTAINER).write_text(BROKEN)
    return folder


def list_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_why_can_my_container_not_see_the_gpu(tmp_path):
    saved = tmp_path / "facts.json"
    saved.write_text(format_facts(facts_of("toolkit-missing")), encoding="utf-8")
    steps = [("doctor", {}), ("resource", "devkit://checks/CTK001")]
    diagnosis, page = call(steps, "--facts", saved, cwd=tmp_path)
    assert not diagnosis.is_error
    assert "CTK001" in diagnosis.text and "nvidia-container-toolkit" in diagnosis.text
    assert {each["status"] for each in diagnosis.document["outcomes"]} == {"found"}
    assert page.text.startswith("CTK001")


def test_tools_describe_themselves_and_only_read(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch==2.9.1\n")
    steps = [
        ("list", None),
        ("explain", {"text": 'could not select device driver "" with capabilities: [[gpu]]'}),
        ("plan", {"driver": "580.95.05", "gpus": ["H100"], "for_project": True}),
        ("estimate", {"model": "llama-3.1-8b", "gpus": ["RTX 4090"], "method": "qlora", "checkpointing": False}),
        ("preview_init", {"vendor": "cpu"}),
        ("check_project", {"devcontainer": BROKEN}),
        ("check_project", {"dockerfile": "FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04\n"}),
        ("propose_fix", {}),
    ]
    tools, *answers = call(steps, cwd=tmp_path)
    assert [tool.name for tool in tools if tool.annotations.read_only_hint] == READING
    assert [tool.name for tool in tools if not tool.annotations.read_only_hint] == ["apply_fix", "verify"]
    for tool in tools:
        assert tool.description
        assert tool.input_schema["additionalProperties"] is False
        assert all(each["description"] for each in tool.input_schema["properties"].values())
    arguments = {tool.name: tool.input_schema["properties"] for tool in tools}
    assert "cpu" in str(arguments["plan"]["vendor"]) and "qlora" in str(arguments["estimate"]["method"])
    assert [answer.is_error for answer in answers] == [False] * len(answers)
    explained, planned, estimated, previewed, checked, read, proposed = answers
    assert "Container Toolkit" in explained.text and explained.document["matches"]
    assert planned.document["plan"]["torch"] == "2.9.1" and "2.9.1" in planned.text
    assert estimated.document["settings"]["checkpointing"] is False and "RTX 4090" in estimated.text
    diffs = {each["path"]: each.get("diff", "") for each in previewed.document["files"]}
    assert '+  "dockerComposeFile"' in diffs[DEV_CONTAINER] and diffs[DEV_CONTAINER] in previewed.text
    assert "PRJ002" in checked.document["root_causes"]
    assert "nvidia/cuda:12.4.1" in read.text
    assert "token" not in proposed.document
    assert list_files(tmp_path) == ["requirements.txt"]


HOSTILE = [
    ("plan", {"driver": "nope"}, "--driver"),
    ("plan", {"torch": "2\0"}, "NUL"),
    ("plan", {"torch": "9" * 300_000}, "characters"),
    ("plan", {"torch": "--run"}, "torch"),
    ("plan", {"vendor": "intel"}, "nvidia"),
    ("plan", {"install": True}, "install"),
    ("plan", {"gpus": {"a": 1}}, "gpus"),
    ("estimate", {"model": "llama-3.1-8b", "methd": "qlora"}, "methd"),
    ("estimate", {"model": "/etc/passwd"}, "is not known"),
    ("estimate", {"model": "--json"}, "is not known"),
    ("estimate", {"model": "llama-3.1-8b", "micro_batch": "many"}, "micro_batch"),
    ("explain", {"text": "x" * (MAX_REQUEST_BYTES + 1)}, str(MAX_REQUEST_BYTES)),
    ("explain", {}, "text"),
    ("doctor", {"only": ["XYZ001"]}, "XYZ001"),
    ("check_project", {"../../out": "x"}, "../../out"),
    ("preview_init", {"directory": "/tmp"}, "directory"),
    ("preview_init", {"digest": "x"}, "digest"),
    ("preview_init", {"compose": "../other.yaml"}, "outside the project"),
    ("apply_fix", {"token": "../../etc/passwd"}, "no proposal"),
    ("apply_fix", {"token": "", "answer": {"confirmed": True}}, "answer"),
    ("verify", {"command": "touch owned"}, "command"),
    ("nothing", {}, "nothing"),
]


def test_hostile_arguments_are_refused_and_change_nothing(project):
    (project / DEV_CONTAINER).unlink()
    (project.parent / "shared.yaml").write_text("services: {app: {image: ubuntu, gpus: all}}\n")
    answers = call([(name, arguments) for name, arguments, _ in HOSTILE], cwd=project)
    for answer, (name, _, word) in zip(answers, HOSTILE, strict=True):
        assert answer.is_error, name
        assert word in answer.text
        assert "Traceback" not in answer.text
    assert list_files(project) == []


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_fix_is_made_as_it_was_shown_after_a_yes_and_once(project, mode):
    no = [("decline", None), ("cancel", None), ("accept", {"confirmed": False}), ("accept", {}), ("accept", None)]
    asked, left = [], iter([*no, ("accept", {"confirmed": True})])

    async def answer(_context, params):
        asked.append(params.message)
        action, content = next(left)
        return ElicitResult(action=action, content=content)

    steps = [("propose_fix", {}), *[apply(0)] * (len(no) + 2), ("check_project", {})]
    proposed, *refused, applied, again, checked = call(steps, cwd=project, mode=mode, elicitation_callback=answer)
    assert '+  "runArgs": ["--gpus=all"]' in proposed.text and '+  "runArgs": ["--gpus=all"]' in asked[0]
    assert all(each.is_error for each in (*refused, again))
    assert applied.text == f"changed {DEV_CONTAINER}"
    assert "PRJ002" not in checked.document["root_causes"]
    assert (project / DEV_CONTAINER).read_text() == MENDED
    assert list_files(project) == [DEV_CONTAINER]


def test_a_proposal_is_void_when_a_file_changed_since(project):
    edited = BROKEN.replace("ubuntu", "debian")

    def edit(answers):
        (project / DEV_CONTAINER).write_text(edited)
        return apply(0)(answers)

    steps = [("propose_fix", {}), ("preview_init", {"vendor": "nvidia"}), edit, apply(1)]
    *_, fix, init = call(steps, cwd=project)
    assert fix.is_error and "was changed in the meantime" in fix.text
    assert init.is_error and "a file or the plan changed" in init.text
    assert (project / DEV_CONTAINER).read_text() == edited
    assert list_files(project) == [DEV_CONTAINER]


def test_a_file_that_leads_out_of_the_project_is_left_alone(project, tmp_path):
    outside = tmp_path / "shared.json"
    (project / DEV_CONTAINER).rename(outside)
    (project / DEV_CONTAINER).symlink_to(outside)
    answers = call([("propose_fix", {}), ("preview_init", {})], cwd=project)
    assert not any("token" in answer.document for answer in answers)
    assert outside.read_text() == BROKEN


def test_a_client_that_cannot_ask_approves_the_call_and_init_writes_what_it_showed(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch\n")
    shown, applied = call([("preview_init", {"vendor": "cpu"}), apply(0)], cwd=tmp_path)
    assert not applied.is_error
    assert {*list_files(tmp_path)} == {"requirements.txt", *(each["path"] for each in shown.document["files"])}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_proof_reports_progress_and_leaves_no_process_when_it_is_canceled(tmp_path, mode):
    lines: list = []

    async def report(_progress, _total, message):
        lines.append(message)

    async def wait_until(is_so):
        while not is_so():
            await asyncio.sleep(0.02)

    async def run() -> None:
        async with connect(cwd=tmp_path, mode=mode) as client:
            proof = client.call_tool("verify", {"here": True, "depth": "full"}, progress_callback=report)
            task = asyncio.create_task(proof)
            await wait_until(lambda: lines or task.done())
            assert list_proofs(tmp_path)
            task.cancel()
            await wait_until(lambda: not list_proofs(tmp_path))
            assert not (await client.call_tool("explain", {"text": "DRV001"})).is_error

    asyncio.run(asyncio.wait_for(run(), 120))
    assert lines


def list_proofs(folder) -> list:
    """List the processes of a proof in a folder, by their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if (process / "cwd").resolve() == folder.resolve() and b"mcp" not in words:
                found.append(words)
    return found


def test_answers_are_bounded():
    text = build_answer("x" * (2 * MAX_ANSWER_CHARACTERS), {}).content[0].text
    assert len(text) <= MAX_ANSWER_CHARACTERS + 100 and f"{MAX_ANSWER_CHARACTERS} characters more" in text


@pytest.fixture
def served(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "devkit", "mcp", "--http", str(port)], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    for _ in range(600):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield port, server
    server.terminate()
    server.wait(20)


@pytest.mark.full
def test_http_is_for_this_machine_and_survives_garbage(served):
    port, server = served
    address = f"http://127.0.0.1:{port}/mcp"
    listening = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True, check=False).stdout
    assert re.search(rf"127\.0\.0\.1:{port}\s", listening) or not listening
    # The server answers with 413 and closes the connection, perhaps before all is sent.
    with pytest.raises(urllib.error.URLError, match=r"413|400|Broken pipe|reset") as refused:
        urllib.request.urlopen(urllib.request.Request(address, data=b"x" * (MAX_REQUEST_BYTES + 1), method="POST"))
    if isinstance(refused.value, urllib.error.HTTPError):
        refused.value.close()
    waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    for each in waiting:
        each.sendall(os.urandom(512))

    async def ask() -> str:
        async with Client(address) as client:
            result = await client.call_tool("explain", {"text": "DRV001"})
            return result.content[0].text

    assert asyncio.run(asyncio.wait_for(ask(), 60)).startswith("DRV001")
    for each in waiting:
        each.close()
    assert server.poll() is None
