"""Fixtures: one engine at a time, and the project that every teammate clones."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import authority, binaries, cache, daemon, image, network, project, tools

every_flavor = pytest.mark.parametrize("engine", list(daemon.Flavor), indirect=True, ids=str)
every_flavor_of_the_older_engine = pytest.mark.parametrize(
    "engine", [(flavor, binaries.OLDER) for flavor in daemon.Flavor], indirect=True, ids=lambda pair: f"older-{pair[0]}"
)
one_engine = pytest.mark.parametrize("engine", [daemon.Flavor.CPU], indirect=True, ids=str)


def pytest_configure(config: pytest.Config) -> None:
    """Let progress be seen while long steps run."""
    manager = config.pluginmanager.get_plugin("capturemanager")
    if manager is not None:
        cache.CAPTURE.append(manager)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test here, so that `-m "not engine"` leaves them out; what is not `nightly` runs in `make test-all`."""
    for item in items:
        if item.path.parent != Path(__file__).parent:
            continue
        item.add_marker(pytest.mark.engine)
        if item.get_closest_marker("nightly") is None:
            item.add_marker(pytest.mark.full)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the engine tests prepared, and how long each step took."""
    if cache.STEPS:
        terminalreporter.section("seconds spent on engines")
        for name, seconds in cache.STEPS:
            terminalreporter.write_line(f"{seconds:6.1f} s  {name}")


def left_out(reason: str) -> None:
    """In CI a missing engine is a failure; elsewhere it is said aloud and skipped."""
    cache.say(f"LEFT OUT: {reason}")
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def programs(suite: str = "") -> binaries.Binaries:
    """An engine's programs: the newest, or those of a suite."""
    try:
        return binaries.find(suite)
    except binaries.NoEngineError as error:
        left_out(f"no container engine can be started here: {error}")
        raise


@pytest.fixture(scope="session")
def found() -> binaries.Binaries:
    """The newest engine's programs."""
    if lacking := cache.lacks_room():
        left_out(lacking)
    return programs()


@pytest.fixture(scope="session")
def bridge(found: binaries.Binaries) -> Iterator[str]:
    """The tests' own bridge, held by this session alone."""
    with cache.only_one():
        try:
            manager = network.bridged()
            name = manager.__enter__()
        except binaries.NoEngineError as error:
            left_out(str(error))
            raise
        try:
            yield name
        finally:
            manager.__exit__(None, None, None)


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest, found: binaries.Binaries, bridge: str) -> Iterator[daemon.Engine]:
    """A running engine of the flavor that the test asks for, and of the suite that it names beside."""
    flavor, suite = request.param if isinstance(request.param, tuple) else (request.param, "")
    with daemon.engine(programs(suite) if suite else found, flavor) as running:
        yield running


@pytest.fixture(scope="session")
def devcontainer_cli() -> Path:
    """The folder that holds the reference dev container CLI."""
    if shutil.which("npm") is None:
        left_out("the reference dev container CLI needs npm")
    return tools.devcontainer_cli()


@pytest.fixture(scope="session")
def company() -> authority.Authority:
    """A company's certificate authority, beside those that this machine trusts."""
    return authority.provide()


@pytest.fixture(scope="session")
def committed(tmp_path_factory: pytest.TempPathFactory, company: authority.Authority) -> project.Committed:
    """A project with a dev container, as `devkit init` wrote it and a developer committed it."""
    return project.commit(tmp_path_factory.mktemp("origin"), company.bundle)


@pytest.fixture
def clone(committed: project.Committed, engine: daemon.Engine, tmp_path: Path) -> Iterator[project.Clone]:
    """A teammate's clone on the engine's machine, the base image at hand; its containers go away after the test."""
    image.provide(engine, committed.base_image)
    yield project.clone(committed, tmp_path / "quickstart", engine)
    engine.clear()
