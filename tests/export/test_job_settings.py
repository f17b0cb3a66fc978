"""What a job may be asked to be, and what none can be: one line and a hint."""

from dataclasses import replace

import pytest

from devkit.errors import DevkitError
from devkit.export.job_settings import JobSettings, has_mutable_tag, validate_job_settings, validate_printable
from devkit.export.kubernetes import TARGET as KUBERNETES
from devkit.export.targets import TARGETS, load_target
from devkit.facts.settings import describe_settings

PLAIN = JobSettings()


def test_the_defaults_can_be_a_job():
    assert validate_job_settings(PLAIN) is PLAIN


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param({"gpus": 65}, "--gpus is 65, which is above 64", id="more GPUs than any node has"),
        pytest.param({"nodes": 0}, "--nodes is 0", id="no node"),
        pytest.param({"memory": "lots"}, "--set memory is 'lots', which is not a size", id="a memory that is no size"),
        pytest.param({"time": "soon"}, "--time is 'soon', which is not a duration", id="a time that is none"),
        pytest.param(
            {"time": "2m", "grace": "120s"}, "--set grace=120s leaves no time in --time 2m", id="grace is all"
        ),
        pytest.param({"env": ("A",)}, "--env 'A' is not a variable", id="a variable without a value"),
        pytest.param({"env": ("1A=2",)}, "--env '1A=2' is not a variable", id="a name that is none"),
        pytest.param({"env": ("A=1", "A=2")}, "--env A is given twice", id="two values of one variable"),
        pytest.param({"env": ("PET_NNODES=3",)}, "--env PET_NNODES is set by devkit", id="torchrun's own variable"),
        pytest.param({"env": ("HF_TOKEN=x",)}, "--env HF_TOKEN looks like a secret", id="a token's variable"),
        pytest.param({"env": (f"A=hf_{'a' * 34}",)}, "--env A looks like a secret", id="a token under another name"),
        pytest.param({"name": "a\nb"}, "--name 'a\\nb' contains a line break", id="a line break"),
        pytest.param({"env": ("A=1\n2",)}, "--env 'A=1\\n2' contains a line break", id="a line break in a variable"),
        pytest.param({"data": "a\u202eb"}, "--set data", id="text that is shown backwards"),
    ],
)
def test_what_no_engine_could_run_is_refused_with_a_hint(wrong, said):
    with pytest.raises(DevkitError) as refused:
        validate_job_settings(replace(PLAIN, **wrong))
    assert said in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.hint


def test_ordinary_variables_are_taken():
    for text in ("TOKENIZERS_PARALLELISM=false", "NCCL_DEBUG=INFO", "A=", "A==b", "KEYBOARD=de"):
        assert validate_job_settings(replace(PLAIN, env=(text,))).env == (text,)


def test_names_of_images():
    digest = f"@sha256:{'0' * 64}"
    fixed = ("example:3.2-thin", "registry.example.org:5000/team/tide_tables:1", f"ghcr.io/owner/name:latest{digest}")
    moving = ("example", "example:latest", "localhost:5000/name")
    for image in (*fixed, *moving, f"ghcr.io/owner/name{digest}"):
        assert validate_job_settings(replace(PLAIN, image=image)).image == image
        assert has_mutable_tag(image) is (image in moving)
    others = ("-v/:/host", "a b", "a:$(id)", "docker://a:3", "a/B:1", "a:1:2", "a@sha256:12", "a/:1", "a:ü", "{{x}}")
    for image in others:
        with pytest.raises(DevkitError, match="is not an image name"):
            validate_job_settings(replace(PLAIN, image=image))


def test_settings_of_a_target_and_of_the_job_have_different_names():
    """[job.TARGET] takes both; "output" is the folder's."""
    for name in TARGETS:
        target = load_target(name)
        assert target.name == name
        assert not set(describe_settings(target.settings)) & {*describe_settings(JobSettings), "output"}


def test_texts_of_a_targets_own_settings_are_looked_at_too():
    with pytest.raises(DevkitError, match="--namespace"):
        validate_printable(KUBERNETES.settings(namespace="a\nb"))
