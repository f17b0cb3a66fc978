"""Checkpoints that are whole or not there: saved in a folder of their own, verified before they are gone on from."""

import contextlib
import copy
import errno
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from devkit import __version__
from devkit.errors import DevkitError
from devkit.text import count_of, human_bytes
from devkit.workload.finetune import checkpoint_folders as folders
from devkit.workload.finetune.checkpoint_file import SyncedFile, write_tensors
from devkit.workload.finetune.checkpoint_state import (
    ADAPTER_FILE,
    OPTIMIZER_FILE,
    RunState,
    optimizer_state,
    restore,
    weights,
)
from devkit.workload.finetune.manifest import (
    MANIFEST,
    BrokenError,
    FileRecord,
    Manifest,
    Progress,
    Value,
    differences,
    read,
)
from devkit.workload.finetune.ranks import Ranks

LEAST_KEPT = 2
"""One checkpoint is none: the newest may turn out broken when it is needed."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint on the disk. `seconds` is what a preemption notice must leave time for, besides one step."""

    path: Path
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Found:
    """A checkpoint to go on from. `passed_over` names newer ones that are broken; `notes` says what will differ."""

    path: Path
    manifest: Manifest
    passed_over: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def save(
    output: Path, state: RunState, progress: Progress, *, settings: Mapping[str, Value], ranks: Ranks, keep: int = 2
) -> Saved:
    """Write a checkpoint into `output` and remove the oldest beyond `keep`; all processes must call.

    Raises DevkitError in all of them when the first one cannot write; the checkpoints before it are untouched then.
    """
    started_s = time.monotonic()
    parts = {state.weights_file: weights(state.model), OPTIMIZER_FILE: optimizer_state(state)}
    size = sum(tensor.numel() * tensor.element_size() for tensors in parts.values() for tensor in tensors.values())
    staged = folders.staging(output, progress.step)
    ranks.shared(lambda: _begin(output, staged, size))
    files, failure = _write(parts, staged, ranks)
    manifest = Manifest(
        progress=replace(progress, scaler=state.scaler.state_dict() if state.scaler else None),
        settings=settings,
        world=ranks.world,
        versions=_versions(),
        files=files,
    )

    def finish() -> Path:
        with _told(output, progress.step, staged):
            if failure is not None:
                raise failure
            return _finish(output, staged, state, manifest, max(keep, LEAST_KEPT))

    return Saved(ranks.shared(finish), size, time.monotonic() - started_s)


def newest(output: Path, *, settings: Mapping[str, Value], ranks: Ranks) -> Found | None:
    """The newest good checkpoint in `output`, None where there is none yet; all processes must ask.

    Raises DevkitError when it belongs to other settings, and when there are checkpoints but no good one.
    """
    found = ranks.shared(lambda: _newest(output, settings, ranks.world))
    if found is not None and ranks.any(not _is_seen(found)):
        raise DevkitError(
            f"the processes of this run do not all see {found.path}",
            "Put --output on a file system that all machines of the run share.",
        )
    return found


def load(found: Found, state: RunState) -> Progress:
    """Bring model, optimizer and scaler to where the checkpoint was made; all processes must call."""
    restore(state, found.path)
    progress = found.manifest.progress
    if state.scaler is not None and progress.scaler:
        state.scaler.load_state_dict(dict(progress.scaler))
    return progress


def check_room(output: Path, state: RunState, *, ranks: Ranks, keep: int = 2) -> None:
    """Find out before the first step, not at the first save, that the disk is too small. Raises DevkitError."""
    # Adam keeps two numbers for each weight; one checkpoint more than are kept exists while a save goes on.
    one = 3 * sum(tensor.numel() * tensor.element_size() for tensor in weights(state.model).values())
    needed = one * (max(keep, LEAST_KEPT) + 1)

    def check() -> None:
        with _told(output, 0, None):
            free = shutil.disk_usage(output).free + sum(_size(path) for _, path in folders.whole(output))
        if free < needed:
            raise DevkitError(
                f"{output} has {human_bytes(free)} for checkpoints, and they need {human_bytes(needed)}",
                f"Each takes about {human_bytes(one)}. Make room, or choose an --output with more.",
            )

    ranks.shared(check)


def _begin(output: Path, staged: Path, size: int) -> None:
    with _told(output, _step_of(staged), staged):
        folders.sweep(output)
        free = shutil.disk_usage(output).free
        if free < size:
            raise OSError(errno.ENOSPC, f"{human_bytes(free)} are free, {human_bytes(size)} needed")
        staged.mkdir()


