"""What a job of a project is to train, as far as it is known on this machine: settings, model, sizes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devkit.errors import DevkitError
from devkit.export.job import JobSettings

if TYPE_CHECKING:
    from devkit.export.making import Exported
    from devkit.render.project import Project
    from devkit.solver.model import Plan


def subject_of(project: "Project", plan: "Plan", job: JobSettings) -> "Exported":
    """The project as the exporters see it. Raises DevkitError for settings of the run that are not there or wrong."""
    from devkit.export.making import Exported
    from devkit.render.project import project_settings
    from devkit.workload.finetune.settings import FinetuneSettings, checked
    from devkit.workload.finetune.settings_file import read_settings

    if not job.settings:
        raise DevkitError(
            "nothing says what the job shall train", "Name the settings of devkit finetune: --settings run.toml"
        )
    path = project.root / job.settings
    if not path.is_file():
        raise DevkitError(
            f"there is no file {job.settings} in {project.root}",
            "Name the settings of devkit finetune by their path in the project, which is what the job sees.",
        )
    finetune = checked(FinetuneSettings(**read_settings(path)))
    folder = project.root / finetune.model
    is_local = folder.is_dir()
    local = [project.root / each for each in (*finetune.data, *finetune.eval_data)] + ([folder] if is_local else [])
    return Exported(
        project=project_settings(project),
        plan=plan,
        finetune=finetune,
        config=_config(folder, finetune.model),
        is_local_model=is_local,
        project_bytes=sum(_size(each) for each in local),
    )


def _config(folder: Path, model: str) -> Mapping[str, Any] | None:
    """The model's config.json, from its folder or the catalogue; None where neither has it. No network."""
    from devkit.estimate.catalogue import find_model

    try:
        found: Mapping[str, Any] = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        known = find_model(model)
        return known.config if known is not None else None
    return found


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; 0 for what is not here."""
    try:
        files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
        return sum(each.stat().st_size for each in files)
    except OSError:
        return 0
