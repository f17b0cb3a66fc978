"""Measure libraries that could replace our own editing of Compose files and reading of Dockerfiles, on a folder of real ones.

    git clone https://github.com/docker/awesome-compose
    pip install ruamel.yaml dockerfile-parse
    python -m benchmarks.document_libraries awesome-compose

A Compose file counts as kept when setting `services.<first>.shm_size` changes nothing but adds that line. A Dockerfile counts as read
when every library agrees about its instructions, and the heredoc below is one RUN.
"""

import io
import sys
import tempfile
from pathlib import Path

import yaml
from dockerfile_parse import DockerfileParser  # type: ignore[import-untyped]
from ruamel.yaml import YAML

from devkit.errors import DevkitError
from devkit.probe.project.dockerfile import parse_instructions
from devkit.render.splice.compose_yaml import YAML as COMPOSE_YAML
from devkit.render.splice.document import CannotSplice, set_value

HEREDOC = "FROM python:3.12-slim\nRUN <<EOF\napt-get update\nCOPY is no instruction here\nEOF\nUSER dev\n"


def is_kept(before: str, after: str) -> bool:
    """Whether `after` is `before` with one line added."""
    lines = after.splitlines()
    return any(lines[:at] + lines[at + 1 :] == before.splitlines() for at in range(len(lines)))


def edit_with_ruamel(text: str, service: str, *, sequence: int, offset: int) -> str:
    round_trip = YAML()
    round_trip.preserve_quotes = True
    round_trip.width = 1_000_000
    round_trip.indent(mapping=2, sequence=sequence, offset=offset)
    document = round_trip.load(text)
    document["services"][service]["shm_size"] = "8gb"
    out = io.StringIO()
    round_trip.dump(document, out)
    return out.getvalue()


def edit_with_devkit(text: str, service: str) -> str:
    return set_value(text, ("services", service, "shm_size"), "8gb", COMPOSE_YAML)


def main() -> None:
    folder = Path(sys.argv[1])
    files = kept_by_ruamel = kept_by_devkit = refused = 0
    for path in sorted(folder.rglob("*compose*.y*ml")):
        text = path.read_text(encoding="utf-8")
        services = (yaml.safe_load(text) or {}).get("services") or {}
        if not services:
            continue
        service = next(iter(services))
        files += 1
        # Each file in the better of the two common indents of lists.
        edited = [edit_with_ruamel(text, service, sequence=each, offset=each - 2) for each in (2, 4)]
        kept_by_ruamel += any(is_kept(text, each) for each in edited)
        try:
            kept_by_devkit += is_kept(text, edit_with_devkit(text, service))
        except (CannotSplice, DevkitError):
            refused += 1
    print(
        f"{files} Compose files: ruamel.yaml keeps {kept_by_ruamel}, devkit keeps {kept_by_devkit} and refuses {refused}"
    )
    with tempfile.TemporaryDirectory() as scratch:
        parser = DockerfileParser(path=scratch)
        parser.content = HEREDOC
        theirs = [each["instruction"] for each in parser.structure]
    ours = [each.keyword for each in parse_instructions(HEREDOC)]
    print(f"a Dockerfile with a heredoc: dockerfile-parse reads {theirs}, devkit {ours}")


if __name__ == "__main__":
    main()
