"""Flags of the target: none is another's, and what no cluster takes is refused in one line."""

import pytest

from devkit.cli.export import export
from devkit.errors import DevkitError
from devkit.export.kubernetes import KubernetesSettings
from devkit.export.kubernetes.settings import (
    parse_label,
    parse_toleration,
    validate_kubernetes_settings,
    validate_label_key,
    validate_subdomain,
)


def test_no_flag_is_another_ones():
    command = export.get_command(None, "kubernetes")
    flags = [flag for option in command.params for flag in (*option.opts, *option.secondary_opts)]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"namespace": "ML_team"}, "--namespace"),
        ({"gpu_group": 0}, "--gpu-group"),
        ({"queue": "my queue"}, "--queue"),
        ({"gpu_resource": "nvidia.com/"}, "--gpu-resource"),
        ({"device_class": "GPU"}, "--device-class"),
        ({"node_selector": ("a",)}, "--node-selector"),
        ({"toleration": ("a:b",)}, "--toleration"),
        ({"topology": "a b"}, "--topology"),
        ({"runtime": "Torch"}, "--runtime"),
        ({"storage_class": "gp3 "}, "--storage-class"),
        ({"token_secret": "$(id)"}, "--token-secret"),
        ({"pull_secret": "a\nb"}, "--pull-secret"),
        ({"service_account": "A"}, "--service-account"),
        ({"priority_class": "é"}, "--priority-class"),
        ({"label": ("a b=c",)}, "--label"),
        ({"annotation": ("-=c",)}, "--annotation"),
        ({"scheduler": "Kai Scheduler"}, "--scheduler"),
        ({"runtime_class": "NVIDIA runtime"}, "--runtime-class"),
        ({"gpu_resource": "nvidia.com/gpu", "device_class": "gpu.nvidia.com"}, "--device-class and --gpu-resource"),
    ],
)
def test_what_no_cluster_takes_is_refused_by_the_flags_name(options, named):
    with pytest.raises(DevkitError) as caught:
        validate_kubernetes_settings(KubernetesSettings(**options))
    assert named in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_names_are_dns_subdomains_and_keys_of_labels_may_have_a_prefix():
    options = KubernetesSettings(namespace="a" * 63, gpu_resource="amd.com/gpu", node_selector=("a.b/c=D_e",))
    assert validate_kubernetes_settings(options) is options
    keys = ("spot", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me", "A_b")
    no_keys = ("", "/a", "a/", "a/b/c", "a b", "A/b", "a" * 64, "a/" + "b" * 64, "a\n")
    names = ("gp3", "fast-ssd", "a.b-c.d", "0", "a" * 253)
    no_names = ("", "Gp3", "a_b", "-a", "a-", "a..b", ".a", "a b", "a\n", "a" * 254, "$(a)")
    for validate, good, bad in ((validate_label_key, keys, no_keys), (validate_subdomain, names, no_names)):
        assert [validate(text, "--flag") for text in good] == list(good)
        for text in bad:
            with pytest.raises(DevkitError, match="--flag"):
                validate(text, "--flag")


def test_labels_are_split_at_the_first_equals_sign():
    found = parse_label("nvidia.com/gpu.product=NVIDIA-A10G", "--node-selector")
    assert found == ("nvidia.com/gpu.product", "NVIDIA-A10G")
    assert parse_label("empty=", "--node-selector") == ("empty", "")
    for text in ("a", "=b", "a=b=c", "a=b c", "a=-b", "a=" + "b" * 64, "a=b\n"):
        with pytest.raises(DevkitError, match="--node-selector"):
            parse_label(text, "--node-selector")


def test_taints_are_read_as_kubectl_prints_them():
    taints = {
        "spot": {"key": "spot", "operator": "Exists"},
        "spot:NoExecute": {"key": "spot", "operator": "Exists", "effect": "NoExecute"},
        "a.b/c=d": {"key": "a.b/c", "operator": "Equal", "value": "d"},
        "spot=true:NoSchedule": {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    }
    assert {text: parse_toleration(text, "--toleration") for text in taints} == taints
    for text in ("", ":NoSchedule", "a:", "a:noschedule", "a=b:c:NoSchedule", "=b"):
        with pytest.raises(DevkitError, match="--toleration"):
            parse_toleration(text, "--toleration")
