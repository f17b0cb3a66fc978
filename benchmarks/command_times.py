"""Wall time of devkit's commands as ratios to `python -c "import click"`, measured by hyperfine in one run.

Bounds: --help 2.0, estimate 3, doctor 8 (a running engine and eight stub GPUs), plan 4 (for a machine that flags
describe), init 12; neither resolves packages, which a network would time.
The engine is the tests' own, with an nvidia runtime registered; it needs root on Linux.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import compiled, record, versions
from tests.engine import binaries, cache, daemon, network
from tests.nvml_stub import build_stub, stub_environment

BOUNDS = {"help": 2.0, "estimate": 3.0, "doctor": 8.0, "plan": 4.0, "init": 12.0}


def measure(directory: Path, engine: Mapping[str, str]) -> dict[str, float]:
    """Mean seconds of each command, by name. `engine` is the environment that leads to the engine."""
    python = sys.executable
    devkit = str(Path(python).with_name("devkit"))
    project = directory / "project"
    commands = {
        "import click": f'{python} -c "import click"',
        "help": f"{devkit} --help",
        "estimate": f"{devkit} estimate llama-3.1-8b --gpu 'RTX 4090'",
        "doctor": f"{devkit} doctor --json",
        "plan": f"{devkit} plan --no-resolve --project {directory} --gpu 'RTX 4090' --driver 570.124.06",
        "init": f"{devkit} init {project} --no-resolve --yes",
    }
    exported = directory / "times.json"
    argv = ["hyperfine", "--shell=none", "--warmup=3", "--min-runs=20", "--ignore-failure", f"--export-json={exported}"]
    environment = {**engine, **stub_environment(build_stub(directory), gpus=8)}
    subprocess.run([*argv, "--prepare", f"rm -rf {project}", *commands.values()], env=environment, check=True)
    results = json.loads(exported.read_text())["results"]
    return dict(zip(commands, (row["mean"] for row in results), strict=True))


def main() -> int:
    """Measure, record, print, and say by the exit code whether every bound holds."""
    compiled()
    found = binaries.find()
    with (
        tempfile.TemporaryDirectory() as scratch,
        cache.only_one(),
        network.bridged(),
        daemon.engine(found, daemon.Flavor.NVIDIA) as engine,
    ):
        seconds = measure(Path(scratch), engine.env)
        engine_versions = engine.versions
    ratios = {name: seconds[name] / seconds["import click"] for name in BOUNDS}
    path = record(
        "command_times",
        {
            "engine": engine_versions,
            "nvml": "C stub, 8 GPUs",
            "versions": versions("devkit-gpu", "click", "docker", "nvidia-ml-py"),
            "seconds": {name: round(value, 4) for name, value in seconds.items()},
            "ratios": {name: round(value, 2) for name, value in ratios.items()},
            "bounds": BOUNDS,
        },
    )
    for name, bound in BOUNDS.items():
        print(f"{name:8} {ratios[name]:5.2f} times import click   bound {bound}")
    print(f"recorded in {path}")
    return int(any(ratios[name] > bound for name, bound in BOUNDS.items()))


if __name__ == "__main__":
    sys.exit(main())
