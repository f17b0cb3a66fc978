"""The guide's two commands that write a tutorial's Job and PyTorchJob anew, typed as they stand there."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.cli.test_export import export
from tests.cli.test_init import devkit

from .api import problems

pytestmark = pytest.mark.full
GUIDE = Path(__file__).parents[3] / "docs/guides/kubernetes.md"
GPUS = {"llama2-7b-finetuning": "A10G", "llama2-13b-distributed": "A100"}


def blocks(language):
    tutorial = GUIDE.read_text(encoding="utf-8").partition("## A tutorial's Job")[2]
    return re.findall(rf"```{language}\n(.*?)```", tutorial, re.DOTALL)


def commands():
    """The words after `devkit export`, by the job's name."""
    text = blocks("sh")[0].replace("\\\n", " ").replace("REGISTRY/NAME:TAG", "ghcr.io/me/llama:1")
    lines = [shlex.split(line)[2:] for line in text.replace("SHARED", "shared").splitlines()]
    return {words[words.index("--name") + 1]: words for words in lines}


def project(folder, gpu):
    made = devkit("init", folder, "--driver", "580.95.05", "--gpu", gpu, "--yes")
    assert made.returncode == 0, made.stderr
    for block in blocks("toml"):
        (folder / block.partition("\n")[0].removeprefix("# ")).write_text(block)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: project(tmp_path_factory.mktemp("p") / "tutorial", gpu) for name, gpu in GPUS.items()}


def job(folder, file):
    (found,) = yaml.safe_load_all((folder / "deploy/kubernetes/base" / file).read_bytes())
    return found


def test_the_job_for_one_a10g(folders):
    """What the guide says of a g5.2xlarge, which has 8 processors and 32 GiB."""
    name = "llama2-7b-finetuning"
    done = export(folders[name], *commands()[name])
    assert done.returncode == 0, done.stderr
    found = job(folders[name], "job.yaml")
    assert problems(found) == []
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "g5.2xlarge"}
    requests = container["resources"]["requests"]
    assert (requests["cpu"], requests["memory"], container["resources"]["limits"]["nvidia.com/gpu"]) == (7, "23Gi", 1)
    assert container["command"][:4] == ["devkit", "finetune", "--model", "meta-llama/Llama-2-7b-hf"]
    claims = {volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"][:3]}
    assert claims == {"model-pvc", "dataset-pvc"}


def test_the_pytorchjob_for_two_nodes_of_four(folders):
    name = "llama2-13b-distributed"
    words = commands()[name]
    refused = export(folders[name], *[word if word != "A100" else "A10G" for word in words])
    assert (refused.returncode, "29.5 GiB on each NVIDIA A10G" in refused.stderr) == (1, True)
    done = export(folders[name], *words)
    assert done.returncode == 0, done.stderr
    spec = job(folders[name], "pytorchjob.yaml")["spec"]
    assert {role: each["replicas"] for role, each in spec["pytorchReplicaSpecs"].items()} == {"Master": 1, "Worker": 1}
    assert spec["nprocPerNode"] == "4"
    claims = yaml.safe_load_all((folders[name] / "deploy/kubernetes/storage/claims.yaml").read_bytes())
    assert {each["spec"]["accessModes"][0] for each in claims} == {"ReadWriteMany"}
