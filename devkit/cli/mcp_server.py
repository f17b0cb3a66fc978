"""The server for AI assistants: devkit's commands as tools of the Model Context Protocol.

Arguments are options of the commands, with their types, choices and help. apply_fix alone changes files, and only as
propose_fix or preview_init showed. Answers hold no secrets and no names of people and machines.
Source: https://modelcontextprotocol.io/specification/2025-11-25/server/tools
"""

import inspect
import itertools
import json
import secrets
import sys
import tempfile
import threading
from collections import deque
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
from devkit.doctor.registry import BY_CODE
from devkit.errors import DevkitError, ExitCode
from devkit.estimate.shape import find_model
from devkit.facts.model import Facts
from devkit.facts.secrets import redact_tokens
from devkit.probe.host import LocalHost
from devkit.release import __version__
from devkit.render.changes import write_changes
from devkit.render.files import DEVCONTAINER_FOLDER

MAX_REQUEST_BYTES = 1 << 20
MAX_ANSWER_CHARACTERS = 64 * 1024
"""An assistant reads every word of an answer; a report of 100 findings has half of this."""
MAX_WORD_CHARACTERS = 100_000
"""Of an argument of a command; Linux passes on 128 KiB."""
MAX_PROPOSALS = 16
_COMMAND_TIMEOUT_S = 60.0
_PROOF_TIMEOUT_S = 7200.0
"""A dev container may have to be built first; `devkit verify` itself limits the proof."""
_POLL_S = 0.05
_PLAIN = {"TERM": "dumb", "COLUMNS": str(api.WIDTH)}
_INSTRUCTIONS = (
    "devkit diagnoses GPU machines, containers and projects. Begin with doctor if something does not work, with explain if "
    "you have an error text, with plan for versions that fit, or with estimate for GPU memory. To repair a project:"
    " check_project, propose_fix or preview_init, show the user the diff, apply_fix, check_project. Facts that were not"
    " read are unknown, neither fine nor broken."
)

_NOT_FOR_ESTIMATES = ("facts_files", "shape", "assignments", "why", "as_json")
_FOR_PREVIEWS = (
    *("driver", "gpus", "vendor", "torch", "cuda", "python", "image", "pins", "features", "extras", "groups"),
    *("apt", "compose", "service", "with_imports", "develop", "force"),
)
"""Options of init that name no file outside the project and allow no index."""

Answer = CallToolResult
Text = Annotated[str | None, Field(description="The text of this file, to check instead of the project's files.")]


