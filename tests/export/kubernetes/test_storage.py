"""The job's storage: claims that are made or taken, the token as a file, a pod to copy with; and what to type next."""

import shlex
import subprocess
from dataclasses import replace

import pytest

from devkit.errors import DevkitError
from devkit.export.kubernetes import TARGET, KubernetesSettings
from devkit.export.kubernetes.manifests import format_quantity
from devkit.export.kubernetes.settings import AccessMode
from devkit.export.task import TOKEN_PATH, VolumeRole
from devkit.export.values import GIB

from .matrix import new_storage
from .rendered import container, job_templates, made, named, objects
from .sample_jobs import every_kind, task


def claims(rendered):
    return {each["metadata"]["name"]: each["spec"] for each in objects(rendered, "storage/")}


def test_storage_that_has_no_name_is_made_and_one_that_is_named_is_taken():
    found = claims(made(new_storage(task()), storage_class="gp3"))
    assert found.keys() == {"tune-models", "tune-data", "tune-checkpoints"}
    for claim in found.values():
        assert (claim["accessModes"], claim["storageClassName"]) == (["ReadWriteOnce"], "gp3")
        assert claim["resources"]["requests"]["storage"] == "10Gi"
    # Without a class the cluster chooses.
    assert all("storageClassName" not in claim for claim in claims(made(new_storage(task()))).values())
    rendered = made(task())
    assert not claims(rendered) and not any("storage" in step for step in rendered.next_steps)
    volumes = job_templates(rendered)[0]["spec"]["volumes"]
    taken = [each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each]
    assert taken == ["models", "data", "checkpoints"]


def test_several_nodes_share_what_is_made_for_them_and_must_be_able_to():
    rendered = made(new_storage(task(nodes=2)))
    assert all(claim["accessModes"] == ["ReadWriteMany"] for claim in claims(rendered).values())
    assert any("ReadWriteMany" in note and "--set storage_class" in note for note in rendered.notes)
    assert not any(
        "--set storage_class" in note for note in made(new_storage(task(nodes=2)), storage_class="efs").notes
    )
    for mode in (AccessMode.ONE_NODE, AccessMode.ONE_POD):
        with pytest.raises(DevkitError, match=f"access_mode {mode} allows only one node to mount it, but 2 nodes"):
            made(new_storage(task(nodes=2)), access_mode=mode)
        assert claims(made(new_storage(task()), access_mode=mode))["tune-data"]["accessModes"] == [str(mode)]
    assert any("mount models, data, checkpoints" in note for note in made(task(nodes=2)).notes)
    assert not any("mount" in note for note in made(task()).notes)


def test_what_cannot_be_mounted_is_refused():
    named_wrong = tuple(replace(volume, source="My Claim") for volume in task().volumes)
    with pytest.raises(DevkitError, match="--set models 'My Claim' is not a valid object name"):
        made(task(volumes=named_wrong))
    *others, checkpoints = task().volumes
    for path, said in (
        ("/workspaces/tune/a:b", "does not allow a colon"),
        ("/data", "mounted separately"),
        ("/data/.", "mounted separately"),
    ):
        with pytest.raises(DevkitError, match=said):
            made(task(volumes=(*others, replace(checkpoints, path=path))))


def test_one_claim_for_several_has_a_folder_for_each():
    sources = {VolumeRole.MODELS: "shared", VolumeRole.DATA: "own", VolumeRole.CHECKPOINTS: "shared"}
    volumes = tuple(replace(volume, source=sources[volume.role]) for volume in task().volumes)
    mounts = {each["name"]: each.get("subPath") for each in container(made(task(volumes=volumes)))["volumeMounts"]}
    assert (mounts["models"], mounts["data"], mounts["checkpoints"]) == ("models", None, "checkpoints")


@every_kind
def test_shared_memory_is_memory_that_the_container_may_use(kind):
    resources = container(made(task(memory_bytes=30 * GIB, shm_bytes=4 * GIB), kind=kind))["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"] == "34Gi"


