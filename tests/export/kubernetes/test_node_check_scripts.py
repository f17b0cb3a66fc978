"""What the pods run, really run; and the script that fetches their reports, against a kubectl that stands in."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.export.kubernetes import TARGET, KubernetesSettings
from devkit.export.kubernetes.node_checks import (
    COLLECT_SCRIPT,
    REPORTS_FOLDER,
    render_doctor_script,
    render_verify_script,
)
from devkit.facts.store import parse_facts
from devkit.verify.report import ProofLocation, VerificationReport
from devkit.verify.report_check import PointStatus, check_report
from devkit.workload.proof.stages import StageResult, StageStatus
from tests.hosts.golden import facts_file
from tests.render.test_artifacts import linter

from .rendered import made
from .sample_jobs import context, task

SHELLS = [["sh"], *(shell for shell in (["bash", "--posix"], ["busybox", "sh"]) if shutil.which(shell[0]))]
every_shell = pytest.mark.parametrize(
    "shell", [pytest.param(shell, marks=[pytest.mark.full] * (shell != ["sh"]), id=shell[0]) for shell in SHELLS]
)
VERIFIED = VerificationReport(
    ProofLocation.HERE, {"kind": "cuda"}, {"torch": "2.13.0"}, (StageResult("kernel", StageStatus("passed")),), ()
).to_document()
SCRIPTS = [render_doctor_script(), render_verify_script(is_quick=True), render_verify_script(is_quick=False)]


@pytest.mark.full
@pytest.mark.parametrize("dialect", ["sh", "dash"])
def test_shellcheck_finds_nothing_in_what_the_pods_run(dialect, tmp_path):
    for number, script in enumerate(SCRIPTS):
        (tmp_path / f"{number}.sh").write_text(script)
    argv = [linter("shellcheck"), "--shell", dialect, *tmp_path.iterdir()]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


class Pod:
    """A script in a folder of its own, with programs before those of the machine."""

    def __init__(self, folder: Path, **programs: str) -> None:
        self.reports = folder / "reports"
        self.reports.mkdir()
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name, text in programs.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def command(self, script: str, shell: list[str]) -> list[str]:
        return [*shell, "-c", script.replace(REPORTS_FOLDER, str(self.reports))]

    def environment(self, node: str = "gpu-07.example") -> dict[str, str]:
        return os.environ | {"PATH": f"{self.bin}:{os.environ['PATH']}", "NODE_NAME": node}

    def run(self, script: str, shell: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(script, shell), env=self.environment(), capture_output=True, text=True, check=False
        )


FACTS = facts_file("a100-ok")
DEVKIT = f"""#!/bin/sh
# Writes what it is asked for, as devkit does, and says so; ends as the test wants it.
echo "devkit $*" >> "$0.called"
verb=$1; shift
while [ $# -gt 0 ]; do
  case $1 in
    --save-facts) cp '{FACTS}' "$2"; echo "Facts saved to $2." >&2; shift ;;
    --output) printf '%s\\n' "$(cat "$0.$verb")" > "$2"; shift ;;
  esac
  shift
