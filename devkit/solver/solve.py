"""Answers a request: the newest versions that fit every machine, or why none do."""

from dataclasses import replace
from itertools import groupby

from devkit.compat.load import Tables
from devkit.solver.assemble import assembled
from devkit.solver.conflict import blockers, no_candidate, relaxed, wanted
from devkit.solver.judge import Verdict, is_clean, judge, preference
from devkit.solver.model import Blocker, Conflict, Plan, Request, Vendor
from devkit.solver.policy import under_policy
from devkit.solver.question import Question, candidates
from devkit.solver.request import asked_variant
from devkit.text import listed


def solve(request: Request, tables: Tables) -> Plan | Conflict:
    """The plan for a request, or the rules that refuse it together with the nearest plan.

    The policy comes last: it speaks of images alone, and a plan that it forbids may be had with another.
    """
    answer = _solved(request, tables)
    if request.policy is None:
        return answer
    return under_policy(answer, request, tables, policy=request.policy, solve=_solved)


def _solved(request: Request, tables: Tables) -> Plan | Conflict:
    plan, verdicts, question = _attempt(request, tables)
    if plan is not None:
        return plan
    for change in relaxed(question.request):
        nearest, _, _ = _attempt(change.request, tables)
        if nearest is not None:
            return Conflict(
                wanted(question), _blockers(question, verdicts), nearest, change.says(nearest), tables.as_of
            )
    return Conflict(wanted(question), _blockers(question, verdicts), None, "", tables.as_of)


def question_of(request: Request, tables: Tables) -> Question:
    """The request with its vendor settled."""
    return Question(request, vendor_of(request), tables)


def vendor_of(request: Request) -> Vendor:
    """What to compute on: as asked, else what a build that is wanted is for, else the vendor of the GPUs or driver."""
    if request.vendor is not None:
        return request.vendor
    variant = asked_variant(request)
    if variant.startswith("rocm") or any(machine.amd_gpus for machine in request.machines):
        return Vendor.ROCM
    if variant == "cpu":
        return Vendor.CPU
    shows_gpu = any(machine.driver or machine.gpus for machine in request.machines)
    return Vendor.NVIDIA if shows_gpu or variant or request.cuda else Vendor.CPU


def _attempt(request: Request, tables: Tables) -> tuple[Plan | None, tuple[Verdict, ...], Question]:
    question = question_of(request, tables)
    verdicts: tuple[Verdict, ...] = ()
    for _, builds in groupby(candidates(question), key=lambda candidate: candidate.release.version):
        judged = tuple(judge(candidate, question) for candidate in builds)
        verdicts += judged
        if any(is_clean(verdict, question) for verdict in judged):
            # An older release cannot beat it: there is no need to judge those.
            break
    fitting = [verdict for verdict in verdicts if not verdict.refusals]
    if not fitting:
        return None, verdicts, question
    winner = min(fitting, key=lambda verdict: preference(verdict, question))
    others = tuple(verdict for verdict in verdicts if verdict is not winner)
    return assembled(winner, others, question), verdicts, question


def _blockers(question: Question, verdicts: tuple[Verdict, ...]) -> tuple[Blocker, ...]:
    if not verdicts:
        return (no_candidate(question),)
    apart = _fit_apart(question)
    return (*apart, *blockers(verdicts))


def _fit_apart(question: Question) -> tuple[Blocker, ...]:
    """A6: each GPU alone can be served, but no one wheel serves them all."""
    machines = [replace(machine, gpus=(gpu,)) for machine in question.machines for gpu in machine.gpus]
    machines += [replace(machine, amd_gpus=(gpu,)) for machine in question.machines for gpu in machine.amd_gpus]
    if len(machines) < 2:
        return ()
    for machine in machines:
        if _attempt(replace(question.request, machines=(machine,)), question.tables)[0] is None:
            return ()
    names = listed(question.spoken_gpus)
    source = question.tables.torch.releases[-1].source[0]
    return (Blocker("A6", f"each has a wheel of its own, but no one wheel serves {names}", source),)
