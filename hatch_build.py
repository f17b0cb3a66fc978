"""Compile the TOML documents of devkit to JSON while a wheel is built: JSON loads thirty times as fast."""

import json
import shutil
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileDocuments(BuildHookInterface):
    """The wheel holds devkit/**/*.json in the place of devkit/**/*.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile every document, but for an editable wheel, which reads the source tree."""
        if version == "editable":
            return
        self._folder = folder = Path(tempfile.mkdtemp(prefix="devkit-documents-"))
        for number, source in enumerate(sorted(Path(self.root, "devkit").rglob("*.toml"))):
            compiled = folder / f"{number}.json"
            compiled.write_text(json.dumps(tomllib.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
            build_data["force_include"][str(compiled)] = str(source.relative_to(self.root).with_suffix(".json"))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled documents: the wheel has them."""
        if version != "editable":
            shutil.rmtree(self._folder)
