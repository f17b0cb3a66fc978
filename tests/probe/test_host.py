import os
import sys

import pytest

from devkit.probe.host import LocalHost, Stat

HOST = LocalHost()


@pytest.fixture
def place(tmp_path):
    (tmp_path / "file").write_bytes(b"text\xff")
    (tmp_path / "file").chmod(0o644)  # whatever the umask, which is 002 for a user of Ubuntu
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize("name", ["nothing", "dangling", "loop", "folder/nothing", "file/x", "nul\0byte"])
def test_what_is_not_there_is_answered_without_an_exception(place, name):
    path = f"{place}/{name}"
    assert HOST.read(path) is None
    assert HOST.list(path) == ()
    assert HOST.stat(path) is None
    assert HOST.link(path) is None
    assert HOST.is_writable(path) is False


def test_a_file_is_read_whatever_its_bytes(place):
    assert HOST.read(f"{place}/file") == "text\N{REPLACEMENT CHARACTER}"
    assert HOST.read(f"{place}/folder") is None


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
def test_what_is_no_file_holds_no_settings(place):
    os.mkfifo(place / "pipe")
    assert HOST.read(f"{place}/pipe") is None
    assert HOST.read("/dev/zero") is None


def test_names_are_sorted(place):
    assert HOST.list(str(place)) == ("dangling", "file", "folder", "link", "loop")


def test_a_link_is_followed(place):
    assert HOST.link(f"{place}/link") == f"{place.resolve()}/file"
    assert HOST.stat(f"{place}/link") == HOST.stat(f"{place}/file")
    assert HOST.stat(f"{place}/file") == Stat("file", 0o644, os.getuid(), os.getgid(), 5)


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        pytest.param("/dev/null", "open", id="a device that opens"),
        pytest.param("/dev/devkit-nothing", "ENOENT", id="a device that does not exist"),
        pytest.param("/etc/passwd/x", "ENOTDIR", id="a file where a folder should be"),
        pytest.param("/etc", "EISDIR", id="a folder"),
    ],
)
def test_opening_ends_with_the_systems_own_word(path, outcome):
    assert HOST.open_error(path) == outcome


def test_free_space_is_read_where_there_is_a_file_system(place):
    assert HOST.free_bytes(str(place)) > 0
    assert HOST.free_bytes(f"{place}/nothing") is None


def test_the_interpreter_and_the_environment_are_this_process_s(monkeypatch):
    monkeypatch.setenv("DEVKIT_TEST", "here")
    assert HOST.env["DEVKIT_TEST"] == "here"
    assert HOST.python == sys.executable
