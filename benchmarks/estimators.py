"""devkit's two estimates beside what others offer, on the same published runs; the errors side by side.

Run estimate_accuracy.py first: its recorded result holds devkit's answers. Each tool is asked in an environment of its
own, given as NAME=PYTHON, such as `fitcheck-llm=/opt/fitcheck/bin/python`; its driver is in estimator_drivers/.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accelerate.commands.estimate import estimate_training_usage

from benchmarks.machine import RESULTS, record
from benchmarks.measured_runs import MeasuredRun, load_measured_runs
from devkit.estimate.config import build_model_shape
from devkit.estimate.model_catalog import find_model
from devkit.estimate.report import RULES_OF_THUMB
from devkit.estimate.settings import InferenceSettings, Method
from devkit.formats.documents import encode

DRIVERS = Path(__file__).parent / "estimator_drivers"
FITTED = {
    "fitcheck-llm": ("t4-sweep", "t4-ladder"),
    "canifinetune": ("rtx4080",),
}
"""Groups that a tool's own constants were fitted to, by its documentation."""

Answers = dict[str, dict[str, Any]]


def main(tools: list[str]) -> int:
    """Ask everyone, print mean absolute errors over what they answered, and record every answer."""
    runs = [run for run in load_measured_runs() if run.is_counted and not isinstance(run.settings, InferenceSettings)]
    everyone = {"devkit, closed form": _recorded("closed"), "devkit, trace": _recorded("traced")}
    everyone |= {name: _by_rule(runs, rule) for name, rule in _rules().items()}
    versions = {"accelerate": version("accelerate")}
    for tool in tools:
        name, _, python = tool.partition("=")
        versions[name] = _version(python, name)
        everyone[f"{name} {versions[name]}"] = _asked(python, name, runs)
    table = [_scored(name, answers, runs) for name, answers in everyone.items()]
    _print(table)
    path = record("estimators", {"versions": versions, "fitted_on": FITTED, "errors": table, "answers": everyone})
    print(f"recorded in {path}")
    return 0


def _recorded(estimate: str) -> Answers:
    """devkit's answers, from the recorded accuracy."""
    answers: Answers = {}
    for line in json.loads((RESULTS / "estimate_accuracy.json").read_text())["lines"]:
        key = {"allocated": "tensors", "reserved": "total"}.get(line["quantity"])
        if key:
            answers.setdefault(line["run"], {})[key] = line[estimate]
    return answers


def _rules() -> dict[str, Callable[[MeasuredRun], float | None]]:
    return {
        "accelerate estimate-memory": _accelerate,
        "LLaMA-Factory's table": _multiples,
        "rule: weights x 4": lambda run: _seed(run, "seed:4x"),
        "rule: Collabnix": lambda run: _seed(run, "seed:collabnix"),
    }


def _accelerate(run: MeasuredRun) -> float:
    """The largest of its four stages for Adam at batch 1; it knows no adapters, rows or lengths."""
    return float(max(estimate_training_usage(4 * _parameters(run), "bfloat16").values()))


def _multiples(run: MeasuredRun) -> float:
    """GB per billion parameters. Source: https://github.com/hiyouga/LLaMA-Factory#hardware-requirement"""
    settings = run.settings
    assert not isinstance(settings, InferenceSettings)
    times = {Method.FULL: 8.0, Method.LORA: 2.0, Method.INT8_LORA: 1.0, Method.QLORA: 0.5}[settings.method]
    return times * _parameters(run)


def _seed(run: MeasuredRun, name: str) -> float | None:
    known = find_model(run.model)
    assert known is not None
    return RULES_OF_THUMB[name].apply(build_model_shape(known.config), run.settings)


def _parameters(run: MeasuredRun) -> int:
    known = find_model(run.model)
    assert known is not None
    return known.parameters


def _by_rule(runs: list[MeasuredRun], rule: Callable[[MeasuredRun], float | None]) -> Answers:
    """Rules name one number, which is compared with what was allocated and with what was reserved."""
    answers = {run.id: rule(run) for run in runs}
    return {name: {"tensors": size, "total": size} for name, size in answers.items() if size is not None}


def _asked(python: str, name: str, runs: list[MeasuredRun]) -> Answers:
    driver = DRIVERS / f"ask_{name.replace('-', '_')}.py"
    told = json.dumps([_told(run) for run in runs])
    done = subprocess.run([python, str(driver)], input=told, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1]
        return {run.id: {"error": reason} for run in runs}
    answers: Answers = json.loads(done.stdout)
    return answers


def _told(run: MeasuredRun) -> dict[str, Any]:
    known = find_model(run.model)
    assert known is not None
    return {
        "id": run.id,
        "gpu": run.group.gpu,
        "model": run.model,
        "parameters": known.parameters,
        "config": dict(known.config),
        "settings": encode(run.settings),
    }


def _version(python: str, name: str) -> str:
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def _scored(name: str, answers: Answers, runs: list[MeasuredRun]) -> dict[str, Any]:
    fitted = next((groups for tool, groups in FITTED.items() if name.startswith(tool)), ())
    line: dict[str, Any] = {"estimator": name}
    for key, measured in (("tensors", "allocated_bytes"), ("total", "reserved_bytes")):
        errors = {
            run.id: answers[run.id][key] / getattr(run, measured) - 1.0
            for run in runs
            if getattr(run, measured) and key in answers.get(run.id, {})
        }
        fresh = [abs(errors[run.id]) for run in runs if run.id in errors and run.group.id not in fitted]
        line[key] = _told_errors(errors)
        line[f"{key}, not fitted to"] = round(mean(fresh), 4) if fitted and fresh else None
    failed = sorted({answer["error"] for answer in answers.values() if "error" in answer})
    line["failed"] = {"runs": sum("error" in answer for answer in answers.values()), "reasons": failed}
    return line


def _told_errors(errors: dict[str, float]) -> dict[str, Any] | None:
    if not errors:
        return None
    worst = max(errors, key=lambda run: abs(errors[run]))
    sizes = [abs(error) for error in errors.values()]
    return {
        "runs": len(errors),
        "mean_absolute_error": round(mean(sizes), 4),
        "worst": {worst: round(errors[worst], 4)},
        "under": sum(error < -0.05 for error in errors.values()),
    }


def _print(table: list[dict[str, Any]]) -> None:
    print(f"{'':<30}{'tensors vs allocated':<40}{'total vs reserved':<40}failed")
    for line in table:
        cells = "".join(f"{_cell(line, key):<40}" for key in ("tensors", "total"))
        print(f"{line['estimator']:<30}{cells}{line['failed']['runs']} {'; '.join(line['failed']['reasons'])[:120]}")


def _cell(line: dict[str, Any], key: str) -> str:
    errors = line[key]
    if errors is None:
        return "-"
    (worst,) = errors["worst"].values()
    fresh = line[f"{key}, not fitted to"]
    told = f"{errors['mean_absolute_error']:.1%} of {errors['runs']}, worst {worst:+.0%}"
    return told if fresh is None else f"{told}; unseen {fresh:.1%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
