"""Settings that say what they mean, and names of images as a policy's rules mean them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.facts.project import InvalidPolicy, Policy, normalize_image_name, parse_policy
from devkit.facts.settings import SettingInfo, describe_settings, find_setting_type, format_flag, validate_ranges

# Settings that say what they mean: their flags, kinds and ranges.


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Boat:
    oars: Annotated[int | None, SettingInfo("How many oars.", at_least=1, at_most=8)] = None
    length: Annotated[float, SettingInfo("How long.", at_least=0.5)] = 1.0
    color: Annotated[Color | None, SettingInfo("Which color.")] = None
    crew: Annotated[tuple[str, ...], SettingInfo("Who.")] = ()
    has_sail: Annotated[bool, SettingInfo("A sail.", at_least=1)] = False


def test_settings_are_described_in_their_order():
    assert list(describe_settings(Boat)) == ["oars", "length", "color", "crew", "has_sail"]
    assert describe_settings(Boat)["oars"][1].meaning == "How many oars."


def test_kinds_are_those_of_a_given_value():
    kinds = {name: find_setting_type(Boat, name) for name in describe_settings(Boat)}
    assert kinds == {"oars": int, "length": float, "color": Color, "crew": tuple, "has_sail": bool}


def test_flags_have_dashes():
    assert format_flag("has_sail") == "--has-sail"


@pytest.mark.parametrize("boat", [Boat(), Boat(oars=1), Boat(oars=8), Boat(length=0.5), Boat(has_sail=False)])
def test_what_is_in_its_range_passes(boat):
    validate_ranges(boat)


@pytest.mark.parametrize(
    ("boat", "said"),
    [
        (Boat(oars=0), "--oars is 0, which is below 1; : 1 or more."),
        (Boat(oars=9), "--oars is 9, which is above 8; : 8 or less."),
        (Boat(length=0.4), "--length is 0.4, which is below 0.5"),
        (Boat(length=float("nan")), "--length is nan, which is not a finite number"),
        (Boat(length=float("inf")), "--length is inf, which is not a finite number"),
    ],
)
def test_what_is_out_of_its_range_is_refused_with_its_meaning(boat, said):
    with pytest.raises(DevkitError) as refused:
        validate_ranges(boat)
    message, _, limit = said.partition("; ")
    assert message in refused.value.message
    assert refused.value.hint.startswith("How ") and refused.value.hint.endswith(limit)


# Names of images as engines complete them, and whole parts of names as rules mean them.


@pytest.mark.parametrize(
    ("image", "whole"),
    [
        ("python", "docker.io/library/python"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
        ("python@sha256:0a", "docker.io/library/python@sha256:0a"),
        ("nvidia/cuda:12.6.3-base-ubuntu24.04", "docker.io/nvidia/cuda:12.6.3-base-ubuntu24.04"),
        ("docker.io/python", "docker.io/library/python"),
        ("index.docker.io/library/python", "docker.io/library/python"),
        ("Docker.IO/nvidia/cuda", "docker.io/nvidia/cuda"),
        ("nvcr.io/nvidia/pytorch:25.01-py3", "nvcr.io/nvidia/pytorch:25.01-py3"),
        ("localhost/mine", "localhost/mine"),
        ("registry:5000/mine:1", "registry:5000/mine:1"),
    ],
)
def test_names_are_completed_as_engines_do(image, whole):
    assert normalize_image_name(image) == whole
    assert normalize_image_name(whole) == whole


@pytest.mark.parametrize(
    ("registries", "image", "allowed"),
    [
        pytest.param((), "quay.io/any/thing", True, id="no rule"),
        pytest.param(("docker.io/library",), "python:3.12", True, id="an official image"),
        pytest.param(("docker.io/library/python",), "python:3.12", True, id="one image with any tag"),
        pytest.param(("docker.io/library/python",), "python@sha256:0a", True, id="one image by its digest"),
        pytest.param(("docker.io/library/python",), "python3:1", False, id="another image that begins alike"),
        pytest.param(("docker.io/lib",), "python:3.12", False, id="half a part of a name"),
        pytest.param(("docker.io",), "nvidia/cuda:12.6", True, id="a whole registry"),
        pytest.param(("DOCKER.io/",), "nvidia/cuda:12.6", True, id="a registry in capitals, with a slash"),
        pytest.param(("docker.io",), "docker.io.evil.example/x", False, id="a host that begins alike"),
        pytest.param(("registry.example.org",), "registry.example.org:5000/x", False, id="the same host on a port"),
        pytest.param(("registry.example.org:5000",), "registry.example.org:5000/x", True, id="a host with its port"),
        pytest.param(("nvidia",), "nvidia/cuda:12.6", True, id="a name on Docker Hub"),
        pytest.param(("nvidia",), "nvcr.io/nvidia/cuda", False, id="the same name elsewhere"),
        pytest.param(("docker.io/library",), "scratch", True, id="no image at all"),
    ],
)
def test_registries_allow_whole_parts_of_names(registries, image, allowed):
    assert Policy(registries=registries).allows_image(image) is allowed


def test_the_longest_mirror_wins_and_others_leave_the_name_alone():
    policy = Policy(mirrors=(("docker.io", "m.example/hub"), ("docker.io/nvidia", "m.example/gpu/")))
    assert policy.resolve_mirror("python:3.12") == "m.example/hub/library/python:3.12"
    assert policy.resolve_mirror("nvidia/cuda:12.6") == "m.example/gpu/cuda:12.6"
    assert policy.resolve_mirror("ghcr.io/x:1") == "ghcr.io/x:1"


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://pypi.example.org/simple", True),
        ("https://pypi.example.org/simple/", True),
        ("https://pypi.example.org/simple2", False),
        ("https://pypi.example.org.evil.example/simple", False),
    ],
)
def test_indexes_allow_whole_parts_of_addresses(url, allowed):
    assert Policy(indexes=("https://pypi.example.org/simple",)).allows_index(url) is allowed


@pytest.mark.parametrize(
    "table",
    [
        3,
        {"registry": []},
        {"registries": "docker.io"},
        {"registries": [""]},
        {"registries": ["a b"]},
        {"mirrors": {"docker.io": 1}},
        {"mirrors": {"docker.io": "x\ny"}},
        {"allow_root": 1},
        {"required_labels": {"": "x"}},
        {"required_labels": {"a\nb": "x"}},
        {"required_labels": {"a": "x\r"}},
    ],
    ids=str,
)
def test_rules_that_cannot_be_kept_are_refused(table):
    with pytest.raises(InvalidPolicy):
        parse_policy(table)


@given(st.text(max_size=40))
def test_any_text_as_a_name_has_an_answer(text):
    assert normalize_image_name(normalize_image_name(text)) == normalize_image_name(text) or "/" in text
    assert Policy(registries=("docker.io",)).allows_image(text) in (True, False)