def test_the_token_is_a_file_from_a_secret_and_a_model_of_the_project_needs_none():
    rendered = made(task(), token_secret="mine")
    (volume,) = (each for each in job_templates(rendered)[0]["spec"]["volumes"] if "secret" in each)
    secret = volume["secret"]
    assert (secret["secretName"], secret["optional"], secret["defaultMode"]) == ("mine", True, 0o440)
    (mount,) = (each for each in container(rendered)["volumeMounts"] if each["name"] == volume["name"])
    assert mount["readOnly"] is True
    assert f"{mount['mountPath']}/{secret['items'][0]['path']}" == TOKEN_PATH
    assert not any("secretKeyRef" in str(each) or each["kind"] == "Secret" for each in objects(rendered))
    without = made(task(needs_token=False))
    pod = job_templates(without)[0]["spec"]
    assert not any("secret" in each for each in (*pod["volumes"], *without.next_steps))
    assert [each["name"] for each in pod["containers"][0]["volumeMounts"]] == [each["name"] for each in pod["volumes"]]


def test_a_pod_without_a_gpu_copies_files_where_the_job_goes():
    """Or storage of one zone would be made where no GPU is."""
    rendered = made(new_storage(task()), pull_secret="registry", node_selector=("pool=gpu",), toleration=("pool",))
    pod, job = named(rendered, "Pod")["spec"], job_templates(rendered)[0]["spec"]
    (inside,) = pod["containers"]
    assert "nvidia.com/gpu" not in str(inside["resources"])
    assert [each["name"] for each in inside["volumeMounts"]] == ["models", "data", "checkpoints"]
    assert pod["activeDeadlineSeconds"] == int(inside["command"][1])
    for name in ("nodeSelector", "tolerations", "imagePullSecrets"):
        assert pod[name] == job[name]
    assert "nodeSelector" not in named(made(task()), "Pod")["spec"]


def test_sizes_are_written_exactly():
    sizes = {GIB: "1Gi", 1 << 40: "1Ti", 1536 << 20: "1536Mi", 1 << 20: "1Mi", GIB + 1: "1073741825", 1000: "1000"}
    assert {size: format_quantity(size) for size in sizes} == sizes


def test_steps_come_in_the_order_in_which_they_are_typed_with_the_namespace():
    assert made(new_storage(task())).next_steps == (
        'kubectl create secret generic devkit-hub --from-file=token="$HOME/.cache/huggingface/token"',
        "kubectl apply -k ./storage",
        "kubectl apply -k ./files && kubectl wait --for=condition=Ready --timeout=15m pod/tune-files",
        "kubectl cp ./. tune-files:/workspaces/tune",
        "kubectl delete -k ./files",
        "kubectl apply -k .",
        "kubectl logs --follow --selector app.kubernetes.io/instance=tune,app.kubernetes.io/component=training",
    )
    steps = made(new_storage(task()), namespace="ml").next_steps
    assert all("--namespace ml" in step or step.startswith(("kubectl apply -k", "kubectl delete -k")) for step in steps)
    assert "kubectl --namespace ml wait" in steps[2]


def test_folders_are_quoted_in_the_steps(tmp_path):
    for folder in ("it's a folder/deploy/kubernetes", "$(touch owned)/`id`; x"):
        rendered = TARGET.render(new_storage(task()), KubernetesSettings(), folder)
        script = f"kubectl() {{ printf '%s\\n' \"$@\"; }}\n{rendered.next_steps[1]}\n"
        said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
        assert said.splitlines() == ["apply", "-k", f"{folder}/storage"]
        assert not list(tmp_path.iterdir())
        assert all(shlex.split(step) for step in rendered.next_steps)


def test_storage_is_apart_from_the_job():
    """What removes the job must not remove its checkpoints."""
    for volumes, more in ((task().volumes, set()), (new_storage(task()).volumes, {"storage"})):
        paths = [artifact.path for artifact in made(task(volumes=volumes)).artifacts]
        assert {path.split("/")[0] for path in paths} == {"kustomization.yaml", "job.yaml", "files"} | more