def take_options(command: str, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a tool options of a command as arguments, None unless given."""
    params = _list_options(command)

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
    params, words = _list_options(command), list[str]()
    for name, value in given.items():
        if isinstance(value, bool):
            words += [max(params[name].opts, key=len)] if value else params[name].secondary_opts[:1]
        elif value is not None:
            values = value if isinstance(value, list) else [value]
            words += [f"{max(params[name].opts, key=len)}={each}" for each in values]
    return words


def _list_options(command: str) -> dict[str, click.Option]:
    found = devkit.get_command(click.Context(devkit), command)
    return {str(each.name): each for each in found.params if isinstance(each, click.Option)} if found else {}


def _annotate(option: click.Option) -> Any:
    """Return the type of an option's value, with its help as the description."""
    kinds = {click.types.BoolParamType: bool, click.types.IntParamType: int, click.types.FloatParamType: float}
    kind: Any = next((plain for own, plain in kinds.items() if isinstance(option.type, own)), str)
    if isinstance(option.type, click.Choice):
        kind = Literal[tuple(option.type.choices)]
    return Annotated[(list[kind] if option.multiple else kind) | None, Field(description=option.help)]


class Confirmation(BaseModel):
    """The user's answer to a question before something is changed or started."""

    confirmed: bool = Field(description="Go on?")


PROPOSALS: dict[str, tuple[str, Callable[[], Awaitable[str]]]] = {}
"""Token -> the diff that was shown, and what makes the changes; that raises an error if a file changed since."""


def ask_to_apply(token: str, ctx: Context) -> Confirmation | Elicit[Confirmation]:
    """Ask the user for a yes to the diff of a proposal."""
    diff, _ = PROPOSALS.get(token, ("", None))
    return _ask(diff and f"Change these files?\n{diff[:MAX_ANSWER_CHARACTERS]}", ctx)


def ask_to_prove(here: bool | None, ctx: Context) -> Confirmation | Elicit[Confirmation]:
    """Ask the user for a yes to a proof, which runs code of the project."""
    where = "on this machine" if here else "in the dev container that the project names"
    return _ask(f"Prove fine-tuning {where}?", ctx)


def _ask(question: str, ctx: Context) -> Confirmation | Elicit[Confirmation]:
    """Ask if the client can; otherwise the client's own approval of the call counts."""
    can = ctx.client_capabilities.elicitation if ctx.client_capabilities else None
    if question and can and (can.form is not None or can.url is None):
        return Elicit(question, Confirmation)
    return Confirmation(confirmed=True)


class Tools:
    """The tools for the project in a folder, on this machine or on the one that was saved in `facts_files`."""

    def __init__(self, project: Path, facts: Facts | None, facts_files: Sequence[Path]) -> None:
        self.project = project
        self.facts = facts
        self.saved = [f"--facts={path.resolve()}" for path in facts_files]

    @take_options("doctor", "only", "trial")
    def doctor(self, only: list[str] | None = None, trial: bool | None = None) -> Answer:
        """Diagnose the machine: the root causes of what stops GPU work, each with its fix."""
        return _answer_diagnosis(api.diagnose(self.facts, project=self.project, codes=only or (), trial=bool(trial)))

    def check_project(self, dockerfile: Text = None, compose: Text = None, devcontainer: Text = None) -> Answer:
        """Judge the project's dev container, Dockerfile, Compose and requirement files, or the texts that you give."""
        texts = {"Dockerfile": dockerfile, "docker-compose.yml": compose, "devcontainer.json": devcontainer}
        given = {name: text for name, text in texts.items() if text is not None}
        if not given:
            return _answer_diagnosis(self._examine(self.project))
        if dockerfile is not None:
            given.setdefault("devcontainer.json", '{"build": {"dockerfile": "Dockerfile"}}')
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, DEVCONTAINER_FOLDER).mkdir()
            for name, text in given.items():
                Path(folder, DEVCONTAINER_FOLDER, name).write_bytes(text.encode(errors="replace"))
            return _answer_diagnosis(self._examine(Path(folder)))

    def _examine(self, folder: Path) -> api.Diagnosis:
        """Judge a project of this machine on the machine that the server answers for."""
        from devkit.probe.gather import gather_facts

        facts = self.facts
        if facts is not None:
            read = gather_facts(LocalHost(), only=("project",), project=str(folder))
            facts = replace(facts, project=read.project)
        return api.diagnose(facts, project=folder, codes=[code for code in BY_CODE if code.startswith("PRJ")])

    def explain(self, text: Annotated[str, Field(description="A log, or a check's code.")]) -> Answer:
        """Name the cause of the error in a log and its fix, or explain a check by its code, such as DRV001."""
        explanation = api.explain(text, self.facts)
        return build_answer(str(explanation), explanation.to_document())

    @take_options("plan", "driver", "gpus", "vendor", "torch", "cuda", "python", "image", "pins", "features", "as_of")
    async def plan(
        self, for_project: Annotated[bool, Field(description="Respect its requirements.")] = False, **given: Any
    ) -> Answer:
        """Choose CUDA, torch, Python and image that fit, with reasons, for the machine or for a driver and GPUs."""
        words = ["plan", "--no-resolve", *self._name_machine(given), *format_words("plan", given)]
        return build_answer(*await self._ask_command(*words, *([] if for_project else ["--ignore-dependencies"])))

    @take_options("estimate", *(name for name in _list_options("estimate") if name not in _NOT_FOR_ESTIMATES))
    async def estimate(
        self, model: Annotated[str, Field(description="A known name, such as llama-3.1-8b.")], **given: Any
    ) -> Answer:
        """Estimate the GPU memory of fine-tuning or inference, and say on which GPUs it fits, the machine's included."""

        if find_model(model) is None:  # the command would read a file or ask the hub
            api.estimate_memory(model)
        return build_answer(*await self._ask_command("estimate", model, *self.saved, *format_words("estimate", given)))

    @take_options("init", *_FOR_PREVIEWS)
    async def preview_init(self, **given: Any) -> Answer:
        """Show the dev container files that `devkit init` would write or edit, with their contents. Writes nothing."""
        words = ["init", "--no-resolve", *self._name_machine(given), *format_words("init", given)]
        text, document = await self._ask_command(*words, "--dry-run", "--diff")

        async def write() -> str:
            return await self._run(*words, "--yes", "--expect", document["digest"])

        if document["verdict"] != "would-write":
            return build_answer(text, document)
        return _propose(text, document, write)

    def propose_fix(self) -> Answer:
        """Show what `devkit doctor --fix` would change in the project's files, as a diff. Writes nothing."""
        from devkit.render.repair import compute_project_changes

        changes, refused = compute_project_changes(self._examine(self.project).report, self.project)

        async def write() -> str:
            await anyio.to_thread.run_sync(write_changes, self.project, changes)
            return "\n".join(f"changed {each.path}" for each in changes)

        files = [{"path": each.path, "diff": each.format_diff()} for each in changes]
        document = {"files": files, "refused": refused}
        if not changes:
            return build_answer("\n".join(("No file change fixes these findings.", *refused)), document)
        return _propose("\n".join((*(str(each["diff"]) for each in files), *refused)), document, write)

    async def apply_fix(
        self,
        token: Annotated[str, Field(description="The token from an answer of propose_fix or preview_init.")],
        answer: Annotated[Confirmation, Resolve(ask_to_apply)],
    ) -> Answer:
        """Make exactly the changes that were shown, after the user agrees. Refused if a file or the plan changed since."""
        if token not in PROPOSALS:
            raise ToolError("no proposal has this token. Call propose_fix or preview_init again")
        if not answer.confirmed:
            raise ToolError("the user did not agree: nothing was changed")
        _, apply = PROPOSALS.pop(token)
        return build_answer(await apply(), {"verdict": "written"})

    @take_options("verify", "here", "timeout_s")
    async def verify(
        self,
        ctx: Context,
        answer: Annotated[Confirmation, Resolve(ask_to_prove)],
        depth: Annotated[Literal["quick", "standard", "full"], Field(description="How much to prove.")] = "standard",
        **given: Any,
    ) -> Answer:
        """Prove that fine-tuning and generation work. Takes minutes, reports progress, and can be canceled."""
        if not answer.confirmed:
            raise ToolError("the user did not agree: nothing was started")
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            words = ["verify", f"--{depth}", *format_words("verify", given), f"--output={report}"]
            text = await self._run(*words, timeout_s=_PROOF_TIMEOUT_S, report=ctx.report_progress)
            return build_answer(text, json.loads(report.read_bytes()))

    def _name_machine(self, given: Mapping[str, Any]) -> list[str]:
        return [] if given["driver"] or given["gpus"] else self.saved

    async def _ask_command(self, *words: str) -> tuple[str, dict[str, Any]]:
        """Return the answer of a command that changes nothing, as text and as its JSON document."""
        return await self._run(*words), json.loads(await self._run(*words, "--json"))

    async def _run(
        self, *words: str, timeout_s: float = _COMMAND_TIMEOUT_S, report: Callable[..., Awaitable[None]] | None = None
    ) -> str:
        """Run a command of devkit in the project. Returns its output; `report` gets each line of its standard error.

        However this ends, canceled by the client included, the command has ended. Raises ToolError for wrong arguments.
        """
        from devkit.verify.process import run_streaming

        if any("\0" in word or len(word) > MAX_WORD_CHARACTERS for word in words):
            raise ToolError(f"an argument has a NUL or more than {MAX_WORD_CHARACTERS} characters")
        canceled, lines = threading.Event(), deque[str]()

        async def watch() -> None:
            try:
                for number in itertools.count(1):
                    while not (lines and report):
                        await anyio.sleep(_POLL_S)
                    await report(number, None, redact_tokens(lines.popleft()))
            finally:
                canceled.set()

        argv = [sys.executable, "-P", "-m", "devkit", *words]
        run = partial(run_streaming, argv, progress=lines.append, timeout_s=timeout_s, is_canceled=canceled.is_set)
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            done = await anyio.to_thread.run_sync(partial(run, folder=self.project, environment=_PLAIN))
            group.cancel_scope.cancel()
        if done.code not in (ExitCode.DONE, ExitCode.ANSWER_IS_NO):
            raise ToolError(redact_tokens("\n".join(done.log)) or f"devkit {words[0]} took more than {timeout_s:.0f} s")
        return done.out


