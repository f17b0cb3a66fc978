"""One error in the frames in which logs have it: the first answer is that of the bare text."""

import random
import tomllib
from pathlib import Path

import pytest

from devkit.doctor.known_errors import explain_text
from devkit.doctor.model import Severity
from devkit.doctor.signatures.catalog import load_families
from tests.doctor.test_signature_catalog import written_out

NOISE = "\n".join(
    f"step {number}: processed {number * 17} records in {number % 7}.{number % 10} s" for number in range(300)
)


def before_lines(prefix):
    """A frame that puts something before each line; {second} counts on."""
    return lambda text: "\n".join(
        prefix.format(second=f"{number % 60:02}") + line for number, line in enumerate(text.split("\n"))
    )


def run_by_pip(text):
    """The output of a build that pip runs."""
    output = "\n".join(f"      {line}" for line in text.split("\n"))
    return (
        "Collecting numpy>=1.20\n  Downloading numpy-2.1.0-cp312-cp312-manylinux_2_17_x86_64.whl (16.0 MB)\n"
        "     ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 16.0/16.0 MB 85.2 MB/s eta 0:00:00\n"
        "  error: subprocess-exited-with-error\n\n"
        "  × Building wheel for x (pyproject.toml) did not run successfully.\n  │ exit code: 1\n"  # noqa: RUF001 - as pip prints it
        f"  ╰─> [12 lines of output]\n{output}\n      [end of output]\n\n"
        "  note: This error originates from a subprocess, and is likely not a problem with pip.\n"
    )


def run_by_docker(text):
    """The output of a step of a Docker build."""
    return (
        f"#11 [ 7/12] RUN ./build.sh\n{before_lines('#12 3.4{second} ')(text)}\n"
        '#12 ERROR: process "/bin/sh -c ./build.sh" did not complete successfully: exit code: 1'
    )


FAILING = {"pip": run_by_pip, "docker build": run_by_docker}
"""Frames that report a failure themselves."""
FRAMES = {
    **FAILING,
    "journalctl": before_lines("Nov 23 04:00:{second} node7 train.sh[812]: "),
    "journalctl, ISO time": before_lines("2026-11-23T04:00:{second}+0000 node7 train.sh[812]: "),
    "GitHub Actions": before_lines("2026-11-23T04:00:{second}.1234567Z \x1b[36;1m"),
    "GitLab": before_lines("\x1b[0;33m04:00:{second}\x1b[0m "),
    "Python's logging": before_lines("2026-11-23 04:00:{second},123 - trainer - ERROR - "),
    "docker compose logs": before_lines("web-1  | "),
    "kubectl logs --prefix": before_lines("[pod/trainer-0/main] "),
    "containerd": before_lines("2026-11-23T04:00:{second}.123456789Z stderr F "),
    "torchrun": before_lines("[rank3]: "),
    "progress bars": before_lines(" 12%|██        | 3/25 [00:01<00:09]\r 16%|██        | 4/25 [00:02<00:08]\r"),
    "indented": before_lines("    "),
    "300 lines before": lambda text: f"{NOISE}\n{text}\n",  # progress after it would say that all is well
}


def list_texts():
    """Every text of the catalog, written out, and those of public threads."""
    rows = [text for row in load_families() for text in row.texts]
    here = Path(__file__).parent
    files = (here / "pasted_errors.toml", here / "family_errors.toml")
    threads = [error["text"].strip() for file in files for error in tomllib.loads(file.read_text("utf-8"))["error"]]
    return [*(written_out(text.replace("…", " and ")) for text in rows), *threads]


def answer(text):
    """The first answer, and whether it is an error."""
    matches = explain_text(text).matches
    return (matches[0].code, matches[0].cause, matches[0].severity is Severity.ERROR) if matches else None


def find_differences(texts):
    """The texts whose first answer a frame changes; a frame that fails has a failure where the text has none."""
    different = []
    for text in texts:
        bare = answer(text)
        if bare is not None:
            is_open = not bare[2] or "this line only reports" in bare[1]  # the frame has an error above it
            frames = (each for each in FRAMES if not (is_open and each in FAILING))
            different += [(name, text, bare[:2]) for name in frames if answer(FRAMES[name](text)) != bare]
    return different


TEXTS = list_texts()


def test_a_frame_changes_no_first_answer():
    assert find_differences(random.Random(0).sample(TEXTS, 30)) == []


@pytest.mark.nightly  # a quarter of an hour
@pytest.mark.parametrize("part", range(8))
def test_a_frame_changes_the_first_answer_of_no_text(part):
    assert find_differences(TEXTS[part::8]) == []
