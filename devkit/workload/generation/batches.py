"""Many prompts through one model: alike lengths side by side, answers in the order of the prompts."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import torch

from devkit.errors import DevkitError
from devkit.workload.finetune.micro_batch import is_out_of_memory
from devkit.workload.generation.decoding import Answer, Speaker, answers, room
from devkit.workload.generation.settings import Decoding
from devkit.workload.generation.streaming import Words


def answers_in_order(
    speaker: Speaker,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    *,
    asked: Callable[[], bool] = lambda: False,
) -> Iterator[Answer]:
    """The answers to `prompts`, in their order, each as soon as all before it are there.

    Prompts of like length are put together, the longest first: there is little padding, and what does not fit into
    memory shows at once. Then the batch is halved. A prompt that fills the model so far that its answer must be short
    shortens no other's. Ends early, with whole answers alone, once `asked`.
    """
    longest_first = sorted(range(len(prompts)), key=lambda index: (-len(prompts[index]), index))
    rooms = [room(speaker, len(prompt), decoding.tokens) for prompt in prompts]
    done: dict[int, Answer] = {}
    handed_on, begun, batch = 0, 0, decoding.batch
    while begun < len(prompts) and not asked():
        chosen = _with_equal_room(longest_first[begun : begun + batch], rooms)
        found = _tried(speaker, {index: prompts[index] for index in chosen}, decoding, asked)
        if found is None:
            batch = _halved(len(chosen))
            continue
        if asked():
            return
        begun += len(chosen)
        done |= zip(chosen, found, strict=True)
        while handed_on in done:
            yield done.pop(handed_on)
            handed_on += 1


def _with_equal_room(indices: Sequence[int], rooms: Sequence[int]) -> list[int]:
    """The first of `indices`, and those directly behind it whose answers may be as long as its own."""
    return list(takewhile(lambda index: rooms[index] == rooms[indices[0]], indices))


def answered_alone(
    speaker: Speaker,
    prompt: Sequence[int],
    decoding: Decoding,
    *,
    number: int = 0,
    words: Words,
    asked: Callable[[], bool],
) -> Answer:
    """The answer to one prompt, shown while it is made. Raises DevkitError, also where memory runs out."""
    try:
        (answer,) = answers(speaker, [prompt], decoding, numbers=[number], streamer=words, asked=asked)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise _too_large() from error
        raise
    return answer


def _tried(
    speaker: Speaker, prompts: Mapping[int, Sequence[int]], decoding: Decoding, asked: Callable[[], bool]
) -> list[Answer] | None:
    """The answers to `prompts`, by their numbers; None where memory ran out, after what was allocated is free again."""
    how = replace(decoding, batch=len(prompts))
    try:
        return answers(speaker, list(prompts.values()), how, numbers=list(prompts), asked=asked)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    # The error is gone by now, and with it the frames that hold the tensors.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def _halved(batch: int) -> int:
    if batch > 1:
        return batch // 2
    raise _too_large()


def _too_large() -> DevkitError:
    return DevkitError(
        "memory ran out with a single prompt",
        "Ask for fewer --tokens, or keep the base in 4 bits with --quantisation nf4.",
    )
