"""Versions of generated files by content address: the base of a three-way merge, without a copy of it in devkit.lock.

The address is Git's, so a version that was committed is in the project's own repository. Every version that this user's
devkit wrote is also kept in the user's data folder, for what was edited before the first commit.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from devkit.probe.host import LocalHost
from devkit.user_folder import find_user_file


def compute_blob_id(content: bytes) -> str:
    """Return Git's id of the content, as `git hash-object` does."""
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()


def find_version(root: Path, blob_id: str) -> bytes | None:
    """Find the content with this id: in the user's data folder, else in the Git repository of `root`."""
    store = find_user_file("versions")
    with contextlib.suppress(OSError):
        content = Path(store or os.devnull, blob_id).read_bytes()
        if compute_blob_id(content) == blob_id:
            return content
    found = LocalHost().run(["git", "-C", str(root), "cat-file", "blob", blob_id])
    content = found.out.encode(errors="surrogateescape")
    return content if found.code == 0 and compute_blob_id(content) == blob_id else None


def keep_versions(contents: Iterable[bytes]) -> None:
    """Keep these contents in the user's data folder. A folder that refuses is no error: an edit is then only refused."""
    store = find_user_file("versions")
    if store is None:
        return
    with contextlib.suppress(OSError):
        Path(store).mkdir(parents=True, exist_ok=True)
        for content in contents:
            path = Path(store, compute_blob_id(content))
            if not path.exists():
                staged = path.with_name(f"{path.name}.{os.getpid()}")
                staged.write_bytes(content)
                staged.replace(path)
