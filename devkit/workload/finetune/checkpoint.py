"""The checkpoints of a run.

Checkpoints are complete or absent, and verified before a run resumes from them. One is staged as `step-N.tmp` and
renamed to `step-N` when all of it is on the disk; one to be removed is renamed to `step-N.old` first. A name without
an ending is therefore always a complete checkpoint. Its manifest is written last and read first. Nothing is pickled: a
checkpoint cannot make its reader run code.
"""

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
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from devkit.errors import DevkitError
from devkit.estimate.settings import Objective
from devkit.reading import hash_file
from devkit.release import __version__
from devkit.text import format_bytes, format_count
from devkit.whole_files import flush_to_disk
from devkit.workload.finetune.dataset import Example
from devkit.workload.finetune.distributed import Ranks
from devkit.workload.finetune.files import ADAPTER_WEIGHTS_FILE
from devkit.workload.finetune.run_folder import LEFTOVER, SettingValue, to_setting_value
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.models import get_peft_model_state_dict

MIN_KEPT = 2
"""One checkpoint is not enough: the newest may turn out to be damaged when it is needed."""

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"

TRAINER_STATE_FILE = "trainer_state.json"
"""transformers' Trainer reads it when it resumes."""

MANIFEST_FILE = "manifest.json"
MANIFEST_SCHEMA = "devkit.checkpoint/2"

LATEST_LINK = "latest"
"""A link to the newest checkpoint, for people and for `devkit generate --adapter`; resuming does not rely on it."""

_COMPLETE = re.compile(r"step-(\d{1,18})")
_BROKEN = re.compile(r"step-(\d{1,18})\.broken")

_RESUMABLE_WITH_OTHERS = frozenset(
    {"data", "output", "micro_batch", "attention", "checkpointing", "compile", "sharding"}
    | {"save_every", "keep", "resume", "eval_data", "eval_every", "timeout"}
)
"""Settings that decide where and how fast a run computes, but not what: they may change when it resumes.

Data are compared by their content. A field that is added to the settings counts until it is named here.
"""

_OF_OBJECTIVES = frozenset({"objective", "reward", "generations", "max_new_tokens", "beta"})

_TOKENIZATION_SETTINGS = frozenset(
    {"sequence", "completion_only", "eval_share", "model", "objective", "max_new_tokens"}
)
"""Settings that change which token ids the same data give."""

_FINGERPRINTS = {"data": "the data differ from the checkpoint's", "model": "the model differs from the checkpoint's"}
"""Values that are fingerprints, which say nothing to people -> what to say of a difference."""

