"""From settings to a model that answers: what `devkit generate` calls once its flags are read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.text import human_number
from devkit.workload.device import Device, choose_device
from devkit.workload.finetune.adapters_files import SavedAdapter
from devkit.workload.finetune.adapters_saved import put_on, require_fit
from devkit.workload.finetune.micro_batch import is_out_of_memory
from devkit.workload.finetune.model import Loaded, load_base, load_tokenizer, notes_on
from devkit.workload.finetune.model_choices import ModelChoices, Quantisation
from devkit.workload.finetune.model_files import ModelFiles
from devkit.workload.finetune.model_skeleton import skeleton
from devkit.workload.generation import merging
from devkit.workload.generation.batches import answered_alone, answers_in_order
from devkit.workload.generation.chat import stoppable
from devkit.workload.generation.compiling import pays
from devkit.workload.generation.decoding import Answer, Speaker, room
from devkit.workload.generation.encoding import encoded
from devkit.workload.generation.lookup import Found
from devkit.workload.generation.prompts import Prompt
from devkit.workload.generation.settings import Decoding, GenerateSettings
from devkit.workload.generation.speed import Speed, speed_of
from devkit.workload.generation.streaming import Words


@dataclass(frozen=True)
class Opened:
    """The files of a base and of an adapter that fits it, looked at and not loaded."""

    settings: GenerateSettings
    files: ModelFiles
    adapter: SavedAdapter | None
    device: Device

    def load(self, precision: Precision) -> Loaded:
        """The base on the device and its tokenizer, with the chat template that the adapter learned from."""
        choices = ModelChoices(
            precision=precision, device=f"{self.device.torch_device}", quantisation=self.quantisation()
        )
        notes = notes_on(self.files, choices)
        try:
            base, tokenizer = load_base(self.files, choices), load_tokenizer(self.files.folder)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise DevkitError(
                f"memory ran out while {self.files.folder} was loaded onto {self.device.name}",
                "Keep it in 4 bits with --quantisation nf4; or see what fits: devkit estimate MODEL --inference.",
            ) from error
        if self.adapter and self.adapter.chat_template:
            tokenizer.chat_template = self.adapter.chat_template
        return Loaded(self.settings.model, self.files, base, tokenizer, notes)

    def quantisation(self) -> Quantisation:
        """Weights that are stored in 4 or 8 bits stay so."""
        return self.settings.quantisation if self.files.quantised is Quantisation.NONE else self.files.quantised


def opened(found: Found) -> Opened:
    """What was looked up, refused where the adapter does not fit, before anything large is read."""
    if found.adapter:
        shape = skeleton(found.files.folder)
        require_fit(found.adapter, shape, found.files, any_base=found.settings.any_base)
    return Opened(found.settings, found.files, found.adapter, choose_device(found.settings.precision))


class Generation:
    """A loaded model that answers prompts, and keeps the time."""

    def __init__(self, found: Opened) -> None:
        self._settings = found.settings
        precision = found.device.precision
        base = found.load(precision)
        self.notes = base.notes
        model = put_on(base.model, found.adapter, precision=precision) if found.adapter else base.model
        self.speaker = Speaker(model, base.tokenizer)
        self._tokens, self._seconds, self._rows = 0, 0.0, 1

    def one(self, prompt: Prompt, show: Callable[[str], None]) -> Answer:
        """The answer to one prompt, shown while it is made. Ctrl-C ends it early."""
        decoding = self._settings.decoding
        words = Words(self.speaker.tokenizer, show, self.speaker.stops(decoding))
        started = perf_counter()
        with stoppable() as asked:
            answer = answered_alone(self.speaker, self._ids(prompt), decoding, words=words, asked=asked)
        self._count(len(answer.ids), perf_counter() - started, rows=1)
        return answer

    def many(self, prompts: Sequence[Prompt]) -> Iterator[Answer]:
        """The answers to prompts, in their order."""
        ids = [self._ids(prompt) for prompt in prompts]
        started = perf_counter()
        tokens = 0
        for answer in answers_in_order(self.speaker, ids, self._decoding_of(len(ids))):
            tokens += len(answer.ids)
            yield answer
        self._count(tokens, perf_counter() - started, rows=min(len(ids), self._settings.decoding.batch))

    def _decoding_of(self, prompts: int) -> Decoding:
        asked = self._settings.decoding
        if asked.static_cache is not None:
            return asked
        is_static = pays(self.speaker.device, prompts=prompts, batch=asked.batch, tokens=asked.tokens)
        return replace(asked, static_cache=is_static)

    def speed(self) -> Speed:
        """The figures of everything that was answered so far."""
        return speed_of(self.speaker, tokens=self._tokens, seconds=self._seconds, rows=self._rows)

    def _ids(self, prompt: Prompt) -> list[int]:
        try:
            ids = encoded(prompt, self.speaker.tokenizer, raw=self._settings.raw)
            room(self.speaker, len(ids), 1)
        except DevkitError as error:
            # One of a thousand lines: which?
            raise DevkitError(
                f"{prompt.place}: {error.message}" if prompt.place else error.message, error.hint
            ) from error
        return ids

    def _count(self, tokens: int, seconds: float, *, rows: int) -> None:
        self._tokens, self._seconds, self._rows = self._tokens + tokens, self._seconds + seconds, rows


def merge_into(looked: Found, folder: Path, remark: Callable[[str], None]) -> None:
    """Write base and adapter as one model into `folder`, and say what that changed. Raises DevkitError."""
    merging.require_free(folder)
    found = opened(looked)
    if found.adapter is None:
        raise DevkitError("there is nothing to merge", "Name the adapter with --adapter.")
    precision = found.settings.precision or merging.precision_of(found.files)
    base = found.load(precision)
    quantisation = found.quantisation()
    if quantisation is not Quantisation.NONE:
        remark(
            f"The base is in {quantisation.value}: merged into the {precision.value} weights that those bits stand for."
        )
    whole = merging.merged(base, found.adapter, precision=precision, quantisation=quantisation)
    merging.write_model(whole.model, base, folder)
    allowed = merging.TOLERANCE[precision]
    remark(
        f"Merged in {precision.value} into {folder}: no logit moved by more than {human_number(whole.moved)} of their "
        f"range ({allowed:g} is allowed)."
    )
