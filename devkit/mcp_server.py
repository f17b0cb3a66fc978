"""The server for AI assistants: devkit's answers as tools of the Model Context Protocol.

Every tool only reads, none runs a command that a client names, and answers hold no secrets and no names of people and
machines. Source: https://modelcontextprotocol.io/specification/2025-11-25/server/tools
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.types import ToolAnnotations

from devkit import api
from devkit.errors import DevkitError
from devkit.facts.model import Facts
from devkit.release import __version__

MAX_REQUEST_BYTES = 1 << 20
MAX_ANSWER_CHARACTERS = 64 * 1024
"""An assistant reads every word of an answer; a report of 100 findings has half of this."""
_DRY_RUN_S = 60
_PROJECT_CHECKS = "PRJ"
_READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_INSTRUCTIONS = (
    "devkit diagnoses GPU machines, containers and projects. Begin with doctor where something does not work, with explain"
    " where there is an error text, with plan for versions that fit, with estimate for GPU memory. Facts that were not"
    " read are unknown, neither fine nor broken."
)

Tool = Callable[..., str]


def build_server(*, project: Path, facts: Facts | None = None) -> MCPServer:
    """Build the server for the project in a folder and for this machine, or for the one that `facts` describe."""
    server = MCPServer("devkit", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING")

    def tool(function: Tool) -> Tool:
        return server.tool(annotations=_READS)(_bound_answer(function))

    @tool
    def doctor(codes: list[str] | None = None, trial: bool = False) -> str:
        """Diagnose the machine: the root causes of what stops GPU work, each with its fix.

        Args:
            codes: the checks to run, all by default.
            trial: also start containers without a network, and remove them, to see whether they get the GPUs.
        """
        return str(api.diagnose(facts, project=project, codes=codes or (), trial=trial))

    @tool
    def check_project() -> str:
        """Judge the project's dev container, Dockerfile, Compose and requirement files."""
        from devkit.doctor.registry import BY_CODE

        codes = [code for code in BY_CODE if code.startswith(_PROJECT_CHECKS)]
        return str(api.diagnose(facts, project=project, codes=codes))

    @tool
    def explain(text: str) -> str:
        """Name the cause of the error in a log and its fix, or explain a check by its code, such as DRV001."""
        return str(api.explain(text, facts))

    @tool
    def plan(
        driver: str | None = None,
        gpus: list[str] | None = None,
        torch: str | None = None,
        cuda: str | None = None,
        python: str | None = None,
        packages: list[str] | None = None,
        features: list[str] | None = None,
        for_project: bool = False,
    ) -> str:
        """Choose CUDA, torch, Python and image that fit, with reasons, for the machine or for a driver and GPUs.

        Args:
            driver: a driver version such as 580.95.05.
            gpus: names such as "RTX 4090".
            torch: the torch to use.
            cuda: the CUDA to use.
            python: the Python to use.
            packages: pins, as NAME==VERSION.
            features: needs such as bf16, fp8, flash-attn.
            for_project: respect the project's requirements, as they are written: nothing is downloaded.
        """
        described = facts if not (driver or gpus) else None
        answer = api.plan(
            described,
            project=project if for_project else None,
            resolve=False,
            driver=driver,
            gpus=gpus or (),
            torch=torch,
            cuda=cuda,
            python=python,
            pins=tuple(packages or ()),
            features=tuple(features or ()),
        )
        return str(answer)

    @tool
    def estimate(
        model: str,
        gpus: list[str] | None = None,
        inference: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> str:
        """Estimate the GPU memory of fine-tuning or inference, and say on which GPUs it fits.

        Args:
            model: a known name, such as llama-3.1-8b.
            gpus: names such as "RTX 4090"; the machine's own are judged, too.
            inference: generation instead of training.
            settings: such as {"method": "qlora", "sequence": 4096, "micro_batch": 2}.
        """
        return str(api.estimate_memory(model, gpus=gpus or (), facts=facts, inference=inference, **(settings or {})))

    @tool
    def preview_init() -> str:
        """Show the dev container files that `devkit init` would write for the project. Nothing is written."""
        command = [sys.executable, "-P", "-m", "devkit", "init", str(project), "--dry-run", "--no-resolve"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_DRY_RUN_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise ToolError(f"devkit init took more than {_DRY_RUN_S} s") from None
        return done.stdout or done.stderr

    @server.resource("devkit://checks/{code}", mime_type="text/plain")
    def check_page(code: str) -> str:
        """Explain a check: its object, why it matters, and its source."""
        explanation = api.explain(code)
        if explanation.check is None:
            raise ResourceError(f"no check has the code {code!r}")
        return str(explanation)

    return server


def serve_stdio(server: MCPServer) -> None:
    """Serve one client over standard input and output, until it closes them."""
    server.run("stdio")


def serve_http(server: MCPServer, *, port: int) -> None:
    """Serve clients of this machine alone over streamable HTTP at /mcp."""
    server.run("streamable-http", host="127.0.0.1", port=port, max_request_body_size=MAX_REQUEST_BYTES)


def _bound_answer(function: Tool) -> Tool:
    """Wrap a tool: a refused input becomes an error with its hint, and a long request or answer is cut off."""

    @wraps(function)
    def call(*values: object, **named: object) -> str:
        if len(json.dumps(named, default=str)) > MAX_REQUEST_BYTES:
            raise ToolError(f"a request may have at most {MAX_REQUEST_BYTES} bytes: send the end of the log")
        try:
            answer = function(*values, **named)
        except DevkitError as error:
            raise ToolError(f"{error}\n{error.hint}".strip()) from None
        if len(answer) <= MAX_ANSWER_CHARACTERS:
            return answer
        return f"{answer[:MAX_ANSWER_CHARACTERS]}\n… {len(answer) - MAX_ANSWER_CHARACTERS} characters more"

    return call
