"""The requirement files of a project, by their names and folders, and the one that its own documentation installs."""

import re
from collections.abc import Iterator

from devkit.facts.dependencies import NOTHING_CHOSEN
from devkit.probe.dependencies.requirements import RequirementCollector, read_requirements_file
from devkit.probe.project.files import MAX_FOLDERS, ProjectFiles

MAIN_LISTS = ("requirements.txt", "requirements.in", "requirements/requirements.txt", "requirements/base.txt")
"""The first of these is the project's list, whatever else there is."""
DEVELOPMENT_LISTS = ("requirements-dev.txt", "requirements_dev.txt", "dev-requirements.txt", "requirements/dev.txt")
MAX_LISTS = 100
_DEPTH = 2

_LIST = re.compile(r"(?i)[\w.-]*(?:requirements?|reqs)[\w.-]*\.(?:txt|in)")
_ANY_LIST = re.compile(r".+\.(?:txt|in)")
_FOLDERS = ("requirements", "reqs")
_DOCUMENTS = re.compile(r"(?i)readme[\w.-]*|install[\w.-]*\.(?:md|rst|txt)|.*dockerfile.*")
_DOCUMENT_FOLDERS = ("docs", "doc", "docker")
_MAX_DOCUMENTS = 40
_OTHER_PURPOSE = re.compile(
    r"(?i)(?:^|[^a-z])(?:dev|develop|development|tests?|testing|docs?|doc|lint|ci|style|quality|build|bench|benchmarks?"
    r"|examples?|demo|optional|extras?|win|windows|mac|macos|osx|apple|darwin|directml|amd|rocm|xpu|ipex|npu|ascend|tpu"
    r"|hpu|cpu|mps|vulkan|nowheels|docker|runpod|colab|kaggle)(?:[^a-z]|$)"
)
"""Words of a file's name that give it a different purpose than to hold what the project needs."""
_NOT_THE_PROJECT = re.compile(
    r"(?i)\..*|docs?|tests?|examples?|extensions?|plugins?|third[_-]party|vendor|node_modules"
)
_INSTALLED = re.compile(r"(?:-r|--requirement)[\s=]+[\"'<]?([\w./-]+)")


def find_lists(files: ProjectFiles) -> tuple[str, ...]:
    """Find requirement files in the project's folder and its folder of requirements, two levels deep.

    Where neither has one that is for all, those of its other folders are returned, too: of the first level that has one.
    """
    names = files.names(".")
    found = [name for name in names if _LIST.fullmatch(name)]
    for folder in (name for name in names if name in _FOLDERS):
        found += _find_in_folder(files, folder, _ANY_LIST)
        for inner in files.names(folder):
            if "." not in inner:
                found += _find_in_folder(files, f"{folder}/{inner}", _ANY_LIST)
    folders = [""]
    for _ in range(_DEPTH):
        if any(map(is_for_all, found)):
            break
        folders = [
            f"{folder}{name}/"
            for folder in folders
            for name in files.names(folder or ".")
            if "." not in name and not _NOT_THE_PROJECT.fullmatch(name)
        ][:MAX_FOLDERS]
        for folder in folders:
            found += _find_in_folder(files, folder.rstrip("/"), _LIST)
    # A list that pip-compile wrote holds what its source names.
    return tuple(path for path in found if not (path.endswith(".in") and f"{path[:-3]}.txt" in found))[:MAX_LISTS]


def list_named_packages(files: ProjectFiles) -> Iterator[str]:
    """List the packages that requirement files of any part of the project name by their names alone."""
    found, folders = RequirementCollector(files, NOTHING_CHOSEN), [""]
    for _ in range(_DEPTH + 2):
        inner = [(folder, name) for folder in folders for name in files.names(folder or ".")]
        for path in (f"{folder}{name}" for folder, name in inner if _LIST.fullmatch(name) and is_for_all(name)):
            read_requirements_file(path, found)
        folders = [f"{folder}{name}/" for folder, name in inner if "." not in name and name != "node_modules"][
            :MAX_LISTS
        ]
    return (need.name for need in found.needs if not need.url)


def _find_in_folder(files: ProjectFiles, folder: str, pattern: re.Pattern[str]) -> Iterator[str]:
    return (f"{folder}/{name}" for name in files.names(folder) if pattern.fullmatch(name))


def choose_main_list(files: ProjectFiles, lists: tuple[str, ...]) -> tuple[str, str]:
    """Choose the list that holds what the project needs, and say what shows it; "" where none is plausible."""
    if main := next((path for path in MAIN_LISTS if path in lists), ""):
        return main, f"the project has {main}"
    named = dict(reversed(tuple(_read_mentions(files))))

    def count(path: str) -> int:
        # A folder counts as well: which of its lists it is may be said in a table.
        folder = path.rpartition("/")[0]
        return sum(mention == path or (bool(folder) and mention.startswith(f"{folder}/")) for mention in named)

    plausible = [path for path in lists if is_for_all(path)]
    if not plausible:
        return "", ""
    best = max(plausible, key=lambda path: (count(path), path in named, path.endswith("requirements.txt"), -len(path)))
    if best in named:
        return best, f"{named[best]} installs {best}"
    others = [path for path in plausible if path != best]
    return best, f"the project has {best}" + (", the most plausible of its lists" if others else "")


def is_for_all(path: str) -> bool:
    """Return whether the name of a list gives it no purpose but to hold what the project needs."""
    return _OTHER_PURPOSE.search(path) is None


def _read_mentions(files: ProjectFiles) -> Iterator[tuple[str, str]]:
    """Read which requirement files the documentation and Dockerfiles install: the path, and the file that says so."""
    documents = [name for name in files.names(".") if _DOCUMENTS.fullmatch(name)]
    for folder in _DOCUMENT_FOLDERS:
        documents += [f"{folder}/{name}" for name in files.names(folder) if name.endswith((".md", ".rst"))]
    for document in documents[:_MAX_DOCUMENTS]:
        for path in _INSTALLED.findall(files.read(document, "document") or ""):
            yield path.removeprefix("./"), document
