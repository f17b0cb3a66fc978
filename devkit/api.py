"""The Python interface of devkit: the answers of its commands as values, for scripts, notebooks and servers.

    import devkit

    diagnosis = devkit.diagnose()
    diagnosis.verdict, diagnosis.root_causes

Each answer has `to_document()`, what the command prints with --json, and `str()`, what it prints as text. Nothing
is changed on the machine; only `plan` of a project may start a process, uv, and use a network.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from devkit.doctor.explain import find_check, format_explanation
from devkit.doctor.known_errors import TextAnswer, explain_text, format_text_answer
from devkit.doctor.model import Check
from devkit.doctor.report.documents import build_explanation_document, build_matches_document
from devkit.doctor.report.lines import UNICODE_MARKS, Line
from devkit.doctor.report.report import Report, build_report
from devkit.doctor.report.stack import build_stack
from devkit.doctor.report.text import format_report
from devkit.doctor.runner import run_on_host_and_container
from devkit.doctor.signatures.model import Match
from devkit.doctor.signatures.witnesses import describe_circumstances, describe_facts
from devkit.errors import DevkitError
from devkit.estimate.report import EstimateReport
from devkit.facts.model import Facts
from devkit.facts.secrets import build_redaction
from devkit.probe.circumstances import read_circumstances
from devkit.probe.host import LocalHost
from devkit.probe.release_names import read_history
from devkit.probe.requirement_sets import solve_contradiction
from devkit.probe.saved_facts import load_saved_facts
from devkit.release import __version__
from devkit.solver.output import format_answer, serialize_answer
from devkit.solver.plan import Conflict, Plan

WIDTH = 100
"""Columns of `str()` of an answer."""


def load_facts(*paths: str | Path) -> Facts:
    """Load a machine that `devkit doctor --save-facts` saved, or a host and a container on it, in any order.

    Raises DevkitError for a file that is not there or holds no facts, and for two files of the same side.
    """
    return load_saved_facts([Path(path) for path in paths])


def read_facts(*, project: str | Path = ".", timeout_s: float = 5.0, trial: bool = False) -> Facts:
    """Read this machine and the project in a folder, within `timeout_s` seconds; what was late or failed is Unknown.

    `trial` also starts containers, and removes them, to see whether they get the GPUs.
    """
    from devkit.probe.gather import gather_facts
    from devkit.probe.host import CachingHost

    folder = str(Path(project).resolve())
    started_s = time.monotonic()
    facts = gather_facts(CachingHost(deadline_s=timeout_s), deadline_s=timeout_s, project=folder)
    if not trial:
        return facts
    from devkit.trial.containers import try_containers

    left_s = timeout_s - (time.monotonic() - started_s)
    return replace(facts, trials=try_containers(LocalHost(), facts, deadline_s=left_s))


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The findings of the checks on a machine."""

    facts: Facts
    report: Report

    @property
    def verdict(self) -> str:
        """The verdict: "healthy", "warnings", "problems", "incomplete" where facts were lost, or "no-gpu"."""
        return self.report.health.value

    @property
    def root_causes(self) -> tuple[str, ...]:
        """The codes of the findings that the others follow from, the one to begin with first."""
        return tuple(self.report.root_causes)

    def to_document(self) -> dict[str, Any]:
        """Return the document of `devkit doctor --json`, without names of people and machines and without secrets."""
        facts, report = self._redacted()
        return report.to_document(build_stack(facts, report))

    def to_html(self) -> str:
        """Return the page of `devkit doctor --format html`."""
        from devkit.render.html import render_report_page

        return render_report_page(*self._redacted())

    def _redacted(self) -> tuple[Facts, Report]:
        redaction = build_redaction(self.facts)
        return redaction.of(self.facts), redaction.of(self.report)

    def __str__(self) -> str:
        facts, report = self._redacted()
        return _join(format_report(report, build_stack(facts, report), width=WIDTH, marks=UNICODE_MARKS))

    __repr__ = __str__


