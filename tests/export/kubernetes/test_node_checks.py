"""The checks of the nodes: objects that ask for no rights, scripts that are really run, and the one that fetches."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.export.kubernetes import TARGET, KubernetesSettings
from devkit.export.kubernetes.kustomize import QUEUE_LABEL
from devkit.export.kubernetes.manifest import INSTANCE_LABEL, strip_comments
from devkit.export.kubernetes.node_checks import (
    COLLECT_SCRIPT,
    DOCTOR_COMPONENT,
    DONE_MARKER,
    REPORTS_FOLDER,
    VERIFY_COMPONENT,
    build_doctor_daemonset,
    build_verify_job,
    render_doctor_script,
    render_verify_script,
)
from devkit.export.values import GIB
from devkit.facts.store import parse_facts
from devkit.solver.plan import Vendor
from tests.hosts.golden import facts_file

from .rendered import made, objects
from .sample_jobs import context, task

GPU_CLAIM = {"device_class": "gpu.nvidia.com"}


def daemonset(vendor: Vendor = Vendor.NVIDIA, **options: object) -> dict:
    (found,) = build_doctor_daemonset(task(vendor), KubernetesSettings(**options))
    return strip_comments(found)


def job(made_task=None, **options: object) -> dict:
    return strip_comments(build_verify_job(made_task or task(), KubernetesSettings(**options))[-1])


def pod(manifest: dict) -> dict:
    return manifest["spec"]["template"]["spec"]


def container(manifest: dict) -> dict:
    (found,) = pod(manifest)["containers"]
    return found


def test_the_checks_ask_for_no_rights_bear_the_jobs_taints_and_name_their_node():
    """Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    for vendor in Vendor:
        for manifest in (daemonset(vendor, toleration=("dedicated",)), job(task(vendor), toleration=("dedicated",))):
            spec, inner = pod(manifest), container(manifest)
            assert not {"hostPID", "hostNetwork", "hostIPC", "hostUsers"} & set(spec)
            assert all(set(volume) == {"name", "emptyDir"} for volume in spec["volumes"])
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert inner["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert spec["automountServiceAccountToken"] is False
            assert "dedicated" in {each["key"] for each in spec["tolerations"]}
            assert inner["env"][0] == node
    rendered = made(task(), node_checks=True)
    assert {each["kind"] for each in objects(rendered, "checks/")} == {"DaemonSet", "Job"}
    assert len(rendered.notes) == len(made(task()).notes) + 1


def test_the_doctor_goes_to_every_node_with_a_gpu_sees_all_and_takes_none():
    chosen = {
        (Vendor.NVIDIA, ()): {"nvidia.com/gpu.present": "true"},
        (Vendor.ROCM, ()): {"feature.node.kubernetes.io/amd-gpu": "true"},
        (Vendor.CPU, ()): {},
        (Vendor.NVIDIA, ("pool=a100",)): {"pool": "a100"},
    }
    for (vendor, selector), labels in chosen.items():
        assert pod(daemonset(vendor, node_selector=selector))["nodeSelector"] == labels
    found = daemonset(runtime_class="nvidia", queue="team", **GPU_CLAIM)
    assert container(found)["resources"].keys() == {"requests", "limits"}
    assert set(container(found)["resources"]["limits"]) == {"memory"}
    assert "resourceClaims" not in pod(found) and QUEUE_LABEL not in json.dumps(found)
    assert pod(found)["runtimeClassName"] == "nvidia"
    for other in (daemonset(), daemonset(Vendor.ROCM, runtime_class="nvidia"), job(runtime_class="nvidia")):
        assert "runtimeClassName" not in pod(other)
    variables = {each["name"]: each.get("value") for each in container(found)["env"]}
    seen = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    assert variables == {"NODE_NAME": None} | seen
    assert {each["name"] for each in container(daemonset(Vendor.ROCM))["env"]} == {"NODE_NAME"}
    assert container(found)["readinessProbe"]["exec"]["command"] == ["test", "-e", DONE_MARKER]


def test_a_proof_takes_the_jobs_gpus_on_as_many_nodes_each_once():
    one = replace(task(), accelerator=replace(task().accelerator, count=1))
    limits = {
        "nvidia.com/gpu": (job(), 2),
        "amd.com/gpu": (job(task(Vendor.ROCM)), 2),
        "nvidia.com/mig-1g.10gb": (job(one, gpu_resource="nvidia.com/mig-1g.10gb"), 1),
    }
    for resource, (found, count) in limits.items():
        assert container(found)["resources"]["limits"][resource] == count
    assert set(container(job(task(Vendor.CPU)))["resources"]["limits"]) == {"memory"}
    assert ["--quick" in container(found)["command"][-1] for found in (job(one), job())] == [True, False]
    found = job(task(shm_bytes=16 * GIB))
    assert container(found)["resources"]["limits"]["memory"] == "32Gi"  # 8, 4 for each of two GPUs, and 16
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in pod(found)["volumes"]
    for nodes, asked, proved in ((1, None, 1), (4, None, 4), (1, 12, 12)):
        spec = job(task(nodes=nodes), verify_nodes=asked)["spec"]
        assert (spec["completions"], spec["parallelism"]) == (proved, proved)
        assert (spec["completionMode"], spec["backoffLimitPerIndex"]) == ("Indexed", 0)
        assert "activeDeadlineSeconds" not in spec  # it would count the time in the queue
        template = spec["template"]
        (term,) = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert template["spec"]["restartPolicy"] == "Never"
    queued = job(queue="team")
    assert (queued["metadata"]["labels"][QUEUE_LABEL], queued["spec"]["suspend"]) == ("team", True)
    claim, claiming = map(strip_comments, build_verify_job(task(), KubernetesSettings(**GPU_CLAIM)))
    assert claim["metadata"]["name"] == "tune-verify-gpu"
    assert pod(claiming)["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "tune-verify-gpu"}]


def test_the_checks_have_names_of_their_own_that_fit_what_controllers_add():
    for name in ("t", "t" * 52, f"{'t' * 47}-end"):
        for component, build in ((DOCTOR_COMPONENT, build_doctor_daemonset), (VERIFY_COMPONENT, build_verify_job)):
            (manifest,) = map(strip_comments, build(task(name=name), KubernetesSettings()))
            own = manifest["metadata"]["name"]
            assert own.endswith(f"-{component}") and "--" not in own
            assert len(f"{own}-9999") <= 63
            # The job's Service, its affinity and `kubectl logs` find the job's pods by this label.
            instance = manifest["spec"]["template"]["metadata"]["labels"][INSTANCE_LABEL]
            assert instance != name and len(instance) <= 63


SHELLS = [["sh"], *(shell for shell in (["bash", "--posix"], ["busybox", "sh"]) if shutil.which(shell[0]))]
every_shell = pytest.mark.parametrize(
    "shell", [pytest.param(shell, marks=[pytest.mark.full] * (shell != ["sh"]), id=shell[0]) for shell in SHELLS]
)
FACTS = facts_file("a100-ok")
DOCTORED = {"schema": "devkit.doctor/1", "verdict": "problems", "outcomes": []}
VERIFIED = {"schema": "devkit.verify/1", "stages": []}
DEVKIT = f"""#!/bin/sh
# Writes what it is asked for, as devkit does, and says so; ends as the test wants it.
echo "devkit $*" >> "$0.called"
verb=$1; shift
while [ $# -gt 0 ]; do
  case $1 in
    --save-facts) cp '{FACTS}' "$2"; echo "Facts saved to $2." >&2; shift ;;
    --output) cat "$0.$verb" > "$2"; shift ;;
  esac
  shift
done
[ "$verb" = doctor ] || echo "proved on cpu: what people read"
exit "$(cat "$0.$verb.code")"
"""
KUBECTL = """#!/bin/sh
# Answers from files: pods and logs by the component in the selector.
printf '%s\\n' "$*" >> "$0.called"
case $* in *-doctor*) component=doctor ;; *-verify*) component=verify ;; esac
case $* in
  *"get pods"*) cat "$0.$component.pods" 2>/dev/null || : ;;
  *"logs "*) cat "$0.$component.log" ;;
esac
exit "$(cat "$0.code" 2>/dev/null || echo 0)"
"""


class Machine:
    """A folder with stand-ins for `devkit` and `kubectl` before the programs of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.reports = folder, folder / "bin", folder / "in-the-pod"
        for each in (self.bin, self.reports):
            each.mkdir()
        for name, text in {"devkit": DEVKIT, "sleep": "#!/bin/sh\n", "kubectl": KUBECTL}.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        for verb, document in (("doctor", DOCTORED), ("verify", VERIFIED)):
            self.has(f"devkit.{verb}", json.dumps(document, indent=2))
            self.has(f"devkit.{verb}.code", "0")

    def has(self, name: str, text: str) -> None:
        """What a stand-in answers."""
        (self.bin / name).write_text(text)

    def run(self, script: str, *words: str, shell: tuple[str, ...] = ("sh",)) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PATH": f"{self.bin}:{os.environ['PATH']}", "NODE_NAME": "gpu-07.example"}
        argv = [*shell, "-c", script.replace(REPORTS_FOLDER, str(self.reports)), "script", *words]
        return subprocess.run(argv, cwd=self.folder, env=env, capture_output=True, text=True, check=False)

    def files(self, folder: str = "reports") -> list[str]:
        """What was fetched."""
        root = self.folder / folder
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


@every_shell
def test_the_doctors_log_has_a_line_for_each_report_and_problems_are_no_failure(machine, shell):
    machine.has("devkit.doctor.code", "1")
    done = machine.run(render_doctor_script(), shell=shell)
    assert done.returncode == 0, done.stderr
    facts, doctor = map(json.loads, done.stdout.splitlines())
    assert next(iter(facts)) == next(iter(doctor)) == "node"
    assert facts == {"node": "gpu-07.example"} | json.loads(FACTS.read_text())
    assert doctor == {"node": "gpu-07.example"} | DOCTORED
    assert (machine.reports / "done").exists()


def test_a_check_without_a_report_fails_with_its_own_code_and_says_nothing(machine):
    machine.has("devkit", "#!/bin/sh\necho 'no such thing' >&2\nexit 3\n")
    for script in (render_doctor_script(), render_verify_script(is_quick=False)):
        done = machine.run(script)
        assert (done.returncode, done.stdout) == (3, "")
        assert "no such thing" in done.stderr
    assert not (machine.reports / "done").exists()


@every_shell
def test_a_proofs_pod_ends_as_the_proof_did_and_reports_in_any_case(machine, shell):
    for code in (0, 1, 3):
        machine.has("devkit.verify.code", str(code))
        done = machine.run(render_verify_script(is_quick=True), shell=shell)
        assert done.returncode == code
        facts, verified = map(json.loads, done.stdout.splitlines())
        assert "what people read" in done.stderr
        assert (facts["schema"], verified) == ("devkit.facts/1", {"node": "gpu-07.example"} | VERIFIED)
    called = (machine.bin / "devkit.called").read_text()
    assert "devkit doctor --deep" in called
    assert "devkit verify --here --quick --timeout 1800 --output verify.json" in called


def collect_script(folder: str = "deploy", **settings: object) -> str:
    rendered = TARGET.render(task(), KubernetesSettings(**settings), replace(context(), folder=folder))
    (found,) = (each for each in rendered.artifacts if each.path == COLLECT_SCRIPT)
    assert found.mode == 0o755
    return found.content.decode()


def line(node: str, document: dict) -> str:
    """A report as a pod prints it."""
    return f'{{"node": "{node}", ' + json.dumps(document)[1:] + "\n"


def spoken(node: str) -> str:
    """The log of a doctor's pod, with what it says to people."""
    return f"Facts saved to facts.json.\n{line(node, json.loads(FACTS.read_text()))}{line(node, DOCTORED)}"


@every_shell
def test_every_node_becomes_a_file_and_pods_that_said_nothing_yet_are_named(machine, shell):
    machine.has("kubectl.doctor.pods", "tune-doctor-a gpu-07 Running\ntune-doctor-b ip-10-0.internal Running\n")
    machine.has("kubectl.doctor.log", spoken("gpu-07") + spoken("ip-10-0.internal"))
    machine.has("kubectl.verify.pods", "tune-verify-0-abcde gpu-07 Failed\n")
    machine.has("kubectl.verify.log", spoken("gpu-07") + line("gpu-07", VERIFIED))
    done = machine.run(collect_script(namespace="ml"), shell=shell)
    assert (done.returncode, done.stderr) == (0, "")
    of_doctor = [f"{kind}/{node}.json" for kind in ("doctor", "facts") for node in ("gpu-07", "ip-10-0.internal")]
    assert machine.files() == sorted([*of_doctor, "facts-with-gpus/gpu-07.json", "verify/gpu-07.json"])
    fetched = (machine.folder / "reports/facts/gpu-07.json").read_text()
    assert parse_facts(fetched) == parse_facts(FACTS.read_text())
    calls = (machine.bin / "kubectl.called").read_text().splitlines()
    selected = "--selector=app.kubernetes.io/instance=tune-doctor --tail=-1 --ignore-errors"
    assert f"--namespace ml logs {selected}" in calls and all(call.startswith("--namespace ml ") for call in calls)
    machine.has("kubectl.doctor.pods", "tune-doctor-a gpu-07 Running\ntune-doctor-c gpu-08 Running\nlast  Pending\n")
    newer = DOCTORED | {"verdict": "healthy"}
    machine.has("kubectl.doctor.log", f"{spoken('gpu-07')}{line('gpu-07', newer)}error: container is waiting\n")
    done = machine.run(collect_script(), "it's $HOME/`id`", shell=shell)
    assert done.returncode == 1
    assert "no report yet: tune-doctor-c on gpu-08, Running\nno report yet: last, Pending\n" in done.stderr
    assert "error: container is waiting\n" in done.stderr
    newest = json.loads((machine.folder / "it's $HOME/`id`/doctor/gpu-07.json").read_text())
    assert newest["verdict"] == "healthy"


def test_reports_are_not_mixed_with_others_and_a_failure_leaves_no_folder(machine):
    for folder in ("it's", 'a "b" $(touch ran)', "c`d`"):
        done = machine.run(collect_script(folder))
        assert (done.returncode, f"kubectl apply -k {folder}/checks/doctor" in done.stderr) == (1, True)
        assert not (machine.folder / "ran").exists()
    machine.has("kubectl.code", "1")
    assert machine.run(collect_script()).returncode != 0
    assert not (machine.folder / "reports").exists()
    (machine.folder / "monday").mkdir()
    done = machine.run(collect_script(), "monday")
    assert (done.returncode, "monday is there already" in done.stderr) == (2, True)


def test_a_log_cannot_choose_where_files_go_and_what_is_no_report_is_left_out(machine):
    nodes = ("../../escaped", "a/b", "", "Gpu", "-gpu", "a b", "$(touch ran)")
    others = (
        '{"node": "gpu-09", "schema": "other.facts/1"}\n',
        '{"node": "gpu-09", "schema": "devkit.plan/1"}\n',
        '{"node": "gpu-09", "said": "\\"schema\\": \\"devkit.facts/1\\""}\n',
        'note: {"node": "gpu-09", "schema": "devkit.facts/1"}\n',
        '{"node": "gpu-09"\n',
    )
    machine.has("kubectl.doctor.pods", "tune-doctor-abcde gpu-07 Running\n")
    machine.has("kubectl.doctor.log", "".join((*map(spoken, nodes), *others, spoken("gpu-07"))))
    assert machine.run(collect_script()).returncode == 0
    assert machine.files() == ["doctor/gpu-07.json", "facts/gpu-07.json"]
    assert {path.name for path in machine.folder.iterdir()} == {"bin", "in-the-pod", "reports"}
