"""What resembles a text in which nothing is known: entries of the catalog, and nothing for other fields."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from devkit.cli.explain import explain
from devkit.doctor.known_errors import find_known_errors
from devkit.doctor.signatures.nearest import find_nearest

UNRELATED = (Path(__file__).parent / "unrelated_lines.txt").read_text(encoding="utf-8").splitlines()
NEW = "cuda_shm_exchange: torch worker 3 lost its shared memory segment for nccl, the container is out of shm"


def test_an_unknown_text_about_gpus_has_near_entries_and_ends_with_1():
    assert find_known_errors(NEW) == ()
    result = CliRunner().invoke(explain, [NEW])
    assert result.exit_code == 1
    assert "nothing known; nearest:" in result.stdout
    assert "shared memory" in result.stdout
    document = json.loads(CliRunner().invoke(explain, ["--json", NEW]).stdout)
    assert document["matches"] == []
    assert len(document["nearest"]) == 3
    assert any("shared memory" in each["about"] for each in document["nearest"])


@pytest.mark.parametrize("line", UNRELATED, ids=lambda line: line[:40])
def test_a_text_of_another_field_has_no_near_entries(line):
    assert len(find_nearest(line.lower())) == 0 or any(
        word in line.lower() for word in ("cuda", "gpu", "torch", "nvidia")
    )


def test_a_report_of_a_failed_build_of_another_field_is_no_answer():
    report = "error: subprocess-exited-with-error\nwhile building mysqlclient"
    assert find_known_errors(report) == ()
    assert find_known_errors(f"Collecting torch\n{report}\nnvcc warning")


def test_a_long_text_takes_little_time():
    find_nearest("cuda gpu")
    started = time.process_time()
    find_nearest("cuda gpu unknown words " * 100_000)
    assert time.process_time() - started < 2
