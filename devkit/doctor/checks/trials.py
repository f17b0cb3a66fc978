"""Problems of the containers that were started to see how they end."""

import re
from collections.abc import Iterator

from devkit.doctor.model import NotApplicable, Severity
from devkit.doctor.problems import Problem, problem
from devkit.doctor.program_failures import name_program, report_failure
from devkit.doctor.trials import describe_way, explain, find_fault, find_reason
from devkit.facts.model import Facts
from devkit.facts.runs import ProgramFailure, Trial, Way
from devkit.facts.values import Unknown

_WITH_STAND_INS = ", with a stand-in for the project's programs"
_ABSENT = re.compile(r"(?:bind source path does not exist: |statfs )(/[^\s:]+)")
"""The source of a mount, in the words of Docker and Podman."""


def judge_trials(facts: Facts, tried: tuple[Trial, ...]) -> Iterator[Problem]:
    """Tell how each trial ended; where another way of the engine works, one that does not is a warning.

    So is whatever fails in an engine that is not the one that the docker command talks to, which is tried first.
    """
    faults = {each: find_fault(each, facts) for each in tried}
    late = [each for each, fault in faults.items() if fault == "too-slow" and not each.settings]
    if late and not any(fault for each, fault in faults.items() if each not in late):
        raise NotApplicable(f"{describe_way(late[0])} did not end in time: the engine is busy or hangs", is_lost=True)
    works = [each for each in tried if not faults[each]]
    for trial, fault in faults.items():
        if not fault or trial in late:
            continue
        has_other_way = trial.way is not Way.PROJECT and any(each.engine == trial.engine for each in works)
        is_minor = trial.engine != tried[0].engine or has_other_way
        needed, reason = name_program(trial.err), find_reason(trial)
        # What is known of an error is of the engine's own settings: the arguments of a project may ask for something else.
        is_asked = trial.way is Way.PROJECT and (trial.arguments[0] != "compose" or trial.arguments[1:-1] == ("up",))
        match = None if needed["fault"] or is_asked else explain(trial)
        absent = _ABSENT.search(trial.err) if trial.way is Way.PROJECT else None
        is_file = any(each.startswith(("configs.", "secrets.")) for each in trial.settings)
        if trial.works_without or (trial.settings and (is_file or not absent)):
            way, settings = describe_way(trial), trial.settings
            reason = reason or "it does not end"
            failure = ProgramFailure(way, (reason,), way, 1, trial.works_without, settings=settings)
            yield report_failure(failure, is_tried=not trial.is_suspected)
            continue
        kind = f"{trial.engine}-socket" if absent and absent[1].endswith(".sock") else "source"
        seen = [f"{describe_way(trial)}: status {trial.code}", *([reason] if reason else ())]
        if trial.is_for_gpu and not isinstance(trial.device_nodes, Unknown):
            seen.append(f"in it: nodes: {', '.join(trial.device_nodes) or 'none'}")
            named = (("libcuda", trial.libcuda), ("NVML", trial.nvml), ("nvidia-smi", trial.nvidia_smi))
            seen += [f"in it: {name}: {value}" for name, value in named if isinstance(value, str) and value]
        seen += [f"{describe_way(each)}: works{_WITH_STAND_INS if each.way is Way.PROJECT else ''}" for each in works]
        yield problem(
            fault,
            severity=Severity.WARNING if is_minor else None,
            confidence=match.confidence if match else None,
            fix=match.fix if match else None,
            engine=trial.engine,
            way=describe_way(trial),
            reason=match.cause.rstrip(".") if match else reason or f"status {trial.code}",
            answer=trial.nvidia_smi if isinstance(trial.nvidia_smi, str) else "",
            library=trial.libcuda if fault == "no-libcuda" else trial.nvml,
            seen=trial.gpu_count,
            count=len(facts.gpus),
            arguments=trial.arguments,
            kind=kind if absent else trial.arguments[-2].lstrip("-") if len(trial.arguments) > 1 else "",
            name=absent[1] if absent else trial.arguments[-1] if trial.arguments else "",
            **needed,
            subject=describe_way(trial),
            evidence=seen,
        )
