"""GPU packages that a project's requirement files and commands install, and the torch index that they come from."""

import re
from collections.abc import Iterable, Iterator

from devkit.compat.specifiers import canonicalize_name
from devkit.facts.project import Install, Requirement
from devkit.formats.shell import REQUIREMENT_FILE_OPTIONS, ShellCommand, find_package_install
from devkit.probe.documents import (
    LineFinder,
    find_toml_line,
    get_object,
    get_objects,
    get_text,
    get_texts,
    parse_toml,
    strip_url_credentials,
)
from devkit.probe.project.files import ProjectFiles

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
_INDEX = re.compile(r"/whl/(?:nightly/|test/)?(cu\d+|cpu|rocm[\d.]+|xpu)\b")
_INDEX_URL = re.compile(
    r"^[ \t]*(?:-i|--index-url|--extra-index-url|--index|--default-index)[ =]+(?:[\w-]+=)?(['\"]?[a-z+]+://\S+)",
    re.MULTILINE,
)
_LOCAL = re.compile(r"\+(cu\d+|cpu|rocm[\d.]+)\b")
_REQUIREMENT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*([=<>!~@;].*)?$")
_GIT_NAME = re.compile(r"git\+\w+://(?:[^/@\s]*@)?[^@#\s]+/([\w.-]+?)(?:\.git)?/?(?:[@#].*)?$")
REQUIREMENT_FOLDERS = (".", ".devcontainer", "requirements")
REQUIREMENT_FILE_NAMES = re.compile(
    r"^(?:requirements[\w.-]*\.(?:txt|in)|requirements|environment\.ya?ml|pyproject\.toml)$"
)
LOCK_FILES = ("uv.lock", "poetry.lock", "pdm.lock", "pixi.lock", "Pipfile.lock", "requirements.lock", "conda-lock.yml")
MAX_FILES = 30
_BACKEND = re.compile(r"^[ \t]*torch-backend[ \t]*=[ \t]*[\"'](\w+)", re.MULTILINE)
_FOLDER = re.compile(r"(?:\.{1,2}|/|\$\{?\w+\}?/?)(?!\S*\.(?:whl|gz|zip))[^\[\]]*(\[[^\]]*\])?")
_INCLUDED = re.compile(r"^[ \t]*(?:-r|--requirement)[ =]+(\S+)", re.MULTILINE)


def read_gpu_requirements(files: ProjectFiles) -> tuple[Install, ...]:
    """Read the GPU packages of every requirement file, one installation for each file."""
    found = []
    paths = [f"{folder}/{name}".removeprefix("./") for folder in REQUIREMENT_FOLDERS for name in files.names(folder)]
    for path in [path for path in paths if REQUIREMENT_FILE_NAMES.match(path.rpartition("/")[2])][:MAX_FILES]:
        text = files.read(path, "requirements")
        if text is None:
            continue
        urls = find_index_urls(text)
        if path.endswith(".toml"):
            try:
                document = parse_toml(text)
            except ValueError as error:
                files.broken(path, str(error).partition(" (at")[0], find_toml_line(error))
                continue
            finder = LineFinder(text)
            project = get_object(document, "project")
            groups = (get_object(project, "optional-dependencies"), get_object(document, "dependency-groups"))
            listed = [*get_texts(project, "dependencies")]
            listed += [entry for group in groups for name in group for entry in get_texts(group, name)]
            listed += get_object(document, "tool", "poetry", "dependencies")
            lines = [(finder.find(entry), entry) for entry in listed]
            # The package indexes that it names for uv, Poetry or PDM.
            tables = (("uv", "index"), ("poetry", "source"), ("pdm", "source"))
            entries = [entry for tool, key in tables for entry in get_objects(get_object(document, "tool", tool), key)]
            named = [url for entry in entries if (url := get_text(entry, "url"))]
            urls += find_index_urls("\n".join(f"--index {url}" for url in named))
        else:
            lines = [
                (number, re.sub(r"(?:^|\s)#.*$", "", line).rstrip("\\ "))
                for number, line in enumerate(text.splitlines(), 1)
            ]
            if path.endswith((".yml", ".yaml")):
                lines = [(number, line.lstrip().removeprefix("-")) for number, line in lines]
        parsed = (parse_gpu_requirement(entry, path=path, line=number) for number, entry in lines)
        requirements = tuple(one for one in parsed if one is not None)
        included = tuple(_INCLUDED.findall(text)) if path.endswith((".txt", ".in")) else ()
        if requirements or included:
            label, backend = _INDEX.search(text) or _LOCAL.search(text), _BACKEND.search(text)
            index, chosen = label[1] if label else "", backend[1] if backend else ""
            line = requirements[0].line if requirements else 1
            found.append(Install("file", requirements, included, index, chosen, path, line, urls))
    return tuple(found)


