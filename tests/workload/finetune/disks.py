"""Disks that refuse: made by the system's own means, so that the real errors arise where they would."""

import os
import resource
import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def files_of_at_most(count):
    """A disk that takes no more than `count` bytes of a file; unlike a full one, it needs no root to make."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def mounted(folder, *options):
    """`folder` as a file system in memory of its own. Skips the test where nothing may be mounted."""
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(argv, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def made_read_only(folder):
    """From now on nothing can be written to the file system mounted at `folder`."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
