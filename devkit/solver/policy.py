"""Holds an answer against the project's policy: another name or another image where one is allowed, else a conflict."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from devkit.compat.load import Tables
from devkit.facts.policy import Policy
from devkit.facts.values import Release
from devkit.solver.model import Blocker, Conflict, Plan, Request
from devkit.text import listed

RULE = "policy"
SOURCE = "devkit.toml"

Answer = Plan | Conflict
Solve = Callable[[Request, Tables], Answer]


def under_policy(answer: Answer, request: Request, tables: Tables, *, policy: Policy, solve: Solve) -> Answer:
    """`answer` as the policy allows it. `solve` answers a request that names an allowed image."""
    if isinstance(answer, Conflict):
        nearest = answer.nearest and _mirrored(answer.nearest, policy)
        return replace(answer, nearest=nearest if nearest and not _refusal(nearest, policy) else None)
    refusal = _refusal(answer, policy)
    if refusal is None:
        return _mirrored(answer, policy)
    others = () if request.image else _allowed(answer, policy, tables)
    for image in others:
        other = solve(replace(request, image=image), tables)
        if isinstance(other, Plan) and _refusal(other, policy) is None:
            return _because(_mirrored(other, policy), f"allowed by policy.registries; {answer.base_image} is not")
    return Conflict(f"{answer.base_image} under the policy of {SOURCE}", (refusal,), None, "", answer.data_as_of)


def _refusal(plan: Plan, policy: Policy) -> Blocker | None:
    image = policy.mirrored(plan.base_image)
    if not policy.allows_image(image):
        allowed = listed(policy.registries, "or")
        return Blocker(RULE, f"the base image {image} is not of an allowed registry: {allowed}", SOURCE)
    return None


def _allowed(plan: Plan, policy: Policy, tables: Tables) -> Iterator[str]:
    """Images that the tables know and the policy allows, those of Python first, then CUDA's for the plan's CUDA."""
    images = tables.images
    tags = [row.tag for row in images.python_images]
    if plan.cuda is not None:
        numbers = Release.read(plan.cuda).numbers
        rows = [row for row in images.cuda_images if row.cuda.numbers[:2] == numbers and not row.may_vanish]
        tags += [f"nvidia/cuda:{row.cuda}-base-{row.system}" for row in rows]
    return (tag for tag in tags if policy.allows_image(policy.mirrored(tag)))


def _mirrored(plan: Plan, policy: Policy) -> Plan:
    image = policy.mirrored(plan.base_image)
    if image == plan.base_image:
        return plan
    return _because(replace(plan, base_image=image), f"{plan.because('base_image')}; by the name of policy.mirrors")


def _because(plan: Plan, because: str) -> Plan:
    """The plan with this reason beside its image."""
    reasons = (
        replace(reason, value=plan.base_image, because=because) if reason.field == "base_image" else reason
        for reason in plan.reasons
    )
    return replace(plan, reasons=tuple(reasons))
