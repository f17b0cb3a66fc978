"""Names that are no text: variables, folders and files of bytes that no encoding knows, through the real command."""

import json
import os
import subprocess
import sys

import pytest

from tests.faults.examining import UNPRINTABLE, wrong_document

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are text")

VARIABLES = {
    b"HF_HOME": b"/tmp/\xff\xfe",
    b"DOCKER_HOST": b"unix:///tmp/\xff.sock",
    b"LD_LIBRARY_PATH": b"/\xff:/usr/\x80lib",
    b"DOCKER_CONFIG": b"/\xff",
    b"CUDA_VISIBLE_DEVICES": b"\xc3\x28",
    b"HTTPS_PROXY": b"http://\xff:\xfe@\xfd:99999",
    b"VIRTUAL_ENV": b"/opt/\xff",
    b"HOME": b"/home/\xff",
    b"PATH": b"/usr/bin:/bin:/\xff",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project") / os.fsdecode(b"pr\xff")
    folder.mkdir()
    for name in (b"requirements-\xff.txt", b"Dockerfile", b"compose.yaml", b"devcontainer.json\xff"):
        (folder / os.fsdecode(name)).write_bytes(b"\xff\xfe# torch==2.9.1\nFROM \x80\n" * 3)
    return os.fsencode(folder)


def test_a_context_may_have_any_name():
    variables = {key: value for key, value in os.environb.items() if key != b"DOCKER_HOST"} | {
        b"DOCKER_CONTEXT": b"\xff"
    }
    command = [sys.executable, "-m", "devkit", "doctor", "--json", "--timeout", "3"]
    done = subprocess.run(command, env=variables, capture_output=True, check=False, timeout=60)
    assert b"probe crashed" not in done.stdout
    assert wrong_document(json.loads(done.stdout)) == []


@pytest.mark.parametrize("form", ["text", "json"])
def test_names_that_are_no_text_reach_every_form(form, project, tmp_path):
    out, saved = tmp_path / "report", tmp_path / "facts.json"
    command = [sys.executable, "-m", "devkit", "doctor", "--format", form, "--output", str(out)]
    done = subprocess.run(
        [*command, "--save-facts", str(saved), "--timeout", "3", "--project", project],
        env={**os.environb, **VARIABLES},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, 1), done.stderr.decode(errors="replace")
    shown = out.read_text(encoding="utf-8")
    assert not UNPRINTABLE.search(shown)
    if form == "json":
        assert wrong_document(json.loads(shown)) == []
    again = [sys.executable, "-m", "devkit", "doctor", "--facts", str(saved), "--json"]
    judged = subprocess.run(again, capture_output=True, text=True, check=False, timeout=60)
    assert wrong_document(json.loads(judged.stdout)) == []