_SCHEMAS = {
    **{"doctor": "devkit.doctor/1", "check_project": "devkit.doctor/1", "explain": "devkit.explain/1"},
    **{"plan": "devkit.plan/1", "estimate": "devkit.estimate/1", "preview_init": "devkit.init/1"},
    **{"propose_fix": "", "apply_fix": "", "verify": "devkit.verify/1"},
}
"""The tools, and the documents of their answers."""


def build_server(*, project: Path, facts: Facts | None = None, facts_files: Sequence[Path] = ()) -> MCPServer:
    """Build the server for the project in a folder, on this machine or on the one whose `facts` were saved in `facts_files`."""
    tools = Tools(project, facts, facts_files)
    made = [_build_tool(getattr(tools, name), schema) for name, schema in _SCHEMAS.items()]
    server = MCPServer("devkit", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING", tools=made)

    @server.resource("devkit://checks/{code}", mime_type="text/plain")
    def check_page(code: str) -> str:
        """Explain a check: its object, why it matters, and its source."""
        explanation = api.explain(code)
        if explanation.check is None:
            raise ResourceError(f"no check has the code {code!r}")
        return str(explanation)

    return server


def _build_tool(function: Callable[..., Any], schema: str) -> Tool:
    """Build a tool that refuses arguments which it does not have."""
    acts = function.__name__ in ("apply_fix", "verify")
    hints = ToolAnnotations(read_only_hint=not acts, open_world_hint=acts)
    tool = Tool.from_function(_guard(function), annotations=hints)
    arguments = tool.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    tool.parameters = arguments.model_json_schema()
    tool.fn_metadata.output_schema = build_document_schema(schema) if schema else None
    return tool


def _guard(function: Callable[..., Any]) -> Callable[..., Awaitable[Answer]]:
    """Wrap a tool: input that is too long or refused becomes an error with its hint."""

    @wraps(function)
    async def call(**named: object) -> Answer:
        if len(json.dumps(named, default=str)) > MAX_REQUEST_BYTES:
            raise ToolError(f"a request may have at most {MAX_REQUEST_BYTES} bytes: send the end of the log")
        try:
            found = await anyio.to_thread.run_sync(partial(function, **named))
            answer: Answer = await found if inspect.isawaitable(found) else found
            return answer
        except DevkitError as error:
            raise ToolError(f"{error}\n{error.hint}".strip()) from None

    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined] # of a method, without self
    return call


