"""What a policy asks of the files: labels that say what they should, and indexes that are allowed."""

import re
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.facts.project import Policy
from devkit.probe.project.dockerfile import parse_dockerfile
from devkit.render.container.image import quote_labels, render_dockerfile
from devkit.render.container.profiles import render_profile_services
from devkit.render.container.settings import ContainerSettings, FromIndex
from devkit.render.devkit_toml import ProjectSettings, validate_indexes
from tests.render.plans import CPU_PLAN

PLAIN = ContainerSettings("Demo", "demo", FromIndex("0.1.0"))


def labelled(*labels):
    return replace(PLAIN, policy=Policy(required_labels=labels))


def test_labels_stand_in_the_image_and_read_back():
    text = render_dockerfile(CPU_PLAN, labelled(("org.example.team", 'the "ML" team'), ("cost", "$5 \\ day")))
    labels = parse_dockerfile(text, path="Dockerfile", arguments={}).stages[-1].labels
    assert {(each.name, each.value) for each in labels} == {
        ("org.example.team", 'the "ML" team'),
        ("cost", "$5 \\ day"),
    }


def test_without_labels_there_is_no_instruction():
    assert "LABEL" not in render_dockerfile(CPU_PLAN, PLAIN)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF).filter(str.isprintable), max_size=40))
def test_any_line_of_text_is_one_word_of_the_instruction(value):
    (word,) = quote_labels(labelled(("a.b", value)))
    # In double quotes a Dockerfile escapes as a shell does, where no backtick is special.
    assert shlex.split(word.replace("\\$", "$")) == [f"a.b={value}"] or "`" in value


def test_a_value_of_two_lines_never_reaches_a_dockerfile():
    with pytest.raises(DevkitError, match="not one line"):
        quote_labels(labelled(("a", "b\nRUN evil")))


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        pytest.param(ProjectSettings(), "", id="no policy"),
        pytest.param(ProjectSettings(policy=Policy()), "", id="no rule on indexes"),
        pytest.param(ProjectSettings(policy=Policy(indexes=("https://a.example",))), "pypi.org", id="the public index"),
        pytest.param(
            ProjectSettings(policy=Policy(indexes=("https://a.example",)), index="https://a.example/simple"),
            "download.pytorch.org",
            id="the public index of torch",
        ),
        pytest.param(
            ProjectSettings(
                policy=Policy(indexes=("https://a.example",)),
                index="https://a.example/simple",
                torch_index="https://a.example/whl",
            ),
            "",
            id="mirrors for both",
        ),
        pytest.param(
            ProjectSettings(policy=Policy(indexes=("https://a.example",)), wheelhouse=True), "", id="no index at all"
        ),
    ],
)
def test_packages_come_from_allowed_indexes(settings, refused):
    if not refused:
        validate_indexes(settings)
        return
    with pytest.raises(DevkitError, match=refused) as error:
        validate_indexes(settings)
    assert "https://a.example" in error.value.hint


def test_the_images_of_a_profile_are_taken_from_the_mirror():
    settings = replace(PLAIN, profiles=("monitoring",), policy=Policy(mirrors=(("docker.io", "m.example"),)))
    images = re.findall(r"^ +image: (.+)", render_profile_services(CPU_PLAN, settings), re.MULTILINE)
    assert images and all(image.startswith(("m.example/", "quay.io/", "nvcr.io/")) for image in images)
    assert any(image.startswith("m.example/") for image in images)


def test_a_profile_whose_images_are_not_allowed_is_refused():
    settings = replace(PLAIN, profiles=("monitoring",), policy=Policy(registries=("quay.io/nothing",)))
    with pytest.raises(DevkitError, match="not of an allowed registry"):
        render_profile_services(CPU_PLAN, settings)
