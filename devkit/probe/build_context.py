"""Which files with secrets a build takes in: what COPY names, less what the ignore file keeps out."""

import fnmatch
import re

from devkit.probe.project_files import ProjectFiles
from devkit.probe.secret_names import names_secret

SECRET_FILES = (".netrc", ".pypirc", "id_rsa", "id_ed25519", ".git-credentials", "kaggle.json", "credentials.json")
_NAME = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*[^\s#]", re.MULTILINE)


def secret_files_of(source: str, *, files: ProjectFiles, context: str, dockerfile: str) -> tuple[str, ...]:
    """Files with secrets that `COPY source` takes: by their name, or an .env file that sets a variable named so.

    Only the top of the context is looked at. Source: Dockerfile reference, "COPY"; Docker, ".dockerignore files".
    """
    relative = files.within(f"{context}/{source.removeprefix('./').lstrip('/')}")
    if relative is None or "$" in source:
        return ()
    base = files.within(context) or "."
    if source.rstrip("/") in (".", "./", "", "*"):
        candidates = [name for name in files.names(base) if _is_candidate(name)]
    else:
        candidates = [relative.removeprefix(f"{base}/")] if _is_candidate(relative.rpartition("/")[2]) else []
    kept = [name for name in candidates if not is_ignored(name, _ignore_lines(files, base, dockerfile))]
    return tuple(name for name in kept if files.has(f"{base}/{name}") and _holds_secret(files, f"{base}/{name}"))


def _is_candidate(name: str) -> bool:
    is_sample = name.endswith((".example", ".sample", ".template", ".dist"))
    return not is_sample and (name in SECRET_FILES or name == ".env" or name.startswith(".env."))


def _holds_secret(files: ProjectFiles, path: str) -> bool:
    if path.rpartition("/")[2] in SECRET_FILES:
        return True
    text = files.read(path, ".env") or ""
    return any(names_secret(name) for name in _NAME.findall(text))


def _ignore_lines(files: ProjectFiles, context: str, dockerfile: str) -> list[str]:
    """The ignore file named for the Dockerfile goes before the one of the context."""
    for path in (f"{dockerfile}.dockerignore", f"{context}/.dockerignore"):
        text = files.read(path.removeprefix("./"), "ignore")
        if text is not None:
            return ignore_lines(text)
    return []


def ignore_lines(text: str) -> list[str]:
    """The patterns of an ignore file."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def is_ignored(name: str, lines: list[str]) -> bool:
    """Whether an ignore file keeps `name` out. The last line that matches decides; `!` takes a file back in."""
    ignored = False
    for line in lines:
        pattern = line.removeprefix("!").removeprefix("/").removeprefix("**/").rstrip("/")
        if fnmatch.fnmatchcase(name, pattern) or pattern in ("*", "**", "."):
            ignored = not line.startswith("!")
    return ignored
