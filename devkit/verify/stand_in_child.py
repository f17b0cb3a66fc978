"""Modules in place of packages that only a machine with a GPU's compiler has: they import, and can do nothing.

It is copied into a throw-away environment, needs Python 3.7, and imports nothing of devkit.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class StandIn:
    """The value of every name of a module that stands in: it can be called, subclassed and used as a decorator."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take whatever a call gives."""

    def __call__(self, *given: object, **_: object) -> object:
        """Return what a decorator is given, else another."""
        return given[0] if len(given) == 1 and callable(given[0]) else StandIn()

    def __getattr__(self, name: str) -> object:
        """Return another; special names are missing."""
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()


class _Module(ModuleType):
    __path__ = []  # noqa: RUF012 - it says that modules may be below it

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (StandIn,), {})


class _Finder(MetaPathFinder, Loader):
    def __init__(self, modules: list[str]) -> None:
        self._modules = modules

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.partition(".")[0] in self._modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in(modules: list[str]) -> None:
    """Let each of these top modules be imported where it is not installed, with whatever is below it."""
    sys.meta_path.append(_Finder(modules))