def _write(
    parts: Mapping[str, Mapping[str, torch.Tensor]], staged: Path, ranks: Ranks
) -> tuple[dict[str, FileRecord], OSError | None]:
    """Write all tensors; what failed on the first process, which goes on gathering with the others all the same."""
    records: dict[str, FileRecord] = {}
    failure: OSError | None = None
    for name, tensors in parts.items():
        if not ranks.is_first:
            write_tensors(tensors, None)
            continue
        file = SyncedFile(staged / name)
        try:
            with file:
                write_tensors(tensors, file)
        except OSError as error:
            failure = failure or error
        records[name] = file.record
    return records, failure


def _finish(output: Path, staged: Path, state: RunState, manifest: Manifest, keep: int) -> Path:
    config = _config(state, staged)
    files = {**manifest.files, config.name: _synced_copy(config)}
    with SyncedFile(staged / MANIFEST) as file:
        file.write(replace(manifest, files=files).text().encode())
    folders.synced(staged)
    path = folders.publish(staged, output, manifest.progress.step)
    folders.prune(output, step=manifest.progress.step, keep=keep)
    return path


def _config(state: RunState, folder: Path) -> Path:
    """Write what peft or transformers need to load the weights from `folder` by themselves."""
    if state.weights_file != ADAPTER_FILE:
        state.model.config.save_pretrained(str(folder))
        return folder / "config.json"
    config = copy.copy(state.model.peft_config[state.model.active_adapter])
    config.inference_mode = True
    config.save_pretrained(str(folder))
    return folder / "adapter_config.json"


def _synced_copy(path: Path) -> FileRecord:
    text = path.read_bytes()
    path.unlink()
    with SyncedFile(path) as file:
        file.write(text)
    return file.record


def _newest(output: Path, settings: Mapping[str, Value], world: int) -> Found | None:
    folders.sweep(output)
    passed_over: list[str] = []
    for _, path in folders.whole(output):
        try:
            manifest = folders.verified(path)
        except BrokenError as broken:
            passed_over.append(f"{path.name}: {broken}")
            continue
        _refuse_other_settings(path, manifest, settings)
        for name in passed_over:
            folders.mark_broken(output / name.partition(":")[0])
        return Found(path, manifest, tuple(passed_over), tuple(_notes(manifest, world)))
    if passed_over:
        raise DevkitError(
            f"no checkpoint in {output} can be gone on from: {'; '.join(passed_over)}",
            "Bring one back from a copy, or begin anew with --no-resume.",
        )
    return None


def _refuse_other_settings(path: Path, manifest: Manifest, settings: Mapping[str, Value]) -> None:
    differ = differences(manifest.settings, settings)
    if differ:
        raise DevkitError(
            f"{path} was made with other settings: {'; '.join(differ)}",
            "Give the same ones to go on from it, another --output for another run, or --no-resume to begin anew.",
        )


def _notes(manifest: Manifest, world: int) -> list[str]:
    if manifest.world == world:
        return []
    made, now = count_of(manifest.world, "process", "processes"), count_of(world, "process", "processes")
    return [f"made by {made}, goes on with {now}: the same batches in the same order, but dropout draws differ"]


def _is_seen(found: Found) -> bool:
    try:
        return read(found.path) == found.manifest
    except BrokenError:
        return False


@contextlib.contextmanager
def _told(output: Path, step: int, staged: Path | None) -> Iterator[None]:
    """What the disk refuses as one line; what was begun is removed."""
    try:
        yield
    except OSError as error:
        if staged is not None:
            shutil.rmtree(staged, ignore_errors=True)
        raise _not_saved(output, step, error) from None


def _not_saved(output: Path, step: int, error: OSError) -> DevkitError:
    kept = folders.whole(output)
    left = f"{kept[0][1].name} is untouched; the same command goes on from there." if kept else "None was saved before."
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "Make room" if full else "Make it writable for this user"
    what = f"step {step}" if step else "checkpoints"
    return DevkitError(f"cannot save {what} into {output}: {error.strerror}", f"{advice}. {left}")


def _step_of(staged: Path) -> int:
    return int(staged.name.partition(".")[0].removeprefix("step-"))


def _size(path: Path) -> int:
    return sum(each.lstat().st_size for each in path.iterdir()) if path.is_dir() else 0


def _versions() -> dict[str, str]:
    named = {name: getattr(sys.modules.get(name), "__version__", "") for name in ("torch", "transformers", "peft")}
    return {"devkit": __version__, **{name: str(version) for name, version in named.items() if version}}
