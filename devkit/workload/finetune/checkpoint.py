"""Checkpoints that are whole or not there: saved in a folder of their own, verified before they are gone on from."""

import contextlib
import copy
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import safe_open

from devkit import __version__
from devkit.errors import DevkitError
from devkit.text import format_bytes, format_count
from devkit.workload.finetune.data.batches import Example
from devkit.workload.finetune.distributed import Ranks
from devkit.workload.finetune.optimizers import to_global_state, to_local_state
from devkit.workload.finetune.settings import FinetuneSettings

# Which tensors a run's future depends on, under names that files keep: trained weights and optimizer state.
#
# Nothing here is pickled: whoever can write a checkpoint cannot make its reader run code.

ADAPTER_FILE = "adapter_model.safetensors"
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass(frozen=True)
class CheckpointState:
    """What training changes. `model` is the peft or transformers model itself, not what DDP makes of it.

    `scaler` is the GradScaler of fp16, else None.
    """

    model: Any
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None = None

    @property
    def weights_file(self) -> str:
        """The name under which peft and transformers look for the weights."""
        return ADAPTER_FILE if hasattr(self.model, "peft_config") else MODEL_FILE


def get_trained_weights(model: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401 - peft and transformers promise less than they hold
    """The trained tensors by the names that peft and transformers give them in files; the live ones, not copies."""
    if hasattr(model, "peft_config"):
        from devkit.workload.peft_import import get_peft_model_state_dict

        return dict(get_peft_model_state_dict(model, save_embedding_layers=False))
    return dict(model.named_parameters())


def get_optimizer_state(state: CheckpointState) -> dict[str, torch.Tensor]:
    """Everything the optimizer remembers, as "parameter.key". Its plain numbers become tensors without dimensions."""
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    return {
        f"{names[id(parameter)]}.{key}": _as_tensor(to_global_state(parameter, key, value))
        for parameter, remembered in state.optimizer.state.items()
        for key, value in remembered.items()
    }


def restore_state(state: CheckpointState, folder: Path) -> None:
    """Bring model and optimizer to what the files in `folder` hold, one tensor at a time and over the CPU.

    Loaded onto the GPU, a checkpoint would lie beside the live model: a run that just fitted would not fit again.
    Raises DevkitError when model and files do not hold the same tensors.
    """
    _restore_weights(get_trained_weights(state.model), folder / state.weights_file)
    _restore_optimizer(state, folder / OPTIMIZER_FILE)


@torch.no_grad()
def _restore_weights(live: Mapping[str, torch.Tensor], path: Path) -> None:
    with safe_open(path, framework="pt", device="cpu") as file:
        stored = set(file.keys())
        if stored != live.keys():
            raise _other_model(path, sorted(stored ^ live.keys())[0])
        for name, tensor in live.items():
            value = file.get_tensor(name)
            if value.shape != tensor.shape or value.dtype != tensor.dtype:
                raise _other_model(path, name)
            tensor.copy_(_placed_like(tensor, value))


def _restore_optimizer(state: CheckpointState, path: Path) -> None:
    parameters = dict(state.model.named_parameters())
    states: dict[str, dict[str, object]] = {}
    with safe_open(path, framework="pt", device="cpu") as file:
        for stored in file.keys():  # noqa: SIM118 - a safetensors file, not a dictionary
            name, _, key = stored.rpartition(".")
            if name not in parameters:
                raise _other_model(path, name)
            states.setdefault(name, {})[key] = _as_state(parameters[name], file.get_tensor(stored))
    optimizer = state.optimizer
    names = {id(parameter): name for name, parameter in parameters.items()}
    ordered = [names[id(each)] for group in optimizer.param_groups for each in group["params"]]
    # Rates and decay are not taken from the file: they follow from the settings and the step.
    optimizer.load_state_dict(
        {
            "state": {
                place: to_local_state(parameters[name], states[name])
                for place, name in enumerate(ordered)
                if name in states
            },
            "param_groups": optimizer.state_dict()["param_groups"],
        }
    )
    _page_again(optimizer)


def _page_again(optimizer: Any) -> None:  # noqa: ANN401 - bitsandbytes has no types
    """Put the states of a paged optimizer back where the GPU may move them out; loading leaves them in its memory."""
    if not getattr(optimizer, "is_paged", False):
        return
    for state in optimizer.state.values():
        for key in ("state1", "state2"):
            if key in state:
                paged = optimizer.get_state_buffer(state[key], dtype=state[key].dtype)
                state[key] = paged.copy_(state[key])


def _placed_like(live: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """This process's part of `value` where `live` is sharded by FSDP2; every process reads the file by itself."""
    if not hasattr(live, "device_mesh"):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(live, DTensor)  # noqa: S101 - nothing else has a mesh
    return distribute_tensor(value, live.device_mesh, live.placements, src_data_rank=None)


def _as_state(parameter: torch.Tensor, value: torch.Tensor) -> object:
    if value.dim() == 0 and value.dtype in (torch.int64, torch.float64):
        return value.item()
    return _placed_like(parameter, value) if value.shape == parameter.shape else value


def _as_tensor(value: torch.Tensor | float) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)


def _other_model(path: Path, name: str) -> DevkitError:
    return DevkitError(
        f"{path} does not fit this model: {name} differs or is on one side alone",
        "Go on with the versions of peft and transformers that its manifest names, or begin anew with --no-resume.",
    )


# What a checkpoint holds and whether it still does: written last, read first. Importable without torch.

MANIFEST_FILE = "manifest.json"
MANIFEST_SCHEMA = "devkit.checkpoint/1"

SettingValue = str | int | float | bool | None | list[str]
"""What a setting may be, as JSON has it."""

_AT_ONCE_BYTES = 1 << 22


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint: its size and the SHA-256 of its bytes."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class TrainProgress:
    """How far a run got: optimizer steps, tokens seen, steps skipped as not finite, seconds over all its parts.

    `scaler` is the state of a GradScaler, empty without one.
    """

    step: int
    tokens: int = 0
    skipped: int = 0
    seconds: float = 0.0
    scaler: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """`settings` are those that the numbers depend on; `world` and `versions` may differ when the run goes on."""

    progress: TrainProgress
    settings: Mapping[str, SettingValue]
    world: int
    versions: Mapping[str, str]
    files: Mapping[str, FileRecord]

    def text(self) -> str:
        """As it is written: a JSON object whose `sha256` is that of `content`, so that a flipped bit shows here too."""
        content = asdict(self)
        return json.dumps({"schema": MANIFEST_SCHEMA, "sha256": _hash_of(content), "content": content}, indent=1) + "\n"


class BrokenCheckpointError(Exception):
    """A checkpoint that cannot be gone on from; the text says why, after its name: "adapter.safetensors is missing"."""


def read_manifest(folder: Path) -> CheckpointManifest:
    """The manifest of a checkpoint. Raises BrokenError."""
    path = folder / MANIFEST_FILE
    _size_of_plain_file(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        content = document["content"]
        if document["schema"] != MANIFEST_SCHEMA:
            raise BrokenCheckpointError(
                f"is of the form {document['schema']!r}, and this devkit reads {MANIFEST_SCHEMA}"
            )
        if document["sha256"] != _hash_of(content):
            raise BrokenCheckpointError(f"{MANIFEST_FILE} was changed after it was written")
        return _manifest(content)
    except OSError as error:
        raise BrokenCheckpointError(f"{MANIFEST_FILE} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BrokenCheckpointError(f"{MANIFEST_FILE} is damaged") from None


def verify_files(folder: Path) -> CheckpointManifest:
    """The manifest of a checkpoint whose files are what it says, byte by byte. Raises BrokenError."""
    manifest = read_manifest(folder)
    for name, record in manifest.files.items():
        path = folder / name
        size = _size_of_plain_file(path)
        if size != record.bytes:
            raise BrokenCheckpointError(f"{name} has {size} bytes of {record.bytes}")
    for name, record in manifest.files.items():
        try:
            if _hash_of_file(folder / name) != record.sha256:
                raise BrokenCheckpointError(f"{name} is not as it was written")
        except OSError as error:
            raise BrokenCheckpointError(f"{name} cannot be read: {error.strerror}") from None
    return manifest


_IN_WORDS = {
    "data": "the texts are others than those it learned from",
    "model": "the model is another than the one it was made from",
}
"""What is compared by fingerprints, which say nothing to people."""

_SHAPES_TEXTS = frozenset({"sequence", "completion_only", "eval_share", "model"})
"""Settings that change which token ids come of the same texts."""


def find_differences(before: Mapping[str, SettingValue], now: Mapping[str, SettingValue]) -> list[str]:
    """What differs, in the order of `now`: "rank was 8, now 16".

    That the token ids are others is told only where no setting explains it.
    """
    names = [*now, *(name for name in before if name not in now)]
    differ = [name for name in names if before.get(name) != now.get(name)]
    is_explained = not _SHAPES_TEXTS.isdisjoint(differ)
    return [
        _IN_WORDS.get(name) or f"{name} was {_shown(before.get(name))}, now {_shown(now.get(name))}"
        for name in differ
        if name != "data" or not is_explained
    ]


def _shown(value: SettingValue) -> str:
    return " ".join(value) if isinstance(value, list) else "unset" if value is None else str(value)


def _manifest(content: dict[str, Any]) -> CheckpointManifest:
    return CheckpointManifest(
        progress=TrainProgress(**content["progress"]),
        settings=content["settings"],
        world=content["world"],
        versions=content["versions"],
        files={name: FileRecord(**record) for name, record in content["files"].items()},
    )


def _size_of_plain_file(path: Path) -> int:
    """Raises BrokenError for what is missing, and for what is no file of its own: a link may lead anywhere."""
    try:
        found = path.lstat()
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        raise BrokenCheckpointError(
            f"{path.name} {'is missing' if gone else f'cannot be read: {error.strerror}'}"
        ) from None
    if not stat.S_ISREG(found.st_mode):
        raise BrokenCheckpointError(f"{path.name} is not a plain file")
    return found.st_size


def _hash_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _hash_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_AT_ONCE_BYTES):
            digest.update(block)
    return digest.hexdigest()


# Tensors to a file in the safetensors format, one after the other, so that no second copy of them is ever held.
#
# The library's own `save_file` wants all tensors on the CPU at once: 48 GB for a model of 8 billion parameters with its
# optimizer, on each machine. Here the first process gathers, writes and forgets them one by one.
# Source: https://github.com/huggingface/safetensors#format

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8


class SyncedFile:
    """A new file that is on the disk when it is closed, with the hash of what was written.

    A disk that refuses is told on closing, and what is written in between is dropped: the other processes go on
    handing over their parts of each tensor until the last one, whatever happened here.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._file: FileIO | None = None
        self._error: OSError | None = None

    def __enter__(self) -> Self:
        try:
            self._file = FileIO(self._path, "x")
        except OSError as error:
            self._error = error
        return self

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""
        left = memoryview(data)
        self._digest.update(left)
        self._bytes += len(left)
        try:
            while left and self._file is not None and self._error is None:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._error = error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            with self._file:
                if self._error is None and kind is None:
                    os.fsync(self._file.fileno())
        if self._error is not None and kind is None:
            raise self._error

    @property
    def record(self) -> FileRecord:
        """Size and hash of what was written."""
        return FileRecord(self._bytes, self._digest.hexdigest())


def write_safetensors(tensors: Mapping[str, torch.Tensor], file: SyncedFile | None) -> None:
    """Write `tensors`, gathered from all processes where they are sharded. Only the first one has a `file`."""
    # Wide types first: each tensor then starts at a multiple of its own width, as readers that map the file expect.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    if file is not None:
        file.write(_header({name: tensors[name] for name in names}))
    for name in names:
        whole = gather_full_tensor(tensors[name])
        if file is not None:
            file.write(_bytes_of(whole))


def gather_full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that FSDP2 keeps in parts; all processes must ask. Any other tensor as it is."""
    if hasattr(tensor, "full_tensor"):
        whole: torch.Tensor = tensor.full_tensor()
        return whole
    return tensor


def _header(tensors: Mapping[str, torch.Tensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


# The folders of checkpoints in a run's output: their names, which of them is good, and what killed saves left.
#
# A checkpoint is staged as `step-N.tmp-PID` and renamed to `step-N` when all of it is on the disk; one to be removed is
# renamed to `step-N.old-PID` first. A name without an ending therefore always stands for a whole checkpoint.

LATEST_LINK = "latest"
"""A link to the newest checkpoint, for people and for `devkit generate --adapter`; resuming does not trust it."""

_WHOLE = re.compile(r"step-(\d{1,18})")
_LEFTOVER = re.compile(
    r"(?:step-\d{1,18}|latest|run\.json|metrics\.jsonl|adapter|model)\.(?:tmp|old)-(?P<process>\d{1,18})"
)
_BROKEN = re.compile(r"step-(\d{1,18})\.broken")


def list_checkpoints(output: Path) -> list[tuple[int, Path]]:
    """The checkpoints by name, newest first. Whether they are good, only their manifests can say."""
    found = [(int(match[1]), path) for path in _entries(output) if (match := _WHOLE.fullmatch(path.name))]
    return sorted(found, reverse=True)


def staging_folder(output: Path, step: int) -> Path:
    """Where a checkpoint is written before it gets its name."""
    return output / f"step-{step}.tmp-{os.getpid()}"


def verify_checkpoint(path: Path) -> CheckpointManifest:
    """The manifest of a good checkpoint. Raises BrokenError."""
    if path.is_symlink() or not path.is_dir():
        raise BrokenCheckpointError("is no folder of its own")
    return verify_files(path)


def publish_checkpoint(staged: Path, output: Path, step: int) -> Path:
    """Give a finished checkpoint its name, and let `latest` lead to it."""
    target = output / f"step-{step}"
    if target.is_symlink() or target.exists():
        # Made before by a run that this one repeats; it goes only now that its successor is on the disk.
        _set_aside(target)
    staged.replace(target)
    sync_folder(output)
    _point_at(target)
    return target


def prune_checkpoints(output: Path, *, step: int, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints, and broken ones that the run has since passed."""
    for _, path in list_checkpoints(output)[keep:]:
        _remove(_set_aside(path))
    for path in _entries(output):
        if (match := _BROKEN.fullmatch(path.name)) and int(match[1]) <= step:
            _remove(path)
    remove_leftovers(output)


def is_leftover(name: str) -> bool:
    """Whether it is the name of something that a run was writing when it was killed."""
    return _LEFTOVER.fullmatch(name) is not None


def remove_leftovers(output: Path) -> None:
    """Remove what killed runs left: only names that runs give, of processes that are no more."""
    for path in _entries(output):
        match = _LEFTOVER.fullmatch(path.name)
        if match and not _is_another_alive(int(match["process"])):
            _remove(path)


def mark_broken(path: Path) -> None:
    """Take a broken checkpoint out of the row, but leave it to be looked at."""
    aside = path.with_name(f"{path.name}.broken")
    _remove(aside)
    with contextlib.suppress(OSError):  # it is passed over again next time
        path.replace(aside)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk. Windows keeps them without being asked, and cannot be asked."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entries(output: Path) -> list[Path]:
    try:
        return list(output.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DevkitError(
            f"cannot look into {output}: {error.strerror}",
            "Make it readable for this user, or choose another --output.",
        ) from None


def _set_aside(path: Path) -> Path:
    aside = path.with_name(f"{path.name}.old-{os.getpid()}")
    _remove(aside)
    return path.replace(aside)


def _point_at(target: Path) -> None:
    staged = target.with_name(f"{LATEST_LINK}.tmp-{os.getpid()}")
    # A file system without links (FAT, some shares) has no `latest`; nothing that devkit does needs it.
    with contextlib.suppress(OSError):
        staged.unlink(missing_ok=True)
        staged.symlink_to(target.name)
        staged.replace(target.with_name(LATEST_LINK))


def _is_another_alive(process: int) -> bool:
    """Whether it may be another run that saves just now. In a container, numbers come again: our own is not another."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _remove(path: Path) -> None:
    """As far as it goes: what cannot be removed now is swept another time, and takes room, but harms nothing."""
    if path.is_symlink() or path.is_file():
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


MIN_KEPT = 2
"""One checkpoint is none: the newest may turn out broken when it is needed."""


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint on the disk. `seconds` is what a preemption notice must leave time for, besides one step."""

    path: Path
    bytes: int
    seconds: float


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to go on from. `passed_over` names newer ones that are broken; `notes` says what will differ."""

    path: Path
    manifest: CheckpointManifest
    passed_over: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def save_checkpoint(
    output: Path,
    state: CheckpointState,
    progress: TrainProgress,
    *,
    settings: Mapping[str, SettingValue],
    ranks: Ranks,
    keep: int = 2,
) -> SavedCheckpoint:
    """Write a checkpoint into `output` and remove the oldest beyond `keep`; all processes must call.

    Raises DevkitError in all of them when the first one cannot write; the checkpoints before it are untouched then.
    """
    started_s = time.monotonic()
    parts = {state.weights_file: get_trained_weights(state.model), OPTIMIZER_FILE: get_optimizer_state(state)}
    size = sum(tensor.numel() * tensor.element_size() for tensors in parts.values() for tensor in tensors.values())
    staged = staging_folder(output, progress.step)
    ranks.on_rank0_broadcast(lambda: _begin(output, staged, size))
    files, failure = _write(parts, staged, ranks)
    manifest = CheckpointManifest(
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
            return _finish(output, staged, state, manifest, max(keep, MIN_KEPT))

    return SavedCheckpoint(ranks.on_rank0_broadcast(finish), size, time.monotonic() - started_s)


def find_newest_checkpoint(
    output: Path, *, settings: Mapping[str, SettingValue], ranks: Ranks
) -> FoundCheckpoint | None:
    """The newest good checkpoint in `output`, None where there is none yet; all processes must ask.

    Raises DevkitError when it belongs to other settings, and when there are checkpoints but no good one.
    """
    found = ranks.on_rank0_broadcast(lambda: _newest(output, settings, ranks.world))
    if found is not None and ranks.any(not _is_seen(found)):
        raise DevkitError(
            f"the processes of this run do not all see {found.path}",
            "Put --output on a file system that all machines of the run share.",
        )
    return found


def load_checkpoint(found: FoundCheckpoint, state: CheckpointState) -> TrainProgress:
    """Bring model, optimizer and scaler to where the checkpoint was made; all processes must call."""
    restore_state(state, found.path)
    progress = found.manifest.progress
    if state.scaler is not None and progress.scaler:
        state.scaler.load_state_dict(dict(progress.scaler))
    return progress


def require_checkpoint_space(output: Path, state: CheckpointState, *, ranks: Ranks, keep: int = 2) -> None:
    """Find out before the first step, not at the first save, that the disk is too small. Raises DevkitError."""
    # Adam keeps two numbers for each weight; one checkpoint more than are kept exists while a save goes on.
    one = 3 * sum(tensor.numel() * tensor.element_size() for tensor in get_trained_weights(state.model).values())
    needed = one * (max(keep, MIN_KEPT) + 1)

    def check() -> None:
        with _told(output, 0, None):
            free = shutil.disk_usage(output).free + sum(_size(path) for _, path in list_checkpoints(output))
        if free < needed:
            raise DevkitError(
                f"{output} has {format_bytes(free)} for checkpoints, and they need {format_bytes(needed)}",
                f"Each takes about {format_bytes(one)}. Make room, or choose an --output with more.",
            )

    ranks.on_rank0_broadcast(check)


def _begin(output: Path, staged: Path, size: int) -> None:
    with _told(output, _step_of(staged), staged):
        remove_leftovers(output)
        free = shutil.disk_usage(output).free
        if free < size:
            raise OSError(errno.ENOSPC, f"{format_bytes(free)} are free, {format_bytes(size)} needed")
        staged.mkdir()


def _write(
    parts: Mapping[str, Mapping[str, torch.Tensor]], staged: Path, ranks: Ranks
) -> tuple[dict[str, FileRecord], OSError | None]:
    """Write all tensors; what failed on the first process, which goes on gathering with the others all the same."""
    records: dict[str, FileRecord] = {}
    failure: OSError | None = None
    for name, tensors in parts.items():
        if not ranks.is_rank0:
            write_safetensors(tensors, None)
            continue
        file = SyncedFile(staged / name)
        try:
            with file:
                write_safetensors(tensors, file)
        except OSError as error:
            failure = failure or error
        records[name] = file.record
    return records, failure


def _finish(output: Path, staged: Path, state: CheckpointState, manifest: CheckpointManifest, keep: int) -> Path:
    config = _config(state, staged)
    files = {**manifest.files, config.name: _synced_copy(config)}
    with SyncedFile(staged / MANIFEST_FILE) as file:
        file.write(replace(manifest, files=files).text().encode())
    sync_folder(staged)
    path = publish_checkpoint(staged, output, manifest.progress.step)
    prune_checkpoints(output, step=manifest.progress.step, keep=keep)
    return path


def _config(state: CheckpointState, folder: Path) -> Path:
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


def _newest(output: Path, settings: Mapping[str, SettingValue], world: int) -> FoundCheckpoint | None:
    remove_leftovers(output)
    passed_over: list[str] = []
    for _, path in list_checkpoints(output):
        try:
            manifest = verify_checkpoint(path)
        except BrokenCheckpointError as broken:
            passed_over.append(f"{path.name}: {broken}")
            continue
        _refuse_other_settings(path, manifest, settings)
        for name in passed_over:
            mark_broken(output / name.partition(":")[0])
        return FoundCheckpoint(path, manifest, tuple(passed_over), tuple(_notes(manifest, world)))
    if passed_over:
        raise DevkitError(
            f"no checkpoint in {output} can be gone on from: {'; '.join(passed_over)}",
            "Bring one back from a copy, or begin anew with --no-resume.",
        )
    return None


def _refuse_other_settings(path: Path, manifest: CheckpointManifest, settings: Mapping[str, SettingValue]) -> None:
    differ = find_differences(manifest.settings, settings)
    if differ:
        raise DevkitError(
            f"{path} was made with other settings: {'; '.join(differ)}",
            "Give the same ones to go on from it, another --output for another run, or --no-resume to begin anew.",
        )


def _notes(manifest: CheckpointManifest, world: int) -> list[str]:
    if manifest.world == world:
        return []
    made, now = format_count(manifest.world, "process", "processes"), format_count(world, "process", "processes")
    return [f"made by {made}, goes on with {now}: the same batches in the same order, but dropout draws differ"]


def _is_seen(found: FoundCheckpoint) -> bool:
    try:
        return read_manifest(found.path) == found.manifest
    except BrokenCheckpointError:
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
    kept = list_checkpoints(output)
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


# Which settings must be the same for a run to be gone on with, and fingerprints of the model and the data.

_FREE = frozenset(
    {"data", "output", "micro_batch", "attention", "checkpointing", "loss", "compile", "sharding"}
    | {"save_every", "keep", "resume", "eval_data", "eval_every"}
)
"""Settings that decide where and how fast a run computes, but not what: they may change from one part to the next.

Data are compared by what is in them. A field that is added to the settings counts until it is named here.
"""


def select_resume_settings(settings: FinetuneSettings, chosen: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """The settings that a checkpoint's numbers depend on. `chosen` replaces what the user left open, and adds to it."""
    wished = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in _FREE}
    return {name: _value(value) for name, value in {**wished, **chosen}.items()}


def fingerprint_examples(examples: Iterable[Example]) -> str:
    """Sixteen hexadecimal digits that tell these token ids, in this order, from others."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(len(example.ids).to_bytes(8, "little"))
        digest.update(array("q", example.ids).tobytes())
        digest.update(bytes(example.counted))
    return digest.hexdigest()[:16]


def _value(value: object) -> SettingValue:
    """As JSON gives it back, so that what was read compares equal to what is asked for."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return [str(each) for each in value] if isinstance(value, (tuple, list)) else str(value)
