"""While a wheel is built, compile devkit's TOML documents to JSON, which loads thirty times as fast, and add its addresses."""

import json
import shutil
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


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


class AddAddresses(MetadataHookInterface):
    """Every address of the repository follows from one setting, also those below which the README's links lead."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the project's URLs, and put the repository's address in place of its name in the README."""
        site, repository = self.config["documentation"], self.config["repository"]
        metadata["urls"] = {
            "Homepage": site,
            "Documentation": site,
            "Repository": repository,
            "Issues": f"{repository}/issues",
            "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        }
        owner = repository.removeprefix("https://github.com/").partition("/")[0]
        text = metadata["readme"]["text"].replace("https://REPOSITORY/", f"{repository}/")
        # By this line the registry of MCP servers knows that the package is its owner's.
        metadata["readme"]["text"] = f"{text}\n<!-- mcp-name: io.github.{owner}/devkit -->\n"