VERSIONED_LIBRARIES = ("torch", "transformers", "peft")


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint: its size and the SHA-256 of its bytes."""

    bytes: int
    sha256: str


@dataclass(kw_only=True)
class TrainProgress:
    """The progress of a run: steps done, tokens of all ranks without padding, seconds over all its parts.

    `skipped` counts the steps with gradients that were not finite, which are among those done. `scaler` is the state of
    a GradScaler, empty without one.
    """

    step: int
    tokens: int = 0
    skipped: int = 0
    seconds: float = 0.0
    scaler: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """The manifest: `settings` are those that the weights depend on; `world` and `versions` may differ on resume."""

    progress: TrainProgress
    settings: Mapping[str, SettingValue]
    world: int
    versions: Mapping[str, str]
    files: Mapping[str, FileRecord]

    def text(self) -> str:
        """Return a JSON object whose `sha256` is that of `content`, so that a flipped bit in it is noticed, too."""
        content = asdict(self)
        document = {"schema": MANIFEST_SCHEMA, "sha256": _hash_content(content), "content": content}
        return json.dumps(document, indent=1) + "\n"


class BrokenCheckpointError(Exception):
    """A checkpoint that cannot be resumed from; the text follows its name: "adapter.safetensors is missing"."""


@dataclass(frozen=True)
class CheckpointState:
    """The state that training changes. `model` is the peft or transformers model itself, not DDP's wrapper.

    `scaler` is the GradScaler of fp16, else None.
    """

    model: Any
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None = None

    @property
    def weights_file(self) -> str:
        """The name under which peft and transformers look for the weights."""
        return ADAPTER_WEIGHTS_FILE if hasattr(self.model, "peft_config") else MODEL_FILE


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to resume from. `broken` names newer ones that are damaged; `notes` says what will differ."""

    path: Path
    manifest: CheckpointManifest
    broken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def save_checkpoint(
    output: Path,
    state: CheckpointState,
    progress: TrainProgress,
    *,
    settings: Mapping[str, SettingValue],
    ranks: Ranks,
    keep: int = 2,
    write_state: Callable[[Path], object] | None = None,
) -> tuple[Path, int]:
    """Save a checkpoint into `output`, remove the oldest beyond `keep`, and return it with its bytes; all ranks must call.

    `write_state` writes the Trainer's own state to the path that it is given.

    Raises DevkitError on all ranks if rank 0 cannot write; earlier checkpoints are untouched then.
    """
    parts = {state.weights_file: get_trained_weights(state.model), OPTIMIZER_FILE: get_optimizer_state(state)}
    parts = {name: _gather_on_rank0(tensors, ranks) for name, tensors in parts.items()}
    size = sum(tensor.numel() * tensor.element_size() for tensors in parts.values() for tensor in tensors.values())
    staged = output / f"step-{progress.step}.tmp"

    @_explain_save_errors(output, progress.step, staged)
    def write() -> Path:
        remove_leftovers(output)
        free = shutil.disk_usage(output).free
        if free < size:
            raise OSError(errno.ENOSPC, f"{format_bytes(free)} are free, {format_bytes(size)} needed")
        staged.mkdir()
        for name, tensors in parts.items():
            save_file(tensors, staged / name, metadata={"format": "pt"})
        _write_config(state, staged)
        if write_state is not None:
            write_state(staged / TRAINER_STATE_FILE)
        files = sorted(staged.iterdir())
        manifest = CheckpointManifest(
            progress=replace(progress, scaler=state.scaler.state_dict() if state.scaler else None),
            settings=settings,
            world=ranks.world_size,
            versions={
                "devkit": __version__,
                **{name: str(sys.modules[name].__version__) for name in VERSIONED_LIBRARIES if name in sys.modules},
            },
            files={each.name: FileRecord(each.stat().st_size, hash_file(each)) for each in files},
        )
        (staged / MANIFEST_FILE).write_text(manifest.text(), encoding="utf-8")
        for each in (*files, staged / MANIFEST_FILE, staged):
            flush_to_disk(each)
        path = publish_checkpoint(staged, output, progress.step)
        prune_checkpoints(output, step=progress.step, keep=max(keep, MIN_KEPT))
        return path

    return ranks.on_rank0_broadcast(write), size


def _gather_on_rank0(tensors: Mapping[str, Any], ranks: Ranks) -> dict[str, torch.Tensor]:
    """Return the tensors on rank 0's CPU, gathered one by one if FSDP2 shards them; nothing on other ranks."""
    gathered, seen = {}, set()
    for name, tensor in tensors.items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if ranks.is_rank0:
            whole = whole.detach().to("cpu").contiguous()
            # safetensors takes no tensor twice; bitsandbytes' states share their maps.
            gathered[name] = whole.clone() if whole.data_ptr() in seen else whole
            seen.add(whole.data_ptr())
    return gathered


def _write_config(state: CheckpointState, folder: Path) -> None:
    """Write the configuration that peft or transformers need to load the weights from `folder` by themselves."""
    if state.weights_file == MODEL_FILE:
        state.model.config.save_pretrained(str(folder))
        return
    config = copy.copy(state.model.peft_config[state.model.active_adapter])
    config.inference_mode = True
    # peft keeps sets, whose order differs from process to process.
    for key in ("target_modules", "exclude_modules"):
        if isinstance(value := getattr(config, key, None), set):
            setattr(config, key, sorted(value))
    config.save_pretrained(str(folder))


def require_checkpoint_space(output: Path, state: CheckpointState, *, ranks: Ranks, keep: int = 2) -> None:
    """Raise DevkitError before the first step, and not at the first save, if the disk is too small."""
    # Adam keeps two elements for each weight; during a save there is one checkpoint more than are kept.
    weights = get_trained_weights(state.model).values()
    one = 3 * sum(tensor.numel() * tensor.element_size() for tensor in weights)
    needed = one * (max(keep, MIN_KEPT) + 1)

    def check() -> None:
        with _explain_save_errors(output, 0, None):
            used = sum(
                each.lstat().st_size for _, path in list_checkpoints(output) if path.is_dir() for each in path.iterdir()
            )
            free = shutil.disk_usage(output).free + used
        if free < needed:
            raise DevkitError(
                f"{output} has {format_bytes(free)} for checkpoints, but they need {format_bytes(needed)}",
                f"Each takes about {format_bytes(one)}. Free space, or choose an --output on a larger disk.",
            )

    ranks.on_rank0_broadcast(check)


