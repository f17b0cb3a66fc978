"""The shell commands of a project's guides, scripts and Makefile, each with what it means there.

Each command has the folder that `cd` leads to. A command for another machine or purpose, or of a second way to the same end,
is listed with the reason why it is not followed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice, pairwise

from devkit.compat.specifiers import canonicalize_name
from devkit.formats.shell import (
    REQUIREMENT_FILE_OPTIONS,
    PackageInstall,
    ShellCommand,
    find_package_install,
    parse_commands,
)
from devkit.probe.dependencies.requirements import is_local_path
from devkit.probe.dependencies.setup_py import SETUP_PY
from devkit.probe.project.files import ProjectFiles

MAKEFILE = "Makefile"
MAX_SCRIPT_COMMANDS = 200
MAX_DEPTH = 3
"""Of scripts that run one another."""
_GUIDE = re.compile(r"(?i)(?:readme|install(?:ation)?|get(?:ting)?[_-]?started)(?:\.(?:md|rst|txt))?")
_SCRIPT = re.compile(r"(?i)(?:[\w-]*[_-])?(?:setup|install|build|prepare|env)[\w-]*\.sh")
_FOLDERS = ("", "docs/", "doc/")
_OF_ARCHIVE = re.compile("-(?:main|master)$")
"""What GitHub adds to the folder in an archive of a branch."""
_REMOTE = re.compile(r"(?m)^\[remote [^\n\[]*\n(?:\s+[^\n\[]*\n)*?\s+url *= *\S*[/:]([^\s/:]+?)(?:\.git)?/?$")
"""In a clone's .git/config."""
_OWN_NAME = re.compile(r"""\bname\s*=\s*["']([\w.-]+)""")

# The parts of a guide.
_FENCE = re.compile(r"[ \t>]*(?:```|~~~)[^`]*")
_HEADING = re.compile(
    r"(?P<marks>#{1,6})[ \t]+(?P<words>.+)|[ \t]*<(?:h(?P<level>\d)|summary)[^>]{0,99}>(?P<html>[^<]+)</(?:h\d|summary)>"
)
CAPTION = re.compile(r"[-*\s]*\*\*([^*]+)\*\*:?|([^.|`=]{3,60}):|([^.|`=:]{3,40})")
"""A line that heads those below it without being a heading: **Requirements**, `Main packages:`."""
_BELOW_HEADINGS = 7
"""The depth of a caption."""
_TAG = re.compile(r"</?(?:code|pre|kbd|t[dhr]|table|[uo]l|li|p|br|[abi]|em|strong|span|div|details)\b[^<>\n]{0,200}>")
_WINDOWS_PATH = re.compile(r"(?<=[\w.:])\\(?=[\w.])")
_OPTIONAL = re.compile(r"(?<= )\[-[^\[\]\n]*\]")
"""What a synopsis such as `uv sync [--extra train]` leaves to the reader."""

# Those for whom a part is not.
_PLATFORM = r"windows|mac ?os(?: ?x)?|osx|apple|cpu|tpu|rocm|amd|npu"
_OURS = re.compile(r"(?i)\b(?:linux|ubuntu|debian|wsl2?|cu(?:da|\d{2,3})|nvidia|(?<!no )(?<!without )gpus?)\b")
_ASIDE = re.compile(
    rf"(?i)\b(?:(?P<platform>{_PLATFORM})|optional\w*|develop\w*|contribut\w+|tests?|testing|docs?|documentation"
    r"|(?<!without )docker|demo|gradio|faq|troubleshoot\w*|export|deploy\w*)\b"
)
"""In headings of sections that not every reader follows."""
_ASIDE_IN_TEXT = re.compile(
    rf"(?i)\b(?:(?P<platform>(?:for|on|with) (?:the )?(?:{_PLATFORM})|windows|mac ?os(?: ?x)?|cpu[- ]only)|optional\w*"
    r"|if you (?:want|need|would|plan|prefer|wish|use|are)|alternativ\w*)\b|^or\b"
)
"""In a caption, a comment, or the words of a line beside its command."""
_WHOLE = re.compile(rf"(?i) says (?:{_PLATFORM}|docker)$")
_AND = re.compile(r"(?i) (?:/|&|and) |, ")
_STEP = re.compile(r"(?i)(?:step *)?\d")
_SETUP = re.compile(
    r"(?i)\b(?:install\w*|set-?up|setting up|environment|requirements|dependencies|get(?:ting)? started|quick ?start)\b"
)
"""Headings of steps, which are taken in turn, and of what they are steps of."""
_MANAGER = r"`?(?:(?:mini|ana)?conda|mamba|pip|pipx|pypi|uv|poetry|pixi|pdm|venv|virtualenv)`?"
_WAY = re.compile(
    r"(?i)\W*(?:option|method|way|approach)\W*(?:\d|[a-d]\b).*"
    rf"|\W*(?:(?:install\w*|set-?up|setting up)? *(?:using|with|via|from|by|through) (?:the )?)?{_MANAGER}\b"
    r"\W*(?:install\w*|environment)?\W*(?:\(.*\))?\W*"
)
"""Headings of one way among several to the same end."""
OTHER_MACHINE = re.compile(
    r"(?i)(?<![a-z])(?:cpu|no_?-?(?:cuda|gpu)|mac(?:os)?|win(?:dows)?|rocm|tpu|amd|docker|test|dev)(?![a-z])"
)
"""In names of scripts, targets and lists."""

