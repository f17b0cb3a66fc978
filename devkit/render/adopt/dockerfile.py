"""Changes of a Dockerfile that somebody wrote: each touches the words that it must, every other byte stays."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from devkit.probe.dockerfile import instructions
from devkit.render.adopt.shell_words import Installation, Word, installations
from devkit.render.splice import Cut, newline_of, spliced
from devkit.solver.model import Plan

_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<extras>\[[^\]]*\])?(?:==(?P<version>[\w.+!-]+))?")
_TORCH_URL = re.compile(r"https?://download\.pytorch\.org/whl\S*")
_FAMILY = ("torch", "torchvision", "torchaudio")
_COMPILER = "# Triton, which torch.compile uses, compiles while a program runs."
_USER = "# Not root: what is written into the workspace stays yours. The editor gives this user your ids."


@dataclass(frozen=True)
class Versions:
    """What a plan pins: its packages by name, torch's wheel index and variant.

    `before` is what an earlier plan pinned: with it, nothing else is touched.
    """

    packages: Mapping[str, str]
    torch_index: str
    variant: str
    before: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> "Versions":
        """Those of a plan."""
        return cls(dict(plan.packages), plan.torch_index, plan.variant)

    def pinned(self, text: str, *, with_variant: bool) -> str | None:
        """A requirement with the plan's version; None for one that the plan does not know or somebody else pinned."""
        found = _PACKAGE.fullmatch(text)
        name = re.sub(r"[-_.]+", "-", found["name"]).lower() if found else ""
        if found is None or name not in self.packages:
            return None
        version = (found["version"] or "").partition("+")[0]
        is_ours = version == self.before.get(name) if self.before else not version
        label = f"+{self.variant}" if name == "torch" and with_variant else ""
        return f"{found['name']}{found['extras'] or ''}=={self.packages[name]}{label}" if is_ours else None


def with_base_image(text: str, *, line: int, image: str, environment: str = "") -> str:
    """The text with another image behind the FROM of that line, and variables that its old image set."""
    start, end = _line(text, line)
    found = re.compile(r"(\s*FROM\s+(?:--\S+\s+)*)(\S+)", re.IGNORECASE).match(text, start, end)
    if found is None:
        return text
    cuts = [Cut(found.start(2), found.end(2), image)]
    if environment:
        cuts.append(Cut(end, end, f"{newline_of(text)}ENV {environment}"))
    return spliced(text, cuts)


def with_versions(text: str, versions: Versions, *, files: frozenset[str] = frozenset()) -> str:
    """The text with the plan's versions in every pip and uv command, and torch's index where torch is installed.

    `files` are the names of requirement files that hold torch.
    """
    cuts: list[Cut] = []
    for start, end in _runs(text):
        for command in installations(text, start, end):
            cuts += _of_command(command, versions, files)
    return spliced(text, cuts)


def is_dockerfile(text: str) -> bool:
    """Whether the text is a Dockerfile's, which may have any name."""
    return any(one.keyword == "FROM" for one in instructions(text))


def with_requirement(text: str, *, line: int, versions: Versions) -> str:
    """A requirement file with the plan's version of the package on that line; its comment and marker stay."""
    start, end = _line(text, line)
    found = re.compile(r"\s*([\w.-]+(?:\[[^\]]*\])?(?:==[\w.+!-]+)?)(?=\s*(?:[;#\\]|$))").match(text[:end], start)
    pinned = versions.pinned(found[1], with_variant=False) if found else None
    return spliced(text, [Cut(found.start(1), found.end(1), pinned)]) if found and pinned else text


def with_requirements(text: str, versions: Versions) -> str:
    """A requirement file with the plan's version wherever `Versions.pinned` has one."""
    for line in range(1, text.count("\n") + 2):
        text = with_requirement(text, line=line, versions=versions)
    return text


def with_compiler(text: str, *, after: int, has_own_python: bool) -> str:
    """The text with a C compiler, before Python packages are installed in the stage whose FROM is on line `after`."""
    headers = "" if has_own_python else " python3-dev"
    packages = f"gcc libc6-dev{headers}"
    install = f"apt-get install -y --no-install-recommends {packages}"
    install = f"RUN apt-get update && {install} && rm -rf /var/lib/apt/lists/*"
    return _with_block(text, _before_packages(text, after), [_COMPILER, install])


