"""The job's storage: claims that are made or taken, memory for /dev/shm, the token as a file, a pod to copy with."""

from dataclasses import replace

import pytest

from devkit.errors import DevkitError
from devkit.export.kubernetes.resources import format_quantity
from devkit.export.kubernetes.settings import AccessMode
from devkit.export.task import TOKEN_PATH, VolumeRole
from devkit.export.values import GIB

from .matrix import new_storage
from .rendered import container, job_templates, made, named, objects
from .sample_jobs import every_kind, task


def claims(rendered):
    return {each["metadata"]["name"]: each["spec"] for each in objects(rendered, "storage/")}


def test_storage_that_has_no_name_is_made():
    found = claims(made(new_storage(task()), storage_class="gp3"))
    assert found.keys() == {"tune-models", "tune-data", "tune-checkpoints"}
    for claim in found.values():
        assert claim["accessModes"] == ["ReadWriteOnce"]
        assert claim["storageClassName"] == "gp3"
        assert claim["resources"]["requests"]["storage"] == "10Gi"
    # Without a class the cluster chooses.
    assert all("storageClassName" not in claim for claim in claims(made(new_storage(task()))).values())


def test_storage_that_is_named_is_taken_and_not_made():
    rendered = made(task())
    assert not claims(rendered)
    assert not any("storage" in step for step in rendered.next_steps)
    names = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in job_templates(rendered)[0]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert names == ["models", "data", "checkpoints"]


def test_several_nodes_share_what_is_made_for_them():
    rendered = made(new_storage(task(nodes=2)))
    assert all(claim["accessModes"] == ["ReadWriteMany"] for claim in claims(rendered).values())
    assert any("ReadWriteMany" in note and "--storage-class" in note for note in rendered.notes)
    assert not any("--storage-class" in note for note in made(new_storage(task(nodes=2)), storage_class="efs").notes)


@pytest.mark.parametrize("mode", [AccessMode.ONE_NODE, AccessMode.ONE_POD])
def test_one_node_cannot_share_with_others(mode):
    with pytest.raises(DevkitError, match=f"--access-mode {mode} lets one node mount what 2 nodes") as caught:
        made(new_storage(task(nodes=2)), access_mode=mode)
    assert "--storage-class" in caught.value.hint
    assert made(new_storage(task()), access_mode=mode)


def test_claims_of_others_must_let_several_nodes_mount_them():
    assert any("mount models, data, checkpoints" in note for note in made(task(nodes=2)).notes)
    assert not any("mount" in note for note in made(task()).notes)


def test_a_claim_must_have_a_name_that_claims_have():
    volumes = tuple(replace(volume, source="My Claim") for volume in task().volumes)
    with pytest.raises(DevkitError, match="--models 'My Claim' is no name"):
        made(task(volumes=volumes))


@pytest.mark.parametrize(
    ("path", "said"),
    [("/workspaces/tune/a:b", "takes no colon"), ("/data", "mounted apart"), ("/data/.", "mounted apart")],
)
def test_a_path_at_which_nothing_can_be_mounted_is_refused(path, said):
    *others, checkpoints = task().volumes
    with pytest.raises(DevkitError, match=said):
        made(task(volumes=(*others, replace(checkpoints, path=path))))


def test_one_claim_for_several_has_a_folder_for_each():
    sources = {VolumeRole.MODELS: "shared", VolumeRole.DATA: "own", VolumeRole.CHECKPOINTS: "shared"}
    volumes = tuple(replace(volume, source=sources[volume.role]) for volume in task().volumes)
    mounts = {each["name"]: each.get("subPath") for each in container(made(task(volumes=volumes)))["volumeMounts"]}
    assert (mounts["models"], mounts["data"], mounts["checkpoints"]) == ("models", None, "checkpoints")


@every_kind
def test_shared_memory_is_memory_that_the_container_may_use(kind):
    rendered = made(task(memory_bytes=30 * GIB, shm_bytes=4 * GIB), kind=kind)
    resources = container(rendered)["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"] == "34Gi"


def test_the_token_is_a_file_from_a_secret_and_nowhere_in_the_manifest():
    rendered = made(task(), token_secret="mine")
    (volume,) = (each for each in job_templates(rendered)[0]["spec"]["volumes"] if "secret" in each)
    secret = volume["secret"]
    assert (secret["secretName"], secret["optional"], secret["defaultMode"]) == ("mine", True, 0o440)
    (mount,) = (each for each in container(rendered)["volumeMounts"] if each["name"] == volume["name"])
    assert mount["readOnly"] is True
    assert f"{mount['mountPath']}/{secret['items'][0]['path']}" == TOKEN_PATH
    assert not any("secretKeyRef" in str(each) for each in objects(rendered))


def test_a_model_of_the_project_needs_no_token():
    rendered = made(task(needs_token=False))
    pod = job_templates(rendered)[0]["spec"]
    assert not any("secret" in each for each in pod["volumes"])
    assert [each["name"] for each in pod["containers"][0]["volumeMounts"]] == [each["name"] for each in pod["volumes"]]
    assert not any("secret" in step for step in rendered.next_steps)


def test_a_pod_without_a_gpu_copies_files_in_and_out():
    pod = named(made(new_storage(task()), pull_secret="registry"), "Pod")
    (inside,) = pod["spec"]["containers"]
    assert "nvidia.com/gpu" not in str(inside["resources"])
    assert [each["name"] for each in inside["volumeMounts"]] == ["models", "data", "checkpoints"]
    assert pod["spec"]["activeDeadlineSeconds"] == int(inside["command"][1])
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_the_pod_that_copies_goes_where_the_job_goes():
    """Or storage of one zone would be made where no GPU is."""
    rendered = made(task(), node_selector=("pool=gpu",), toleration=("pool",))
    pod, job = named(rendered, "Pod")["spec"], job_templates(rendered)[0]["spec"]
    assert (pod["nodeSelector"], pod["tolerations"]) == (job["nodeSelector"], job["tolerations"])
    assert "nodeSelector" not in named(made(task()), "Pod")["spec"]


def test_sizes_are_written_exactly():
    sizes = {GIB: "1Gi", 1 << 40: "1Ti", 1536 << 20: "1536Mi", 1 << 20: "1Mi", GIB + 1: "1073741825", 1000: "1000"}
    assert {size: format_quantity(size) for size in sizes} == sizes
