"""The engine's host, as seen by what runs on it: a plain Linux machine, with or without a GPU's device node.

Programs run in a mount namespace of their own, so this machine stays as it is. The device node drives nothing. Where
the tests themselves run in a container, its mark is hidden, because a developer's host has none.
"""

import os
import stat
import sys
from pathlib import Path

from .cache import CACHE, ROOT

NVIDIA_MAJOR = 195
SCRIPT = """#!/bin/sh
set -eu
program_path=$PATH
PATH=/usr/sbin:/usr/bin:/sbin:/bin
state=$1
kept=$2
shift 2
here=$PWD
if [ -e "$state/dev/nvidia0" ]; then
    mount -t overlay overlay -o "lowerdir=$state/dev:/dev" /dev
    mount -t tmpfs tmpfs /dev/shm
fi
[ -e /.dockerenv ] || exec env PATH="$program_path" "$@"
# To an overlay file system a node 0:0 says: the name below does not exist.
mount -t tmpfs tmpfs "$state/root"
mknod "$state/root/.dockerenv" c 0 0
mount -t overlay overlay -o "lowerdir=$state/root:/" "$state/host"
for folder in /dev /proc /sys /run /tmp $kept; do
    mount --rbind "$folder" "$state/host$folder"
done
exec chroot "$state/host" sh -c 'cd "$0" && exec "$@"' "$here" env PATH="$program_path" "$@"
"""


def prepare(state: Path, *, has_gpu: bool) -> None:
    """Write what the script needs into the engine's folder of state."""
    (state / "as-host").write_text(SCRIPT, encoding="ascii")
    if has_gpu:
        (state / "dev").mkdir()
        os.mknod(state / "dev/nvidia0", 0o666 | stat.S_IFCHR, os.makedev(NVIDIA_MAJOR, 0))
    for name in ("host", "root"):
        (state / name).mkdir()


def on_host(state: Path, *words: str | Path) -> list[str | Path]:
    """A command line that runs `words` on the host; the process keeps its id, so that signals reach it."""
    # Folders that may be file systems of their own, which an overlay of / would show empty.
    kept = {ROOT, CACHE, Path(sys.prefix), Path(sys.base_prefix)}
    apart = ["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", state / "as-host", state]
    return [*apart, " ".join(sorted(map(str, kept))), *words]