def diagnose(
    facts: Facts | None = None,
    *,
    project: str | Path = ".",
    codes: Iterable[str] = (),
    timeout_s: float = 5.0,
    trial: bool = False,
) -> Diagnosis:
    """Diagnose a machine: this one with the project in a folder, or the one that `facts` describe.

    Args:
        facts: of `load_facts` or `read_facts`; None reads this machine.
        project: the folder of the project to judge with this machine.
        codes: the checks to run, all by default.
        timeout_s: the time limit for reading this machine.
        trial: also start containers on this machine, and remove them.

    Raises DevkitError for a code that no check has.
    """
    from devkit.doctor.registry import select_checks

    checks = select_checks(codes)
    if facts is None:
        facts = read_facts(project=project, timeout_s=timeout_s, trial=trial)
    outcomes = run_on_host_and_container(checks, facts, clock=time.perf_counter)
    return Diagnosis(facts, build_report(facts, outcomes, devkit=__version__))


@dataclass(frozen=True, repr=False)
class Explanation:
    """The meaning of a check's code, or the known errors in a text, each root cause before what follows from it."""

    check: Check | None
    answer: TextAnswer

    @property
    def matches(self) -> tuple[Match, ...]:
        """The known errors."""
        return self.answer.matches

    @property
    def is_known(self) -> bool:
        """True if something is known of the text."""
        return self.check is not None or bool(self.matches)

    @property
    def causes(self) -> tuple[str, ...]:
        """The most probable cause of each error, the first to repair first."""
        return tuple(match.cause for match in self.matches)

    def to_document(self) -> dict[str, Any]:
        """Return the document of `devkit explain --json`."""
        if self.check:
            return build_explanation_document(self.check)
        return build_matches_document(
            self.answer.matches, self.answer.nearest, self.answer.unknown, self.answer.not_read
        )

    def __str__(self) -> str:
        if self.check:
            return _join(format_explanation(self.check, width=WIDTH))
        return _join(format_text_answer(self.answer, width=WIDTH, marks=UNICODE_MARKS))

    __repr__ = __str__


def explain(text: str, facts: Facts | None = None, *, use_machine: bool = True) -> Explanation:
    """Explain a check by its code, or the errors in a log.

    Where a library lacks a name, its wheels on the package index are read, and where requirements contradict each other, uv
    looks for releases; unless uv or pip is set to work offline.

    Args:
        text: a code such as "DRV001", or a log.
        facts: the machine that the log is from: causes are ranked by what is so there.
        use_machine: without `facts`, rank them by a look at this machine.
    """
    if len(text) <= _MAX_CODE_LENGTH and (check := find_check(text)):
        return Explanation(check, TextAnswer(()))
    machine = None
    if facts is not None:
        machine = describe_facts(facts)
    elif use_machine:
        machine = describe_circumstances(read_circumstances(LocalHost()))
    return Explanation(None, explain_text(text, machine=machine, read_history=read_history, solve=solve_contradiction))


_MAX_CODE_LENGTH = 16


@dataclass(frozen=True, repr=False)
class PlanAnswer:
    """The versions that fit, or the reasons why none do."""

    answer: Plan | Conflict

    @property
    def plan(self) -> Plan | None:
        """The plan; None for a conflict."""
        return self.answer if isinstance(self.answer, Plan) else None

    def to_document(self) -> dict[str, Any]:
        """Return the document of `devkit plan --json`, without the project's own requirements."""
        return serialize_answer(self.answer, today=_today())

    def __str__(self) -> str:
        return format_answer(self.answer, width=WIDTH, is_cpu_requested=False, today=_today())

    __repr__ = __str__


