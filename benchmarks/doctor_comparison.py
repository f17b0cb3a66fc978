"""`devkit doctor` beside the tools that people run today: wall time, and what each says of the same broken machines.

Time: one hyperfine run on a machine with a live engine and eight healthy stub GPUs. Bound: the doctor takes at most a
sixth of `python -m torch.utils.collect_env`. Reports: five machines, each broken in one way, each tool run once.
The GPUs are the C stub of NVML behind the real nvidia-ml-py, and nvidia-smi is a script that prints what the real one
prints in that state: no real driver takes part. The engine is real; it needs root on Linux. nvitop is taken from the
folder in NVITOP where it is not installed.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import compiled, record, versions
from tests.engine import binaries, cache, daemon, network
from tests.nvml_stub import build_stub, stub_environment

BOUND = 6.0
PATIENCE_S = 20.0
BIN = Path(sys.executable).parent
TOOLS = {
    "devkit doctor": [f"{BIN}/devkit", "doctor"],
    "torch collect_env": [sys.executable, "-m", "torch.utils.collect_env"],
    "accelerate env": [f"{BIN}/accelerate", "env"],
    "transformers env": [f"{BIN}/transformers", "env"],
    "bitsandbytes": [sys.executable, "-m", "bitsandbytes"],
    "nvitop --once": [sys.executable, "-m", "nvitop", "--once"],
}
LISTING = "".join(f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: GPU-{index})\n" for index in range(8))


@dataclass(frozen=True)
class Broken:
    """A machine with one fault: how NVML, nvidia-smi and the engine behave, and the words that name the cause."""

    fault: str
    cause: str
    nvml: str = ""
    smi: str = LISTING
    smi_code: int = 0
    flavor: daemon.Flavor = daemon.Flavor.NVIDIA


MACHINES = (
    Broken(
        "driver upgraded without a reboot",
        r"version mismatch|another version|do(?:es)? not match",
        nvml="nvmlInit_v2=18",
        smi="Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n",
        smi_code=18,
    ),
    Broken("driver hangs", r"did not (?:return|answer)|hang", nvml="nvmlInit_v2=hang", smi_code=-1),
    Broken(
        "one GPU of eight has fallen off the bus",
        r"GPU 3.*(?:lost|fallen)|(?:lost|fallen).*GPU 3",
        nvml="nvmlDeviceGetHandleByIndex_v2@3=15",
        smi="Unable to determine the device handle for GPU3: 0000:04:00.0: GPU is lost.  Reboot the system\n",
        smi_code=15,
    ),
    Broken(
        "Docker without the NVIDIA Container Toolkit",
        r"container toolkit|could not select device driver",
        flavor=daemon.Flavor.CPU,
    ),
    Broken(
        "torch is a CPU build beside eight GPUs",
        r"torch \S+ is (?:a CPU|built for the CPU)|CPU build|not compiled with CUDA",
    ),
)


def smi_script(folder: Path, machine: Broken) -> None:
    """An nvidia-smi that behaves as on `machine`."""
    script = folder / "nvidia-smi"
    body = "exec sleep 1000" if machine.smi_code < 0 else f"cat <<'END'\n{machine.smi}END\nexit {machine.smi_code}"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)


@contextmanager
def surroundings(library: Path, machine: Broken) -> Iterator[Mapping[str, str]]:
    """The environment in which a tool sees `machine`, with its engine running."""
    with tempfile.TemporaryDirectory() as folder, daemon.engine(binaries.find(), machine.flavor) as engine:
        smi_script(Path(folder), machine)
        stub = stub_environment(library, gpus=8, fail=machine.nvml, name="NVIDIA H100 80GB HBM3", capability="9.0")
        path = f"{folder}:{engine.env.get('PATH', os.environ['PATH'])}"
        packages = {"PYTHONPATH": os.environ["NVITOP"]} if "NVITOP" in os.environ else {}
        yield {**engine.env, **stub, **packages, "PATH": path}


def seconds_of(library: Path) -> dict[str, float]:
    """Mean wall time of every tool, in an empty folder of the machine whose only oddity is a CPU build of torch."""
    with surroundings(library, MACHINES[-1]) as environment, tempfile.TemporaryDirectory() as scratch:
        exported = Path(scratch) / "times.json"
        argv = ["hyperfine", "--shell=none", "--warmup=2", "--min-runs=8", "--ignore-failure"]
        commands = [" ".join(command) for command in TOOLS.values()]
        subprocess.run([*argv, f"--export-json={exported}", *commands], env=environment, cwd=scratch, check=True)
        results = json.loads(exported.read_text())["results"]
    return dict(zip(TOOLS, (row["mean"] for row in results), strict=True))


def report_of(command: list[str], environment: Mapping[str, str], cause: str) -> dict[str, object]:
    """What one tool said: exit status, seconds, whether its words name the cause, and the line that says most."""
    started = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=PATIENCE_S)
        ended: object = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        ended = f"killed after {PATIENCE_S:g} s"
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(cause, line, re.IGNORECASE)]
    troubled = [line for line in lines if re.search(r"error|fail|warn|could not|unknown", line, re.IGNORECASE)]
    said = next(iter(telling or troubled or lines[-1:]), "")
    return {
        "exit": ended,
        "seconds": round(time.monotonic() - started, 2),
        "names_the_cause": bool(telling),
        "in_its_first_line": bool(lines) and bool(re.search(cause, lines[0], re.IGNORECASE)),
        "says": said[:200],
    }


def reports_on(library: Path, machine: Broken) -> dict[str, object]:
    """Every tool's report on one machine."""
    with surroundings(library, machine) as environment:
        return {name: report_of(command, environment, machine.cause) for name, command in TOOLS.items()}


def main() -> int:
    """Measure, record, print, and say by the exit code whether the bound holds."""
    compiled()
    with tempfile.TemporaryDirectory() as folder, cache.only_one(), network.bridged():
        library = build_stub(Path(folder))
        seconds = seconds_of(library)
        reports = {machine.fault: reports_on(library, machine) for machine in MACHINES}
    ratio = seconds["torch collect_env"] / seconds["devkit doctor"]
    path = record(
        "doctor_comparison",
        {
            "nvml": "C stub, 8 GPUs; nvidia-smi is a script",
            "versions": versions("devkit-gpu", "torch", "accelerate", "transformers", "bitsandbytes", "nvidia-ml-py"),
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            "collect_env_to_doctor": round(ratio, 2),
            "bound": BOUND,
            "reports": reports,
        },
    )
    for name, value in seconds.items():
        print(f"{name:20} {value:6.2f} s")
    print(f"collect_env takes {ratio:.1f} times as long as the doctor; bound {BOUND:g}")
    print(f"recorded in {path}")
    return int(ratio < BOUND)


if __name__ == "__main__":
    sys.exit(main())
