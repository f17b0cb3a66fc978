from pathlib import Path

import pytest

from devkit.probe.host import LocalHost
from tests.nvml_stub import build_stub, stub_environment


@pytest.fixture(scope="session")
def stub(tmp_path_factory) -> Path:
    """The stand-in for libnvidia-ml.so.1, compiled once."""
    return build_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def with_nvml(stub, monkeypatch):
    """A function that puts a configured stub before every child of this process."""

    # A caller's unbuffered Python would hide a child that keeps its lines to itself.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    def setup(**settings) -> LocalHost:
        for name, value in stub_environment(stub, **settings).items():
            monkeypatch.setenv(name, value)
        return LocalHost()

    return setup