# What a guide has its reader run.
_PROGRAM = re.compile(
    r"pip[\d.]*|python[\d.]*|uv|mim|conda|mamba|micromamba|poetry|pdm|pipenv|pixi|pipx|bash|sh|source|\.|make|cd|git"
    r"|apt|apt-get|npm|yarn|pnpm|virtualenv|.*\.sh"
)
_RUN = re.compile(
    r"(?:(?:(?:python[\d.]* -m )?pip[\d.]*|mim|poetry|pdm|pipenv|pixi|pipx)(?: -\S+)* (?:install|add|sync)"
    r"|(?:conda|mamba|micromamba)(?: env)?(?: -\S+)* (?:install|create|update)"
    r"|uv(?: run)?(?: -\S+)* (?:(?:pip )?(?:install|add|sync)|venv))(?: .*)?|python[\d.]* (?:-u )?setup\.py .*\b(?:install|develop)\b.*"
    r"|(?:bash|sh|source|\.) \S+\.sh\b.*|\S*/\S+\.sh(?: .*)?|make [\w.-]+(?: .*)?|cd \S+.*|git .*\b(?:clone|checkout) .+"
    r"|apt(?:-get)? .*\binstall .+|(?:npm|yarn|pnpm) (?:install|ci|i)(?: .*)?|virtualenv .*|python3\.\d+ -m venv .*",
    re.DOTALL,
)
_LONGEST_START = 8
_OF_SCRIPT = re.compile(r"install|env|sync|\b(?:cd|git|make)\b|\.sh\b|setup\.py")
_CLONED = re.compile(r"(?:https://|git@)[\w.-]+[/:]\S+?/([\w.-]+?)(?:\.git)?/?")


@dataclass(frozen=True)
class Line:
    """A line of a guide with those that continue it. A heading has a depth; `aside` is why not every reader follows it.

    `way` is the group of headings of which each shows one way to the same end, and the line of the one above this line.
    """

    number: int
    text: str
    section: int
    is_code: bool = False
    heading: str = ""
    depth: int = 0
    aside: str = ""
    way: tuple[str, int] = ("", 0)


@dataclass(frozen=True)
class Step:
    """A command that a guide has its reader run in `folder`, which ends with a slash, or is "" for the project's own.

    `aside` is why it is not followed, "" for one that is.
    """

    section: int
    path: str
    line: int
    command: ShellCommand
    folder: str = ""
    aside: str = ""

    @property
    def origin(self) -> str:
        """The file and the line."""
        return f"{self.path}:{self.line}"

    @property
    def packages(self) -> tuple[str, ...]:
        """The Python packages that it installs by name, address or folder."""
        return tuple(word.value for word in self.install.packages) if self.install else ()

    @property
    def lists(self) -> tuple[str, ...]:
        """The requirement files that it installs, as it writes them."""
        is_pip = self.install is not None and self.install.tool in ("pip", "uv")
        return self.install.option_values(*REQUIREMENT_FILE_OPTIONS) if self.install and is_pip else ()

    @cached_property
    def install(self) -> PackageInstall | None:
        """The installation of Python packages; None for any other command."""
        return find_package_install(self.command)


def list_guides(files: ProjectFiles) -> Iterator[str]:
    """List the guides, and after them the scripts that their names say install the project, unless a guide runs one."""
    paths = [f"{folder}{name}" for folder in _FOLDERS for name in files.names(folder or ".")]
    yield from (guides := [each for each in paths if _GUIDE.fullmatch(each.rpartition("/")[2])])
    steps = (step for each in guides for step in list_steps(files, each))
    if any(step.path.endswith(".sh") and step.install and not step.aside for step in steps):
        return
    scripts = (*files.names("."), *(f"scripts/{name}" for name in files.names("scripts")))
    for path in scripts:
        if _SCRIPT.fullmatch(path.rpartition("/")[2]) and not OTHER_MACHINE.search(path):
            yield path


