"""The plan's torch in somebody's Dockerfile and requirement files: its version and its index, and no other byte."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from devkit.doctor.checks.project.containers import TORCH_PACKAGES, ProjectContainer
from devkit.formats.shell import REQUIREMENT_FILE_OPTIONS, PackageInstall, find_package_install, parse_commands
from devkit.probe.project.dockerfile import parse_instructions
from devkit.render.files import DEVCONTAINER_FOLDER
from devkit.render.text_edits import TextEdit, apply_text_edits

_TORCH = re.compile(r"torch(?P<extras>\[[^\]]*\])?(?P<specifier>==[\w.!+-]+)?", re.IGNORECASE)
_REQUIREMENT_LINE = re.compile(r"\s*([\w.-]+(?:\[[^\]]*\])?(?:==[\w.+!-]+)?)(?=\s*(?:[;#\\]|$))")
_TORCH_URL = re.compile(r"https?://download\.pytorch\.org/whl[^\s\"']*")


@dataclass(frozen=True)
class TorchPin:
    """The torch of a plan: its version, the variant such as cu126, and the index of that variant.

    A requirement without a version gets it, and one with a specifier of `before`, which earlier runs wrote.
    """

    version: str
    variant: str
    index: str
    before: Collection[str] = ()

    def pin(self, text: str, *, with_variant: bool) -> str | None:
        """Return the requirement with the plan's version; None for another package, and for a version of the user's."""
        found = _TORCH.fullmatch(text)
        if found is None or (found["specifier"] and found["specifier"] not in self.before):
            return None
        return f"torch{found['extras'] or ''}=={self.version}{f'+{self.variant}' if with_variant else ''}"


def pin_container(container: ProjectContainer, pin: TorchPin, read: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Yield the Dockerfile of a container, and its requirement files in .devcontainer, with torch pinned: path and text.

    `read` gives the present text of a file.
    """
    if container.dockerfile is None:
        return
    lists = [
        requirement
        for install in container.installs
        for requirement in install.requirements
        if requirement.name in TORCH_PACKAGES and requirement.path.endswith((".txt", ".in"))
    ]
    own = {requirement.path for requirement in lists if is_dev_container_file(requirement.path)}
    yield from ((path, pin_requirements(read(path), pin)) for path in sorted(own))
    # A file elsewhere may serve a production image: the command that installs it names the version instead.
    files = {each.path.rpartition("/")[2]: each.path in own for each in lists if each.name == "torch"}
    yield container.dockerfile.path, pin_dockerfile(read(container.dockerfile.path), pin, files=files)


def is_dev_container_file(path: str) -> bool:
    """Return True for a file that serves dev containers alone: only these are edited."""
    return path == f"{DEVCONTAINER_FOLDER}.json" or path.startswith(f"{DEVCONTAINER_FOLDER}/")


def pin_requirements(text: str, pin: TorchPin) -> str:
    """Pin torch in a requirement file; comments and markers stay."""
    edits, start = [], 0
    for line in text.splitlines(keepends=True):
        found = _REQUIREMENT_LINE.match(line.rstrip("\r\n"))
        pinned = pin.pin(found[1], with_variant=False) if found else None
        if found and pinned:
            edits.append(TextEdit(start + found.start(1), start + found.end(1), pinned))
        start += len(line)
    return apply_text_edits(text, edits)


def pin_dockerfile(text: str, pin: TorchPin, *, files: Mapping[str, bool] = MappingProxyType({})) -> str:
    """Pin torch in every pip and uv command that installs it, with its index.

    `files` are the names of requirement files with torch in them, each with whether its own line names the version:
    otherwise the command that installs the file does.
    """
    edits: list[TextEdit] = []
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    instructions = list(parse_instructions(text))
    for each, following in zip(instructions, [*instructions[1:], None], strict=False):
        if each.keyword == "RUN":
            end = starts[following.line - 1] if following else len(text)
            for command in parse_commands(text, starts[each.line - 1], end):
                install = find_package_install(command)
                if install is not None and install.tool in ("pip", "uv") and install.verb.value == "install":
                    edits += _pin_install(install, pin, files)
    return apply_text_edits(text, edits)


def _pin_install(install: PackageInstall, pin: TorchPin, files: Mapping[str, bool]) -> Iterator[TextEdit]:
    names = {name.rpartition("/")[2] for name in install.option_values(*REQUIREMENT_FILE_OPTIONS)} & files.keys()
    is_pip = install.tool == "pip"
    is_named = False
    for word in install.packages:
        pinned = pin.pin(word.value, with_variant=is_pip)
        if pinned is not None:
            is_named = True
            if pinned != word.value:
                quote = word.text[0] if word.text[0] in "\"'" and word.text[-1] == word.text[0] else ""
                yield TextEdit(word.start, word.end, f"{quote}{pinned}{quote}")
    if names or is_named:
        yield from _set_torch_index(install, pin)
    if not is_named and not all(files[name] for name in names):
        yield TextEdit(install.verb.end, install.verb.end, f" {pin.pin('torch', with_variant=is_pip)}")


def _set_torch_index(install: PackageInstall, pin: TorchPin) -> Iterator[TextEdit]:
    for name, value in install.options:
        word = value or name
        if _TORCH_URL.search(word.text):
            yield TextEdit(word.start, word.end, _TORCH_URL.sub(pin.index, word.text))
            return
        if name.value.startswith("--torch-backend"):
            joined = "--torch-backend=" if "=" in name.value else ""
            yield TextEdit(word.start, word.end, f"{joined}{pin.variant}")
            return
    is_uv = install.tool == "uv"
    added = f"--torch-backend={pin.variant}" if is_uv else f"--extra-index-url {pin.index}"
    yield TextEdit(install.verb.end, install.verb.end, f" {added}")
