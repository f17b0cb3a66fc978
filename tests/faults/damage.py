"""Recorded machines with exactly one thing wrong, and all the ways in which a thing can be wrong."""

import dataclasses
import re
import threading
from collections.abc import Mapping

from devkit.probe.host import NOT_EXECUTABLE, NOT_FOUND, TIMED_OUT, ProgramResult, decode_text

BINARY = bytes(range(256)) * 8
NOISE = "\0\x1b[31m{[\"'<!-- \u202e\ufffd 9999999999999999999999.1e999 = : , - \\ %s {} \n\t"


class Watched:
    """A host that records its calls."""

    def __init__(self, host):
        self._host = host
        self.asked = {name: set() for name in ("read", "list", "stat", "link", "open_error", "free_bytes", "run")}

    def __getattr__(self, name):
        answer = getattr(self._host, name)
        if name not in self.asked:
            return answer

        def ask(what, **options):
            self.asked[name].add(tuple(what) if name == "run" else what)
            return answer(what, **options)

        return ask


class Damaged:
    """A host on which one question has another answer. `answer` is called with the sound one."""

    def __init__(self, host, question, what, answer):
        self._host, self._question, self._what, self._answer = host, question, what, answer

    def __getattr__(self, name):
        sound = getattr(self._host, name)
        if name != self._question:
            return sound

        def ask(what, **options):
            said = sound(what, **options)
            is_it = (tuple(what) if name == "run" else what) == self._what
            return self._answer(said) if is_it else said

        return ask


class Vanishing(Damaged):
    """A host on which one file is there for the first look, and gone for all that follow."""

    def __init__(self, host, path):
        super().__init__(host, "", path, lambda said: said)
        self._lock, self._looks = threading.Lock(), 0

    def __getattr__(self, name):
        sound = getattr(self._host, name)
        if name not in ("read", "stat", "link"):
            return sound

        def ask(what):
            if what != self._what:
                return sound(what)
            with self._lock:
                self._looks += 1
                return sound(what) if self._looks == 1 else None

        return ask


def texts(sound: str) -> Mapping[str, str | None]:
    """Everything that may stand in place of the text of a file."""
    cut = {
        f"cut after {len(sound) * part // 100} characters": sound[: len(sound) * part // 100] for part in (1, 50, 90)
    }
    return {
        **cut,
        "one character short": sound.rstrip()[:-1],
        "empty": "",
        "blank": "\n\n",
        "unreadable, or a directory": None,
        "binary": decode_text(BINARY),
        "noise": NOISE,
        "twice": sound + sound,
        "in UTF-16": decode_text(sound.encode("utf-16")),
        "in UTF-8 with a mark": decode_text(b"\xef\xbb\xbf" + sound.encode()),
        "in UTF-16 without a mark": decode_text(sound.encode("utf-16-le")),
        "with bytes of Latin-1": decode_text(sound.encode() + "Größe\n".encode("latin-1")),
        "with Windows line ends": sound.replace("\n", "\r\n"),
        "without line ends": sound.replace("\n", " "),
        "with every digit 9": "".join("9" if letter.isdigit() else letter for letter in sound),
        "without digits": "".join(letter for letter in sound if not letter.isdigit()),
        "with numbers of 5000 digits": re.sub(r"[0-9]+", "9" * 5000, sound[:400]),
        "with superscript digits": re.sub(r"[0-9]", "²", sound),
        "a number alone": "0",
        "zeros": "\0" * 512,
    }


NESTED = {"nested brackets": "[" * 200_000, "nested objects": '{"a":' * 100_000, "nested dashes": "- " * 100_000}
"""Documents so deep that a parser which recurses without a limit takes the whole process with it."""


def huge(sound: str, *, size_bytes: int) -> Mapping[str, str]:
    """What is left of files that are far too large."""
    line = sound.splitlines()[-1] or "x"
    return {
        "repeated": (sound * (size_bytes // len(sound) + 1))[:size_bytes],
        "one line": (line * (size_bytes // len(line) + 1))[:size_bytes],
    }


def outputs(sound: ProgramResult) -> Mapping[str, ProgramResult]:
    """Everything that may come of running a program."""
    ended = {
        name: dataclasses.replace(sound, out=text or "")
        for name, text in texts(sound.out).items()
        if name != "unreadable, or a directory"
    }
    half = sound.out[: len(sound.out) // 2]
    return {
        **ended,
        "not found": ProgramResult(NOT_FOUND, "", "no such program"),
        "not executable": ProgramResult(NOT_EXECUTABLE, "", "permission denied"),
        "timed out": ProgramResult(TIMED_OUT, "", ""),
        "timed out half way": ProgramResult(TIMED_OUT, half, ""),
        "failed": ProgramResult(1, "", "error: it did not work\n"),
        "failed, with its output on the wrong stream": ProgramResult(1, "", sound.out),
        "failed, with its whole output": ProgramResult(1, sound.out, "warning"),
        "failed without a word": ProgramResult(1, "", ""),
        "killed": ProgramResult(-9, half, ""),
        "crashed": ProgramResult(-11, half, "Segmentation fault"),
    }


def listings(sound: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    """Everything that may be listed in a directory."""
    return {
        "empty": (),
        "half": sound[: len(sound) // 2],
        "thousands": tuple(sorted({*sound, *(f"entry-{index:05}" for index in range(3000))})),
        "strange names": tuple(
            sorted({*sound, "nvidia", "a b\n", "..", "\ufffd\ufffd", "0", "nvidia-.dist-info", "x" * 255})
        ),
        "every name with a tail": tuple(f"{name}~" for name in sound),
    }


ERRNOS = (
    "open",
    "ENOENT",
    "EACCES",
    "EPERM",
    "ENXIO",
    "EIO",
    "ENODEV",
    "EBUSY",
    "ETIMEDOUT",
    "EMFILE",
    "the opener ended with status -11",
)
