"""A project, its plan and its run, as the exporters see them; hand-made, so that tables may move."""

from dataclasses import replace
from typing import Any

from devkit.estimate.shape import find_model
from devkit.export.job_settings import JobSettings
from devkit.export.task_builder import ExportedProject, TaskAndEstimate, build_task
from devkit.render.container.settings import ContainerSettings, FromIndex
from devkit.workload.finetune.settings import FinetuneSettings
from tests.render.plans import CPU_PLAN, GPU_PLAN

PACKAGES = (("torch", "2.13.0"), ("bitsandbytes", "0.50.2"))
NVIDIA = replace(GPU_PLAN, packages=PACKAGES, architectures=("x86_64",))
CPU = replace(CPU_PLAN, packages=PACKAGES, architectures=("x86_64",))

PROJECT = ContainerSettings(name="Tide tables", slug="tide-tables", source=FromIndex("0.1.0"))
RUN = FinetuneSettings(model="meta-llama/Llama-3.1-8B", data=("chats.jsonl",))
JOB = JobSettings(image="registry.example.org/tide:1")
UNKNOWN = {"model_type": "nobody-knows"}


def config_of(model: str) -> dict[str, Any]:
    known = find_model(model)
    assert known is not None
    return dict(known.config)


def subject(run: FinetuneSettings = RUN, *, plan: Any = NVIDIA, **fields: Any) -> ExportedProject:
    given = fields if "config" in fields else {"config": config_of(run.model), **fields}
    return ExportedProject(PROJECT, plan, run, **given)


def made(run: FinetuneSettings = RUN, *, plan: Any = NVIDIA, job: JobSettings = JOB, **fields: Any) -> TaskAndEstimate:
    return build_task(subject(run, plan=plan, **fields), job)
