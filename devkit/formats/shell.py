"""Shell texts as commands of words that know where they are, and the Python packages that such commands install.

The doctor reads Dockerfiles and lifecycle commands through it, and `devkit init` exchanges single words through it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<blank>(?:(?m:^)[ \t]*\#[^\n]*(?:\n|\Z)|(?<=[ \t])\#[^\n]*|[ \t\r]|\\\r?\n)+)"
    r"|(?P<end>&&|\|\||[;&|()\n])"
    r"|(?P<word>(?:\"(?:\\.|[^\"\\])*\"|'[^']*'|\\[^\n]|[^\s;&|()\"'\\])+)"
    r"|(?P<other>.)",
    re.DOTALL,
)
_QUOTED = re.compile(r"\"((?:\\.|[^\"\\])*)\"|'([^']*)'|\\(.)", re.DOTALL)
_ESCAPED = re.compile(r"\\([\"\\$`]|\n)")
_PREFIX = re.compile(r"sudo|env|exec|then|do|!|\{|time|[A-Za-z_]\w*=.*", re.DOTALL)
"""Words that may stand before the program: assignments, and programs that run another one."""

_TOOL = re.compile(r"pip[\d.]*|conda|mamba|micromamba|uv|poetry|pipx")
_LONGEST_PREFIX = 5
"""Words between the tool and its verb, as in `python -m pip --no-cache-dir install`."""

REQUIREMENT_FILE_OPTIONS = ("-r", "--requirement", "--requirements")
_PIP_VALUE_OPTION = re.compile(
    r"-[ifctbrCPp]|--(?:abi|allow-insecure-host|build-constraints?|cache-dir|cert|client-cert|color|config-file|config-settings?"
    r"|config-settings-package|constraints?|default-index|directory|exclude-newer|exclude-newer-package|excludes|exists-action"
    r"|extra|extra-index-url|find-links|fork-strategy|global-option|group|implementation|index|index-strategy|index-url"
    r"|keyring-provider|link-mode|log|no-binary|no-build-isolation-package|only-binary|output-format|overrides?|platform|prefix"
    r"|prerelease|progress-bar|project|proxy|python|python-platform|python-version|refresh-package|reinstall-package|report"
    r"|requirements?|resolution|retries|root|root-user-action|src|target|timeout|torch-backend|trusted-host|upgrade-group"
    r"|upgrade-package|upgrade-strategy|use-deprecated|use-feature)"
)
_CONDA_VALUE_OPTION = re.compile(r"-[a-z]*[cnpr]|--(?:channel|file|name|prefix|requirements?|solver|subdir)")
"""Options with a value in the next word. `--editable` is none of them: its value is what is installed.

Source: `pip install --help` (25.3), `uv pip install --help` (0.9), `conda install --help` (25.9).
"""


@dataclass(frozen=True)
class ShellWord:
    """A word as it is written, where it is, and the value that the shell makes of it; variables stay in it."""

    text: str
    start: int
    end: int
    value: str


@dataclass(frozen=True)
class ShellCommand:
    """A command without the assignments, sudo and env before it. `is_forgiven` when `||` follows it."""

    words: tuple[ShellWord, ...]
    is_forgiven: bool = False

    @property
    def values(self) -> tuple[str, ...]:
        """The values of its words."""
        return tuple(word.value for word in self.words)

    @property
    def program(self) -> str:
        """The name of its program without folders."""
        return self.words[0].value.rpartition("/")[2]


@dataclass(frozen=True)
class PackageInstall:
    """A command that installs Python packages: `tool` is pip, uv, conda, poetry or pipx, `verb` "install", "add" or "create".

    `options` each include their value if it is a separate word.
    """

    tool: str
    verb: ShellWord
    options: tuple[tuple[ShellWord, ShellWord | None], ...]
    packages: tuple[ShellWord, ...]

    def option_values(self, *names: str) -> tuple[str, ...]:
        """Return the values of these options, in the order of the command."""
        pairs = ((option.value.partition("="), value) for option, value in self.options)
        found = ((name, value.value if value else joined) for (name, _, joined), value in pairs)
        return tuple(value for name, value in found if name in names and value)


def parse_commands(text: str, start: int = 0, end: int | None = None) -> Iterator[ShellCommand]:
    """Yield the commands of `text[start:end]`; a quotation mark without its partner ends a command."""
    words: list[ShellWord] = []
    for found in _TOKEN.finditer(text, start, len(text) if end is None else end):
        if found.lastgroup == "word":
            words.append(ShellWord(found[0], found.start(), found.end(), unquote(found[0])))
        elif found.lastgroup != "blank":
            yield from _command(words, is_forgiven=found[0] == "||")
            words = []
    yield from _command(words, is_forgiven=False)


def command_from_words(values: Sequence[str]) -> Iterator[ShellCommand]:
    """Yield the command of a list in JSON, whose words have no place in a shell text."""
    yield from _command([ShellWord(value, 0, 0, value) for value in values], is_forgiven=False)


def unquote(text: str) -> str:
    """Return a word as the shell hands it on: without quotes and escapes."""

    def value_of(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[2] or found[3] or ""
        return _ESCAPED.sub(lambda escape: escape[1].strip("\n"), found[1])

    return _QUOTED.sub(value_of, text)


def _command(words: list[ShellWord], *, is_forgiven: bool) -> Iterator[ShellCommand]:
    place = 0
    while place < len(words) and _PREFIX.fullmatch(words[place].value):
        place += 1
    kept = tuple(word for word in words[place:] if word.value)
    if kept:
        yield ShellCommand(kept, is_forgiven)


def find_package_install(command: ShellCommand) -> PackageInstall | None:
    """Return the packages that a command installs; None for a command that installs no Python packages."""
    names = [value.rpartition("/")[2] for value in command.values]
    for place, verb in enumerate(names):
        is_verb = verb in ("install", "add") or (verb == "create" and names[place - 1].endswith(("conda", "mamba")))
        before = names[max(0, place - _LONGEST_PREFIX) : place] if is_verb else []
        tools = [name for name in before if _TOOL.fullmatch(name)]
        if tools:
            tool = "conda" if tools[-1].endswith(("conda", "mamba")) else re.sub(r"[\d.]+$", "", tools[-1])
            tool = "uv" if "uv" in tools else tool
            options, packages = _split_options(
                command.words[place + 1 :], _CONDA_VALUE_OPTION if tool == "conda" else _PIP_VALUE_OPTION
            )
            return PackageInstall(tool, command.words[place], options, packages)
    return None


def _split_options(
    words: tuple[ShellWord, ...], takes_value: re.Pattern[str]
) -> tuple[tuple[tuple[ShellWord, ShellWord | None], ...], tuple[ShellWord, ...]]:
    options: list[tuple[ShellWord, ShellWord | None]] = []
    packages: list[ShellWord] = []
    rest = iter(words)
    for word in rest:
        if not word.value.startswith("-"):
            packages.append(word)
        else:
            options.append((word, next(rest, None) if takes_value.fullmatch(word.value) else None))
    return tuple(options), tuple(packages)
