"""One fine-tuning run from settings to adapter: what `devkit finetune` calls once its flags are read."""

import signal
from contextlib import ExitStack

from devkit.workload.finetune import program_output, program_parts, ranks, stopping
from devkit.workload.finetune.claim import claimed
from devkit.workload.finetune.decisions import Decisions
from devkit.workload.finetune.events import METRICS_FILE, Events, Listener
from devkit.workload.finetune.loop import End, Position, train
from devkit.workload.finetune.micro_batch import is_out_of_memory, let_go, read_memory
from devkit.workload.finetune.program_hardware import device_kind, gpu_name
from devkit.workload.finetune.program_job import Job
from devkit.workload.finetune.program_record import Record
from devkit.workload.finetune.ranks import Ranks
from devkit.workload.finetune.settings import FinetuneSettings, checked

EXIT_CODES = {
    End.DONE: 0,
    End.NOT_FINITE: 1,
    End.OUT_OF_MEMORY: 1,
    End.INTERRUPTED: stopping.INTERRUPTED,
    End.PREEMPTED: stopping.PREEMPTED,
}


def run(settings: FinetuneSettings, *, listeners: tuple[Listener, ...] = (), dry_run: bool = False) -> int:
    """Train as `settings` say, and return the exit code. `listeners` hear the first process's events.

    With `dry_run` no weights are loaded and nothing is written: only decisions and estimate are told. Raises
    DevkitError for input that cannot be trained on, and Stopped for a signal that comes before the first step.
    """
    checked(settings)
    with stopping.at_once(), ranks.joined(device_kind()) as together:
        if not dry_run:
            return _claimed_and_run(settings, together, listeners)
        events = Events(None, listeners if together.is_first else ())
        material = program_parts.gathered(settings, together, events)
        decisions = program_parts.decided(material, together)
        _tell(events, decisions, material.notes(decisions))
        return EXIT_CODES[End.DONE]


def _claimed_and_run(settings: FinetuneSettings, together: Ranks, listeners: tuple[Listener, ...]) -> int:
    together.shared(lambda: program_output.prepare(settings.output, resume=settings.resume))
    record = Record(settings, gpu=gpu_name(together.device), world=together.world)
    with claimed(settings.output, together), ExitStack() as training:
        try:
            return EXIT_CODES[_run(settings, together, training, listeners, record)]
        except stopping.Stopped as asked:
            together.leave(asked.signal)
            _tell_stopped(settings, together, listeners, record, _end_by(asked.signal))
            raise


def _run(
    settings: FinetuneSettings,
    together: Ranks,
    training: ExitStack,
    listeners: tuple[Listener, ...],
    record: Record,
) -> End:
    """Everything from the files to the adapter, in one of the run's processes.

    `training` is given what holds from the first step until this process leaves.
    """
    together.shared(record.begin)
    try:
        return _recorded(settings, together, training, listeners, record)
    except RuntimeError as error:
        if is_out_of_memory(error):
            return _out_of_memory(settings, together, listeners, record, error)
        _fail(record, together, error)
        raise
    except Exception as error:
        _fail(record, together, error)
        raise


def _tell_stopped(
    settings: FinetuneSettings, together: Ranks, listeners: tuple[Listener, ...], record: Record, ended: End
) -> None:
    """A signal came before the first step: there is nothing to save."""
    if together.is_first:
        record.stop(ended)
        _events(settings, together, listeners)("stopped", step=None, how=ended, saved=None)


def _fail(record: Record, together: Ranks, error: Exception) -> None:
    if not together.is_first:
        return
    because = together.left_because()
    if because is None:
        record.fail(error)
    else:
        record.stop(_end_by(because))


def _recorded(
    settings: FinetuneSettings,
    together: Ranks,
    training: ExitStack,
    listeners: tuple[Listener, ...],
    record: Record,
) -> End:
    """The run, with what was decided and how it ended in its record."""
    events = _events(settings, together, listeners if together.is_first else ())
    material = program_parts.gathered(settings, together, events)
    decisions = program_parts.decided(material, together)
    if together.is_first:
        record.decided(material.settings, decisions)
    _tell(events, decisions, material.notes(decisions))
    return _trained(material, decisions, together, training, events, record)


def _events(settings: FinetuneSettings, together: Ranks, listeners: tuple[Listener, ...]) -> Events:
    return Events(settings.output / METRICS_FILE if together.is_first else None, listeners)


def _out_of_memory(
    settings: FinetuneSettings,
    together: Ranks,
    listeners: tuple[Listener, ...],
    record: Record,
    error: BaseException,
) -> End:
    """Memory ran out, not between steps, where it is answered: while the model was loaded, or in an exchange.

    The others wait for this process and find it gone: it tells, whichever it is, and they do not.
    """
    let_go(error, together.device)
    events = _events(settings, together, listeners if together.tells() else ())
    memory = read_memory(together.device)
    who = {"process": together.rank} if together.world > 1 else {}
    events("stopped", step=None, how=End.OUT_OF_MEMORY, saved=None, **who, **memory.fields())
    if together.is_first:
        record.stop(End.OUT_OF_MEMORY)
    return End.OUT_OF_MEMORY


def _trained(
    material: program_parts.Material,
    decisions: Decisions,
    together: Ranks,
    training: ExitStack,
    events: Events,
    record: Record,
) -> End:
    stop = stopping.Stopping()
    job = Job(material, decisions, together, events, asked=lambda: _asked(stop, together))
    position = job.start()
    training.enter_context(stop)
    ended = End.OUT_OF_MEMORY if position is None else train(job.run, position)
    position = position or Position(micro_batch=0)
    result = together.shared(job.publish) if ended is End.DONE else None
    if together.is_first:
        record.finish(ended, position, job.measured)
    events("end", how=ended, result=str(result) if result else None, **record.summary)
    return ended


def _tell(events: Events, decisions: Decisions, notes: tuple[str, ...]) -> None:
    for each in decisions.reasons:
        events("decision", name=each.name, value=each.value, because=each.because)
    estimate = decisions.estimate
    if estimate is not None:
        events(
            "estimate",
            allocated_peak_bytes=estimate.allocated_peak_bytes,
            reserved_peak_bytes=vars(estimate.reserved_peak_bytes),
            device_peak_bytes=vars(estimate.device_peak_bytes),
            terms=[{"name": term.name, "bytes": term.bytes} for term in estimate.terms],
        )
    for text in (*decisions.warnings, *notes):
        events("note", text=text)


def _asked(stop: stopping.Stopping, together: Ranks) -> End | None:
    asked = stop.asked(together)
    return None if asked is None else _end_by(asked)


def _end_by(asked: signal.Signals) -> End:
    return End.INTERRUPTED if stopping.exit_code(asked) == stopping.INTERRUPTED else End.PREEMPTED
