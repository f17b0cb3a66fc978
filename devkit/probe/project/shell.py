"""Commands of a shell text, and what they install, make and need, as far as it matters for GPUs."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from devkit.facts.project import Install, MadeUser, Requirement
from devkit.facts.values import record
from devkit.probe.documents import parse_json

CUDA_PACKAGES = frozenset(
    {
        "torch",
        "torchvision",
        "torchaudio",
        "bitsandbytes",
        "flash-attn",
        "xformers",
        "vllm",
        "deepspeed",
        "triton",
        "unsloth",
        "apex",
        "mamba-ssm",
        "causal-conv1d",
        "transformer-engine",
        "auto-gptq",
        "pytorch3d",
        "detectron2",
        "gsplat",
        "nvdiffrast",
        "tinycudann",
    }
)
"""Python packages that use or choose CUDA; all others are left out of the facts."""

COMPILED_BY_TORCH = frozenset({"apex", "pytorch3d", "detectron2", "gsplat", "nvdiffrast", "tinycudann", "mamba-ssm"})
"""Packages that usually come as source and compile CUDA code through torch.utils.cpp_extension."""

_INDEX = re.compile(r"/whl/(?:nightly/|test/)?(cu\d+|cpu|rocm[\d.]+|xpu)\b")
_INDEX_URL = re.compile(
    r"^\s*(?:-i|--index-url|--extra-index-url|--index|--default-index)[ =]+(?:[\w-]+=)?(['\"]?[a-z+]+://\S+)",
    re.MULTILINE,
)
_LOCAL = re.compile(r"\+(cu\d+|cpu|rocm[\d.]+)\b")
_REQUIREMENT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*([=<>!~@;].*)?$")
_GIT_NAME = re.compile(r"git\+\S+/([\w.-]+?)(?:\.git)?(?:[@#/].*)?$")
_TAKES_VALUE = re.compile(
    r"^(?:-i|-f|-c|-t|--index-url|--extra-index-url|--find-links|--index|--default-index|--constraint|--target|--python"
    r"|--index-strategy|--prefix|--root|--channel|-n|--name|-p)$"
)
_COMPILER = re.compile(
    r"^(?:gcc|g\+\+|clang|build-essential|build-base|gcc-c\+\+|gcc_linux-64|gxx_linux-64|compilers|c-compiler|gxx)"
    r"(?:-\d+)?(?:[=<>].*)?$"
)
_SYSTEM_INSTALLER = re.compile(r"^(?:apt-get|apt|dnf|microdnf|yum|apk|zypper|conda|mamba|micromamba|pacman)$")
_TORCH_CUDA = re.compile(
    r"torch\.cuda\.(?:is_available|device_count|current_device|get_device\w*|init)\b"
    r"|\.cuda\(\)|device\s*=\s*['\"]cuda|\.to\(['\"]cuda"
)
_FAILS_WITHOUT = re.compile(
    r"\bassert\b|\braise\b|exit\(|\.cuda\(\)|current_device|get_device|device\s*=|\.to\(|cuda\.init"
)


@record
class ShellCommand:
    """One command: its words, and whether the text goes on when it fails."""

    words: tuple[str, ...]
    is_forgiven: bool


def split_commands(text: str) -> tuple[ShellCommand, ...]:
    """The commands of a shell text, or the one of a JSON list, without assignments and sudo before them."""
    if text.lstrip().startswith("["):
        try:
            listed = parse_json(text)
        except ValueError:
            listed = None
        if isinstance(listed, list) and all(isinstance(word, str) and word for word in listed):
            return (ShellCommand(tuple(listed), False),) if listed else ()
    return tuple(_split(text))


def _split(text: str) -> Iterator[ShellCommand]:
    words: list[str] = []
    for word in [*_words(text), ";"]:
        if not word or word.strip(";&|()\n"):
            words.append(word)
            continue
        plain = _without_prefix(words)
        if plain:
            yield ShellCommand(plain, word == "||")
        words = []


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return [word for word in re.split(r"\s+|(;|&&|\|\|)", text.replace("\n", " ; ")) if word]


def _without_prefix(words: list[str]) -> tuple[str, ...]:
    place = 0
    skipped = ("sudo", "env", "exec", "then", "do", "!", "{", "time")
    while place < len(words) and (words[place] in skipped or re.match(r"^[A-Za-z_]\w*=", words[place])):
        place += 1
    return tuple(word for word in words[place:] if word)


def find_installs(commands: Iterable[ShellCommand], *, path: str, line: int, text: str = "") -> Iterator[Install]:
    """What the commands install for GPUs. `text` is the whole, which may set UV_TORCH_BACKEND before a command."""
    assigned = re.search(r"\bUV_TORCH_BACKEND=[\"']?([\w.]+)", text)
    for command in commands:
        found = _installer(command.words)
        if found is None:
            continue
        tool, rest = found
        options = _options(rest)
        requirements = tuple(parse_gpu_requirement(word, path=path, line=line) for word in options["packages"])
        named = tuple(one for one in requirements if one is not None)
        backend = "".join(options["backend"][-1:]) or (assigned[1] if assigned else "")
        if named or options["files"] or (backend and tool == "uv"):
            indexes = [*_INDEX.findall(" ".join(rest)), *_LOCAL.findall(" ".join(rest))]
            label, urls = "".join(indexes[:1]), find_index_urls("\n".join(_joined(rest)))
            yield Install(tool, named, tuple(options["files"]), label, backend, path, line, urls)


def _installer(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
    """The tool and its arguments, when the command installs Python packages."""
    for place, word in enumerate(words[:6]):
        name = word.rpartition("/")[2]
        if re.fullmatch(r"pip[\d.]*|conda|mamba|micromamba|uv|poetry|pipx", name):
            verbs = [
                at for at, verb in enumerate(words[place + 1 : place + 6], place + 1) if verb in ("install", "add")
            ]
            if verbs:
                tool = "conda" if name.endswith(("conda", "mamba")) else re.sub(r"[\d.]+$", "", name)
                return ("uv" if "uv" in words[: verbs[0]] else tool), words[verbs[0] + 1 :]
    return None


def _options(words: tuple[str, ...]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {"packages": [], "files": [], "backend": []}
    names = {"-r": "files", "--requirement": "files", "--requirements": "files", "--torch-backend": "backend"}
    place = 0
    while place < len(words):
        name, has_value, value = words[place].partition("=")
        place += 1
        if not name.startswith("-"):
            found["packages"].append(words[place - 1])
            continue
        takes = name in names or _TAKES_VALUE.match(name)
        if takes and not has_value:
            value = words[place] if place < len(words) else ""
            place += 1
        if name in names:
            found[names[name]].append(value)
    return found


def parse_gpu_requirement(text: str, *, path: str, line: int) -> Requirement | None:
    """A requirement of a GPU package, from "torch==2.9.1" or "git+https://host/apex"; None for any other."""
    text = text.strip().strip("'\"")
    git = _GIT_NAME.search(text)
    if git and "://" in text and " @ " not in text:
        name, specifier = git[1], "git"
    else:
        found = _REQUIREMENT.match(text)
        if found is None:
            return None
        name, specifier = found[1], (found[2] or "").split(";")[0].strip()
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name not in CUDA_PACKAGES:
        return None
    return Requirement(name, "url" if "://" in specifier else specifier, path, line)


def parse_torch_index(text: str) -> str:
    """The torch index that a text names: cu128, cpu, rocm6.4, or "" for none."""
    found = _INDEX.search(text) or _LOCAL.search(text)
    return found[1] if found else ""


def find_index_urls(text: str) -> tuple[str, ...]:
    """The package indexes that lines such as `--index-url URL` name, without logins and queries."""
    urls = (found[1].strip("'\"") for found in _INDEX_URL.finditer(text))
    return tuple(dict.fromkeys(re.sub(r"://[^/@\s]*@", "://", url).partition("?")[0] for url in urls if "$" not in url))


def _joined(words: tuple[str, ...]) -> Iterator[str]:
    """The words with each option and its value on one line."""
    for place, word in enumerate(words):
        takes = _TAKES_VALUE.match(word) and place + 1 < len(words)
        yield f"{word} {words[place + 1]}" if takes else word


def find_compilers(commands: Iterable[ShellCommand]) -> tuple[str, ...]:
    """Packages with a C compiler, where the commands install system packages at all."""
    commands = tuple(commands)
    if not any(_SYSTEM_INSTALLER.match(command.words[0].rpartition("/")[2]) for command in commands):
        return ()
    return tuple(word for command in commands for word in command.words[1:] if _COMPILER.match(word))


def find_created_folders(commands: Iterable[ShellCommand], *, as_user: bool) -> tuple[str, ...]:
    """Absolute folders that the commands give to a user; those they merely make count when a user runs them."""
    found = []
    for command in commands:
        name = command.words[0].rpartition("/")[2]
        gives = name == "chown" or (name == "install" and _gives_away(command.words))
        if gives or (as_user and name in ("mkdir", "install")):
            found += [word.rstrip("/") for word in command.words[1:] if word.startswith("/")]
    return tuple(found)


def _gives_away(words: tuple[str, ...]) -> bool:
    return any(word == "-o" or word.startswith(("--owner", "--group", "-o", "-g")) for word in words)


def find_created_users(commands: Iterable[ShellCommand], *, line: int) -> Iterator[MadeUser]:
    """Users that the commands make."""
    for command in commands:
        if command.words[0].rpartition("/")[2] not in ("useradd", "adduser") or len(command.words) < 2:
            continue
        text = " ".join(command.words)
        uid = re.search(r"(?:--uid|-[a-zA-Z]*u)[= ]?(\d+|\$\{?\w+\}?)", text)
        names = [word for word in command.words[1:] if re.fullmatch(r"[a-z_$][\w${}-]*", word)]
        is_first = command.words[0].endswith("adduser") and names[-1:] != [command.words[-1]]
        if names:
            yield MadeUser(names[0] if is_first else names[-1], uid[1] if uid else "", line)


def removes_users(commands: Iterable[ShellCommand]) -> bool:
    """Whether a user of the base image is removed or renamed."""
    for command in commands:
        name = command.words[0].rpartition("/")[2]
        if name in ("userdel", "deluser"):
            return True
        if name == "usermod" and any(word in ("-l", "--login", "-u", "--uid") for word in command.words):
            return True
    return False


def find_gpu_uses(commands: Iterable[ShellCommand], *, heredoc: str = "") -> Iterator[str]:
    """What the commands need a GPU for: "nvidia-smi", or "torch.cuda" where a missing GPU ends the program."""
    for command in commands:
        if command.is_forgiven:
            continue
        if command.words[0].rpartition("/")[2] == "nvidia-smi":
            yield "nvidia-smi"
        text = f"{' '.join(command.words)} {heredoc}" if "python" in command.words[0] else ""
        if _TORCH_CUDA.search(text):
            yield "torch.cuda" if _FAILS_WITHOUT.search(text) else "torch.cuda, printed"