def list_own_names(files: ProjectFiles, own: str) -> set[str]:
    """List the names of the project itself, normalized: `own`, those of its folder and its remotes, and those that setup.py says."""
    folder = _OF_ARCHIVE.sub("", files.folder.rpartition("/")[2])
    remotes = _REMOTE.findall(files.read(".git/config", "git") or "")
    names = (own, folder, *remotes, *_OWN_NAME.findall(files.read(SETUP_PY, "build") or ""))
    return {canonicalize_name(name) for name in names if name}


def locate(path: str, files: ProjectFiles) -> str:
    """Return a path without the name of the project's clone, which a reader beside the clone puts before it."""
    head, _, inner = path.partition("/")
    return inner if inner and not files.has(path) and canonicalize_name(head) in list_own_names(files, "") else path


def find_aside(words: str, *, in_text: bool = False) -> str:
    """Find what in a heading, or in other words, says that not every reader follows; "" where this reader does.

    A part for several systems, Linux among them, is for this one.
    """
    if not in_text and any(_SETUP.search(each) and not _ASIDE.search(each) for each in _AND.split(words)):
        return ""  # "Quick start / Demo" is for every reader.
    is_ours = bool(_OURS.search(words))
    found = (_ASIDE_IN_TEXT if in_text else _ASIDE).finditer(words)
    return next((each[0].strip() for each in found if not (each["platform"] and is_ours)), "")


@lru_cache(maxsize=8)
def read_lines(text: str) -> tuple[Line, ...]:
    """Read the lines of a guide in Markdown or of plain text."""
    found: list[Line] = []
    section, outer, is_code, is_used = 0, 6, False, False
    above: dict[int, str] = {}  # by the depth of their headings
    beside = before = ""  # what a caption or a comment says, and the last words
    ways: dict[int, tuple[str, int]] = {}
    for number, written in _join_lines(text):
        bare = written.strip("`#|-*:> \t")
        heading = None if is_code else _HEADING.match(written)
        if _FENCE.fullmatch(written):
            is_code = not is_code
            beside, before = (beside or before) if is_code else "", ""
        elif heading:
            words = (heading["words"] or heading["html"]).strip()
            depth = len(heading["marks"] or "") or int(heading["level"] or _BELOW_HEADINGS)
            # Another platform is one for all below a heading.
            above = {each: why for each, why in above.items() if 1 < each < depth and _WHOLE.search(why)}
            above |= {depth: f"{number} says {said}"} if (said := find_aside(words)) else {}
            if not (depth > outer and _STEP.match(words)):
                section, outer = section + 1, depth if _SETUP.search(words) else 6
            ways = _mark_way(ways, depth, words, number)
            beside = before = ""
            aside = next(iter(above.values()), "")
            found.append(Line(number, written, section, heading=words, depth=depth, aside=aside))
        else:
            is_comment = is_code and written.lstrip().startswith("#")
            said = (is_comment and find_aside(bare)) or find_aside(bare.rpartition(". ")[2], in_text=True)
            why = f"{number} says {said}" if said else ""
            caption = None if is_code else CAPTION.fullmatch(written.strip())
            if caption and (caption[1] or caption[2]):
                beside, ways = why, _mark_way(ways, _BELOW_HEADINGS, caption[1] or caption[2], number)
            elif is_comment or (is_code and is_used and not bare):
                beside = why
            is_used = is_code and not is_comment and bool(bare)
            before = why if bare and not is_code else before
            aside = next(iter(above.values()), beside if is_code else "")
            found.append(Line(number, written, section, is_code, aside=aside, way=ways[max(ways)] if ways else ("", 0)))
    return tuple(found)


def _mark_way(ways: dict[int, tuple[str, int]], depth: int, words: str, line: int) -> dict[int, tuple[str, int]]:
    """Return the ways that are open below a heading, each with the place of the first of its kind and its own line."""
    kept = {each: way for each, way in ways.items() if each < depth}
    if _WAY.fullmatch(words):
        kept[depth] = (ways[depth][0] if depth in ways else f"{depth} {line}", line)
    return kept


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers; a backslash at the end joins the next one."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        parts = [line]
        while parts[-1].endswith("\\") and (following := next(lines, None)):
            parts.append(following[1])
        yield number, "\n".join(parts)


