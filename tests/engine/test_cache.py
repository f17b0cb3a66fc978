"""What the engine tests say before they begin. No engine runs."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from . import cache


@pytest.mark.parametrize(("was_run", "needed"), [(False, cache.FIRST_TIME_GB), (True, cache.AGAIN_GB)])
def test_a_disk_that_is_too_small_is_named_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_run: bool, needed: float
):
    monkeypatch.setattr(cache, "CACHE", tmp_path)
    if was_run:
        (tmp_path / "data-root").mkdir()
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=needed * 1e9))
    assert cache.lacks_room() == ""
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=needed * 1e9 - 1e8))
    assert cache.lacks_room() == f"{tmp_path} has {needed - 0.1:.1f} GB free, and engine tests need {needed:.0f} GB"
