"""Wall time of devkit's commands as ratios to `python -c "import click"`, the smallest of twenty runs in turns.

Bounds: --help 2, doctor 16 (eight stub GPUs). For the others nobody feels the difference. plan and init describe the
machine by flags and resolve no packages, which a network would time.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import compiled, record, versions
from tests.nvml_stub import build_stub, stub_environment

RUNS = 20
BOUNDS = {"help": 2.0, "doctor": 16.0}


def measure(directory: Path) -> dict[str, float]:
    """Smallest seconds of each command, by name."""
    python = sys.executable
    devkit = str(Path(python).with_name("devkit"))
    project = directory / "project"
    machine = "--gpu 'RTX 4090' --driver 570.124.06"
    commands = {
        "import click": f"{python} -c 'import click'",
        "help": f"{devkit} --help",
        "estimate": f"{devkit} estimate llama-3.1-8b --gpu 'RTX 4090'",
        "explain": f"{devkit} explain 'CUDA error: no kernel image is available for execution on the device'",
        "doctor": f"{devkit} doctor --json",
        "plan": f"{devkit} plan --no-resolve {directory} {machine}",
        "init": f"{devkit} init {project} --no-resolve --yes {machine}",
    }
    environment = os.environ | stub_environment(build_stub(directory), gpus=8)
    found = dict.fromkeys(commands, float("inf"))
    for _ in range(RUNS):
        for name, command in commands.items():
            shutil.rmtree(project, ignore_errors=True)
            started = time.perf_counter()
            subprocess.run(shlex.split(command), env=environment, capture_output=True, check=False)
            found[name] = min(found[name], time.perf_counter() - started)
    return found


def main() -> int:
    """Measure, record, print, and say by the exit code whether every bound holds."""
    compiled()
    with tempfile.TemporaryDirectory() as scratch:
        seconds = measure(Path(scratch))
    ratios = {name: round(value / seconds["import click"], 2) for name, value in seconds.items()}
    path = record(
        "command_times",
        {
            "nvml": "C stub, 8 GPUs",
            "versions": versions("devkit-gpu", "click", "docker", "nvidia-ml-py"),
            "seconds": {name: round(value, 4) for name, value in seconds.items()},
            "ratios": ratios,
            "bounds": BOUNDS,
        },
    )
    for name, ratio in ratios.items():
        print(f"{name:12} {ratio:5.2f} times import click   {f'bound {BOUNDS[name]}' if name in BOUNDS else ''}")
    print(f"recorded in {path}")
    return int(any(ratios[name] > bound for name, bound in BOUNDS.items()))


if __name__ == "__main__":
    sys.exit(main())