@lru_cache(maxsize=32)
def list_steps(files: ProjectFiles, path: str) -> tuple[Step, ...]:
    """List what a guide has its reader run. The commands of the project's scripts and Makefile stand where they are called."""
    return tuple(_follow(_read_script(path, files) if path.endswith(".sh") else _read_guide(path, files), files, 0))


def _read_guide(path: str, files: ProjectFiles) -> Iterator[Step]:
    own = list_own_names(files, "") | TOOLS
    first: dict[str, int] = {}
    for line in (each for each in read_lines(files.read(path, "guide") or "") if not each.depth):
        placed = [*_find_commands(line.text, is_code=line.is_code)]
        ends = [0, *(end for _, end, _ in placed)]
        for at, (start, end, command) in enumerate(placed):
            after = line.text[end:] if at + 1 == len(placed) else ""
            # `x  # or y` is the first of two ways.
            words = (line.text[ends[at] : start].strip("`#|-*: "), f"#{after}")
            said = next(filter(None, (find_aside(each, in_text=True) for each in words)), "")
            aside = line.aside or (f"{line.number} says {said}" if said else "")
            group, way = line.way
            if not aside and group and first.get(group, way) != way:
                aside = f"{first[group]} shows another way"
            step = Step(line.section, path, line.number + line.text.count("\n", 0, start), command)
            names = {canonicalize_name(re.split(r"[=<>!~\[]", each)[0]) for each in step.packages}
            if group and not aside and (names - own or step.lists or "env" in command.values[:2]):
                first.setdefault(group, way)
            yield replace(step, aside=f"{path}:{aside}" if aside else "")


TOOLS = frozenset(("python", "pip", "setuptools", "wheel", "uv", "virtualenv", "conda", "poetry", "mamba"))


def _find_commands(text: str, *, is_code: bool) -> Iterator[tuple[int, int, ShellCommand]]:
    """Find the commands in a line of code, or in the words and the inline code of another one, with start and end."""
    whole = _WINDOWS_PATH.sub("/", text if is_code else _TAG.sub(lambda each: ";" + " " * (len(each[0]) - 1), text))
    whole = _OPTIONAL.sub(lambda each: " " * len(each[0]), whole)
    whole = re.sub(r"\bmim(?= +install\b)", "pip", whole)  # OpenMMLab's installer hands pip what it installs
    begin = 0
    for piece in whole.split("`"):
        for command in parse_commands(whole, begin, begin + len(piece)):
            for at, word in enumerate(command.words):
                value = word.value.lstrip("!%$>")
                name = value if value.endswith(".sh") else value.rpartition("/")[2] or value
                begins = (name, *(each.value for each in command.words[at + 1 : at + _LONGEST_START]))
                if _PROGRAM.fullmatch(name) and _RUN.fullmatch(" ".join(begins)):
                    words = (replace(word, value=name), *command.words[at + 1 :])
                    yield word.start, words[-1].end, ShellCommand(words, command.is_forgiven)
                    break
        begin += len(piece) + 1


def read_commands(text: str) -> Iterator[tuple[int, ShellCommand]]:
    """Read the commands of a shell text, or of one that has shell in it, each with its line."""
    for number, line in _join_lines(text):
        if _OF_SCRIPT.search(line):
            for start, _, command in _find_commands(line, is_code=True):
                yield number + line.count("\n", 0, start), command


def _read_script(path: str, files: ProjectFiles, caller: Step | None = None, folder: str = "") -> Iterator[Step]:
    section, aside = (caller.section, caller.aside) if caller else (0, "")
    for line, command in islice(read_commands(files.read(path, "guide") or ""), MAX_SCRIPT_COMMANDS):
        yield Step(section, path, line, command, folder, aside)


def _read_recipe(target: str, files: ProjectFiles, step: Step) -> Iterator[Step]:
    """Read what `make TARGET` runs, with the values of the Makefile's variables."""
    text = files.read(MAKEFILE, "guide") or ""
    found = re.search(rf"^{re.escape(target)}[ \t]*:(?!=).*\n((?:\t.*(?:\n|\Z))+)", text, re.MULTILINE)
    values = dict(re.findall(r"^(\w+)[ \t]*[:?]?=[ \t]*(.*?)[ \t]*$", text, re.MULTILINE))
    first = text.count("\n", 0, found.start(1)) if found else 0
    recipe = re.sub(r"\$[({](\w+)[)}]", lambda each: values.get(each[1], each[0]), found[1]) if found else ""
    for line, command in read_commands(re.sub(r"(?m)^\t[ @-]*", "", recipe)):
        yield Step(step.section, MAKEFILE, first + line, command, aside=step.aside)


