"""All kinds of job start the same command in the same environment; and each starts again what may be started again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.export.kubernetes.pod import escape_variables
from devkit.export.kubernetes.settings import JobKind
from devkit.export.task import build_rendezvous_variables
from devkit.solver.plan import Vendor

from .operators import expanded, started
from .rendered import container, job_templates, made, named, objects
from .sample_jobs import every_kind, task

ADDRESSES = {
    JobKind.JOB: "tune-0.tune",
    JobKind.TRAINJOB: "tune-node-0-0.tune",
    JobKind.PYTORCHJOB: "tune-master-0",
    JobKind.JOBSET: "tune-node-0-0.tune",
    JobKind.RAYJOB: "tune-head",
}
HOSTILE_WORDS = (
    *("a\nscript $(A)\n", "$(HF_TOKEN_PATH)", "$$", "$", "$$(A)", "a$", "`id`", "$((1))", "#", "", " ", "é\n", "'\""),
)


@every_kind
def test_every_node_runs_the_same_words_and_knows_its_rank(kind):
    values = {"A": "x", **{f"V{number}": word for number, word in enumerate(HOSTILE_WORDS)}}
    asked = task(nodes=3, command=HOSTILE_WORDS, environment=tuple(values.items()))
    for rank in range(3):
        command, variables = started(made(asked, kind=kind), rank)
        assert command == list(HOSTILE_WORDS)
        met = dict(build_rendezvous_variables(asked, address=ADDRESSES[kind], rank=str(rank)))
        assert (met | values).items() <= variables.items()


@every_kind
def test_one_process_gets_no_incomplete_launcher_variables(kind):
    """devkit finetune refuses some of a launcher's variables without the others."""
    _, variables = started(made(task(Vendor.CPU), kind=kind), 0)
    given_there = {name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in variables}
    assert not given_there or given_there | {"MASTER_ADDR", "MASTER_PORT"} <= variables.keys()
    assert not given_there or (len(given_there), variables["WORLD_SIZE"], variables["LOCAL_RANK"]) == (3, "1", "0")


@given(st.text(alphabet="$()Aa", max_size=12))
def test_what_is_written_literally_is_what_the_kubelet_makes_of_it(text):
    assert expanded(escape_variables(text), {"A": "1", "": "2", "a": "3", "$A": "4"}) == text
    plain = "trap 'x' TERM; \"$@\" & child=$!"
    assert escape_variables(plain) == plain


def test_a_job_counts_neither_preemptions_nor_75_and_gives_up_what_is_hopeless():
    spec = named(made(task(Vendor.CPU)), "Job")["spec"]
    assert (spec["backoffLimit"], spec["podReplacementPolicy"]) == (3, "Failed")
    assert spec["activeDeadlineSeconds"] == task().time_s
    assert spec["template"]["spec"]["restartPolicy"] == "Never"

    def on_codes(action, *codes):
        return {"action": action, "onExitCodes": {"containerName": "trainer", "operator": "In", "values": [*codes]}}

    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        on_codes("Ignore", 75),
        on_codes("FailJob", 1, 2, 126, 127),
    ]


def test_several_nodes_of_a_job_find_each_other_and_torchruns_codes_say_too_little_to_give_up():
    rendered = made(task(nodes=2), kind=JobKind.JOB)
    job, service = named(rendered, "Job")["spec"], named(rendered, "Service")
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 2, 2)
    assert job["backoffLimit"] == 6
    assert [rule["action"] for rule in job["podFailurePolicy"]["rules"]] == ["Ignore", "Ignore"]
    assert job["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": "tune"}