def build_answer(text: str, document: Mapping[str, Any]) -> Answer:
    """Build an answer of a text, cut off where it is long, and a document."""
    if len(text) > MAX_ANSWER_CHARACTERS:
        text = f"{text[:MAX_ANSWER_CHARACTERS]}\n… {len(text) - MAX_ANSWER_CHARACTERS} characters more"
    return CallToolResult(content=[TextContent(text=text)], structured_content=dict(document))


def _answer_diagnosis(diagnosis: api.Diagnosis) -> Answer:
    document = diagnosis.to_document()
    # Checks that passed or were skipped would be most of what an assistant reads.
    document["outcomes"] = [each for each in document["outcomes"] if each["status"] not in ("passed", "skipped")]
    return build_answer(str(diagnosis), document)


def _propose(text: str, document: Mapping[str, Any], apply: Callable[[], Awaitable[str]]) -> Answer:
    """Answer with a token, by which the client may have the shown changes made."""
    token = secrets.token_hex(8)
    while len(PROPOSALS) >= MAX_PROPOSALS:
        del PROPOSALS[next(iter(PROPOSALS))]
    PROPOSALS[token] = "\n".join(each.get("diff", "") for each in document["files"]), apply
    return build_answer(f"apply_fix with token {token} makes these changes.\n\n{text}", {**document, "token": token})