def plan(
    facts: Facts | None = None,
    *,
    project: str | Path | None = None,
    resolve: bool = True,
    driver: str | None = None,
    gpus: Iterable[str] = (),
    **wanted: Any,  # noqa: ANN401 - the flags of `devkit plan`
) -> PlanAnswer:
    """Choose versions that fit a machine: this one, the one that `facts` describe, or that of `driver` and `gpus`.

    Args:
        facts: of `load_facts` or `read_facts`.
        project: a folder whose requirements and devkit.toml count; None for none.
        resolve: let uv resolve the packages of `project`, which may use a network.
        driver: a driver's version, such as "580.95.05".
        gpus: names of GPUs, such as "H100".
        wanted: as the flags of `devkit plan`: vendor, torch, cuda, python, image, pins, features, apt.

    Raises DevkitError for what cannot be a request.
    """
    from devkit.facts.dependencies import NO_DEPENDENCIES, NOTHING_CHOSEN
    from devkit.probe.project.reader import read_local_dependencies
    from devkit.render.project_plan import plan_with_packages, read_project_settings
    from devkit.solver.request import build_machine_from_facts, build_machine_from_flags, build_request

    names = tuple(gpus)
    if facts is not None and (driver or names):
        raise DevkitError("facts and driver describe different machines", "Remove one of them.")
    if driver or names:
        machine = build_machine_from_flags(driver=driver, gpus=names)
    else:
        machine = build_machine_from_facts(facts or read_facts())
    request = build_request(machines=(machine,), **wanted)
    folder = Path(project) if project is not None else Path()
    settings = read_project_settings(str(folder)) if project is not None else None
    dependencies = NO_DEPENDENCIES
    if project is not None and not (settings and settings.ignore_dependencies):
        dependencies = read_local_dependencies(str(folder), settings.choice if settings else NOTHING_CHOSEN)
    return PlanAnswer(plan_with_packages(request, dependencies, folder, settings, no_resolve=not (resolve and project)))


@dataclass(frozen=True, repr=False)
class EstimateAnswer:
    """The GPU memory that training or inference takes, and where it fits."""

    report: EstimateReport

    @property
    def peak_bytes(self) -> int:
        """The memory expected on the device at the peak."""
        return self.report.estimate.device_peak_bytes.point

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict for each GPU by its name: "fits", "tight" or "does-not-fit"."""
        return {each.name: each.verdict.value for each in self.report.gpus}

    def to_document(self) -> dict[str, Any]:
        """Return the document of `devkit estimate --json`, without the command."""
        from devkit.estimate.report import serialize_estimate_report

        return serialize_estimate_report(self.report)

    def __str__(self) -> str:
        from devkit.estimate.report import format_estimate_report

        return format_estimate_report(self.report, width=WIDTH)

    __repr__ = __str__


def estimate_memory(
    model: str | Mapping[str, Any],
    *,
    gpus: Iterable[str] = (),
    facts: Facts | None = None,
    inference: bool = False,
    **settings: Any,  # noqa: ANN401 - the fields of TrainingSettings or InferenceSettings
) -> EstimateAnswer:
    """Estimate the memory of training, or of inference, in closed form.

    Args:
        model: a known name such as "llama-3.1-8b", or the content of a config.json.
        gpus: names of GPUs to judge, such as "RTX 4090".
        facts: a machine whose GPUs are judged, too.
        inference: estimate generation instead of training.
        settings: fields of `devkit.estimate.settings.TrainingSettings`, or of InferenceSettings, as in --json.

    Raises DevkitError for an unknown model, GPU or setting.
    """
    from devkit.estimate.config import build_model_shape
    from devkit.estimate.memory import find_gpu_spec, group_gpus
    from devkit.estimate.report import build_estimate_report
    from devkit.estimate.settings import InferenceSettings, TrainingSettings, decode_settings
    from devkit.estimate.shape import find_closest_models, find_model

    config, name = (model, "your model") if isinstance(model, Mapping) else (None, model)
    if config is None:
        known = find_model(name)
        if known is None:
            close = find_closest_models(name)
            hint = f"Did you mean {' or '.join(close)}?" if close else "Give the content of its config.json."
            raise DevkitError(f"the model {name!r} is not known", hint)
        config, name = known.config, known.id
    if inference:
        decoded: InferenceSettings | TrainingSettings = decode_settings(InferenceSettings, settings)
    else:
        # devkit's own training loop is lean, as `devkit estimate` takes it to be.
        decoded = decode_settings(TrainingSettings, {"lean": True} | settings)
    specs = [find_gpu_spec(each) for each in gpus]
    if facts is not None:
        specs += group_gpus(facts.gpus)
    return EstimateAnswer(build_estimate_report(build_model_shape(config, name=name), decoded, specs))


def _join(lines: Iterable[Line]) -> str:
    return "\n".join(line.text for line in lines)


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
