"""Runs of `devkit finetune` in processes of their own, forked from one that has imported torch already.

Importing takes five seconds, a small run a quarter of one: only so can a test afford to kill a hundred of them.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.forked_commands import renew_thread_pool
from tests.loopback import find_free_port
from tests.workload.finetune import faults

WAIT_S = 60.0
"""Longer than any run takes on a loaded machine; one that still runs then hangs."""


class Zygote:
    """The process that forks. Use it as a context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = 0

    def __enter__(self) -> "Zygote":
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.workload.finetune.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        return self

    def __exit__(self, *_error: object) -> None:
        with self._process:
            self._process.stdin.close()

    def start(
        self, argv: list[str], *, world: int = 1, slow_disk_s: float = 0.0, places: dict[int, dict] | None = None
    ) -> "Started":
        """A run in `world` processes, as torchrun would start them. Each fsync takes `slow_disk_s` longer.

        `places` are, by rank, what is different for a process: "environment", the working folder "cwd", and faults
        of tests/workload/finetune/faults.py by name.
        """
        self._runs += 1
        logs = [self.folder / f"run-{self._runs}-{rank}" for rank in range(world)]
        order = {"argv": argv, "logs": [str(log) for log in logs], "slow_disk_s": slow_disk_s, "port": find_free_port()}
        order["places"] = {str(rank): place for rank, place in (places or {}).items()}
        return Started(self, self.ask(order), logs)

    def ask(self, order: dict) -> list[int]:
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@dataclass
class Started:
    """A run that was started. `pids` are by rank."""

    zygote: Zygote
    pids: list[int]
    logs: list[Path]
    codes: list[int] = field(default_factory=list)

    def events(self, *names: str) -> list[dict]:
        """What the first process has told so far; half a line is what a killed one leaves."""
        lines = self.logs[0].read_text().split("\n")[:-1] if self.logs[0].exists() else []
        told = [json.loads(line) for line in lines if line.startswith("{")]
        return [each for each in told if not names or each["event"] in names]

    def said(self, rank: int) -> str:
        return self.logs[rank].read_text()

    def until(self, condition) -> None:
        """Wait until `condition` holds or the run has ended."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition() and any(map(is_running, self.pids)):
            assert time.monotonic() < deadline_s, self.said(0)
            time.sleep(0.003)

    def send(self, number: int, *ranks: int) -> None:
        for rank in ranks or range(len(self.pids)):
            os.kill(self.pids[rank], number)

    def ended(self) -> list[int]:
        """The exit codes by rank, once all have ended; negative for the signal that ended one."""
        deadline_s = time.monotonic() + WAIT_S
        while any(map(is_running, self.pids)):
            assert time.monotonic() < deadline_s, [log.read_text() for log in self.logs]
            time.sleep(0.005)
        self.codes = self.zygote.ask({"collect": self.pids})
        return self.codes


def is_running(pid: int) -> bool:
    """Whether a process has neither ended nor is one that only waits to be collected."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def serve() -> None:
    """Fork runs and collect them, as lines of JSON on standard input say, until it is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _warm_up()
    from torch.distributed import TCPStore

    stores: list[TCPStore] = []
    for line in sys.stdin:
        order = json.loads(line)
        if "collect" in order:
            answer = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in order["collect"]]
            stores.clear()
        else:
            answer = [_forked(order, rank) for rank in range(len(order["logs"]))]
            if len(answer) > 1:
                # As torchrun's own, which outlives every process that it started.
                stores.append(TCPStore("127.0.0.1", order["port"], is_master=True, wait_for_workers=False))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _warm_up() -> None:
    """Have imported, before the first fork, what a run imports on its way."""
    import tempfile

    import bitsandbytes  # noqa: F401
    import torch
    import torch.distributed.fsdp
    import torch.distributed.tensor

    from tests.workload.finetune.run_factory import RunFactory

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        assert RunFactory(Path(folder)).run(steps=1, dropout=0.1).code == 0


def _forked(order: dict, rank: int) -> int:
    child = os.fork()
    if child:
        return child
    log = os.open(order["logs"][rank], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 3
    try:
        code = _run(order, rank)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(order: dict, rank: int) -> int:
    world = len(order["logs"])
    if world > 1:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": order["port"]}
        os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    different = order["places"].get(str(rank), {})
    os.environ.update(different.get("environment", {}))
    os.chdir(different.get("cwd", "."))
    faults.plant(different.get("faults", {}))
    renew_thread_pool()
    _slow_down(order["slow_disk_s"])
    sys.argv = ["devkit", *order["argv"]]
    from devkit.cli import main

    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 3


def _slow_down(seconds: float) -> None:
    synced = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(seconds)
        synced(descriptor)

    if seconds:
        os.fsync = slow


if __name__ == "__main__":
    serve()
