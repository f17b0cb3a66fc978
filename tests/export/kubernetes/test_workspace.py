"""The dev container as a workspace: a Job that a cluster takes, storage that survives it, and what DevPod gets."""

import json

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.export.kubernetes.settings import WorkspaceEntry

from .api import problems
from .kustomize_model import built
from .rendered import made, objects
from .sample_jobs import task

ALONE = {"command": (), "is_own_command": True}


def workspace(entry=WorkspaceEntry.KUBECTL, *, changed=ALONE, **options):
    return made(task(**changed), workspace=entry, **options)


def job_of(rendered):
    (found,) = (each for each in built(rendered, "workspace") if each["kind"] == "Job")
    return found


def test_a_cluster_takes_the_workspace_and_its_storage():
    for options in ({}, {"queue": "team"}, {"device_class": "gpu.nvidia.com"}):
        rendered = workspace(**options)
        found = built(rendered, "workspace") + built(rendered, "workspace/storage")
        assert {each["kind"] for each in found} >= {"Job", "PersistentVolumeClaim"}
        assert [problem for each in found for problem in problems(each)] == []
        assert all(artifact.path.startswith("workspace/") for artifact in rendered.artifacts)
        assert job_of(rendered)["spec"].get("suspend", False) is ("queue" in options)
    both, alone = workspace(changed={}), made(task())
    assert [each for each in objects(both) if each not in objects(workspace())] == objects(alone)
    assert both.next_steps[: len(alone.next_steps)] == alone.next_steps
    with pytest.raises(DevkitError, match="the image is a foreign one"):
        workspace(changed=ALONE | {"is_foreign_image": True})


def test_it_ends_when_idle_is_removed_and_leaves_its_volume():
    rendered = workspace(idle="30m", workspace_size="1Ti", storage_class="fast")
    spec = job_of(rendered)["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"] == ["devkit", "launch", "--idle", "1800"]
    assert spec["ttlSecondsAfterFinished"] == 60
    (claim,) = built(rendered, "workspace/storage")
    assert claim["metadata"]["name"] == "tune-dev-home"
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Ti"
    at = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in spec["template"]["spec"]["volumes"]}
    of_home = [volumes[at[path]]["persistentVolumeClaim"]["claimName"] for path in ("/home/dev", "/opt/cache/compile")]
    assert of_home == ["tune-dev-home"] * 2
    # Storage that the settings name is the job's, too.
    assert volumes[at["/workspaces/tune"]]["persistentVolumeClaim"]["claimName"] == "data"


def test_devpod_gets_a_container_without_compose_and_a_pod_that_it_adds_its_own_to():
    rendered = workspace(WorkspaceEntry.DEVPOD, namespace="team", idle="2d", workspace_size="100GiB")
    files = {each.path.removeprefix("workspace/"): each.content for each in rendered.artifacts}
    document = json.loads(files["devcontainer.json"])
    assert document["image"] == "registry.example.org/ml/tune:1"
    assert not {"dockerComposeFile", "service", "initializeCommand"} & set(document)
    pod = yaml.safe_load(files["devpod.yaml"])
    (container,) = pod["spec"]["containers"]
    assert container["name"] == "devpod"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    own = {each.split("target=")[1].split(",")[0] for each in document["mounts"]}
    # Nothing is mounted twice: DevPod adds a mount for each of the container's.
    assert not mounted & own
    assert {"/home/dev", "/opt/cache/compile"} <= own
    container["image"] = document["image"]
    assert problems(pod) == []
    # Days are no time, and GiB no size, where these are read.
    assert "INACTIVITY_TIMEOUT=172800s" in rendered.next_steps[1]
    assert "DISK_SIZE=100Gi " in rendered.next_steps[1]


def test_coder_gets_a_template_whose_pod_is_named_as_its_provider_names_it():
    environment = (("PROMPT", "${USER} %{x}"),)
    rendered = workspace(WorkspaceEntry.CODER, changed=ALONE | {"environment": environment}, namespace="team")
    files = {each.path.removeprefix("workspace/"): each.content.decode() for each in rendered.artifacts}
    pod = json.loads(files["pod.tf.json"])["resource"]["kubernetes_pod_v1"]["main"]
    (container,) = pod["spec"]["container"]
    # An expression of Terraform's, and none of the user's.
    assert container["command"] == ["sh", "-c", "${coder_agent.main.init_script}"]
    assert {"name": "PROMPT", "value": "$${USER} %%{x}"} in container["env"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    claims = {each["name"]: each["persistent_volume_claim"]["claim_name"] for each in pod["spec"]["volume"][:4]}
    assert claims["home"] == "${kubernetes_persistent_volume_claim_v1.home.metadata[0].name}"
    assert claims["data"] == "data"
