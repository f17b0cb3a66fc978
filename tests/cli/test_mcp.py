"""`devkit mcp` with the protocol's own client, in a process of its own."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from devkit.facts.store import format_facts
from devkit.mcp_server import MAX_ANSWER_CHARACTERS, MAX_REQUEST_BYTES
from tests.hosts import facts_of

TOOLS = ["doctor", "check_project", "explain", "plan", "estimate", "preview_init"]


def call(steps, *words, cwd) -> list:
    """Start the server, and return what each of `steps`, (tool, arguments), answered: (is_error, text)."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "devkit", "mcp", *map(str, words)], env=dict(os.environ), cwd=str(cwd)
    )

    async def run() -> list:
        async with Client(stdio_client(server)) as client:
            answers = []
            for name, arguments in steps:
                if name == "resource":
                    answers.append((False, (await client.read_resource(arguments)).contents[0].text))
                elif name == "list":
                    answers.append((await client.list_tools()).tools)
                else:
                    result = await client.call_tool(name, arguments)
                    answers.append((bool(result.is_error), result.content[0].text))
            return answers

    return asyncio.run(asyncio.wait_for(run(), 120))


def test_why_can_my_container_not_see_the_gpu(tmp_path):
    saved = tmp_path / "facts.json"
    saved.write_text(format_facts(facts_of("toolkit-missing")), encoding="utf-8")
    steps = [("doctor", {}), ("resource", "devkit://checks/CTK001")]
    (is_error, text), (_, page) = call(steps, "--facts", saved, cwd=tmp_path)
    assert not is_error
    assert "CTK001" in text and "nvidia-container-toolkit" in text
    assert page.startswith("CTK001")


def test_tools_read_and_refuse(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch==2.9.1\n")
    steps = [
        ("list", None),
        ("explain", {"text": 'could not select device driver "" with capabilities: [[gpu]]'}),
        ("plan", {"driver": "580.95.05", "gpus": ["H100"], "for_project": True}),
        ("estimate", {"model": "llama-3.1-8b", "gpus": ["RTX 4090"], "settings": {"method": "qlora"}}),
        ("check_project", {}),
        ("preview_init", {}),
        ("plan", {"driver": "nope"}),
        ("estimate", {"model": "llama-3.1-8b", "settings": {"methd": "qlora"}}),
        ("explain", {"text": "x" * (MAX_REQUEST_BYTES + 1)}),
        ("doctor", {"codes": ["XYZ001"]}),
    ]
    tools, *answers = call(steps, cwd=tmp_path)
    assert [tool.name for tool in tools] == TOOLS
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    assert [is_error for is_error, _ in answers] == [False] * 5 + [True] * 4
    explained, planned, estimated, _, previewed, *refused = (text for _, text in answers)
    assert "Container Toolkit" in explained
    assert "2.9.1" in planned
    assert "RTX 4090" in estimated
    assert "devcontainer.json" in previewed
    assert [path.name for path in tmp_path.iterdir()] == ["requirements.txt"]
    for text, word in zip(refused, ("--driver", "method", str(MAX_REQUEST_BYTES), "XYZ001"), strict=True):
        assert word in text
        assert "Traceback" not in text


def test_answers_are_bounded_and_hold_no_secrets(tmp_path):
    token = "hf_" + "a1B2c3D4" * 4 + "ab"
    (tmp_path / "Dockerfile").write_text(f"FROM python:3.12\nENV HF_TOKEN={token}\n")
    (_, text), (_, log) = call(
        [("check_project", {}), ("explain", {"text": f"{token}\nCUDA error: out of memory {token}"})], cwd=tmp_path
    )
    assert token not in text + log
    assert len(text) <= MAX_ANSWER_CHARACTERS + 100


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
