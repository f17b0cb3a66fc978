"""Projects of JAX and TensorFlow: their image, built by the engine, and the proof of it inside, on the CPU."""

import json
from importlib import metadata

import pytest

from . import image, project, tools
from .conftest import one_engine
from .project import SERVICE, Clone
from .wheels import installer

pytestmark = pytest.mark.nightly

JAX = """
import jax

slope = jax.grad(lambda weight: ((weight * 2.0 - 6.0) ** 2).sum())
weight = 0.0
for _ in range(50):
    weight -= 0.1 * slope(weight)
assert abs(weight - 3.0) < 1e-3, weight
"""
TENSORFLOW = """
import tensorflow as tf

weight = tf.Variable(0.0)
for _ in range(50):
    with tf.GradientTape() as tape:
        loss = (weight * 2.0 - 6.0) ** 2
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
assert abs(float(weight) - 3.0) < 1e-3, weight
"""
PROJECTS = [("JAX", "jax==0.10.2", JAX), ("TensorFlow", "tensorflow-cpu==2.21.0", TENSORFLOW)]


@one_engine
@pytest.mark.parametrize(("framework", "requirement", "program"), PROJECTS, ids=lambda value: value[:10])
def test_a_project_without_torch_is_proved_on_the_cpu(engine, tmp_path, framework, requirement, program):
    own = [line for line in metadata.requires("devkit-gpu") or [] if "extra ==" not in line]
    wheels = tools.wheelhouse([requirement, installer(), *own])
    clone = Clone(tmp_path / "quickstart", engine)
    clone.folder.mkdir()
    (clone.folder / "requirements.txt").write_text(f"{requirement}\n", encoding="utf-8")
    (clone.folder / "train.py").write_text(program, encoding="utf-8")
    (clone.folder / "devkit.toml").write_text('[verify]\ncommand = "python train.py"\n', encoding="utf-8")
    project.init(clone.folder, *project.PLAN[2:], "--wheelhouse", wheels)
    image.provide(engine, image.base_image_of(clone.folder / ".devcontainer/Dockerfile"))
    clone.look()
    try:
        clone.compose("up", "--build", "--detach")
        report = json.loads(clone.compose("exec", "-T", SERVICE, "devkit", "verify", "--here", "--json"))
    finally:
        engine.clear()
        engine.forget_wheels()
    assert report["verdict"] == "passed", report
    stages = {stage["name"]: stage for stage in report["stages"]}
    measured = stages["framework"]["measured"]
    assert (measured[framework], measured["computed on"]) == (requirement.split("==")[1], "cpu")
    assert stages["command"]["status"] == "passed", report
    assert "proved on cpu" in report["conclusion"]
