"""What happens to a pod's template before a container starts: each controller's variables, and the kubelet's."""

import re
import shlex
from typing import Any

from devkit.export.targets import TargetFiles

from .rendered import container, of_job

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def started(rendered: TargetFiles, rank: int) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the container of the node with that rank."""
    kinds = {manifest["kind"]: manifest for manifest in of_job(rendered)}
    found = container(rendered)
    variables: dict[str, str] = {}
    for entry in [*found["env"], *_injected(kinds, rank)]:
        if "valueFrom" in entry:
            assert entry["valueFrom"] == {"fieldRef": {"fieldPath": INDEX}}, "of no other does this know"
            value = str(rank)
        else:
            value = expanded(entry["value"], variables)
        variables[entry["name"]] = value
    if "RayJob" in kinds:
        return _by_ray(kinds["RayJob"]), variables
    return [expanded(word, variables) for word in found["command"]], variables


def _injected(kinds: dict[str, Any], rank: int) -> list[dict[str, str]]:
    if "TrainJob" in kinds:
        return _by_trainer(kinds["TrainJob"], rank)
    if "PyTorchJob" in kinds:
        return _by_operator(kinds["PyTorchJob"], rank)
    if "RayJob" in kinds:
        # By the script: the address is that of the head.
        return _entries(PET_NODE_RANK=str(rank), PET_MASTER_ADDR=f"{kinds['RayJob']['metadata']['name']}-head")
    return []


def _by_ray(manifest: dict[str, Any]) -> list[str]:
    """The words behind the script and its two numbers: Ray gives the entrypoint to a shell."""
    python, script, nodes, _, *command = shlex.split(manifest["spec"]["entrypoint"])
    assert (python, script) == ("python", "/etc/devkit/nodes.py")
    groups = manifest["spec"]["rayClusterSpec"].get("workerGroupSpecs", [])
    assert int(nodes) == 1 + sum(each["replicas"] for each in groups)
    return command


def _by_trainer(manifest: dict[str, Any], rank: int) -> list[dict[str, str]]:
    """Source: EnforceMLPolicy in kubeflow/trainer, pkg/runtime/framework/plugins/torch/torch.go."""
    name, trainer = manifest["metadata"]["name"], manifest["spec"]["trainer"]
    reserved = {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"}
    assert not reserved & {entry["name"] for entry in trainer["env"]}, "its webhook refuses these"
    return _entries(
        PET_NNODES=str(trainer["numNodes"]),
        PET_NPROC_PER_NODE=str(trainer["numProcPerNode"]),
        PET_NODE_RANK=str(rank),
        PET_MASTER_ADDR=f"{name}-node-0-0.{name}",
        PET_MASTER_PORT="29500",
    )


def _by_operator(manifest: dict[str, Any], rank: int) -> list[dict[str, str]]:
    """Source: setPodEnv in kubeflow/training-operator v1, pkg/controller.v1/pytorch/envvar.go, and master.go."""
    spec = manifest["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    (master,) = replicas["Master"]["template"]["spec"]["containers"]
    assert master["name"] == "pytorch"
    port = next(each["containerPort"] for each in master["ports"] if each["name"] == "pytorchjob-port")
    nodes = sum(each["replicas"] for each in replicas.values())
    address = f"{manifest['metadata']['name']}-master-0"
    return _entries(
        PYTHONUNBUFFERED="0",
        MASTER_PORT=str(port),
        PET_MASTER_PORT=str(port),
        MASTER_ADDR=address,
        PET_MASTER_ADDR=address,
        WORLD_SIZE=str(nodes * int(spec["nprocPerNode"])),
        RANK=str(rank),
        PET_NPROC_PER_NODE=spec["nprocPerNode"],
        PET_NODE_RANK=str(rank),
        PET_NNODES=str(nodes),
    )


def _entries(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def expanded(text: str, variables: dict[str, str]) -> str:
    """Source: Expand in kubernetes/kubernetes, third_party/forked/golang/expansion/expand.go."""

    def made(match: re.Match[str]) -> str:
        whole = match[0]
        if whole == "$$":
            return "$"
        name = whole[2:-1]
        return variables.get(name, whole)

    return re.sub(r"\$\$|\$\([^)]*\)", made, text)
