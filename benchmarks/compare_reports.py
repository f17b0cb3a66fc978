"""Time and memory of `devkit fleet compare` on the facts of a thousand machines, and that it finds those that deviate.

Bounds: 10 s of processor time, which other programs on the machine disturb less than the clock, and 256 MiB of memory.
The facts are generated: one recorded machine many times, each with serial numbers, heat, clocks, memory and processes.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import compiled, record, versions
from tests.doctor.cluster import cluster, put

COUNT = 1000
ODD = {
    "node-0412": ("driver.fabric_manager", "inactive"),
    "node-0077": ("nvml.gpus.3.health.pcie_width", 8),
    "node-0623": ("system.memory_bytes", 1 << 40),
}
BOUND_S, BOUND_BYTES = 10.0, 256 << 20


def main() -> int:
    """Measure, record, print, and say by the exit code whether the bounds hold."""
    compiled()
    with tempfile.TemporaryDirectory() as scratch:
        for name, document in cluster(COUNT).items():
            if name in ODD:
                put(document, *ODD[name])
            (Path(scratch) / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
        size = sum(file.stat().st_size for file in Path(scratch).iterdir())
        started_s = time.perf_counter()
        # A small process starts the command: a child's memory is counted from before it becomes another program.
        wrapper = (
            "import subprocess, sys; from resource import *; done = subprocess.run(sys.argv[1:]);"
            "used = getrusage(RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)"
        )
        command = [sys.executable, "-m", "devkit", "fleet", "compare", scratch, "--json"]
        done = subprocess.run(
            [sys.executable, "-S", "-c", wrapper, *command], capture_output=True, text=True, check=True
        )
        seconds = time.perf_counter() - started_s
    processor_s, kibibytes = map(float, done.stderr.split()[-2:])
    (group,) = json.loads(done.stdout)["groups"]
    found = [name for outlier in group["odd"] for name in outlier["nodes"]]
    if sorted(found) != sorted(ODD) or group["without_majority"]:
        raise RuntimeError(f"found {found}, and without a majority {group['without_majority']}")
    result = {"processor_s": round(processor_s, 2), "most_memory_bytes": int(kibibytes) << 10}
    bounds = {"processor_s": BOUND_S, "most_memory_bytes": BOUND_BYTES}
    own = {"versions": versions("devkit-gpu", "click"), "machines": COUNT, "facts_bytes": size}
    path = record("compare_reports", {**own, "seconds": round(seconds, 2), **result, "bounds": bounds})
    print(f"{processor_s:.2f} s of a processor, {kibibytes / 1024:.0f} MiB; recorded in {path}")
    return int(any(result[name] > bound for name, bound in bounds.items()))


if __name__ == "__main__":
    sys.exit(main())
