import pytest

from devkit.probe.host import LocalHost
from tests.nvml_stub import stub_environment


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
