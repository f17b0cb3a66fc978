"""The rows of a run, and what each process learns from in each step."""

import heapq
from collections.abc import Sequence
from dataclasses import replace

from devkit.errors import DevkitError
from devkit.text import count_of
from devkit.workload.finetune import packing, sampler
from devkit.workload.finetune.batch import Example, Layout, MicroBatch, Row, collated


class Feed:
    """Examples as rows, dealt to steps, processes and forward passes.

    The rows of a step depend on the seed and the step alone. How many processes share them, and in how many passes
    each works through its share, changes nothing but rounding, given that losses are divided by `counted(step)`.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        batch: int,
        sequence: int,
        seed: int = 0,
        pack: bool = False,
        layout: Layout = Layout.PADDED,
    ) -> None:
        """`batch` is in rows, over all processes; `sequence` is the longest row in tokens."""
        if not examples:
            raise DevkitError("there is nothing to learn from: no example is left", "Give data with at least one text.")
        if pack and layout is Layout.PADDED:
            raise ValueError("packed rows need the layout flat or blocks")
        self.batch = batch
        self.sequence = sequence
        self.seed = seed
        self.layout = layout
        self.packs = pack
        self.texts = len(examples)
        if pack:
            shared = packing.packed([len(each.ids) for each in examples], sequence)
            self.rows = [Row(tuple(examples[index] for index in row)) for row in shared]
        else:
            self.rows = [Row((each,)) for each in examples]
        self._ready: tuple[tuple[int, int, int, int], list[MicroBatch]] | None = None
        self.tokens = sum(row.tokens for row in self.rows)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps that pass over all rows once."""
        return sampler.steps_per_epoch(len(self.rows), self.batch)

    @property
    def efficiency(self) -> float:
        """Which share of `sequence` tokens a row fills, on average."""
        return packing.efficiency(tokens=self.tokens, rows=len(self.rows), room=self.sequence)

    @property
    def notes(self) -> list[str]:
        """What a person should know of the rows before the run: how full, and whether the last step is smaller."""
        notes = []
        if self.packs:
            notes.append(
                f"packed {count_of(self.texts, 'text')} into {count_of(len(self.rows), 'row')} of at most "
                f"{self.sequence} tokens, {self.efficiency:.1%} full"
            )
        rest = len(self.rows) % self.batch
        if len(self.rows) < self.batch:
            shown = count_of(len(self.rows), "row")
            notes.append(f"each step learns from {shown} instead of {self.batch}: the data makes no more")
        elif rest:
            shown = count_of(rest, "row")
            notes.append(f"the last step of each epoch learns from {shown} instead of {self.batch}: no row is left out")
        return notes

    def step(self, step: int, *, rank: int = 0, world: int = 1, micro_batch: int = 1) -> list[MicroBatch]:
        """What process `rank` of `world` learns from in step `step`, counted from 0, pass by pass.

        All processes get equally many passes of at most `micro_batch` rows; one without rows holds a padding token.
        """
        place = (step, rank, world, micro_batch)
        ready, self._ready = self._ready, None
        return ready[1] if ready is not None and ready[0] == place else self._step(*place)

    def prepare(self, step: int, *, rank: int = 0, world: int = 1, micro_batch: int = 1) -> None:
        """Make a step's batches now, to be handed out when `step` is asked for them next."""
        place = (step, rank, world, micro_batch)
        self._ready = (place, self._step(*place))

    def _step(self, step: int, rank: int, world: int, micro_batch: int) -> list[MicroBatch]:
        rows = self._rows_of(step)
        shares = sampler.dealt([row.tokens for row in rows], rank=rank, world=world, micro_batch=micro_batch)
        return [collated([rows[index] for index in share], self.layout) for share in shares]

    def counted(self, step: int) -> int:
        """How many predictions step `step` learns from, over all processes: what its summed loss is divided by."""
        return sum(row.learned for row in self._rows_of(step))

    def worst_case(self, micro_batch: int) -> MicroBatch:
        """A pass as large as any of `micro_batch` rows that can come up, with a prediction counted at every place."""
        longest = heapq.nlargest(micro_batch, self.rows, key=lambda row: row.tokens)
        batch = collated(longest, self.layout)
        return replace(batch, labels=batch.ids.clone(), counted=batch.ids.numel())

    def _rows_of(self, step: int) -> list[Row]:
        chosen = sampler.rows_of_step(step, rows=len(self.rows), batch=self.batch, seed=self.seed)
        return [self.rows[index] for index in chosen]
