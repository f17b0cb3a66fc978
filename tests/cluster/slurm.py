"""A real Slurm cluster of two nodes on this machine: slurmctld, two slurmd and munge from the system's packages.

It lives in namespaces of its own (processes, network, mounts, names), so that its ports and names collide with nobody's
and it ends whole when the tests do, also when they are killed: its first process waits for the end of a pipe.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engine.commands import run

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "unshare", "nsenter", "ip")
NODES = ("one", "two")
GPUS = 8
NVIDIA_MAJOR = 195
START_DEADLINE_S = 60.0
REACH_DEADLINE_S = 300.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

INIT = """\
set -eu
state=$1
ip link set lo up
# Resolvers pass over IPv4 where a machine has no address beside 127.0.0.1.
ip address add 10.0.0.1/32 dev lo
hostname one
printf '127.0.0.1 localhost one two\\n' >"$state/hosts"
mount --bind "$state/hosts" /etc/hosts
munged --force --socket="$state/munge/socket" --key-file="$state/munge/key" --pid-file="$state/munge/pid" \\
    --log-file="$state/munge/log" --seed-file="$state/munge/seed"
export SLURM_CONF="$state/slurm.conf"
slurmctld -c
slurmd -N one
slurmd -N two
touch "$state/ready"
# The end of the tests closes this, whatever their end is; with the first process all others go.
cat >/dev/null
"""

CONF = """\
ClusterName=devkit
SlurmctldHost=one(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# Five seconds at least: so long a job that is queued again waits for its old credentials to expire.
AuthInfo=socket={state}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={state}/control
SlurmdSpoolDir={state}/spool.%n
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.%n.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
KillWait=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=DEFAULT CPUs=128 RealMemory=1000000 Gres=gpu:h100:{gpus} State=UNKNOWN
NodeName=one NodeAddr=127.0.0.1 NodeHostname=one Port=6821
NodeName=two NodeAddr=127.0.0.1 NodeHostname=one Port=6822
PartitionName=gpu Nodes=one,two Default=YES State=UP PriorityTier=1 GraceTime=60
PartitionName=hasty Nodes=one,two State=UP PriorityTier=1
PartitionName=urgent Nodes=one,two State=UP PriorityTier=10 PreemptMode=OFF
"""

GRES = "AutoDetect=off\nNodeName=one,two Name=gpu Type=h100 File={state}/dev/nvidia[0-{last}]\n"


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `first` is its first process, by this machine's number."""

    state: Path
    first: int

    def run(
        self, *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, expect: int | None = 0
    ):
        """A command as typed on its login node. Raises CommandError when it leaves otherwise than expected."""
        inside = ["nsenter", "--target", str(self.first), "--all", f"--wdns={cwd or self.state}", "--"]
        told = {"PATH": PATH, "HOME": str(self.state / "home"), "SLURM_CONF": str(self.state / "slurm.conf")}
        # All nodes are this one machine, which has other things to do.
        told["OMP_NUM_THREADS"] = "1"
        return run([*inside, *words], env=told | dict(env or {}), deadline_s=120, expect=expect)

    def submit(self, script: Path, *options: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
        """The number of the job that `sbatch` makes of a script."""
        return self.run("sbatch", "--parsable", *options, script, cwd=cwd, env=env).stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` says of one."""
        shown = self.run("scontrol", "--oneliner", "show", "job", number).stdout.splitlines()[0]
        return dict(re.findall(r"(\w+)=(\S*)", shown))

    def reach(self, number: str, *states: str) -> dict[str, str]:
        """Wait until a job is in one of the states.

        One that is queued again waits until its old credentials have expired: brought forward, a node may refuse it.
        """
        deadline = time.monotonic() + REACH_DEADLINE_S
        while True:
            found = self.job(number)
            if found["JobState"] in states:
                return found
            assert time.monotonic() < deadline, f"job {number} is not {' or '.join(states)} but {found}"
            time.sleep(0.2)


def until(condition: Callable[[], bool], what: str, *, deadline_s: float = REACH_DEADLINE_S) -> None:
    """Wait for something outside. Raises AssertionError at the deadline."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"in {deadline_s:.0f} s there was not {what}"
        time.sleep(0.05)


def missing() -> str:
    """Why no cluster can be started here, "" when one can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "a cluster needs root on Linux"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return (
        f"not installed: {', '.join(lacking)} (apt-get install slurmctld slurmd slurm-client munge)" if lacking else ""
    )


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Run one for the block."""
    state = Path(tempfile.mkdtemp(prefix="devkit-slurm-"))
    process = None
    try:
        _prepare(state)
        apart = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        with (state / "init.log").open("wb") as log:
            process = subprocess.Popen(
                [*apart, "--propagation", "private", "sh", "-c", INIT, "init", str(state)],
                env={"PATH": PATH},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        yield _started(state, process)
    finally:
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait(30)
        shutil.rmtree(state, ignore_errors=True)


def _prepare(state: Path) -> None:
    for name in ("control", "spool.one", "spool.two", "home", "dev"):
        (state / name).mkdir()
    (state / "munge").mkdir(mode=0o755)
    (state / "munge/key").write_bytes(os.urandom(128))
    (state / "munge/key").chmod(0o600)
    for number in range(GPUS):
        os.mknod(state / f"dev/nvidia{number}", 0o600 | 0o020000, os.makedev(NVIDIA_MAJOR, number))
    (state / "slurm.conf").write_text(CONF.format(state=state, gpus=GPUS), encoding="ascii")
    (state / "gres.conf").write_text(GRES.format(state=state, last=GPUS - 1), encoding="ascii")


def _started(state: Path, process: subprocess.Popen[bytes]) -> Cluster:
    def first() -> str:
        return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").strip()

    def said() -> str:
        return "\n".join(each.read_text(errors="replace")[-2000:] for each in sorted(state.glob("*.log")))

    deadline = time.monotonic() + START_DEADLINE_S
    while not (state / "ready").exists():
        assert process.poll() is None and time.monotonic() < deadline, f"the cluster does not start:\n{said()}"
        time.sleep(0.05)
    found = Cluster(state, int(first()))
    while found.run("sinfo", "--noheader", "--Node", "--format=%t", expect=None).stdout.split() != ["idle"] * 6:
        assert time.monotonic() < deadline, f"the nodes do not come up:\n{said()}"
        time.sleep(0.1)
    return found
