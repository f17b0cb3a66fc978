"""Time from pasting the first command of the tutorial to the first fine-tuned answer, in a fresh clone with an empty HOME.

    python -m benchmarks.first_answer [--wheels FOLDER --torch VERSION] [--record]

The tutorial's commands (the README's are the first of them) run as printed, up to "Put it into a dev container". Bound: 8 minutes.
Where PyTorch's index cannot be reached, --wheels names a folder with the wheel of torch VERSION, and the index is left out.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import record

ROOT = Path(__file__).resolve().parents[1]
BOUND_S = 480.0
ANSWER = "Marta Lind"
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TIME = re.compile(r"^@@ (\S+) (\S+) (\S+)$", re.MULTILINE)


def list_commands(wheels: Path | None, torch: str) -> list[str]:
    """Return the commands, each block of them in the clone's folder."""
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8").partition("\n## 5.")[0]
    lines = [line for block in _BLOCK.findall(page) for line in ("cd $CLONE", *block.splitlines())]
    if wheels:
        local = f"--pip --torch {torch} | grep -v index-url | uv pip install --find-links {wheels}"
        lines = [line.replace("--pip | uv pip install", local) for line in lines]
    return lines


def main() -> int:
    """Run, print the seconds of each command, and say by the exit code whether the answer came within the bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--torch", default="")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    commands = list_commands(options.wheels, options.torch)
    with tempfile.TemporaryDirectory() as folder:
        clone, home = Path(folder, "devkit"), Path(folder, "home")
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        home.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        path = f"{home}/.local/bin:{kept['PATH']}"
        lines = ["set -e -o pipefail", "TIMEFORMAT='@@ %R %U %S'"]
        # The doctor answers 1 where it finds problems, as on a machine that lacks an engine.
        lines += [f"time {{ {each}{' || true' if each == 'devkit doctor' else ''}; }}" for each in commands]
        began = time.monotonic()
        script = "\n".join(lines)
        environment = {**kept, "HOME": str(home), "PATH": path, "CLONE": str(clone)}
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
        wall_s = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    times = [tuple(map(float, each)) for each in _TIME.findall(done.stderr)]
    rows = [
        {"command": command, "wall_s": wall, "processor_s": round(user + system, 1)}
        for command, (wall, user, system) in zip(commands, times, strict=False)
        if wall >= 0.05
    ]
    for row in rows:
        print(f"{row['wall_s']:8.1f} s  {row['processor_s']:8.1f} s of processors  {row['command']}")
    answer = done.stdout.rstrip().rpartition("\n")[2]
    is_good = done.returncode == 0 and ANSWER in answer and wall_s <= BOUND_S
    print(f"{wall_s:8.1f} s  {used.ru_utime + used.ru_stime:8.1f} s of processors  in all; the answer: {answer}")
    if not is_good:
        print(_TIME.sub("", done.stderr)[-2000:], file=sys.stderr)
    if options.record:
        result = {
            "wall_s": round(wall_s, 1),
            "processor_s": round(used.ru_utime + used.ru_stime, 1),
            "bound_s": BOUND_S,
        }
        print(record("first_answer", {**result, "answer": answer, "commands": rows}))
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
