"""Wall time of devkit's commands as ratios to `python -c "import click"`, measured by hyperfine in one run.

Bounds: --help 2.0, doctor 8 (a running engine and eight stub GPUs), init 10.
The engine is the one that DOCKER_HOST or the current context names; without one the result says so.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.nvml_stub import build_stub, stub_environment

from benchmarks.machine import record, versions

BOUNDS = {"help": 2.0, "doctor": 8.0, "init": 10.0}


def measure(directory: Path) -> dict[str, float]:
    """Mean seconds of each command, by name."""
    python = sys.executable
    devkit = str(Path(python).with_name("devkit"))
    project = directory / "project"
    commands = {
        "import click": f'{python} -c "import click"',
        "help": f"{devkit} --help",
        "doctor": f"{devkit} doctor --json",
        "init": f"{devkit} init {project} --yes",
    }
    exported = directory / "times.json"
    argv = ["hyperfine", "--shell=none", "--warmup=3", "--min-runs=15", "--ignore-failure", f"--export-json={exported}"]
    argv += ["--prepare", f"rm -rf {project}"]
    subprocess.run([*argv, *commands.values()], env=stub_environment(build_stub(directory), gpus=8), check=True)
    results = json.loads(exported.read_text())["results"]
    return dict(zip(commands, (row["mean"] for row in results), strict=True))


def engine() -> str:
    """Kind and version of the engine that answers here, as devkit's own probe sees it."""
    report = subprocess.run(
        [sys.executable, "-c", ENGINE_SCRIPT], capture_output=True, text=True, check=True
    )  # fmt: skip
    return report.stdout.strip()


ENGINE_SCRIPT = """
from devkit.facts.model import Engine
from devkit.probe.gather import gather
from devkit.probe.host import LocalHost
engine = gather(LocalHost()).engine
print(f"{engine.kind} {engine.version}" if isinstance(engine, Engine) else f"none: {engine}")
"""


def main() -> int:
    """Measure, record, print, and say by the exit code whether every bound holds."""
    with tempfile.TemporaryDirectory() as scratch:
        seconds = measure(Path(scratch))
    ratios = {name: seconds[name] / seconds["import click"] for name in BOUNDS}
    path = record(
        "command_times",
        {
            "engine": engine(),
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
