"""Plans of popular pins and of packages that pin torch, each checked by uv alone.

`devkit plan` resolves each requirement list. Then uv compiles the same list for the plan's Python, with the versions that
the plan resolved as constraints, and with wheels alone unless the plan names packages without one: both must give the
same set. A refusal must name its reason. Needs a package index.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from uv import find_uv_bin

from benchmarks.machine import compiled, record, versions

TRANSFORMERS = (
    "4.30.2 4.31.0 4.33.3 4.35.2 4.36.2 4.37.2 4.38.2 4.39.3 4.40.2 4.41.2 4.42.4 4.43.4 4.44.2 4.45.2 4.46.3 4.47.1"
    " 4.48.3 4.49.0 4.50.3 4.51.3 4.52.4 4.53.3 4.55.4 4.56.2 4.57.3 5.0.0 5.10.0"
)
LISTS = (
    *(f"torch\ntransformers=={version}" for version in TRANSFORMERS.split()),
    "vllm",
    "torch\ntorchvision\nvllm",
    "vllm==0.8.5",
    "vllm==0.10.0",
    "unsloth",
    "sglang",
    "lmdeploy",
    "axolotl",
    "torch\nhuggingface-hub==0.23.0",
    "gradio==4.20.0\ntomlkit>=0.13",
)
MACHINE = ("--driver", "570.124.06", "--gpu", "RTX 4090")
SHOWN = ("torch", "vllm", "unsloth", "sglang", "lmdeploy", "axolotl", "transformers", "huggingface-hub", "tokenizers")


def plan(folder: Path) -> tuple[dict, float]:
    """Return the plan of the folder as a document, and how many seconds it took."""
    started = time.perf_counter()
    argv = [sys.executable, "-m", "devkit", "plan", "--json", *MACHINE, str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout), time.perf_counter() - started


def check(folder: Path, document: dict) -> str:
    """Return what uv has against the plan, "" for nothing."""
    resolution, python = document["resolution"], document["plan"]["python"]
    if resolution["status"] != "resolved":
        return resolution["because"]
    packages = resolution["packages"]
    (folder / "constraints.txt").write_text("\n".join(f"{name}=={version}" for name, version in packages.items()))
    argv = [find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", f"--python-version={python}"]
    argv += ["--python", sys.executable, "--python-platform=x86_64-manylinux_2_36", "--constraints=constraints.txt"]
    argv += ["requirements.txt", *(() if resolution["from_source"] else ("--no-build",))]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.stderr
    found = {line.partition("==")[0] for line in done.stdout.split()} ^ packages.keys()
    # From the public index torch brings the CUDA of another build than the plan's.
    return " ".join(sorted(name for name in found if not name.startswith(("nvidia-", "cuda-", "triton"))))


def main() -> int:
    """Plan, check, record, print, and say by the exit code whether uv agrees with every plan."""
    compiled()
    rows: list[dict[str, object]] = []
    for text in LISTS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "requirements.txt").write_text(text + "\n")
            document, _ = plan(folder)
            document, warm_s = plan(folder)
            row: dict[str, object] = {"requirements": text.split("\n"), "verdict": document["verdict"]}
            if document["verdict"] == "plan":
                found = document["resolution"].get("packages", {})
                row |= {
                    "python": document["plan"]["python"],
                    "torch": f"{document['plan']['torch']}+{document['plan']['variant']}",
                    "packages": {each: found[each] for each in SHOWN if each in found},
                    "from_source": document["resolution"].get("from_source", []),
                    "uv": check(folder, document) or "agrees",
                }
            else:
                row |= {"because": [each["says"] for each in document["conflict"]["blockers"]]}
                row |= {"nearest": document["conflict"]["nearest_changes"]}
            row["warm_s"] = round(warm_s, 1)
            rows.append(row)
            outcome = row.get("uv") or row["because"]
            print(
                f"{warm_s:5.1f} s  {' '.join(row['requirements']):45} {row.get('python', '')} {row.get('torch', '')}  {outcome}",
                flush=True,
            )
    agreed = sum(row.get("uv") == "agrees" for row in rows)
    refused = sum(row["verdict"] == "conflict" for row in rows)
    path = record(
        "popular_pins", {"versions": versions("devkit-gpu", "uv"), "agreed": agreed, "refused": refused, "rows": rows}
    )
    print(
        f"{len(rows)} lists: uv agrees with {agreed} plans, {refused} are refused with the reason; recorded in {path}"
    )
    return 0 if agreed + refused == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
