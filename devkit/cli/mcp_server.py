"""The server for AI assistants: devkit's commands as tools of the Model Context Protocol.

The arguments of a tool are options of a command, with their types, choices and help. apply_fix alone writes: what
propose_fix or preview_init showed, and nothing else. Answers hold no secrets and no names of people and machines.
Source: https://modelcontextprotocol.io/specification/2025-11-25/server/tools
"""

import inspect
import json
import secrets
import sys
import tempfile
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import click
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Elicit, Resolve
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field

from devkit import api
from devkit.cli import devkit
from devkit.cli.documents import build_document_schema
from devkit.errors import DevkitError, ExitCode
from devkit.facts.model import Facts
from devkit.facts.secrets import redact_tokens
from devkit.release import __version__

MAX_REQUEST_BYTES = 1 << 20
MAX_ANSWER_CHARACTERS = 64 * 1024
"""An assistant reads every word of an answer; a report of 100 findings has half of this."""
MAX_PROPOSALS = 16
COMMAND_TIMEOUT_S = 60.0
_PROOF_TIMEOUT_S = 7200.0
"""A dev container may have to be built first; `devkit verify` itself limits the proof."""
_MAX_LINES = 10_000
_POLL_S = 0.05
_PLAIN = {"TERM": "dumb", "COLUMNS": str(api.WIDTH)}
"""The environment of commands whose text an assistant reads."""
_PROJECT_CHECKS = "PRJ"
_INSTRUCTIONS = (
    "devkit diagnoses GPU machines, containers and projects. Begin with doctor where something does not work, with explain"
    " where there is an error text, with plan for versions that fit, with estimate for GPU memory. To repair a project:"
    " check_project, propose_fix or preview_init, show the user the diff, apply_fix, check_project again. Facts that were"
    " not read are unknown, neither fine nor broken."
)
_TEXTS = {
    "dockerfile": ".devcontainer/Dockerfile",
    "compose": "compose.yaml",
    "devcontainer": ".devcontainer/devcontainer.json",
    "requirements": "requirements.txt",
}
"""Arguments of check_project -> the file that each stands for."""

Answer = CallToolResult
Text = Annotated[str | None, Field(description="The text of this file, to judge in place of the project's files.")]


class Confirmation(BaseModel):
    """The user's answer to a question before something is changed or started."""

    confirmed: bool = Field(description="Go on?")


