"""Files of others are read whole and within bounds, or not at all, and the reason is in the error."""

import errno
import os
import sys
import threading
import time

import pytest

from devkit import reading
from devkit.reading import read_bounded

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")


def test_a_file_is_read_whole_up_to_the_bound(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"a" * 100)
    assert read_bounded(file, 100) == b"a" * 100
    with pytest.raises(OSError, match="not read: larger than 99 B") as error:
        read_bounded(file, 99)
    assert error.value.errno == errno.EFBIG and error.value.filename == str(file)


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    file = tmp_path / "file"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(OSError, match="not read: larger than 1 MiB"):
        read_bounded(file, 1 << 20)


@posix
def test_a_device_without_end_is_refused():
    with pytest.raises(OSError, match="not read: larger than 1 MiB"):
        read_bounded("/dev/zero", 1 << 20)


@posix
def test_a_pipe_is_read_as_from_a_process_substitution(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    def write():
        with (tmp_path / "pipe").open("wb") as stream:
            for _ in range(3):
                stream.write(b"a" * 1000)
                stream.flush()
                time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_bounded(tmp_path / "pipe", 1 << 20) == b"a" * 3000
    writer.join()


@posix
def test_a_pipe_that_nobody_writes_to_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "PIPE_TIMEOUT_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TimeoutError, match="not read: no data"):
        read_bounded(tmp_path / "pipe", 1 << 20)


def test_a_folder_is_none(tmp_path):
    with pytest.raises((IsADirectoryError, PermissionError)):
        read_bounded(tmp_path, 1 << 20)
