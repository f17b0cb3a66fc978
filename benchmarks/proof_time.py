"""Wall time of `devkit verify --here`, whole and by stage. Bound: 60 s on two CPU cores."""

import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import compiled, record, versions

BOUND_S = 60.0


def main() -> int:
    """Run the proof once, record it, and say by the exit code whether it passed within the bound."""
    compiled()
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "devkit", "verify", "--here", "--json"], stdout=subprocess.PIPE, text=True, check=False
    )
    wall_s = time.perf_counter() - started
    report = json.loads(done.stdout)
    path = record(
        f"proof_time_{report['device']['kind']}",
        {
            "versions": versions("devkit-gpu", "torch", "transformers", "peft", "bitsandbytes"),
            "verdict": report["verdict"],
            "wall_s": round(wall_s, 1),
            "bound_s": BOUND_S,
            "stages_ms": {stage["name"]: round(stage["ms"]) for stage in report["stages"]},
        },
    )
    print(f"{report['verdict']} in {wall_s:.1f} s (bound {BOUND_S:.0f} s); recorded in {path}")
    return int(report["verdict"] != "passed" or wall_s > BOUND_S)


if __name__ == "__main__":
    sys.exit(main())