def with_user(text: str, *, has_ubuntu: bool) -> str:
    """The text with an ordinary user at its end, before what the container runs. `has_ubuntu`: its image has one."""
    make = [] if has_ubuntu else ["RUN useradd --create-home --shell /bin/bash --uid 1000 dev"]
    last_run = [one.line for one in instructions(text) if one.keyword in ("CMD", "ENTRYPOINT")]
    from_lines = [one.line for one in instructions(text) if one.keyword == "FROM"]
    places = [line for line in last_run if line > max(from_lines, default=0)]
    block = [_USER, *make, f"USER {'ubuntu' if has_ubuntu else 'dev'}"]
    return _with_block(text, min(places) if places else None, block)


def _of_command(command: Installation, versions: Versions, files: frozenset[str]) -> Iterator[Cut]:
    installs_torch = any(name.rpartition("/")[2] in files for name in command.files)
    for word in command.packages:
        pinned = versions.pinned(word.plain, with_variant=command.tool == "pip")
        if pinned is not None:
            installs_torch = installs_torch or pinned.startswith("torch==")
            if pinned != word.plain:
                yield Cut(word.start, word.end, _quoted_as(word, pinned))
    if installs_torch:
        yield from _index(command, versions)


def _index(command: Installation, versions: Versions) -> Iterator[Cut]:
    for name, value in command.options:
        place = value or name
        url = _TORCH_URL.search(place.text)
        if url is not None:
            if url[0].strip("\"'") != versions.torch_index:
                yield Cut(place.start, place.end, place.text.replace(url[0].strip("\"'"), versions.torch_index))
            return
        if name.plain.startswith("--torch-backend"):
            is_joined = "=" in name.plain
            text = f"--torch-backend={versions.variant}" if is_joined else versions.variant
            yield Cut(place.start, place.end, text)
            return
    is_uv = command.tool == "uv"
    added = f"--torch-backend={versions.variant}" if is_uv else f"--extra-index-url {versions.torch_index}"
    yield Cut(command.verb.end, command.verb.end, f" {added}")


def _quoted_as(word: Word, text: str) -> str:
    quote = word.text[0] if word.text[0] in "\"'" and word.text[-1] == word.text[0] else ""
    return f"{quote}{text}{quote}"


def _runs(text: str) -> Iterator[tuple[int, int]]:
    """Where each RUN begins and the next instruction begins."""
    found = list(instructions(text))
    for place, one in enumerate(found):
        if one.keyword == "RUN":
            following = found[place + 1].line if place + 1 < len(found) else None
            yield _line(text, one.line)[0], _line(text, following)[0] if following else len(text)


def _before_packages(text: str, after: int) -> int | None:
    for one in instructions(text):
        installs = one.keyword == "RUN" and any(installations(f"{one.text}\n{one.heredoc}", 0, 1 << 20))
        if one.line > after and (installs or one.keyword in ("USER", "CMD", "ENTRYPOINT")):
            return one.line
    return None


def _with_block(text: str, line: int | None, block: list[str]) -> str:
    """The text with lines of devkit's before that line and the comments that belong to it, or at its end."""
    newline = newline_of(text)
    shown = newline.join([*block, ""])
    if line is None:
        gap = "" if not text or text.endswith("\n") else newline
        return f"{text}{gap}{newline}{shown}"
    lines = text.splitlines(keepends=True)
    place = line - 1
    while place > 0 and lines[place - 1].lstrip().startswith("#"):
        place -= 1
    gap = newline if place and lines[place - 1].strip() else ""
    return "".join([*lines[:place], gap, shown, newline, *lines[place:]])


def _line(text: str, line: int) -> tuple[int, int]:
    """Where a line begins and where it ends, before its line end."""
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: line - 1]))
    return start, start + len(lines[line - 1].rstrip("\r\n")) if line <= len(lines) else start