@pytest.mark.parametrize("kind", [JobKind.JOBSET, JobKind.TRAINJOB])
def test_all_nodes_start_again_together_and_preemptions_are_not_counted(kind):
    rendered = made(task(nodes=2), kind=kind)
    spec = named(rendered, "JobSet" if kind is JobKind.JOBSET else "TrainingRuntime")["spec"]
    spec = spec if kind is JobKind.JOBSET else spec["template"]["spec"]
    policy = spec["failurePolicy"]
    assert (policy["maxRestarts"], policy["restartStrategy"]) == (3, "BlockingRecreate")
    assert policy["rules"][0] == {
        "name": "preempted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    (replicated,) = spec["replicatedJobs"]
    inner = replicated["template"]["spec"]
    assert (replicated["replicas"], inner["backoffLimit"], inner["completions"], inner["parallelism"]) == (1, 0, 2, 2)
    preempted, saved = inner["podFailurePolicy"]["rules"]
    assert (preempted["action"], saved["action"]) == ("FailJob", "FailJob")
    assert preempted["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert saved["onExitCodes"] == {"containerName": "node", "operator": "In", "values": [75]}


def test_a_trainjob_brings_its_own_runtime():
    rendered = made(task(nodes=2))
    job, runtime = named(rendered, "TrainJob")["spec"], named(rendered, "TrainingRuntime")
    assert job["runtimeRef"] == {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "tune"}
    assert runtime["metadata"]["name"] == "tune"
    assert (job["trainer"]["numNodes"], job["trainer"]["numProcPerNode"]) == (2, 2)
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 2, "torch": {}}
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["name"] == "node"
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert job["activeDeadlineSeconds"] == task().time_s


def test_a_trainjob_on_a_runtime_of_the_cluster_patches_what_it_may_and_takes_not_every_setting():
    rendered = made(task(nodes=2), runtime="torch-distributed", service_account="me")
    (manifest,) = objects(rendered, "base/")
    assert manifest["spec"]["runtimeRef"]["kind"] == "ClusterTrainingRuntime"
    (patch,) = manifest["spec"]["runtimePatches"]
    assert patch["manager"] == "devkit.export/kubernetes"
    (template,) = job_templates(rendered)
    assert (template["spec"]["serviceAccountName"], template["spec"]["terminationGracePeriodSeconds"]) == ("me", 120)
    assert "restartPolicy" not in template["spec"]
    assert manifest["spec"]["trainer"]["command"] == ["env", "-C", "/workspaces/tune", *task().command]
    assert any("nothing does" in note for note in rendered.notes)
    for setting in ({"device_class": "gpu.nvidia.com"}, {"priority_class": "high"}, {"scheduler": "volcano"}):
        with pytest.raises(DevkitError, match="has no place in a TrainJob on the runtime torch-distributed"):
            made(task(nodes=2), runtime="torch-distributed", **setting)
    with pytest.raises(DevkitError, match="--runtime is for a TrainJob"):
        made(task(), runtime="torch-distributed")


def test_a_pytorchjob_has_a_master_and_workers_and_says_what_it_cannot():
    rendered = made(task(nodes=3), kind=JobKind.PYTORCHJOB)
    spec = named(rendered, "PyTorchJob")["spec"]
    assert {role: each["replicas"] for role, each in spec["pytorchReplicaSpecs"].items()} == {"Master": 1, "Worker": 2}
    assert all(each["restartPolicy"] == "OnFailure" for each in spec["pytorchReplicaSpecs"].values())
    assert (spec["nprocPerNode"], spec["runPolicy"]["activeDeadlineSeconds"]) == ("2", task().time_s)
    assert any("a node that is lost" in note for note in rendered.notes)
    alone = named(made(task(), kind=JobKind.PYTORCHJOB), "PyTorchJob")
    assert list(alone["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_a_rayjob_starts_the_command_on_each_node_by_a_script_in_every_pod():
    rendered = made(task(nodes=3, command=("python", "train.py", "--name", "a b")), kind=JobKind.RAYJOB)
    assert named(rendered, "RayJob")["spec"]["entrypoint"] == (
        "python /etc/devkit/nodes.py 3 2 python train.py --name 'a b'"
    )
    compile(named(rendered, "ConfigMap")["data"]["nodes.py"], "nodes.py", "exec")
    assert len(job_templates(rendered)) == 2
    for template in job_templates(rendered):
        assert {"name": "nodes", "configMap": {"name": "tune-nodes"}} in template["spec"]["volumes"]
        # Its operator starts Ray there.
        assert "command" not in template["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("kind", "nodes", "longest"),
    [(JobKind.JOBSET, 10, 48), (JobKind.JOBSET, 11, 47), (JobKind.TRAINJOB, 101, 46), (JobKind.RAYJOB, 1, 47)],
)
def test_names_are_short_enough_for_those_of_pods_and_begin_with_a_letter_where_services_do(kind, nodes, longest):
    assert kind is JobKind.RAYJOB or len(f"{'a' * longest}-node-0-{nodes - 1}-abcde") == 63
    made(task(nodes=nodes, name="a" * longest), kind=kind)
    with pytest.raises(DevkitError, match="--name"):
        made(task(nodes=nodes, name="a" * (longest + 1)), kind=kind)
    made(task(name="7b"))
    for count, with_service in ((2, JobKind.JOB), (1, JobKind.TRAINJOB), (1, JobKind.PYTORCHJOB), (1, JobKind.JOBSET)):
        with pytest.raises(DevkitError, match="must begin with a letter"):
            made(task(nodes=count, name="7b"), kind=with_service)


@every_kind
def test_the_pods_are_restricted_and_have_the_tasks_grace(kind):
    """By the Pod Security Standard of that name."""
    for template in job_templates(made(task(nodes=2, grace_s=333), kind=kind)):
        pod, (inside,) = template["spec"], template["spec"]["containers"]
        assert pod["terminationGracePeriodSeconds"] == 333
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert inside["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostIPC", "hostPID"} & pod.keys()
        assert all("hostPath" not in volume for volume in pod["volumes"])


def test_a_variable_that_is_given_twice_is_written_once_and_nccl_speaks_only_where_nodes_do():
    asked = task(environment=(("A", "1"), ("B", "2"), ("A", "3")))
    assert container(made(asked))["env"][:2] == [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}]

    def debug(**changed):
        return [each["value"] for each in container(made(task(**changed)))["env"] if each["name"] == "NCCL_DEBUG"]

    assert (debug(nodes=2), debug(nodes=1)) == (["WARN"], [])
    assert debug(nodes=2, environment=(("NCCL_DEBUG", "INFO"),)) == ["INFO"]
