"""Share of devkit's statements that 25 everyday commands run, and the modules that none of them enters.

    python -m benchmarks.everyday_runs --record   # needs coverage, the workload extra and a package index

Child processes count. A module that no everyday command enters is where to look first for code that nobody needs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import record, versions
from tests.hosts.golden import facts_file
from tests.workload.small_models import CHATML, save_model

ROOT = Path(__file__).resolve().parents[1]
TINY = ("--model", "tiny", "--output", "tuned")
MACHINE = ("--driver", "580.95.05", "--gpu", "RTX 4090")
GPU = (*MACHINE, "--no-resolve")
RUNS: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("doctor",),
    ("doctor", "--json", "--save-facts", "facts.json"),
    ("doctor", "--facts", "{ubuntu-4090-ok}"),
    ("doctor", "--facts", "{wsl2-desktop}", "--verbose"),
    ("doctor", "--setup", "--facts", "{toolkit-missing}"),
    ("explain", "CTK001"),
    ("explain", 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'),
    ("explain", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("plan", *GPU, "."),
    ("plan", *GPU, ".", "--why", "torch"),
    ("init", *MACHINE, "--yes"),
    ("init", "--dry-run", "--no-resolve"),
    ("update", "--check"),
    ("update", "--yes"),
    ("onboard",),
    ("estimate", "Qwen/Qwen2.5-7B", "--gpu", "RTX 4090", "--method", "qlora"),
    ("estimate", "meta-llama/Llama-3.1-8B", "--gpu", "H100", "--world", "8", "--sharding", "zero3"),
    ("verify", "--here", "--quick"),
    ("finetune", "--data", "chats.jsonl", *TINY, "--steps", "4"),
    ("generate", "--model", "tiny", "--adapter", "tuned/adapter", "--prompt", "Hello", "--max-new-tokens", "4"),
    ("export", "kubernetes", "--settings", "run.toml", "--image", "registry.example.org/team/x:1", "--gpu", "H100"),
    ("export", "slurm", "--settings", "run.toml", "--image", "registry.example.org/team/x:1", "--gpu", "H100"),
    ("fleet", "compare", "{ubuntu-4090-ok}", "{wsl2-desktop}"),
    ("bundle", "--dry-run"),
)
CHAT = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good morning"}]}


def write_project(folder: Path) -> None:
    """Write a repository of two requirements and a program, with the data and settings of a small run."""
    (folder / "requirements.txt").write_text("transformers>=4.40\npeft\n", encoding="utf-8")
    (folder / "train.py").write_text("import torch\nimport transformers\n", encoding="utf-8")
    (folder / "chats.jsonl").write_text(f"{json.dumps(CHAT)}\n" * 8, encoding="utf-8")
    (folder / "run.toml").write_text('model = "Qwen/Qwen2.5-7B"\ndata = "chats.jsonl"\n', encoding="utf-8")


def run_all(folder: Path) -> list[tuple[str, int]]:
    """Run the commands under coverage; return each with its exit code."""
    settings = folder / "coverage.ini"
    settings.write_text(
        f"[run]\nparallel = true\npatch = subprocess\nsource = {ROOT / 'devkit'}\ndata_file = {folder}/.coverage\n",
        encoding="utf-8",
    )
    project = folder / "project"
    project.mkdir()
    write_project(project)
    save_model(project / "tiny", chat_template=CHATML)
    environment = {**os.environ, "HOME": str(folder), "COVERAGE_PROCESS_START": str(settings), "HF_HUB_OFFLINE": "1"}
    ended = []
    for words in RUNS:
        filled = [str(facts_file(word[1:-1])) if word.startswith("{") else word for word in words]
        argv = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "devkit", *filled]
        done = subprocess.run(argv, cwd=project, env=environment, capture_output=True, text=True, check=False)
        ended.append((" ".join(words), done.returncode))
        print(f"{done.returncode} devkit {ended[-1][0]}", flush=True)
        if done.returncode not in (0, 1):
            print(done.stderr[-600:])
    combine = [sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={settings}"]
    subprocess.run(combine, cwd=folder, env=environment, check=True)
    report = [sys.executable, "-m", "coverage", "json", "-q", f"--rcfile={settings}", "-o", str(folder / "report.json")]
    subprocess.run(report, cwd=folder, env=environment, check=True)
    return ended


def main() -> int:
    """Print the share by package and the modules that nothing entered; 1 where a command failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="devkit-everyday-") as scratch:
        ended = run_all(Path(scratch))
        report = json.loads(Path(scratch, "report.json").read_text(encoding="utf-8"))
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    never = []
    for file, found in report["files"].items():
        name = str(Path(file).resolve().relative_to(ROOT / "devkit"))
        summary = found["summary"]
        for key in (name.split("/")[0], "all"):
            totals[key][0] += summary["covered_lines"]
            totals[key][1] += summary["num_statements"]
        if summary["num_statements"] and not summary["covered_lines"]:
            never.append((summary["num_statements"], name))
    shares = {key: round(100 * covered / count) for key, (covered, count) in totals.items() if count}
    for key, share in sorted(shares.items(), key=lambda each: each[1]):
        print(f"{key:20} {share:3} % of {totals[key][1]:,} statements")
    print("never entered:", *(f"  {count:5} {name}" for count, name in sorted(never, reverse=True)), sep="\n")
    if options.record:
        result = {
            "versions": versions("coverage"),
            "runs": len(RUNS),
            "percent": shares,
            "never": sorted(n for _, n in never),
        }
        print(f"recorded in {record('everyday_runs', result)}")
    return int(any(code not in (0, 1) for _, code in ended))


if __name__ == "__main__":
    raise SystemExit(main())
