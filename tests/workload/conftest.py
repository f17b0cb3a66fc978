"""A small proof to measure and to break. torch is imported only by the tests that need it."""

import gc
import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def prepared_environment() -> Iterator[None]:
    """What the proof sets before it imports torch, taken back afterwards."""
    from devkit.workload.environment import PROOF_THREADS, prepare_process

    before = dict(os.environ)
    prepare_process()
    if "torch" in sys.modules:
        # Test modules that import it did so before: two threads on models this small spend their time waiting.
        sys.modules["torch"].set_num_threads(PROOF_THREADS)
    # What is there by now stays: after running out of memory devkit looks for circles among all objects.
    gc.freeze()
    yield
    gc.unfreeze()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def models(tmp_path):
    """The models of a proof on the CPU, which no other test has touched."""
    return make_models(tmp_path)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """The models of a proof on the CPU, which are only measured, never broken."""
    return make_models(tmp_path_factory.mktemp("healthy"))


def make_models(folder, **settings):
    """The models of a proof on the CPU, with these settings instead of the quick proof's."""
    from devkit.workload.device import choose_device
    from devkit.workload.proof.models import ProofModels
    from devkit.workload.proof.program import make_torch_deterministic
    from devkit.workload.proof.stages import ProofSettings

    make_torch_deterministic()
    chosen = ProofSettings(**{"steps": 50, "resume_steps": 8, **settings})
    return ProofModels(chosen, choose_device(chosen.precision), folder)
