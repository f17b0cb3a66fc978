"""`devkit onboard`: from a fresh clone to the first training step."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli.dev_container import (
    BuildSteps,
    config_option,
    directory_argument,
    find_project_container,
    format_host,
    host_option,
    print_failure,
    write_log,
)
from devkit.errors import DevkitError, ExitCode
from devkit.release import __version__
from devkit.text import format_bytes, to_one_line

if TYPE_CHECKING:
    from devkit.devcontainer.configuration import DevContainer
    from devkit.devcontainer.entering import Entry
    from devkit.devcontainer.onboarding import Need, OnboardingPage, Progress
    from devkit.export.sizing import ResourceNeeds
    from devkit.export.task_builder import ExportedProject
    from devkit.facts.model import Facts

SCHEMA = "devkit.onboard/1"
PROOF_TIMEOUT_S = 600.0
STEP_TIMEOUT_S = 3600.0
"""Time limit of the first training step: it may download the model."""

_TORCH_STEP = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
layer = torch.nn.Linear(64, 1, device=device)
optimizer = torch.optim.SGD(layer.parameters(), 0.01)
losses = []
for _ in range(2):
    loss = layer(torch.ones(8, 64, device=device)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
print(f"torch {torch.__version__} on {device}: loss {losses[0]:.4f}, then {losses[1]:.4f}")
"""
"""Two steps of the smallest training, for a dev container that has torch and not devkit."""


@dataclass
class _Run:
    """One onboarding: what is shown of it, and what its JSON document holds."""

    container: "DevContainer"
    progress: "Progress"
    printer: BuildSteps
    steps: list[dict[str, str]] = field(default_factory=list)
    unread: str = ""
    """Why the machine of another host's engine could not be read."""

    def note(self, name: str, status: str, detail: str) -> None:
        self.steps.append({"name": name, "status": status, "detail": detail})

    def kept(self, name: str, image_id: str) -> bool:
        """Say if a step was done with this image before, and show it."""
        result = self.progress.find(name, image_id)
        if result is not None:
            self.printer.say(f"{name}: done before with this image: {result}")
            self.note(name, "kept", result)
        return result is not None