@contextlib.contextmanager
def _explain_save_errors(output: Path, step: int, staged: Path | None) -> Iterator[None]:
    """Turn an OSError into a DevkitError with a hint, and remove what was staged."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, SafetensorError):
            # It has the system's number in its text alone.
            found = re.search(r"os error (\d+)", str(error))
            number = int(found[1]) if found else errno.EIO
            error = OSError(number, os.strerror(number))
        if staged is not None:
            shutil.rmtree(staged, ignore_errors=True)
        saved = list_checkpoints(output)
        hint = (
            f"{saved[0][1].name} is untouched; the same command resumes from it."
            if saved
            else "No checkpoint was saved yet."
        )
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        fix = "Free space" if is_full else "Make it writable by this user"
        what = f"step {step}" if step else "checkpoints"
        raise DevkitError(f"cannot save {what} into {output}: {error.strerror}", f"{fix}. {hint}") from None


def find_newest_checkpoint(
    output: Path, *, settings: Mapping[str, SettingValue], ranks: Ranks
) -> FoundCheckpoint | None:
    """Find the newest intact checkpoint in `output`, None if there is none yet; all ranks must call.

    Raises DevkitError if it belongs to other settings, and if there are checkpoints but no intact one.
    """
    found = ranks.on_rank0_broadcast(lambda: _find_newest(output, settings, ranks.world_size))
    if found is not None and ranks.any(not _is_visible(found)):
        raise DevkitError(
            f"not all processes of this run see {found.path}",
            "Put --output on a file system that all machines of the run share.",
        )
    return found


def _find_newest(output: Path, settings: Mapping[str, SettingValue], world_size: int) -> FoundCheckpoint | None:
    remove_leftovers(output)
    broken: dict[Path, str] = {}
    for _, path in list_checkpoints(output):
        try:
            manifest = verify_checkpoint(path)
        except BrokenCheckpointError as error:
            broken[path] = f"{path.name}: {error}"
            continue
        different = find_differences(manifest.settings, settings)
        if different:
            raise DevkitError(
                f"{path} was saved with different settings: {'; '.join(different)}",
                "To resume from it, use the same settings. For a different run, use a different --output, or start over with --no-resume.",
            )
        for each in broken:
            # So that it is skipped but can be inspected; it is skipped again next time if this fails.
            aside = each.with_name(f"{each.name}.broken")
            _remove(aside)
            with contextlib.suppress(OSError):
                each.replace(aside)
        notes: tuple[str, ...] = ()
        if manifest.world != world_size:
            before, now = (format_count(each, "process", "processes") for each in (manifest.world, world_size))
            notes = (f"saved by {before}, resumed by {now}: the same batches in the same order, but different dropout",)
        return FoundCheckpoint(path, manifest, tuple(broken.values()), notes)
    if broken:
        raise DevkitError(
            f"no checkpoint in {output} can be resumed from: {'; '.join(broken.values())}",
            "Restore one from a backup, or start over with --no-resume.",
        )
    return None


def _is_visible(found: FoundCheckpoint) -> bool:
    try:
        return read_manifest(found.path) == found.manifest
    except BrokenCheckpointError:
        return False


def load_checkpoint(found: FoundCheckpoint, state: CheckpointState) -> None:
    """Load model, optimizer and GradScaler from the checkpoint, one tensor at a time and by way of the CPU; all ranks must call.

    Loaded onto the GPU, a checkpoint would be there beside the live model: a run that just fitted would not fit again.
    Raises DevkitError if model and files do not hold the same tensors.
    """
    live, path = get_trained_weights(state.model), found.path / state.weights_file
    with torch.no_grad(), safe_open(path, framework="pt", device="cpu") as file:
        stored = set(file.keys())
        if stored != live.keys():
            raise _mismatch(path, sorted(stored ^ live.keys())[0])
        for name, tensor in live.items():
            value = file.get_tensor(name)
            if value.shape != tensor.shape or value.dtype != tensor.dtype:
                raise _mismatch(path, name)
            tensor.copy_(_shard_like(tensor, value))
    _restore_optimizer(state, found.path / OPTIMIZER_FILE)
    scaler = found.manifest.progress.scaler
    if state.scaler is not None and scaler:
        state.scaler.load_state_dict(dict(scaler))


def select_resume_settings(
    settings: FinetuneSettings, decisions: Mapping[str, SettingValue]
) -> dict[str, SettingValue]:
    """Return the settings that the weights depend on. `decisions` override what the user left open, and add to it."""
    chosen = {each.name: getattr(settings, each.name) for each in fields(settings)}
    # An empty list is left out: checkpoints of releases before the setting have none.
    chosen = {name: value for name, value in chosen.items() if name not in _RESUMABLE_WITH_OTHERS and value != ()}
    if settings.objective is Objective.SFT:
        # As in checkpoints of releases without others.
        chosen = {name: value for name, value in chosen.items() if name not in _OF_OBJECTIVES}
    return {name: to_setting_value(value) for name, value in {**chosen, **decisions}.items()}


def fingerprint_examples(examples: Iterable[Example]) -> str:
    """Return sixteen hexadecimal digits that distinguish these examples, in this order, from others."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(len(example.ids).to_bytes(8, "little"))
        digest.update(array("q", example.ids).tobytes())
        digest.update(bytes(example.loss_mask))
    return digest.hexdigest()[:16]


