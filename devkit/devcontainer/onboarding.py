"""What somebody who has just cloned a repository lacks, what they have done already, and the page that says so to others."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devkit.devcontainer.configuration import DevContainer
from devkit.doctor.model import Severity, Side
from devkit.doctor.report.report import Report
from devkit.doctor.thresholds import ENGINE_FREE_BYTES
from devkit.errors import DevkitError
from devkit.facts.model import Facts
from devkit.facts.store import InvalidFacts, parse_facts
from devkit.probe.host import NOT_FOUND, Host, LocalHost
from devkit.release import DOCUMENTATION_URL, INSTALL_COMMAND
from devkit.render.changes import FileChange, compute_change
from devkit.render.files import Artifact, read_file
from devkit.text import format_bytes, to_one_line
from devkit.user_folder import find_user_file

ONBOARDING_FILE = "ONBOARDING.md"
_SAVE_FACTS = 'f=$(mktemp) && devkit doctor --save-facts "$f" >&2; cat "$f"; rm -f "$f"'
EDITOR_EXTENSION = "ms-vscode-remote.remote-containers"
_EDITOR_DEADLINE_S = 10.0
_TOPICS = (
    ("container engine", ("ENG",)),
    ("GPU driver", ("DRV", "GPU", "WSL")),
    ("GPU in containers", ("CTK", "CDI")),
    ("disk", ("STO",)),
    ("model hub", ("HUB",)),
    ("project", ("PRJ",)),
)
"""What to see to, in this order: each needs the one before it. A topic has the prefixes of its checks."""


@dataclass(frozen=True)
class Need:
    """Something that this machine lacks: what, why, and the commands for it.

    `stops` is True where the dev container cannot start without it.
    """

    topic: str
    message: str
    summary: str
    commands: tuple[str, ...] = ()
    where: str = Side.HOST.value
    needs_root: bool = False
    stops: bool = False
    code: str = ""


def list_needs(report: Report) -> Iterator[Need]:
    """Yield what the doctor found that is to be done, in the order in which to do it."""
    for topic, prefixes in _TOPICS:
        for shown in report.roots:
            finding, code = shown.finding, shown.check.code
            is_serious = finding.severity is not Severity.NOTE and not finding.seen_in
            if code.startswith(prefixes) and is_serious:
                fix, is_error = finding.fix, finding.severity is Severity.ERROR
                stops = code == "ENG001" or (code.startswith(("ENG", "PRJ011")) and is_error)
                commands = fix.commands or tuple(filter(None, (fix.docs,)))
                yield Need(topic, finding.message, fix.summary, commands, fix.where.value, fix.root, stops, code)


def read_over_ssh(host: Host, url: str) -> Facts:
    """Read the facts of a remote engine's machine by the devkit there. Raises DevkitError where that cannot be had."""
    if not url.startswith("ssh://"):
        raise DevkitError(f"it is reached by {url.partition(':')[0]}, and not by ssh", "Run devkit doctor there.")
    machine = "ssh://" + url.removeprefix("ssh://").partition("/")[0]
    done = host.run(["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "--", machine, _SAVE_FACTS], deadline_s=60)
    try:
        return parse_facts(done.out)
    except InvalidFacts:
        said = to_one_line(done.err) or f"the command ended with {done.code}"
        raise DevkitError(f"no devkit answers there: {said}", f"Install it there: {INSTALL_COMMAND}") from None


def find_editor_need(host: Host) -> Need | None:
    """Return what VS Code lacks to open dev containers; None where it has it, or is not installed."""
    done = host.run(["code", "--list-extensions"], deadline_s=_EDITOR_DEADLINE_S)
    if done.code == NOT_FOUND or done.code != 0 or EDITOR_EXTENSION in done.out.lower().split():
        return None
    return Need(
        "editor",
        "VS Code lacks the extension that opens dev containers",
        "Install it.",
        (f"code --install-extension {EDITOR_EXTENSION}",),
    )


@dataclass
class Progress:
    """The steps done on this machine for one dev container: step -> the image that it was done with, and the result."""

    file: Path | None
    done: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def load(cls, container: DevContainer) -> "Progress":
        """Load what earlier runs noted."""
        named = find_user_file(f"containers/{container.key}.json")
        file = Path(named) if named else None
        try:
            found = json.loads(LocalHost().read(named) or "{}") if named else {}
        except ValueError:
            found = {}
        return cls(file, {str(name): each for name, each in found.items()} if isinstance(found, dict) else {})

    def find(self, step: str, image_id: str) -> str | None:
        """Return the result of a step that was done with this image; None where it is to be done."""
        noted: Mapping[str, Any] = self.done.get(step) or {}
        return str(noted.get("result", "")) if noted.get("image") == image_id else None

    def note(self, step: str, image_id: str, result: str) -> None:
        """Note that a step was done; a folder that cannot be written only costs the memory of it."""
        self.done[step] = {"image": image_id, "result": result}
        if self.file is None:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps(self.done, indent=1) + "\n", encoding="utf-8")
        except OSError:
            return


@dataclass(frozen=True)
class OnboardingPage:
    """The content of the page about one project: "" and () for what it does not say."""

    name: str
    driver: str
    gpu_memory_bytes: int
    model: str
    needs_token: bool
    training_command: str


_BEGIN = re.compile(r"<!-- devkit onboard: begin ([0-9a-f]{12})[^>]*-->\n")
_END = "<!-- devkit onboard: end -->\n"


def render_page(page: OnboardingPage) -> str:
    """Render the part of ONBOARDING.md that devkit writes."""
    lines = [f"# Start working on {page.name}", ""]
    lines += [
        "The project runs in a dev container. This is what a machine needs, and the way to the first training step.",
        "",
    ]
    lines += ["## What the machine needs", "", *(f"- {each}" for each in _list_requirements(page)), ""]
    lines += [
        "## The short way",
        "",
        "With [devkit](" + DOCUMENTATION_URL + f") (`{INSTALL_COMMAND}` in a clone of it):",
        "",
    ]
    lines += _format_block("devkit onboard")
    lines += [
        "It says what this machine lacks, with the command for each, then starts the dev container and proves that training"
    ]
    lines += ["works in it. Run it again at any time: it keeps what was done.", ""]
    lines += ["## Step by step", ""]
    lines += _format_block("devkit doctor --project .", "devkit up", "devkit verify", page.training_command)
    lines += ['Or open the folder in VS Code and choose "Dev Containers: Reopen in Container".', ""]
    lines += ["## Every day", ""]
    lines += _format_block("devkit up", "devkit shell", "devkit run -- COMMAND", "devkit down")
    return "\n".join(lines)


def _list_requirements(page: OnboardingPage) -> Iterator[str]:
    yield "Docker with Compose, or Podman with podman-compose"
    yield f"{format_bytes(ENGINE_FREE_BYTES.value)} of free disk space for images"
    if page.driver:
        yield f"for the GPU: an NVIDIA driver, {page.driver} or newer, and the NVIDIA Container Toolkit; without a GPU it starts on the CPU"
    if page.gpu_memory_bytes:
        yield f"to train {page.model}: a GPU with {format_bytes(page.gpu_memory_bytes)} of memory"
    if page.needs_token:
        yield "for gated models: a token of the model hub, stored by `hf auth login`"
    yield f"for VS Code: the extension `{EDITOR_EXTENSION}`"


def _format_block(*commands: str) -> list[str]:
    return ["```sh", *filter(None, commands), "```", ""]


def compute_page_change(root: Path, page: OnboardingPage, *, force: bool) -> FileChange:
    """Compute the change of ONBOARDING.md: devkit's part of it, between its marks, and nothing else.

    Raises:
        DevkitError: for a file without the marks, and for a part that was edited.
    """
    body = render_page(page)
    part = f"<!-- devkit onboard: begin {_hash(body)}; written by devkit onboard --write -->\n{body}{_END}"
    before = read_file(root, ONBOARDING_FILE)
    if before is None:
        return compute_change(root, Artifact.from_text(ONBOARDING_FILE, part))
    text = before.decode(errors="surrogateescape").replace("\r\n", "\n")
    begin, end = _BEGIN.search(text), text.find(_END)
    if begin is None or end < begin.end():
        if not force:
            raise DevkitError(
                f"{ONBOARDING_FILE} is there, and devkit did not write it",
                "Move it away, or pass --force to have devkit's part put before it.",
            )
        return _replace(root, part + "\n" + text)
    if _hash(text[begin.end() : end]) != begin[1] and not force:
        raise DevkitError(
            f"{ONBOARDING_FILE} was edited between devkit's marks",
            "Move your text outside of the marks, or pass --force to lose it.",
        )
    return _replace(root, text[: begin.start()] + part + text[end + len(_END) :])


def _replace(root: Path, text: str) -> FileChange:
    return compute_change(root, Artifact(ONBOARDING_FILE, text.encode(errors="surrogateescape")))


def _hash(body: str) -> str:
    return hashlib.sha256(body.encode(errors="surrogateescape")).hexdigest()[:12]


def format_needs(needs: Sequence[Need]) -> list[str]:
    """Format what is to be done, numbered, each with its commands on lines of their own."""
    lines = []
    for number, need in enumerate(needs, 1):
        code = f" ({need.code})" if need.code else ""
        lines.append(f"{number}. {need.topic}: {need.message}{code}")
        root = ", as root" if need.needs_root else ""
        lines.append(f"   {need.summary} (on the {need.where}{root})")
        lines += [f"       {command}" for command in need.commands]
    return lines
