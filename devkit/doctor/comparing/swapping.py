"""The same document with one field as it stands in another: what would be, were it usual."""

from typing import Any

from devkit.doctor.comparing.leaves import keys_of

_MISSING = object()


def swapped(document: dict[str, Any], path: str, usual: dict[str, Any]) -> dict[str, Any] | None:
    """`document` with the field at `path` as it is in `usual`, or without it where it is not there.

    Nothing is changed in place. None where the record around the field is there on neither or one side alone.
    """
    steps = _steps(usual, path) or _steps(document, path)
    if not steps:
        return None
    wanted = usual
    for step in steps:
        wanted = _inner(wanted, step)
    changed = _with(document, steps, wanted)
    return changed if isinstance(changed, dict) else None


def _steps(value: Any, path: str, own: str = "") -> tuple[str, ...]:  # noqa: ANN401 - any part of a document
    """The keys that lead to a path, empty where nothing stands there. Keys may hold dots and brackets themselves."""
    for key, name, inner in _children(value, own):
        if name == path:
            return (key,)
        if path.startswith((f"{name}.", f"{name}[")) and (rest := _steps(inner, path, name)):
            return (key, *rest)
    return ()


def _children(value: Any, own: str) -> list[tuple[str, str, Any]]:  # noqa: ANN401 - any part of a document
    if isinstance(value, dict):
        return [(key, f"{own}.{key}".removeprefix("."), inner) for key, inner in value.items()]
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        keys = keys_of(value, dict.get)
        return [(key, f"{own}[{key}]", inner) for key, inner in zip(keys, value, strict=True)]
    return []


def _inner(value: Any, key: str) -> Any:  # noqa: ANN401 - any part of a document
    return {own: inner for own, _, inner in _children(value, "")}.get(key, _MISSING)


def _with(value: Any, steps: tuple[str, ...], wanted: Any) -> Any:  # noqa: ANN401 - any part of a document
    """A copy of the containers on the way with `wanted` at its end; `_MISSING` where there is no way."""
    key, *rest = steps
    inner = wanted if not rest else _with(_inner(value, key), tuple(rest), wanted)
    if inner is _MISSING and rest:
        return _MISSING
    if isinstance(value, dict):
        changed = {own: each for own, each in value.items() if own != key or inner is not _MISSING}
        return changed if inner is _MISSING else changed | {key: inner}
    if not isinstance(value, list):
        return _MISSING
    keys = keys_of(value, dict.get)
    entries = [inner if own == key else each for own, each in zip(keys, value, strict=True)]
    return [each for each in (*entries, *([inner] if key not in keys else [])) if each is not _MISSING]
