"""Checks of a run's inputs before torch is imported: a wrong path costs a second, not twenty. Importable without torch."""

import importlib.util
import os
import time
from pathlib import Path

from devkit.errors import DevkitError
from devkit.estimate.settings import Objective
from devkit.workload.finetune.files import inspect_model, resolve_model_folder
from devkit.workload.finetune.records import RecordReader
from devkit.workload.finetune.run_folder import require_own_folder
from devkit.workload.finetune.settings import FinetuneSettings

READING_S = 1.0
"""How long records are read ahead. What is wrong further on is reported when all of them are read."""


def check_inputs(settings: FinetuneSettings, *, reading_s: float = READING_S) -> None:
    """Check output folder, model and data as far as this machine holds them. Raises DevkitError as the run would.

    Several processes agree on who reports an error once they have met: here nothing is checked for them.
    """
    if settings.objective is not Objective.SFT and importlib.util.find_spec("trl") is None:
        raise DevkitError(f"--objective {settings.objective} needs TRL, which is not installed", "pip install trl")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return
    if settings.reward:
        require_reward_function(settings.reward)
    if settings.output.exists():
        require_own_folder(settings.output)
    for names in (settings.data, settings.eval_data):
        sources = RecordReader(names, settings.objective).sources if names else ()
        # Others are read by libraries whose import takes as long as torch's.
        texts = tuple(each for each in sources if Path(each).is_file() and not each.lower().endswith(".parquet"))
        deadline_s = time.monotonic() + reading_s
        if texts == sources and texts:
            for _ in RecordReader(texts, settings.objective):
                if time.monotonic() > deadline_s:
                    break
    inspect_model(resolve_model_folder(settings.model))


def require_reward_function(reward: str) -> tuple[Path, str]:
    """Return file and name of FILE.py:FUNCTION, which is parsed and not run. Raises DevkitError."""
    import ast

    file, _, name = reward.rpartition(":")
    path, hint = Path(file).expanduser(), "Give --reward FILE.py:FUNCTION, a function in your own file."
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise DevkitError(f"--reward {reward}: cannot read {file or reward}: {error.strerror}", hint) from None
    except (SyntaxError, ValueError) as error:
        raise DevkitError(f"--reward {reward}: {path} is not Python: {error}", hint) from None
    known = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
    if name not in known:
        raise DevkitError(f"--reward {reward}: {path} defines {', '.join(known) or 'no function'}, not {name}", hint)
    return path, name
