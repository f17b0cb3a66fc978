"""Names, labels and taints: those of a cluster pass, others are refused in one line."""

import pytest

from devkit.errors import DevkitError
from devkit.export.kubernetes.settings import parse_label, parse_toleration, validate_label_key, validate_subdomain


@pytest.mark.parametrize("name", ["gp3", "fast-ssd", "a.b-c.d", "0", "a" * 253])
def test_names_of_objects_pass(name):
    assert validate_subdomain(name, "--queue") == name


@pytest.mark.parametrize("name", ["", "Gp3", "a_b", "-a", "a-", "a..b", ".a", "a b", "a\n", "a" * 254, "$(a)"])
def test_other_names_are_refused(name):
    with pytest.raises(DevkitError, match="--queue"):
        validate_subdomain(name, "--queue")


@pytest.mark.parametrize("name", ["spot", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me", "A_b"])
def test_keys_pass(name):
    assert validate_label_key(name, "--topology") == name


@pytest.mark.parametrize("name", ["", "/a", "a/", "a/b/c", "a b", "A/b", "a" * 64, "a/" + "b" * 64, "a\n"])
def test_what_is_no_key_is_refused(name):
    with pytest.raises(DevkitError, match="--topology"):
        validate_label_key(name, "--topology")


def test_labels_are_split_at_the_first_equals_sign():
    assert parse_label("nvidia.com/gpu.product=NVIDIA-A10G", "--node-selector") == (
        "nvidia.com/gpu.product",
        "NVIDIA-A10G",
    )
    assert parse_label("empty=", "--node-selector") == ("empty", "")


@pytest.mark.parametrize("text", ["a", "=b", "a=b=c", "a=b c", "a=-b", "a=" + "b" * 64, "a=b\n"])
def test_what_is_no_label_is_refused(text):
    with pytest.raises(DevkitError):
        parse_label(text, "--node-selector")


@pytest.mark.parametrize(
    ("text", "toleration"),
    [
        ("spot", {"key": "spot", "operator": "Exists"}),
        ("spot:NoExecute", {"key": "spot", "operator": "Exists", "effect": "NoExecute"}),
        ("a.b/c=d", {"key": "a.b/c", "operator": "Equal", "value": "d"}),
        ("spot=true:NoSchedule", {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}),
    ],
)
def test_taints_are_read_as_kubectl_prints_them(text, toleration):
    assert parse_toleration(text, "--toleration") == toleration


@pytest.mark.parametrize("text", ["", ":NoSchedule", "a:", "a:noschedule", "a=b:c:NoSchedule", "=b"])
def test_what_is_no_taint_is_refused(text):
    with pytest.raises(DevkitError):
        parse_toleration(text, "--toleration")