done
[ "$verb" = doctor ] || echo "proved on cpu: what people read"
exit "$(cat "$0.$verb.code")"
"""


@pytest.fixture
def pod(tmp_path) -> Pod:
    """A pod whose devkit writes a recorded machine, an empty report of the doctor, and a true one of a proof."""
    made_pod = Pod(tmp_path, devkit=DEVKIT, sleep="#!/bin/sh\nexit 0\n")
    doctor = {"schema": "devkit.doctor/1", "verdict": "problems", "outcomes": []}
    for verb, document in (("doctor", doctor), ("verify", VERIFIED)):
        (made_pod.bin / f"devkit.{verb}").write_text(json.dumps(document, indent=2, ensure_ascii=False))
        (made_pod.bin / f"devkit.{verb}.code").write_text("0")
    return made_pod


def reports(log: str) -> list[dict]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


@every_shell
def test_the_doctors_log_has_one_line_for_each_report_with_the_node_before_all_else(pod, shell):
    done = pod.run(render_doctor_script(), shell)
    assert done.returncode == 0, done.stderr
    facts, doctor = reports(done.stdout)
    assert [next(iter(each.items())) for each in (facts, doctor)] == [("node", "gpu-07.example")] * 2
    assert {name: value for name, value in facts.items() if name != "node"} == json.loads(FACTS.read_text())
    assert doctor["schema"] == "devkit.doctor/1"
    assert len(done.stdout.splitlines()) == 2
    assert (pod.reports / "done").exists()


def test_problems_that_the_doctor_found_are_no_failure_of_its_pod(pod):
    (pod.bin / "devkit.doctor.code").write_text("1")
    done = pod.run(render_doctor_script(), ["sh"])
    assert (done.returncode, len(reports(done.stdout))) == (0, 2)


@pytest.mark.parametrize("code", [2, 3])
def test_a_doctor_without_a_report_fails_with_its_own_code_and_is_not_ready(pod, code):
    (pod.bin / "devkit").write_text(f"#!/bin/sh\necho 'no such thing' >&2\nexit {code}\n")
    done = pod.run(render_doctor_script(), ["sh"])
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "no such thing\n")
    assert not (pod.reports / "done").exists()


@every_shell
@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_proofs_pod_ends_as_the_proof_did_and_reports_in_any_case(pod, shell, code):
    (pod.bin / "devkit.verify.code").write_text(str(code))
    (pod.bin / "devkit.doctor.code").write_text("1")
    done = pod.run(render_verify_script(is_quick=True), shell)
    assert done.returncode == code
    facts, verified = map(json.loads, done.stdout.splitlines())
    assert "what people read" in done.stderr
    assert facts["schema"] == "devkit.facts/1"
    assert verified == {"node": "gpu-07.example"} | VERIFIED
    called = (pod.bin / "devkit.called").read_text()
    assert "devkit doctor --deep" in called
    assert "devkit verify --here --quick --timeout 1800 --output verify.json" in called


def test_a_proof_that_crashed_says_nothing_that_is_no_report(pod):
    (pod.bin / "devkit").write_text("#!/bin/sh\nexit 3\n")
    done = pod.run(render_verify_script(is_quick=False), ["sh"])
    assert (done.returncode, done.stdout) == (3, "")


@pytest.mark.full
def test_the_real_doctor_reports_and_its_pod_ends_after_sigterm(tmp_path):
    """As process 1, which heeds no signal by default."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a process 1 of one's own needs root and unshare")
    real = Pod(tmp_path)
    (real.bin / "devkit").symlink_to(Path(sys.executable).parent / "devkit")
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    words = [*apart, *real.command(render_doctor_script(), ["sh"])]
    with subprocess.Popen(words, env=real.environment(), stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        lines = [process.stdout.readline() for _ in range(2)]
        while not (real.reports / "done").exists():
            assert process.poll() is None
            time.sleep(0.02)
        first = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        os.kill(first, signal.SIGTERM)
        try:
            assert process.wait(timeout=120) == 0
        finally:
            process.kill()
    facts, doctor = (json.loads(line) for line in lines)
    schemas = ("devkit.facts/1", "devkit.doctor/1")
    assert (facts["node"], facts["schema"], doctor["schema"]) == ("gpu-07.example", *schemas)


# The script that fetches.

KUBECTL = """#!/bin/sh
# Answers from files: pods and logs by the component in the selector.
printf '%s\\n' "$*" >> "$0.called"
case $* in
  *-doctor*) component=doctor ;;
  *-verify*) component=verify ;;
esac
case $* in
  *"get pods"*) cat "$0.$component.pods" 2>/dev/null || : ;;
  *" logs "*|"logs "*) cat "$0.$component.log" ;;
esac
exit "$(cat "$0.code" 2>/dev/null || echo 0)"
"""


class Cluster:
    """A kubectl that knows some pods, and the script of a job that asks it."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.kubectl = self.bin / "kubectl"
        self.kubectl.write_text(KUBECTL)
        self.kubectl.chmod(0o755)
        (artifact,) = (
            each for each in made(task(), node_checks=True, **settings).artifacts if each.path == COLLECT_SCRIPT
        )
        assert artifact.mode == 0o755
        self.script = folder / "collect.sh"
        self.script.write_bytes(artifact.content)

    def has(self, component: str, pods: str, log: str) -> None:
        self.kubectl.with_name(f"kubectl.{component}.pods").write_text(pods)
        self.kubectl.with_name(f"kubectl.{component}.log").write_text(log)

    def collect(self, *words: str, shell: tuple[str, ...] = ("sh",)) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PATH": f"{self.bin}:{os.environ['PATH']}"}
        return subprocess.run(
            [*shell, str(self.script), *words], cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )

    def files(self, folder: str = "reports") -> list[str]:
        root = self.folder / folder
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    @property
    def called(self) -> str:
        return self.kubectl.with_name("kubectl.called").read_text()


@pytest.fixture
def cluster(tmp_path) -> Cluster:
    return Cluster(tmp_path, namespace="ml")


def line(node: str, document: dict) -> str:
    """A report as a pod prints it."""
    return f'{{"node": "{node}", ' + json.dumps(document, indent=2)[1:].replace("\n", "") + "\n"


DOCTORED = {"schema": "devkit.doctor/1", "verdict": "healthy", "outcomes": []}


def spoken(node: str) -> str:
    """The log of a doctor's pod, with what it says to people."""
    facts = json.loads(FACTS.read_text())
    return f"Facts saved to facts.json.\n{line(node, facts)}{line(node, DOCTORED)}"


@pytest.mark.full
def test_shellcheck_finds_nothing_in_the_script_that_fetches(cluster):
    done = subprocess.run([linter("shellcheck"), cluster.script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@every_shell
def test_every_node_becomes_a_file_that_devkit_reads(cluster, shell):
    nodes = ["gpu-07", "ip-10-0-1-7.ec2.internal"]
    cluster.has("doctor", "".join(f"tune-doctor-{n} {node} Running\n" for n, node in enumerate(nodes)), "")
    cluster.kubectl.with_name("kubectl.doctor.log").write_text("".join(map(spoken, nodes)))
    cluster.has("verify", "tune-verify-0-abcde gpu-07 Succeeded\n", line("gpu-07", VERIFIED))
    done = cluster.collect(shell=tuple(shell))
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 of 3 pods have reported" in done.stdout
    assert cluster.files() == sorted(
        [*(f"{kind}/{node}.json" for kind in ("facts", "doctor") for node in nodes), "verify/gpu-07.json"]
    )
    for node in nodes:
        text = (cluster.folder / f"reports/facts/{node}.json").read_text()
        assert parse_facts(text) == parse_facts(FACTS.read_text())
    verified = json.loads((cluster.folder / "reports/verify/gpu-07.json").read_text())
    assert verified == VERIFIED
    assert all(point.status is PointStatus.AGREES for point in check_report(verified)[:1])


def test_facts_that_were_read_with_gpus_lie_apart(cluster):
    cluster.has("verify", "tune-verify-0-abcde gpu-07 Failed\n", spoken("gpu-07") + line("gpu-07", VERIFIED))
    assert cluster.collect().returncode == 0
    assert cluster.files() == ["facts-with-gpus/gpu-07.json", "verify/gpu-07.json"]


def test_kubectl_reads_whole_logs_of_these_pods_alone(cluster):
    cluster.has("doctor", "tune-doctor-abcde gpu-07 Running\n", spoken("gpu-07"))
    cluster.collect()
    logs = next(call for call in cluster.called.splitlines() if " logs " in call)
    assert logs == "--namespace ml logs --selector=app.kubernetes.io/instance=tune-doctor --tail=-1 --ignore-errors"
    assert all(call.startswith("--namespace ml ") for call in cluster.called.splitlines())


def test_without_a_namespace_the_contexts_is_used(tmp_path):
    cluster = Cluster(tmp_path)
    cluster.collect()
    assert "--namespace" not in cluster.called


def test_pods_that_said_nothing_yet_are_named_and_the_others_are_kept(cluster):
    pods = "tune-doctor-a gpu-07 Running\ntune-doctor-b gpu-08 Running\ntune-doctor-c  Pending\n"
    cluster.has("doctor", pods, f"{spoken('gpu-07')}error: container is waiting to start: trying to pull\n")
    done = cluster.collect()
    assert done.returncode == 1
    assert "1 of 3 pods have reported" in done.stdout
    assert sorted(done.stderr.splitlines()) == [
        "error: container is waiting to start: trying to pull",
        "no report yet: tune-doctor-b on gpu-08, Running",
        "no report yet: tune-doctor-c, Pending",
    ]
    assert cluster.files() == ["doctor/gpu-07.json", "facts/gpu-07.json"]


def test_without_the_checks_the_script_says_what_to_apply(cluster):
    done = cluster.collect()
    assert done.returncode == 1
    assert done.stderr == "error: there are no pods of the checks: kubectl apply -k ./checks/doctor\n"
    assert not (cluster.folder / "reports").exists()


def test_reports_of_another_time_are_not_mixed_with_these(cluster):
    cluster.has("doctor", "tune-doctor-abcde gpu-07 Running\n", spoken("gpu-07"))
    assert cluster.collect("monday").returncode == 0
    done = cluster.collect("monday")
    assert (done.returncode, cluster.files("monday")) == (2, ["doctor/gpu-07.json", "facts/gpu-07.json"])
    assert "monday is there already" in done.stderr


def test_a_folder_may_be_called_as_one_likes(cluster):
    cluster.has("doctor", "tune-doctor-abcde gpu-07 Running\n", spoken("gpu-07"))
    for folder in ("it's $HOME", "back\\slash n\\n", "-dash", 'a"b`c'):
        assert cluster.collect(f"./{folder}").returncode == 0
        assert cluster.files(folder) == ["doctor/gpu-07.json", "facts/gpu-07.json"]


def test_a_kubectl_that_fails_ends_the_script(cluster):
    cluster.kubectl.with_name("kubectl.code").write_text("1")
    assert cluster.collect().returncode != 0
    assert not (cluster.folder / "reports").exists()


def test_a_log_cannot_choose_where_files_go_and_what_is_no_report_is_left_out(cluster):
    nodes = ("../../escaped", "a/b", "", "Gpu", "-gpu", "a b", "$(touch ran)")
    others = (
        '{"node": "gpu-09", "schema": "other.facts/1"}\n',
        '{"node": "gpu-09", "schema": "devkit.plan/1"}\n',
        '{"node": "gpu-09", "said": "\\"schema\\": \\"devkit.facts/1\\""}\n',
        'note: {"node": "gpu-09", "schema": "devkit.facts/1"}\n',
        '{"node": "gpu-09"\n',
    )
    cluster.has(
        "doctor", "tune-doctor-abcde gpu-07 Running\n", "".join((*map(spoken, nodes), *others, spoken("gpu-07")))
    )
    assert cluster.collect().returncode == 0
    assert cluster.files() == ["doctor/gpu-07.json", "facts/gpu-07.json"]
    assert {path.name for path in cluster.folder.iterdir()} == {"bin", "collect.sh", "reports"}


def test_the_newest_report_of_a_node_counts(cluster):
    newer = DOCTORED | {"verdict": "problems"}
    cluster.has("doctor", "tune-doctor-abcde gpu-07 Running\n", spoken("gpu-07") + line("gpu-07", newer))
    cluster.collect()
    assert json.loads((cluster.folder / "reports/doctor/gpu-07.json").read_text())["verdict"] == "problems"


def test_a_projects_folder_with_any_name_is_quoted_in_the_script(cluster):
    for target in ("it's", 'a "b" $(touch ran)', "c`d`"):
        rendered = TARGET.render(task(), KubernetesSettings(), replace(context(), folder=target))
        (artifact,) = (each for each in rendered.artifacts if each.path == COLLECT_SCRIPT)
        cluster.script.write_bytes(artifact.content)
        assert f"kubectl apply -k {target}/checks/doctor" in cluster.collect().stderr
        assert not (cluster.folder / "ran").exists()


@pytest.mark.full
def test_devkit_compare_finds_the_odd_node_among_the_fetched_reports(cluster):
    nodes = [f"gpu-{number:02}" for number in range(30)]
    facts = json.loads(FACTS.read_text())
    odd = json.loads(FACTS.read_text().replace(facts["system"]["kernel"], "5.4.0-odd"))
    log = "".join(line(node, odd if node == "gpu-17" else facts) + line(node, DOCTORED) for node in nodes)
    cluster.has("doctor", "".join(f"tune-doctor-{node} {node} Running\n" for node in nodes), log)
    assert cluster.collect().returncode == 0
    words = [str(Path(sys.executable).parent / "devkit"), "compare", "--all", "--json", "reports/facts"]
    done = subprocess.run(words, cwd=cluster.folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "gpu-17" in done.stdout
    assert "5.4.0-odd" in done.stdout