def find_differences(before: Mapping[str, SettingValue], now: Mapping[str, SettingValue]) -> list[str]:
    """Return what differs, in the order of `now`: "rank was 8, now 16".

    That token ids differ is mentioned only if no setting explains it.
    """

    def shown(value: SettingValue) -> str:
        return " ".join(value) if isinstance(value, list) else "unset" if value is None else str(value)

    names = [*now, *(name for name in before if name not in now)]
    different = [name for name in names if before.get(name) != now.get(name)]
    is_explained = not _TOKENIZATION_SETTINGS.isdisjoint(different)
    return [
        _FINGERPRINTS.get(name) or f"{name} was {shown(before.get(name))}, now {shown(now.get(name))}"
        for name in different
        if name != "data" or not is_explained
    ]


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read the manifest of a checkpoint. Raises BrokenCheckpointError."""
    path = folder / MANIFEST_FILE
    _size_of_regular_file(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        content = document["content"]
        if document["schema"] != MANIFEST_SCHEMA:
            raise BrokenCheckpointError(
                f"has the format {document['schema']!r}, but this devkit reads {MANIFEST_SCHEMA}"
            )
        if document["sha256"] != _hash_content(content):
            raise BrokenCheckpointError(f"{MANIFEST_FILE} was changed after it was written")
        return CheckpointManifest(
            progress=TrainProgress(**content["progress"]),
            settings=content["settings"],
            world=content["world"],
            versions=content["versions"],
            files={name: FileRecord(**record) for name, record in content["files"].items()},
        )
    except OSError as error:
        raise BrokenCheckpointError(f"{MANIFEST_FILE} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BrokenCheckpointError(f"{MANIFEST_FILE} is damaged") from None


def verify_checkpoint(path: Path) -> CheckpointManifest:
    """Return the manifest of a checkpoint whose files match it byte by byte. Raises BrokenCheckpointError."""
    if path.is_symlink() or not path.is_dir():
        raise BrokenCheckpointError("is not a separate folder")
    manifest = read_manifest(path)
    for name, record in manifest.files.items():
        size = _size_of_regular_file(path / name)
        if size != record.bytes:
            raise BrokenCheckpointError(f"{name} has {size} bytes of {record.bytes}")
    for name, record in manifest.files.items():
        try:
            digest = hash_file(path / name)
        except OSError as error:
            raise BrokenCheckpointError(f"{name} cannot be read: {error.strerror}") from None
        if digest != record.sha256:
            raise BrokenCheckpointError(f"{name} was changed after it was written")
    return manifest


def _size_of_regular_file(path: Path) -> int:
    """Return the size. Raises BrokenCheckpointError for a missing file, and for a link, which may lead anywhere."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise BrokenCheckpointError(f"{path.name} is missing") from None
    except OSError as error:
        raise BrokenCheckpointError(f"{path.name} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise BrokenCheckpointError(f"{path.name} is not a regular file")
    return found.st_size


def _hash_content(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def get_trained_weights(model: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401 - of peft or transformers
    """Return the trained tensors by their names in peft's and transformers' files; the live ones, not copies."""
    if hasattr(model, "peft_config"):
        return dict(get_peft_model_state_dict(model, save_embedding_layers=False))
    return dict(model.named_parameters())


def get_optimizer_state(state: CheckpointState) -> dict[str, torch.Tensor]:
    """Return the optimizer's state as "parameter.key". Its plain numbers become tensors without dimensions."""
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    tensors = {}
    for parameter, values in state.optimizer.state.items():
        for key, value in values.items():
            if not isinstance(value, torch.Tensor):
                value = torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)
            tensors[f"{names[id(parameter)]}.{key}"] = value
    return tensors


def _restore_optimizer(state: CheckpointState, path: Path) -> None:
    parameters = dict(state.model.named_parameters())
    states: dict[str, dict[str, object]] = {}
    with safe_open(path, framework="pt", device="cpu") as file:
        for stored in file.keys():  # noqa: SIM118 - a safetensors file, not a dictionary
            name, _, key = stored.rpartition(".")
            if name not in parameters:
                raise _mismatch(path, name)
            value = file.get_tensor(stored)
            if value.dim() == 0 and value.dtype in (torch.int64, torch.float64):
                value = value.item()
            elif value.shape == parameters[name].shape:
                value = _shard_like(parameters[name], value)
            states.setdefault(name, {})[key] = value
    optimizer: Any = state.optimizer
    names = {id(parameter): name for name, parameter in parameters.items()}
    ordered = [names[id(each)] for group in optimizer.param_groups for each in group["params"]]
    # Learning rate and weight decay are not taken from the file: they follow from the settings and the step.
    optimizer.load_state_dict(
        {
            "state": {place: states[name] for place, name in enumerate(ordered) if name in states},
            "param_groups": optimizer.state_dict()["param_groups"],
        }
    )
    if getattr(optimizer, "is_paged", False):
        # Loading leaves the states in GPU memory: put them back into paged buffers, which the GPU may evict.
        for values in optimizer.state.values():
            for key in ("state1", "state2"):
                if key in values:
                    paged = optimizer.get_state_buffer(values[key], dtype=values[key].dtype)
                    values[key] = paged.copy_(values[key])


def _shard_like(live: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of `value` if `live` is sharded by FSDP2; every rank reads the file independently."""
    if not hasattr(live, "device_mesh"):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(live, DTensor)  # noqa: S101 - nothing else has a mesh
    return distribute_tensor(value, live.device_mesh, live.placements, src_data_rank=None)


def _mismatch(path: Path, name: str) -> DevkitError:
    return DevkitError(
        f"{path} does not fit this model: {name} differs or exists only on one side",
        "Resume with the versions of peft and transformers listed in its manifest, or start over with --no-resume.",
    )


def list_checkpoints(output: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints by name, newest first. If they are intact, only their manifests can say."""
    found = [(int(match[1]), path) for path in _entries(output) if (match := _COMPLETE.fullmatch(path.name))]
    return sorted(found, reverse=True)


def publish_checkpoint(staged: Path, output: Path, step: int) -> Path:
    """Give a finished checkpoint its name, and point `latest` to it."""
    target = output / f"step-{step}"
    if target.is_symlink() or target.exists():
        # Saved before by a run that this one repeats; removed only now that its successor is on the disk.
        _set_aside(target)
    staged.replace(target)
    flush_to_disk(output)
    link = target.with_name(f"{LATEST_LINK}.tmp")
    # A file system without links (FAT, some shares) has no `latest`; nothing that devkit does needs it.
    with contextlib.suppress(OSError):
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
        link.replace(target.with_name(LATEST_LINK))
    return target


def prune_checkpoints(output: Path, *, step: int, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints, and broken ones that the run has since passed."""
    for _, path in list_checkpoints(output)[keep:]:
        _remove(_set_aside(path))
    for path in _entries(output):
        if (match := _BROKEN.fullmatch(path.name)) and int(match[1]) <= step:
            _remove(path)
    remove_leftovers(output)


def remove_leftovers(output: Path) -> None:
    """Remove what killed runs left: only names that runs give. The lock of the folder keeps other runs out."""
    for path in _entries(output):
        if LEFTOVER.fullmatch(path.name):
            _remove(path)


def _entries(output: Path) -> list[Path]:
    try:
        return list(output.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DevkitError(
            f"cannot list {output}: {error.strerror}", "Make it readable by this user, or choose another --output."
        ) from None


def _set_aside(path: Path) -> Path:
    aside = path.with_name(f"{path.name}.old")
    _remove(aside)
    return path.replace(aside)


def _remove(path: Path) -> None:
    """Remove as much as possible: the rest is removed another time, and takes space, but harms nothing."""
    if path.is_symlink() or path.is_file():
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
