"""The files as a whole: what to type next, where everything lies, and that the same options give the same files."""

import shlex
import subprocess
from dataclasses import replace

import yaml

from devkit.export.kubernetes import TARGET, KubernetesSettings
from devkit.export.kubernetes.settings import JobKind

from .matrix import new_storage
from .rendered import made
from .sample_jobs import context, task


def test_steps_come_in_the_order_in_which_they_are_typed():
    assert made(new_storage(task())).next_steps == (
        'kubectl create secret generic devkit-hub --from-file=token="$HOME/.cache/huggingface/token"',
        "kubectl apply -k ./storage",
        "kubectl apply -k ./files && kubectl wait --for=condition=Ready --timeout=15m pod/tune-files",
        "kubectl cp ./. tune-files:/workspaces/tune",
        "kubectl delete -k ./files",
        "kubectl apply -k .",
        "kubectl logs --follow --selector app.kubernetes.io/instance=tune,app.kubernetes.io/component=training",
    )


def test_a_namespace_is_in_every_step_that_needs_it():
    steps = made(new_storage(task()), namespace="ml").next_steps
    assert all("--namespace ml" in step or step.startswith(("kubectl apply -k", "kubectl delete -k")) for step in steps)
    assert "kubectl --namespace ml wait" in steps[2]


def test_folders_are_quoted_in_the_steps(tmp_path):
    settings = KubernetesSettings(node_checks=False, monitoring=False)
    for folder in ("it's a folder/deploy/kubernetes", "$(touch owned)/`id`; x"):
        rendered = TARGET.render(new_storage(task()), settings, replace(context(), folder=folder))
        script = f"kubectl() {{ printf '%s\\n' \"$@\"; }}\n{rendered.next_steps[1]}\n"
        said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
        assert said.splitlines() == ["apply", "-k", f"{folder}/storage"]
        assert not list(tmp_path.iterdir())
        assert all(shlex.split(step) for step in rendered.next_steps)


def test_the_project_is_copied_from_where_it_is():
    settings = KubernetesSettings(node_checks=False, monitoring=False)
    rendered = TARGET.render(task(), settings, replace(context(), folder="../my project/deploy/kubernetes"))
    assert "kubectl cp '../my project/.' tune-files:/workspaces/tune" in rendered.next_steps


def test_storage_is_apart_from_the_job():
    """What removes the job must not remove its checkpoints."""
    files = {artifact.path: artifact.content for artifact in made(new_storage(task())).artifacts}
    for path, content in files.items():
        if path.endswith("kustomization.yaml") and not path.startswith("storage/"):
            assert not any("storage" in each for each in yaml.safe_load(content)["resources"])


def test_no_file_holds_what_only_secrets_may():
    for kind in JobKind:
        text = b"".join(artifact.content for artifact in made(task(), kind=kind).artifacts).decode()
        assert "kind: Secret" not in text
        assert "hf_" not in text


def test_checks_and_monitoring_come_unless_they_are_not_wanted():
    with_all = {artifact.path.split("/")[0] for artifact in made(task(), node_checks=True, monitoring=True).artifacts}
    assert with_all - {"kustomization.yaml", "base", "files"}
    without = {artifact.path.split("/")[0] for artifact in made(task()).artifacts}
    assert without == {"kustomization.yaml", "base", "files"}