def _follow(steps: Iterator[Step], files: ProjectFiles, depth: int) -> Iterator[Step]:
    """Follow each step into its folder, into the scripts that it runs, and into the clones of other repositories."""
    section, folder, clones = -1, "", dict[str, str]()
    for step in steps:
        if step.section != section:
            section, folder = step.section, step.folder
        program, words = step.command.program, step.command.values
        ran = words[1] if program in ("bash", "sh", "source", ".") and len(words) > 1 else words[0]
        if program == "cd" and words[1].startswith("$"):
            folder = f"{step.path.rpartition('/')[0]}/".removeprefix("/") if step.path.endswith(".sh") else folder
        elif program == "cd":
            # What is not there is the clone of the project, which its reader enters first.
            path = locate(files.within(words[1], beside=folder) or ".", files)
            folder = f"{path}/".removeprefix("./") if files.names(path) or _find_clone(path, clones) else folder
        elif program == "git":
            _clone(words, folder, files, clones)
        elif ran.endswith(".sh"):
            near = (files.within(ran, beside=each) for each in (folder, step.path))
            script = next((each for each in near if each and files.has(each)), "")
            if script == step.path:
                continue  # the script's own usage text
            if script and depth < MAX_DEPTH and not OTHER_MACHINE.search(script):
                yield from _follow(_read_script(script, files, step, folder), files, depth + 1)
            elif _SCRIPT.fullmatch(ran.rpartition("/")[2]) and not re.match(r"/|\w+://", ran):
                why = "its name is that of one for another purpose" if script else "the project has no such file"
                yield replace(step, folder=folder, aside=step.aside or why)
        elif program == "make":
            if depth < MAX_DEPTH and not OTHER_MACHINE.search(words[1]):
                yield from _follow(_read_recipe(words[1], files, step), files, depth + 1)
        else:
            yield _place(step, folder, files, clones)


def _clone(words: tuple[str, ...], folder: str, files: ProjectFiles, clones: dict[str, str]) -> None:
    """Remember the folder and the address of a clone of another repository, and the revision that is checked out there."""
    here = folder.rstrip("/")
    if "checkout" in words and here in clones and not words[-1].startswith("-"):
        clones[here] = f"{clones[here].partition('@')[0]}@{words[-1]}"
    for word, place in pairwise((*words, "")):
        found = _CLONED.fullmatch(word)
        if found and canonicalize_name(found[1]) not in list_own_names(files, ""):
            name = found[1] if place.startswith("-") or not place else place
            path = files.within(name, beside=folder)
            if path and not files.names(path):
                clones[path] = "git+" + re.sub(r"^git@([^:]+):", r"https://\1/", word)


def _find_clone(path: str, clones: dict[str, str]) -> str:
    """Find the address of what is at a path in the clone of another repository; "" for a path of the project's own."""
    place = max((each for each in clones if f"{path}/".startswith(f"{each}/")), key=len, default="")
    inner = path.removeprefix(place).strip("/")
    return f"{clones[place]}#subdirectory={inner}" if place and inner else clones.get(place, "")


def _place(step: Step, folder: str, files: ProjectFiles, clones: dict[str, str]) -> Step:
    """Return the step in its folder. A path in a clone becomes the clone's address, and `setup.py install` a `pip install`."""
    words = step.command.words
    if "setup.py" in step.command.values:
        words = tuple(replace(words[0], value=value) for value in ("pip", "install", "."))
    values = [word.value for word in words]
    is_elsewhere = bool(_find_clone(folder.rstrip("/"), clones))
    if clones and {"pip", "uv"} & {*values}:
        bare = [value.partition("[")[0] for value in values]
        paths = [files.within(value, beside=folder) or "" if "://" not in value else "" for value in bare]
        is_path = [is_local_path(value) or path in clones for value, path in zip(bare, paths, strict=True)]
        found = [_find_clone(path, clones) if is_in else "" for path, is_in in zip(paths, is_path, strict=True)]
        words = tuple(replace(word, value=address or word.value) for word, address in zip(words, found, strict=True))
    is_file = any(each.endswith((".txt", ".in", ".yml", ".yaml")) for each in values)
    aside = step.aside or ("it is a file of another repository" if is_elsewhere and is_file else "")
    return replace(step, command=ShellCommand(words, step.command.is_forgiven), folder=folder, aside=aside)
