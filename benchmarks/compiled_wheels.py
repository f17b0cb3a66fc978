"""Compiled packages without nvcc: twelve packages, the four newest torch minors, CUDA 12.6 to 13.2, from the tables alone.

Each cell is the plan for one package with that torch build on a machine whose driver and GPU run all of them, for Python
3.12 on x86_64. Nothing is installed and no index is asked: a wheel counts where `compiled.toml` names the page that it was
read on. A package whose wheel holds code for every torch of its index counts as "index".
"""

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import NO_DEPENDENCIES, PackageRequirement
from devkit.solver.plan import CompileMode, Conflict
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve_project

PACKAGES = (
    "flash-attn",
    "xformers",
    "mamba-ssm",
    "causal-conv1d",
    "torch-scatter",
    "torch-sparse",
    "torch-cluster",
    "pytorch3d",
    "detectron2",
    "bitsandbytes",
    "vllm",
    "natten",
)
CUDAS = ("cu126", "cu130", "cu132")
MINORS = 4
MACHINE = build_machine_from_flags(driver="595.45.04", gpus=("L4",))


def plan_cell(package: str, torch: str, variant: str) -> str:
    """Return what the plan does with the package: "wheel", "index", "compiles", "left out", or "no plan"."""
    need = PackageRequirement(package, "", "requirements.txt", 1)
    dependencies = replace(NO_DEPENDENCIES, files=("requirements.txt",), needs=(need,))
    request = build_request(machines=(MACHINE,), torch=f"{torch}+{variant}", python="3.12")
    answer = solve_project(request, dependencies, load_tables())
    if isinstance(answer, Conflict):
        return "no plan"
    modes = {each.name: each.mode for each in answer.compiled}
    words = {CompileMode.WHEEL: "wheel", CompileMode.COMPILED: "compiles", CompileMode.LEFT_OUT: "left out"}
    return words.get(modes[package], "at use") if package in modes else "index"


def main() -> None:
    """Print the table, and the share of cells without nvcc."""
    releases = load_tables().torch.releases
    newest: dict[str, tuple[str, tuple[str, ...]]] = {}
    for row in releases:
        text = str(row.version)
        newest[".".join(text.split(".")[:2])] = (text, tuple(row.variants))
    minors = sorted(newest, key=lambda minor: tuple(map(int, minor.split("."))))[-MINORS:]
    builds = [(newest[minor][0], cuda) for minor in minors for cuda in CUDAS if cuda in newest[minor][1]]
    print(f"{'package':<16}" + "".join(f"{f'{torch}+{cuda}':<15}" for torch, cuda in builds))
    without = total = 0
    for package in PACKAGES:
        cells = [plan_cell(package, torch, cuda) for torch, cuda in builds]
        without += sum(cell in ("wheel", "index") for cell in cells)
        total += len(cells)
        print(f"{package:<16}" + "".join(f"{cell:<15}" for cell in cells))
    print(f"{without} of {total} need no nvcc; as of {load_tables().compiled.as_of}")


if __name__ == "__main__":
    main()
