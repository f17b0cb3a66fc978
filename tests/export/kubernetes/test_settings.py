"""Flags of the target: none is another's, and what no cluster takes is refused in one line."""

from dataclasses import fields

import pytest

from devkit.cli.export import export
from devkit.errors import DevkitError
from devkit.export.job_settings import JobSettings
from devkit.export.kubernetes import KubernetesSettings
from devkit.export.kubernetes.settings import validate_kubernetes_settings


def test_no_flag_is_another_ones():
    command = export.get_command(None, "kubernetes")
    flags = [flag for option in command.params for flag in (*option.opts, *option.secondary_opts)]
    assert len(flags) == len(set(flags))
    assert not {each.name for each in fields(JobSettings)} & {each.name for each in fields(KubernetesSettings)}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"namespace": "ML_team"}, "--namespace"),
        ({"namespace": "a" * 64}, "--namespace"),
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
        ({"gpu_resource": "nvidia.com/gpu", "device_class": "gpu.nvidia.com"}, "--device-class and --gpu-resource"),
    ],
)
def test_what_no_cluster_takes_is_refused_by_the_flags_name(options, named):
    with pytest.raises(DevkitError) as caught:
        validate_kubernetes_settings(KubernetesSettings(**options))
    assert named in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_what_a_cluster_takes_passes():
    options = KubernetesSettings(
        namespace="a" * 63, gpu_resource="amd.com/gpu", node_selector=("a.b/c=D_e",), toleration=("x=y:NoExecute",)
    )
    assert validate_kubernetes_settings(options) is options
