"""A machine on which some files of the project read as they would after a change that nobody has made yet."""

from collections.abc import Mapping
from dataclasses import replace

from devkit.probe.host import LocalHost, Stat


class ChangedHost(LocalHost):
    """This machine with other texts in some of its files, by absolute path."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def read(self, path: str) -> str | None:
        """The text of a file as it would be."""
        return self._texts[path] if path in self._texts else super().read(path)

    def stat(self, path: str) -> Stat | None:
        """Of a changed file its future size."""
        found = super().stat(path)
        return replace(found, size=len(self._texts[path])) if found and path in self._texts else found
