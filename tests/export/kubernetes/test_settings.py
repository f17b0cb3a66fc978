"""What no cluster takes is refused in one line."""

import pytest

from devkit.errors import DevkitError
from devkit.export.kubernetes import KubernetesSettings
from devkit.export.kubernetes.settings import (
    Toleration,
    parse_label,
    parse_toleration,
    validate_kubernetes_settings,
    validate_label_key,
    validate_subdomain,
)

from .rendered import made
from .sample_jobs import task


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"namespace": "ML_team"}, "--namespace"),
        ({"gpu_group": 0}, "--set gpu_group"),
        ({"queue": "my queue"}, "--queue"),
        ({"gpu_resource": "nvidia.com/"}, "--set gpu_resource"),
        ({"node_selector": ("a",)}, "--node-selector"),
        ({"toleration": ("a:b",)}, "--set toleration"),
        ({"storage_class": "gp3 "}, "--set storage_class"),
        ({"token_secret": "$(id)"}, "--set token_secret"),
        ({"pull_secret": "a\nb"}, "--set pull_secret"),
        ({"label": ("a b=c",)}, "--set label"),
        ({"annotation": ("-=c",)}, "--set annotation"),
        ({"scheduler": "Kai Scheduler"}, "--set scheduler"),
    ],
)
def test_what_no_cluster_takes_is_refused_as_it_was_given(options, named):
    with pytest.raises(DevkitError) as caught:
        made(task(), **options)
    assert named in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_names_are_dns_subdomains_and_keys_of_labels_may_have_a_prefix():
    options = KubernetesSettings(namespace="a" * 63, gpu_resource="amd.com/gpu", node_selector=("a.b/c=D_e",))
    assert validate_kubernetes_settings(options) is options
    keys = ("spot", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me", "A_b", "a" * 253 + "/b")
    no_keys = ("", "/a", "a/", "a/b/c", "a b", "A/b", "a" * 64, "a/" + "b" * 64, "a" * 254 + "/b", "a\n")
    names = ("gp3", "fast-ssd", "a.b-c.d", "0", "a" * 253)
    no_names = ("", "Gp3", "a_b", "-a", "a-", "a..b", ".a", "a b", "a\n", "a" * 254, "$(a)")
    for validate, good, bad in ((validate_label_key, keys, no_keys), (validate_subdomain, names, no_names)):
        assert [validate(text, "--flag") for text in good] == list(good)
        for text in bad:
            with pytest.raises(DevkitError, match="--flag"):
                validate(text, "--flag")


def test_labels_are_split_at_the_first_equals_sign_and_taints_are_read_as_kubectl_prints_them():
    assert parse_label("nvidia.com/gpu.product=A10G", "--node-selector") == ("nvidia.com/gpu.product", "A10G")
    assert parse_label("empty=", "--node-selector") == ("empty", "")
    taints = {
        "spot": Toleration("spot", None, ""),
        "spot:NoExecute": Toleration("spot", None, "NoExecute"),
        "a.b/c=d": Toleration("a.b/c", "d", ""),
        "spot=true:NoSchedule": Toleration("spot", "true", "NoSchedule"),
    }
    assert {text: parse_toleration(text, "--set toleration") for text in taints} == taints
    wrong = {parse_label: ("a", "=b", "a=b=c", "a=b c", "a=-b", "a=" + "b" * 64, "a=b\n")}
    wrong[parse_toleration] = ("", ":NoSchedule", "a:", "a:noschedule", "a=b:c:NoSchedule", "=b")
    for parse, texts in wrong.items():
        for text in texts:
            with pytest.raises(DevkitError, match="--flag"):
                parse(text, "--flag")
