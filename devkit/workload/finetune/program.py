"""One fine-tuning run from settings to adapter: what `devkit finetune` calls once its flags are read."""



from devkit.estimate.settings import Attention, Method
from devkit.workload.finetune import adapters, model, ranks, stopping
from devkit.workload.finetune.decisions import Decisions, decide
from devkit.workload.finetune.events import METRICS_FILE, Events, Listener
from devkit.workload.finetune.feed import Feed
from devkit.workload.finetune.loop import End, Position, Run, train
from devkit.workload.finetune.model_choices import ModelChoices, Quantisation
from devkit.workload.finetune.optimizers import optimizer_for
from devkit.workload.finetune.program_data import examples_of
from devkit.workload.finetune.program_hardware import device_kind, hardware_here
from devkit.workload.finetune.ranks import Ranks
from devkit.workload.finetune.settings import FinetuneSettings, checked
from devkit.workload.finetune.step import Trained

EXIT_CODES = {
    End.DONE: 0,
    End.NOT_FINITE: 1,
    End.OUT_OF_MEMORY: 1,
    End.INTERRUPTED: stopping.INTERRUPTED,
    End.PREEMPTED: stopping.PREEMPTED,
}


def run(settings: FinetuneSettings, *, listeners: tuple[Listener, ...] = (), dry_run: bool = False) -> int:
    """Train as `settings` say, and return the exit code. `listeners` hear the first process's events.

    Raises DevkitError for input that cannot be trained on.
    """
    checked(settings)
    with ranks.joined(device_kind()) as together, stopping.Stopping() as stop:
        return EXIT_CODES[_run(settings, together, stop, listeners)]


def _run(settings: FinetuneSettings, together: Ranks, stop: stopping.Stopping, listeners: tuple[Listener, ...]) -> End:
    if together.is_first:
        settings.output.mkdir(parents=True, exist_ok=True)
    events = Events(settings.output / METRICS_FILE, listeners) if together.is_first else Events(None)
    decisions = decide(
        settings,
        hardware_here(together.device, world=together.world),
        attention=(Attention.SDPA, "the one that every model has"),
        need=None,
    )
    for each in decisions.reasons:
        events("decision", name=each.name, value=each.value, because=each.because)
    loaded = model.load(settings.model, _model_choices(settings, decisions, together))
    feed = Feed(
        examples_of(settings.data, loaded.tokenizer, settings),
        batch=settings.batch,
        sequence=settings.sequence,
        seed=settings.seed,
    )
    prepared = _prepared(loaded.model, settings, decisions)
    trained = Trained(prepared, decisions.loss)
    position = Position()
    made = Run(
        settings=settings,
        learning_rate=decisions.learning_rate,
        steps=settings.steps or max(1, round(settings.epochs * feed.steps_per_epoch)),
        micro_batch=decisions.micro_batch,
        trained=trained,
        optimizer=optimizer_for(
            trained, decisions.optimizer, learning_rate=decisions.learning_rate, weight_decay=settings.weight_decay
        ),
        feed=feed,
        ranks=together,
        events=events,
        save=lambda position: prepared.save_pretrained(str(settings.output / "adapter")),
        asked=lambda: _end_of(stop, together),
    )
    events("start", steps=made.steps, rows=len(feed.rows), world=together.world)
    ended = train(made, position)
    events("end", how=ended, step=position.step, first_loss=position.first_loss, last_loss=position.last_loss)
    return ended


def _end_of(stop: stopping.Stopping, together: Ranks) -> End | None:
    asked = stop.asked(together)
    if asked is None:
        return None
    return End.INTERRUPTED if stopping.exit_code(asked) == stopping.INTERRUPTED else End.PREEMPTED


def _model_choices(settings: FinetuneSettings, decisions: Decisions, together: Ranks) -> ModelChoices:
    return ModelChoices(
        precision=decisions.precision,
        device=str(together.device),
        quantisation=Quantisation.of_method(settings.method),
        attention=str(decisions.attention),
    )


def _prepared(base: model.Model, settings: FinetuneSettings, decisions: Decisions) -> model.Model:
    """The base ready to be trained: with an adapter, or whole."""
    model.prepare_for_training(base, checkpointing=decisions.checkpointing)
    if settings.method is Method.FULL:
        return base.requires_grad_(requires_grad=True)
    return adapters.attach(base, settings, precision=decisions.adapter_precision)
