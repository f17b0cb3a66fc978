"""The words of a shell text with the places where they stand, so that one of them can be exchanged."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<blank>(?:(?<=\n)[ \t]*\#[^\n]*\n|[ \t\r]|\\\r?\n)+)"
    r"|(?P<end>&&|\|\||[;&|()\n])"
    r"|(?P<word>(?:\"(?:\\.|[^\"\\])*\"|'[^']*'|\\[^\n]|[^\s;&|()\"'\\])+)"
    r"|(?P<other>.)",
    re.DOTALL,
)
_TAKES_VALUE = re.compile(
    r"-i|-f|-c|-t|-r|--index-url|--extra-index-url|--find-links|--index|--default-index|--constraint|--requirements?"
    r"|--target|--python|--index-strategy|--prefix|--root|--torch-backend|-p"
)


@dataclass(frozen=True)
class Word:
    """A word as it is written, and where: quotes are part of it."""

    text: str
    start: int
    end: int

    @property
    def plain(self) -> str:
        """What the shell makes of it, as far as quotes go."""
        return self.text.replace('"', "").replace("'", "")


@dataclass(frozen=True)
class Installation:
    """A command that installs Python packages with pip or uv."""

    tool: str
    verb: Word
    options: tuple[tuple[Word, Word | None], ...]
    """Each option with its value where that is a word of its own."""
    packages: tuple[Word, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The requirement files that it names."""
        spaced = [value.plain for name, value in self.options if value and name.plain in _FILES]
        joined = [name.plain.partition("=")[2] for name, _ in self.options if name.plain.partition("=")[0] in _FILES]
        return (*spaced, *(path for path in joined if path))


_FILES = ("-r", "--requirement", "--requirements")


def installations(text: str, start: int, end: int) -> Iterator[Installation]:
    """The commands between two places of the text that install Python packages."""
    for words in _commands(text, start, end):
        names = [word.plain.rpartition("/")[2] for word in words]
        place = next((at for at, name in enumerate(names) if re.fullmatch(r"pip[\d.]*|uv", name)), None)
        verb = names.index("install", place) if place is not None and "install" in names[place:] else None
        if place is None or verb is None or verb - place > 4:
            continue
        options, packages = _sorted_out(words[verb + 1 :])
        tool = "uv" if "uv" in names[:verb] else "pip"
        yield Installation(tool, words[verb], tuple(options), tuple(packages))


def _commands(text: str, start: int, end: int) -> Iterator[list[Word]]:
    words: list[Word] = []
    for found in _TOKEN.finditer(text, start, end):
        if found.lastgroup == "word":
            words.append(Word(found[0], found.start(), found.end()))
        elif found.lastgroup != "blank":
            yield words
            words = []
    yield words


def _sorted_out(words: list[Word]) -> tuple[list[tuple[Word, Word | None]], list[Word]]:
    options: list[tuple[Word, Word | None]] = []
    packages: list[Word] = []
    rest = iter(words)
    for word in rest:
        if not word.plain.startswith("-"):
            packages.append(word)
        elif _TAKES_VALUE.fullmatch(word.plain):
            options.append((word, next(rest, None)))
        else:
            options.append((word, None))
    return options, packages