@click.command()
@directory_argument
@config_option
@host_option
@click.option("--check", is_flag=True, help="Only say what this machine lacks; exit 1 when something stops the start.")
@click.option("--again", is_flag=True, help="Prove and train again, also where it was done with this image.")
@click.option("--write", is_flag=True, help="Write ONBOARDING.md for this project, and do nothing else.")
@click.option("--force", is_flag=True, help="With --write: replace what was edited.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def onboard(
    ctx: click.Context,
    directory: Path,
    *,
    config: Path | None,
    check: bool,
    again: bool,
    write: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Take a fresh clone to its first training step.

    Says what this machine lacks, in order, with the command for each; then starts the dev container, proves that
    training works in it, and trains one step. Repeat it after each fix: what was done is kept. With --host ssh://HOST,
    it is the devkit installed there that says what that machine lacks.
    """
    from devkit.devcontainer.onboarding import Progress
    from devkit.verify.process import interrupt_on_termination

    if force and not write:
        raise DevkitError("--force is for --write", "Leave it out.")
    container = find_project_container(directory, config)
    if write:
        _write_page(container, force=force)
        return
    run = _Run(container, Progress(None) if again else Progress.load(container), BuildSteps())
    if again:
        run.progress.file = Progress.load(container).file
    needs: list[Need] = []
    with interrupt_on_termination():
        try:
            is_done = _onboard(run, needs, is_check=check)
        except KeyboardInterrupt:
            click.echo(f"\nWhat was done so far is kept: the next `devkit onboard{format_host()}` continues.", err=True)
            raise
    follow = (
        _list_next_steps(run, needs, is_done=is_done)
        if not check or not is_done
        else [f"devkit onboard{format_host()}"]
    )
    if as_json:
        document = {
            "schema": SCHEMA,
            "verdict": "done" if is_done else "stopped",
            "needs": [asdict(need) for need in needs],
            "steps": run.steps,
            "next": follow,
        }
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo("Next:\n" + "\n".join(f"  {line}" for line in follow))
    ctx.exit(ExitCode.DONE if is_done else ExitCode.ANSWER_IS_NO)


def _onboard(run: _Run, needs: "list[Need]", *, is_check: bool) -> bool:
    """Go through the steps. Fills `needs`. Returns True when the last one was reached."""
    from devkit.devcontainer.making import StartOptions
    from devkit.devcontainer.onboarding import format_needs
    from devkit.devcontainer.starting import Started, start_dev_container
    from devkit.probe.host import LocalHost

    needs += _examine(run)
    for line in format_needs(needs):
        click.echo(line, err=True)
    if any(need.stops for need in needs):
        run.note("machine", "stopped", f"{sum(need.stops for need in needs)} to be done first")
        return False
    if not needs:
        run.printer.say(run.unread or "the machine has what the dev container needs")
    has = "has what it needs" if not run.unread else run.unread
    run.note("machine", "skipped" if run.unread else "done", f"{len(needs)} to be done" if needs else has)
    if is_check:
        return True
    started = start_dev_container(LocalHost(), run.container, StartOptions(), run.printer)
    if not isinstance(started, Started):
        print_failure(started, write_log(run.container, started))
        run.note("up", "failed", started.title)
        return False
    run.note("up", "done", started.action)
    return _prove(run, started.entry) and _train(run, started.entry)


def _examine(run: _Run) -> "Iterator[Need]":
    """Read the engine's machine, and yield what it lacks."""
    from devkit.cli.facts import ReadOptions, read_this_machine
    from devkit.cli.output import OutputOptions, choose_marks
    from devkit.devcontainer.onboarding import find_editor_need, list_needs, read_over_ssh
    from devkit.devcontainer.remote import is_remote
    from devkit.doctor.registry import CHECKS
    from devkit.doctor.report.report import build_report
    from devkit.doctor.report.stack import build_stack
    from devkit.doctor.report.text import find_layer_mark
    from devkit.doctor.runner import run_on_host_and_container
    from devkit.facts.model import Engine
    from devkit.probe.engine.client import resolve_endpoint
    from devkit.probe.host import LocalHost

    endpoint = resolve_endpoint(LocalHost()).endpoint
    other = endpoint.url if is_remote(endpoint) else ""
    title = f"read {other or 'this machine'}"
    run.printer.begin(title)
    if other:
        try:
            facts = read_over_ssh(LocalHost(), other)
        except DevkitError as error:
            run.unread = f"what {other} lacks is unknown: {error.message}"
            run.printer.drop(title)
            yield from filter(None, [find_editor_need(LocalHost())])
            return
    else:
        facts = read_this_machine(ReadOptions(run.container.folder), report_step=lambda _: None, meanwhile=lambda: None)
    report = build_report(facts, run_on_host_and_container(CHECKS, facts, clock=time.perf_counter), devkit=__version__)
    run.printer.end(title)
    marks = choose_marks(OutputOptions("text", None))
    for layer in build_stack(facts, report):
        if layer.summary:
            run.printer.say(f"{find_layer_mark(layer, marks)[0]} {layer.title}: {layer.summary}")
    found = list(list_needs(report))
    if not other and not isinstance(facts.engine, Engine) and not any(need.stops for need in found):
        # Inside of a container the doctor has nothing against it.
        found += _find_engine_need()
    before_editor = ("container engine", "GPU driver", "GPU in containers")
    yield from (need for need in found if need.topic in before_editor)
    if editor := find_editor_need(LocalHost()):
        yield editor
    yield from (need for need in found if need.topic not in before_editor)
    yield from _find_job_needs(run, facts)


def _find_engine_need() -> "list[Need]":
    from devkit.devcontainer.onboarding import Need
    from devkit.probe.host import LocalHost
    from devkit.verify.engine import require_engine

    try:
        require_engine(LocalHost())
    except DevkitError as error:
        summary, *commands = error.hint.splitlines()
        return [Need("container engine", error.message, summary, tuple(commands), stops=True)]
    return []


def _find_job_needs(run: _Run, facts: "Facts") -> "Iterator[Need]":
    """Yield that this machine's GPU is too small for the job in devkit.toml."""
    from devkit.cli.export import load_project_job
    from devkit.devcontainer.onboarding import Need
    from devkit.estimate.gpus import Fit

    gpu = facts.gpus[0].name if facts.gpus else ""
    try:
        needs = _estimate_job(load_project_job(run.container.folder), gpu if isinstance(gpu, str) else "")
    except DevkitError as error:
        run.printer.say(f"whether the GPU suffices for the job is unknown: {error.message}")
        return
    if needs is not None and needs.verdict is Fit.DOES_NOT_FIT and needs.gpu is not None:
        yield Need(
            "GPU memory",
            f"the job in devkit.toml takes {format_bytes(needs.peak_bytes)}, and {needs.gpu.name} has"
            f" {format_bytes(needs.gpu.memory_bytes)}",
            "Train a smaller model here, or send the job to a larger GPU.",
            ("devkit estimate MODEL --method qlora", "devkit export slurm"),
        )


def _estimate_job(job: "ExportedProject | None", gpu: str = "", *, is_least: bool = False) -> "ResourceNeeds | None":
    """Estimate the memory of the job on a GPU, "" for any; None where there is no job or no estimate.

    With `is_least`, what the settings leave open is decided for the smallest GPU.
    """
    from devkit.export.sizing import RunHardware, estimate_needs
    from devkit.solver.plan import Vendor

    if job is None or job.finetune is None or job.config is None or job.plan.vendor is not Vendor.NVIDIA:
        return None
    run = job.finetune
    if is_least:
        recomputes = True if run.checkpointing is None else run.checkpointing
        run = replace(run, micro_batch=run.micro_batch or 1, checkpointing=recomputes)
    return estimate_needs(run, job.config, RunHardware(vendor=job.plan.vendor, gpu=gpu, processes=1))


def _prove(run: _Run, entry: "Entry") -> bool:
    """Prove the dev container, in the way that it allows. Returns False where the proof failed."""
    from devkit.devcontainer.containers import Failure

    if run.kept("verify", entry.state.image_id):
        return True
    title = "verify: train a tiny model in the dev container"
    run.printer.begin(title)
    has_devkit = entry.call("sh", "-c", "command -v devkit").code == 0
    command = ("devkit", "verify", "--here", "--quick", "--json") if has_devkit else ("python", "-c", _TORCH_STEP)
    done = entry.call(*command, deadline_s=PROOF_TIMEOUT_S)
    result = done.out.strip()
    if has_devkit:
        try:
            result = str(json.loads(done.out)["conclusion"])
        except (ValueError, KeyError, TypeError):
            result = ""
    if not has_devkit and "No module named 'torch'" in done.err:
        run.printer.end(title, "skipped: this dev container has neither devkit nor torch")
        run.note("verify", "skipped", "this dev container has neither devkit nor torch")
        return True
    run.printer.end(title, is_failed=done.code != 0)
    if done.code != 0:
        lines = tuple((done.err + "\n" + (done.out if not has_devkit else result)).splitlines())
        print_failure(Failure(f"the proof failed: {result or 'it gave no report'}", lines), None)
        run.note("verify", "failed", result)
        return False
    run.printer.say(result)
    run.note("verify", "done", result)
    run.progress.note("verify", entry.state.image_id, result)
    return True


def _train(run: _Run, entry: "Entry") -> bool:
    """Train one step of the project's own job, where devkit.toml names one."""
    from devkit.devcontainer.containers import Failure

    settings = _find_job_settings(run.container.folder)
    if not settings:
        reason = "devkit.toml names no [job] settings; the proof has trained a tiny model"
        run.printer.say(f"first training step: {reason}")
        run.note("train", "skipped", reason)
        return True
    if run.kept("train", entry.state.image_id):
        return True
    title = f"train one step: devkit finetune --settings {settings}"
    run.printer.begin(title)
    words = ("devkit", "finetune", "--settings", settings, "--steps", "1", "--no-resume", "--json")
    done = entry.call(*words, "--output", "/tmp/devkit-onboard", deadline_s=STEP_TIMEOUT_S)  # noqa: S108 - inside
    run.printer.end(title, is_failed=done.code != 0)
    if done.code != 0:
        print_failure(Failure("the first training step failed", tuple(done.err.splitlines())), None)
        run.note("train", "failed", done.err.strip().splitlines()[-1] if done.err.strip() else "")
        return False
    result = _describe_training(done.out)
    run.printer.say(result)
    run.note("train", "done", result)
    run.progress.note("train", entry.state.image_id, result)
    return True


def _describe_training(events: str) -> str:
    for line in reversed(events.splitlines()):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") == "end":
            return f"loss {event.get('last_loss')}, {event.get('tokens_per_s')} tokens/s"
    return "one step was trained"


def _find_job_settings(folder: Path) -> str:
    """Return the settings file of devkit finetune that [job] in devkit.toml names, "" for none."""
    from devkit.probe.documents import parse_toml
    from devkit.render.devkit_toml import DEVKIT_TOML
    from devkit.render.files import read_file

    try:
        document = parse_toml((read_file(folder, DEVKIT_TOML) or b"").decode("utf-8-sig"))
    except (DevkitError, ValueError):
        return ""
    job = document.get("job")
    named = job.get("settings") if isinstance(job, dict) else ""
    return named if isinstance(named, str) else ""


def _list_next_steps(run: _Run, needs: "list[Need]", *, is_done: bool) -> list[str]:
    host = format_host()
    if not is_done:
        if any(need.stops for need in needs):
            return [f"do what is listed above, then: devkit onboard{host}"]
        return [f"see to what failed, then: devkit onboard{host}"]
    settings = _find_job_settings(run.container.folder)
    train = f"devkit finetune --settings {settings}" if settings else "python YOUR_PROGRAM.py"
    return [
        *(["see to what is listed above; the container starts without it"] if needs else []),
        f"{f'devkit shell{host}':<30} a shell inside",
        f"devkit run{host} -- {train}",
        'VS Code: "Dev Containers: Reopen in Container"',
        f"{f'devkit down{host}':<30} stop it",
    ]


def _write_page(container: "DevContainer", *, force: bool) -> None:
    from devkit.cli.runtime import hold_project
    from devkit.devcontainer.onboarding import ONBOARDING_FILE, compute_page_change
    from devkit.render.changes import write_changes

    with hold_project(container.folder):
        change = compute_page_change(container.folder, _describe_project(container), force=force)
        write_changes(container.folder, (change,))
    done = "unchanged" if change.action == "unchanged" else "written"
    click.echo(f"{done}: {container.folder / ONBOARDING_FILE}")


def _describe_project(container: "DevContainer") -> "OnboardingPage":
    """Collect what ONBOARDING.md says about this project: from devkit.lock and devkit.toml, where they are there."""
    from devkit.cli.export import load_project_job
    from devkit.devcontainer.onboarding import OnboardingPage
    from devkit.render.devkit_lock import read_project_lock

    driver, job, needs = "", None, None
    settings = _find_job_settings(container.folder)
    try:
        lock = read_project_lock(container.folder)
        drivers = [machine.driver for machine in lock.machines if lock.plan.get("cuda") and machine.driver]
        driver = str(min(drivers)) if drivers else ""
        job = load_project_job(container.folder)
        needs = _estimate_job(job, is_least=True)
    except DevkitError as error:
        click.echo(f"not stated: what devkit.lock and the job ask for, because {to_one_line(error.message)}", err=True)
    secrets: Any = container.properties.get("secrets")
    return OnboardingPage(
        name=container.name,
        driver=driver,
        gpu_memory_bytes=needs.peak_bytes if needs else 0,
        model=job.finetune.model if job and job.finetune else "",
        needs_token=isinstance(secrets, dict) and "HF_TOKEN" in secrets,
        training_command=f"devkit run -- devkit finetune --settings {settings} --steps 1" if settings else "",
    )