def find_installs(commands: Iterable[ShellCommand], *, path: str, line: int = 0, text: str = "") -> Iterator[Install]:
    """Yield what the commands install for GPUs, each command of a line once.

    `text` is the whole, which may set UV_TORCH_BACKEND before a command, and of which the lines count without a `line`.
    """
    assigned = re.search(r"\bUV_TORCH_BACKEND=[\"']?([\w.]+)", text)
    whole, has_moved = line, False
    seen: set[tuple[object, ...]] = set()
    for command in commands:
        has_moved = has_moved or command.program in ("cd", "pushd")
        key = (*command.values, has_moved, whole or command.words[0].start)
        if key in seen:
            continue
        seen.add(key)
        install = find_package_install(command)
        if install is None:
            continue
        line = whole or text.count("\n", 0, command.words[0].start) + 1
        values = (word.value for word in install.packages)
        if install.tool == "conda":
            # conda-forge and the channel pytorch name torch so, and pin with one equals sign.
            values = (re.sub(r"^(?:[\w-]+::)?pytorch(?=[=<>!~\s]|$)", "torch", value) for value in values)
        requirements = (parse_gpu_requirement(value, path=path, line=line) for value in values)
        named = tuple(one for one in requirements if one is not None)
        files = install.option_values(*REQUIREMENT_FILE_OPTIONS)
        # The project itself, from its folder or from a copy of it in the image; elsewhere "." is another one.
        folders = (_FOLDER.fullmatch(word.value) for word in install.packages if not has_moved)
        files += tuple(f".{found[1] or ''}" for found in folders if found)
        backend = "".join(install.option_values("--torch-backend")[-1:]) or (assigned[1] if assigned else "")
        words = " ".join(command.values)
        indexes = [*_INDEX.findall(words), *_LOCAL.findall(words)]
        if named or files or indexes or (backend and install.tool == "uv"):
            options = (f"{name.value} {value.value}" if value else name.value for name, value in install.options)
            urls = find_index_urls("\n".join(options))
            yield Install(install.tool, named, files, "".join(indexes[:1]), backend, path, line, urls)


def parse_gpu_requirement(text: str, *, path: str, line: int) -> Requirement | None:
    """Parse a requirement of a GPU package, from "torch==2.9.1" or "git+https://host/apex"; None for any other."""
    text = text.strip().strip("'\"")
    git = _GIT_NAME.search(text)
    if git and "://" in text and " @ " not in text:
        name, specifier = git[1], "git"
    else:
        found = _REQUIREMENT.match(text)
        if found is None:
            return None
        name, specifier = found[1], (found[2] or "").split(";")[0].strip()
    name = canonicalize_name(name)
    if name not in CUDA_PACKAGES:
        return None
    return Requirement(name, "url" if "://" in specifier else specifier, path, line)


def find_index_urls(text: str) -> tuple[str, ...]:
    """Find the package indexes in lines such as `--index-url URL`, without logins and queries."""
    urls = (found[1] for found in _INDEX_URL.finditer(text))
    return tuple(dict.fromkeys(strip_url_credentials(url) for url in urls if "$" not in url))
