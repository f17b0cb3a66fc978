"""The engines themselves: each flavor is what it claims, or the tests above it prove nothing."""

import pytest

from . import image
from .commands import run
from .conftest import every_flavor, one_engine
from .daemon import INJECTED_FILE, Engine, Flavor

BASE = "devkit-test-base:latest"
DOCKERFILE = f"FROM {BASE}\nRUN apt-get update && apt-get install --yes --no-install-recommends hello\n"


@pytest.fixture
def based(engine: Engine) -> Engine:
    image.provide(engine, BASE)
    return engine


def attempt(engine: Engine, *words: str) -> tuple[int, str]:
    """Exit status and output of `docker run`, which may fail."""
    done = run(["docker", "run", "--rm", *words], env=engine.env, expect=None)
    return done.returncode, done.stdout + done.stderr


@every_flavor
def test_a_container_reaches_the_network_and_finds_names(based):
    lookup = "import socket; socket.create_connection(('deb.debian.org', 80), 20)"
    assert attempt(based, BASE, "python3", "-c", lookup) == (0, "")


@one_engine
def test_a_build_reaches_the_package_index(based, tmp_path):
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    based.docker("build", "--tag", "devkit-test-hello", tmp_path)
    assert "Hello" in based.docker("run", "--rm", "devkit-test-hello", "hello")


@every_flavor
def test_a_device_request_is_met_by_the_nvidia_flavor_alone(based):
    code, said = attempt(based, "--gpus", "all", BASE, "env")
    if based.flavor is Flavor.NVIDIA:
        assert (code, "NVIDIA_VISIBLE_DEVICES=all" in said) == (0, True)
    else:
        assert (code, "could not select device driver" in said) == (125, True)


@every_flavor
def test_a_cdi_device_is_injected_by_the_cdi_flavor_alone(based):
    code, said = attempt(based, "--device", "nvidia.com/gpu=all", BASE, "sh", "-c", f"env; cat {INJECTED_FILE}")
    if based.flavor is Flavor.CDI:
        assert code == 0
        assert "DEVKIT_CDI_DEVICE=all" in said
        assert "from the CDI specification" in said
    else:
        assert code == 125
