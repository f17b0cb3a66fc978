"""The files that a generation needs, looked at before torch is imported: what is wrong with them is said at once."""

from dataclasses import dataclass

from devkit.errors import DevkitError
from devkit.workload.finetune.adapters_files import SavedAdapter, examined_adapter
from devkit.workload.finetune.hub import model_folder
from devkit.workload.finetune.model_files import ModelFiles, examined
from devkit.workload.generation.settings import GenerateSettings


@dataclass(frozen=True)
class Found:
    """A whole model, and a whole adapter or None. Whether they fit is not known yet."""

    settings: GenerateSettings
    files: ModelFiles
    adapter: SavedAdapter | None


def looked_up(settings: GenerateSettings) -> Found:
    """What `settings` name; the base that the adapter remembers where they name none. Raises DevkitError."""
    adapter = examined_adapter(settings.adapter) if settings.adapter else None
    name = settings.model or (adapter.base.name if adapter else "")
    if not name:
        raise DevkitError("no model is named", "Give --model; an adapter that remembers its base is enough, too.")
    return Found(settings, examined(model_folder(name)), adapter)