def take_options(command: str, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a tool options of a command as arguments, None unless given."""
    params = _list_params(command)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(function).parameters.values()
        kept = [each for each in own if each.kind is not each.VAR_KEYWORD and each.name not in names]
        taken = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotate(params[name]))
            for name in names
        ]
        function.__signature__ = inspect.Signature([*kept, *taken], return_annotation=Answer)  # type: ignore[attr-defined]
        return function

    return decorate


def format_words(command: str, given: Mapping[str, Any]) -> list[str]:
    """Format arguments as the options of a command."""
    params, words = _list_params(command), list[str]()
    for name, value in given.items():
        if isinstance(value, bool):
            words += [max(params[name].opts, key=len)] if value else params[name].secondary_opts[:1]
        elif value is not None:
            values = value if isinstance(value, list) else [value]
            words += [f"{max(params[name].opts, key=len)}={each}" for each in values]
    return words


def _list_params(command: str) -> dict[str, click.Option]:
    found = devkit.get_command(click.Context(devkit), command)
    return {str(each.name): each for each in found.params if isinstance(each, click.Option)} if found else {}


def _annotate(option: click.Option) -> Any:  # noqa: ANN401 - a type for pydantic
    """Return the type of an option's value, with its help as the description."""
    kinds: dict[str, Any] = {"boolean": bool, "integer": int, "integer range": int, "float": float}
    kinds |= {"float range": float}
    kind = kinds.get(option.type.name, str)
    if isinstance(option.type, click.Choice):
        kind = Literal[tuple(option.type.choices)]
    return Annotated[(list[kind] if option.multiple else kind) | None, Field(description=option.help)]


def build_server(*, project: Path, facts_files: Sequence[Path] = ()) -> MCPServer:
    """Build the server for the project in a folder, on this machine or on the one that was saved in `facts_files`."""
    from devkit.probe.saved_facts import load_saved_facts

    facts = load_saved_facts(facts_files) if facts_files else None
    saved = [f"--facts={path.resolve()}" for path in facts_files]
    run = partial(run_command, project)
    proposals: OrderedDict[str, tuple[str, Callable[[], Awaitable[str]]]] = OrderedDict()
    tools: list[Tool] = []

    def tool(schema: str = "", *, is_reading: bool = True, is_local: bool = True) -> Callable[..., Callable[..., Any]]:
        def offer(function: Callable[..., Any]) -> Callable[..., Any]:
            hints = ToolAnnotations(
                read_only_hint=is_reading, destructive_hint=False, idempotent_hint=is_reading, open_world_hint=not is_local
            )
            made = Tool.from_function(_guard(function), annotations=hints)
            made.fn_metadata.arg_model.model_config["extra"] = "forbid"
            made.fn_metadata.arg_model.model_rebuild(force=True)
            made.parameters = made.fn_metadata.arg_model.model_json_schema()
            made.fn_metadata.output_schema = build_document_schema(schema) if schema else None
            tools.append(made)
            return function

        return offer

    def propose(text: str, document: dict[str, Any], diff: str, apply: Callable[[], Awaitable[str]]) -> Answer:
        """Answer with a token, by which the client may have the shown changes made."""
        token = secrets.token_hex(8)
        proposals[token] = diff, apply
        while len(proposals) > MAX_PROPOSALS:
            proposals.popitem(last=False)
        return _answer(f"{text}\n\nTo make these changes: apply_fix with token {token}", {**document, "token": token})

    def examine_project(folder: Path) -> api.Diagnosis:
        from devkit.doctor.registry import BY_CODE

        codes = [code for code in BY_CODE if code.startswith(_PROJECT_CHECKS)]
        return api.diagnose(_add_project(facts, folder) if facts else None, project=folder, codes=codes)

    @tool("devkit.doctor/1")
    @take_options("doctor", "only", "trial")
    def doctor(only: list[str] | None = None, trial: bool | None = None) -> Answer:
        """Diagnose the machine: the root causes of what stops GPU work, each with its fix."""
        return _answer_diagnosis(api.diagnose(facts, project=project, codes=only or (), trial=bool(trial)))

    @tool("devkit.doctor/1")
    def check_project(
        dockerfile: Text = None, compose: Text = None, devcontainer: Text = None, requirements: Text = None
    ) -> Answer:
        """Judge the project's dev container, Dockerfile, Compose and requirement files, or the texts that you give."""
        given = {"dockerfile": dockerfile, "compose": compose, "devcontainer": devcontainer, "requirements": requirements}
        texts = {_TEXTS[name]: text for name, text in given.items() if text is not None}
        if not texts:
            return _answer_diagnosis(examine_project(project))
        if dockerfile is not None and devcontainer is None:
            texts[_TEXTS["devcontainer"]] = '{"build": {"dockerfile": "Dockerfile"}}'
        with tempfile.TemporaryDirectory() as folder:
            for path, text in texts.items():
                Path(folder, path).parent.mkdir(exist_ok=True)
                Path(folder, path).write_text(text, encoding="utf-8", errors="replace")
            return _answer_diagnosis(examine_project(Path(folder)))

    @tool("devkit.explain/1")
    def explain(text: Annotated[str, Field(description="A log or an error text, or the code of a check: DRV001.")]) -> Answer:
        """Name the cause of the error in a log and its fix, or explain a check by its code, such as DRV001."""
        explanation = api.explain(text, facts)
        return _answer(str(explanation), explanation.to_document())

    @tool("devkit.plan/1")
    @take_options("plan", "driver", "gpus", "vendor", "torch", "cuda", "python", "image", "pins", "features", "as_of")
    async def plan(
        for_project: Annotated[bool, Field(description="Respect the project's requirements as they are written.")] = False,
        **given: Any,  # noqa: ANN401 - one for each option
    ) -> Answer:
        """Choose CUDA, torch, Python and image that fit, with reasons, for the machine or for a driver and GPUs."""
        words = [*format_words("plan", given), *([] if given["driver"] or given["gpus"] else saved)]
        return _answer(*await ask(run, "plan", "--no-resolve", *words, *([] if for_project else ["--ignore-dependencies"])))

    @tool("devkit.estimate/1")
    @take_options("estimate", "gpus", *_ESTIMATE_OPTIONS)
    async def estimate(
        model: Annotated[str, Field(description="A known name, such as llama-3.1-8b.")],
        **given: Any,  # noqa: ANN401 - one for each option
    ) -> Answer:
        """Estimate the GPU memory of fine-tuning or inference, and say on which GPUs it fits, the machine's included."""
        from devkit.estimate.model_catalog import find_model

        if find_model(model) is None:  # the command would read a file or ask the hub
            api.estimate_memory(model)
        return _answer(*await ask(run, "estimate", model, *saved, *format_words("estimate", given)))

    @tool("devkit.init/1")
    @take_options("init", *_INIT_OPTIONS)
    async def preview_init(**given: Any) -> Answer:  # noqa: ANN401 - one for each option
        """Show the dev container files that `devkit init` would write or edit, with their contents. Writes nothing."""
        machine = [] if given["driver"] or given["gpus"] else saved
        words = ["init", ".", "--no-resolve", *machine, *format_words("init", given)]
        text, document = await ask(run, *words, "--dry-run", "--diff")

        async def write() -> str:
            done = await run([*words, "--yes", "--expect", document["digest"]])
            return _require_answer(*done)

        if document["verdict"] != "would-write":
            return _answer(text, document)
        return propose(text, document, _join_diffs(document["files"]), write)

    @tool()
    def propose_fix() -> Answer:
        """Show what `devkit doctor --fix` would change in the project's files, as a diff. Writes nothing."""
        from devkit.render.changes import write_changes
        from devkit.render.repair import compute_project_changes

        changes, refused = compute_project_changes(examine_project(project).report, project)
        files = [{"path": each.path, "diff": each.format_diff()} for each in changes]
        document = {"files": files, "refused": refused}
        if not changes:
            return _answer("\n".join(("No change of a file repairs what is found.", *refused)), document)

        async def write() -> str:
            await anyio.to_thread.run_sync(write_changes, project, changes)
            return "\n".join(f"changed {each.path}" for each in changes)

        diff = _join_diffs(files)
        return propose("\n".join((diff, *refused)), document, diff, write)

    def ask_to_apply(token: str, ctx: Context) -> Confirmation | Elicit[Confirmation]:
        diff = proposals[token][0][:MAX_ANSWER_CHARACTERS] if token in proposals else ""
        return _ask(f"Change these files of {project.name}?\n{diff}", ctx, is_needed=bool(diff))

    @tool(is_reading=False)
    async def apply_fix(
        token: Annotated[str, Field(description="The token that propose_fix or preview_init answered.")],
        answer: Annotated[Confirmation, Resolve(ask_to_apply)],
    ) -> Answer:
        """Make exactly the changes that propose_fix or preview_init showed, after the user agrees.

        Refused if a file or the plan changed since.
        """
        if token not in proposals:
            raise ToolError("no proposal has this token. Call propose_fix or preview_init again")
        if not answer.confirmed:
            raise ToolError("the user did not agree: nothing was changed")
        return _answer(await proposals.pop(token)[1](), {"verdict": "written"})

    def ask_to_prove(here: bool | None, ctx: Context) -> Confirmation | Elicit[Confirmation]:
        where = "in this machine's environment" if here else "in its dev container, and run what its files name"
        return _ask(f"Prove {project.name} {where}?", ctx, is_needed=True)

    @tool("devkit.verify/1", is_reading=False, is_local=False)
    @take_options("verify", "here", "timeout_s")
    async def verify(
        ctx: Context,
        answer: Annotated[Confirmation, Resolve(ask_to_prove)],
        depth: Annotated[
            Literal["quick", "standard", "full"], Field(description="How much to prove; quick is a short LoRA run.")
        ] = "standard",
        **given: Any,  # noqa: ANN401 - one for each option
    ) -> Answer:
        """Prove that fine-tuning and generation work. Takes minutes, reports progress, and can be canceled."""
        if not answer.confirmed:
            raise ToolError("the user did not agree: nothing was started")
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            words = ["verify", ".", f"--{depth}", *format_words("verify", given), f"--output={report}"]
            done = await run(words, timeout_s=_PROOF_TIMEOUT_S, report=ctx.report_progress)
            return _answer(_require_answer(*done), json.loads(report.read_bytes()))

    server = MCPServer("devkit", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING", tools=tools)

    @server.resource("devkit://checks/{code}", mime_type="text/plain")
    def check_page(code: str) -> str:
        """Explain a check: its object, why it matters, and its source."""
        explanation = api.explain(code)
        if explanation.check is None:
            raise ResourceError(f"no check has the code {code!r}")
        return str(explanation)

    return server


_INIT_OPTIONS = (
    *("driver", "gpus", "vendor", "torch", "cuda", "python", "image", "pins", "features", "extras", "groups", "apt"),
    *("with_imports", "develop", "force"),
)
_ESTIMATE_OPTIONS = tuple(
    name for name in _list_params("estimate") if name not in ("gpus", "facts_files", "shape", "assignments", "why", "as_json")
)


def serve_stdio(server: MCPServer) -> None:
    """Serve one client over standard input and output, until it closes them."""
    server.run("stdio")


def serve_http(server: MCPServer, *, port: int) -> None:
    """Serve clients of this machine alone over streamable HTTP at /mcp."""
    server.run("streamable-http", host="127.0.0.1", port=port, max_request_body_size=MAX_REQUEST_BYTES)


async def run_command(
    folder: Path,
    words: Sequence[str],
    *,
    timeout_s: float = COMMAND_TIMEOUT_S,
    report: Callable[..., Awaitable[None]] | None = None,
) -> tuple[int, str, str]:
    """Run a command of devkit in a folder. Returns its exit code, output and errors; `report` gets each line of errors.

    However this ends, canceled by the client included, the command and its group are ended.
    """
    from devkit.verify.process import KILL_GRACE_S, read_lines_in_background, start_process, terminate_group

    out, log = deque[str](maxlen=_MAX_LINES), deque[str](maxlen=_MAX_LINES)
    waiting = deque[str]()
    try:
        process = start_process([sys.executable, "-P", "-m", "devkit", *words], folder, _PLAIN)
    except (OSError, ValueError) as error:  # a NUL, or more than the system passes on
        raise ToolError(f"devkit {words[0]} does not take these arguments: {error}") from None
    streams = ((process.stdout, (out,)), (process.stderr, (log, waiting) if report else (log,)))
    readers = [read_lines_in_background(stream, partial(_append, lines)) for stream, lines in streams]
    try:
        with anyio.fail_after(timeout_s):
            reported = 0
            while process.poll() is None:
                await anyio.sleep(_POLL_S)
                while waiting and report:
                    reported += 1
                    await report(reported, None, redact_tokens(waiting.popleft()))
    except TimeoutError:
        raise ToolError(f"devkit {words[0]} took more than {timeout_s:.0f} s") from None
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(terminate_group, process)
            for reader in readers:
                await anyio.to_thread.run_sync(reader.join, KILL_GRACE_S)
    return process.returncode, "\n".join(out), "\n".join(log)


def _append(lines: Sequence[deque[str]], line: str) -> None:
    for each in lines:
        each.append(line)


async def ask(run: Callable[..., Awaitable[tuple[int, str, str]]], *words: str) -> tuple[str, dict[str, Any]]:
    """Return the answer of a command that changes nothing, as text and as its JSON document."""
    text = _require_answer(*await run(words))
    document: dict[str, Any] = json.loads(_require_answer(*await run([*words, "--json"])))
    return text, document


def _require_answer(code: int, out: str, log: str) -> str:
    """Return a command's output. Raises ToolError for one that was given something wrong."""
    if code not in (ExitCode.DONE, ExitCode.ANSWER_IS_NO):
        raise ToolError(redact_tokens(log[-MAX_ANSWER_CHARACTERS:]))
    return out or log


def _guard(function: Callable[..., Any]) -> Callable[..., Awaitable[Answer]]:
    """Wrap a tool: input that is too long or refused becomes an error with its hint."""

    @wraps(function)
    async def call(*values: object, **named: object) -> Answer:
        if len(json.dumps(named, default=str)) > MAX_REQUEST_BYTES:
            raise ToolError(f"a request may have at most {MAX_REQUEST_BYTES} bytes: send the end of the log")
        try:
            if inspect.iscoroutinefunction(function):
                answer: Answer = await function(*values, **named)
                return answer
            return await anyio.to_thread.run_sync(partial(function, *values, **named))
        except DevkitError as error:
            raise ToolError(f"{error}\n{error.hint}".strip()) from None

    return call


def _ask(question: str, ctx: Context, *, is_needed: bool) -> Confirmation | Elicit[Confirmation]:
    """Ask the user if the client can; otherwise the client's own approval of the call counts."""
    can = ctx.client_capabilities.elicitation if ctx.client_capabilities else None
    if is_needed and can and (can.form is not None or can.url is None):
        return Elicit(question, Confirmation)
    return Confirmation(confirmed=True)


def _answer(text: str, document: Mapping[str, Any]) -> Answer:
    """Build an answer of a text, cut off where it is long, and a document."""
    if len(text) > MAX_ANSWER_CHARACTERS:
        text = f"{text[:MAX_ANSWER_CHARACTERS]}\n… {len(text) - MAX_ANSWER_CHARACTERS} characters more"
    return CallToolResult(content=[TextContent(text=text)], structured_content=dict(document))


def _answer_diagnosis(diagnosis: api.Diagnosis) -> Answer:
    document = diagnosis.to_document()
    # Checks that passed or were skipped would be most of what an assistant reads.
    document["outcomes"] = [each for each in document["outcomes"] if each["status"] not in ("passed", "skipped")]
    return _answer(str(diagnosis), document)


def _add_project(facts: Facts, folder: Path) -> Facts:
    """Return the facts of a saved machine with a project on this one."""
    from devkit.probe.gather import gather_facts
    from devkit.probe.host import LocalHost

    return replace(facts, project=gather_facts(LocalHost(), only=("project",), project=str(folder)).project)


def _join_diffs(files: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(each["diff"] for each in files if each.get("diff"))
