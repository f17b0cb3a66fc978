"""Files far larger than anybody writes: the doctor takes what it can in its time, and ends."""

import pytest

from devkit.probe.host import MAX_FILE_BYTES
from tests.faults.damage import Damaged, huge
from tests.faults.examining import broken, examine
from tests.faults.test_answers import ASKED
from tests.hosts import machine

MACHINES = ("ubuntu-4090-ok", "in-container-ok")
SOUND = {
    path: (name, machine(name).read(path))
    for name in reversed(MACHINES)
    for path in ASKED[name]["read"]
    if machine(name).read(path)
}


AS_LARGE_AS_CAN_BE = ("/etc/docker/daemon.json", "/proc/mounts", "/var/log/dpkg.log", "/var/run/cdi/nvidia.yaml")
"""These are damaged to the full 32 MiB that are read of a larger file; the others to a part, for the tests' time."""


@pytest.mark.parametrize("path", sorted(SOUND))
@pytest.mark.turns(3)
def test_any_file_may_be_huge(path, count):
    name, text = SOUND[path]
    host = machine(name)
    faults = huge(text, size_bytes=MAX_FILE_BYTES if path in AS_LARGE_AS_CAN_BE else 1 << 18)
    problems = {
        fault: broken(examine(Damaged(host, "read", path, lambda _, answer=answer: answer), project=host.project))
        for fault, answer in faults.items()
    }
    count(len(faults))
    assert not {fault: found for fault, found in problems.items() if found}
