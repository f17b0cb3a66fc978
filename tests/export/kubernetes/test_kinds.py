"""All kinds of job start the same command in the same environment; and each starts again what may be started again."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.export.kubernetes.manifests import escape_variables
from devkit.export.kubernetes.settings import JobKind
from devkit.export.task import build_rendezvous_variables
from devkit.solver.plan import Vendor

from .operators import expanded, started
from .rendered import container, job_templates, made, named, of_job
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


def test_a_job_counts_neither_preemptions_nor_75_and_gives_up_what_is_hopeless():
    spec = named(made(task(Vendor.CPU)), "Job")["spec"]
    assert (spec["backoffLimit"], spec["podReplacementPolicy"]) == (3, "Failed")
    assert spec["activeDeadlineSeconds"] == task().time_s
    disrupted, saved, hopeless = spec["podFailurePolicy"]["rules"]
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert (saved["action"], saved["onExitCodes"]["values"]) == ("Ignore", [75])
    assert (hopeless["action"], hopeless["onExitCodes"]["values"]) == ("FailJob", [1, 2, 126, 127])


def test_several_nodes_of_a_job_find_each_other_and_torchruns_codes_say_too_little_to_give_up():
    rendered = made(task(nodes=2), kind=JobKind.JOB)
    job, service = named(rendered, "Job")["spec"], named(rendered, "Service")
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 2, 2)
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
    actions = {rule["action"]: rule["onJobFailureReasons"] for rule in policy["rules"]}
    assert actions["RestartJobSetAndIgnoreMaxRestarts"] == ["PodFailurePolicy"]
    (replicated,) = spec["replicatedJobs"]
    inner = replicated["template"]["spec"]
    assert (replicated["replicas"], inner["backoffLimit"], inner["completions"], inner["parallelism"]) == (1, 0, 2, 2)
    preempted, saved = inner["podFailurePolicy"]["rules"]
    assert (preempted["action"], saved["action"]) == ("FailJob", "FailJob")
    assert preempted["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert saved["onExitCodes"] == {"containerName": "node", "operator": "In", "values": [75]}


def test_a_trainjob_brings_its_own_runtime_which_is_applied_first():
    runtime, job = of_job(made(task(nodes=2)))
    assert job["spec"]["runtimeRef"] == {"apiGroup": "trainer.kubeflow.org", "kind": runtime["kind"], "name": "tune"}
    assert (runtime["kind"], runtime["metadata"]["name"]) == ("TrainingRuntime", "tune")
    assert (job["spec"]["trainer"]["numNodes"], job["spec"]["trainer"]["numProcPerNode"]) == (2, 2)
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 2, "torch": {}}
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    groups = [
        named(made(task(nodes=2), scheduler=name), "TrainingRuntime")["spec"].get("podGroupPolicy")
        for name in ("volcano", "")
    ]
    assert groups == [{"volcano": {}}, None]


def test_a_pytorchjob_has_a_master_and_workers_and_says_what_it_cannot():
    rendered = made(task(nodes=3), kind=JobKind.PYTORCHJOB)
    spec = named(rendered, "PyTorchJob")["spec"]
    assert {role: each["replicas"] for role, each in spec["pytorchReplicaSpecs"].items()} == {"Master": 1, "Worker": 2}
    assert all(each["restartPolicy"] == "OnFailure" for each in spec["pytorchReplicaSpecs"].values())
    assert any("a node that is lost" in note for note in rendered.notes)
    alone = named(made(task(), kind=JobKind.PYTORCHJOB), "PyTorchJob")
    assert list(alone["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_a_rayjob_starts_the_command_on_each_node_by_a_script_in_every_pod():
    words = ("python", "train.py", "--name", "a b")
    rendered = made(task(nodes=3, command=words), kind=JobKind.RAYJOB)
    entrypoint = shlex.split(named(rendered, "RayJob")["spec"]["entrypoint"])
    assert entrypoint == ["python", "/etc/devkit/nodes.py", "3", "2", *words]
    compile(named(rendered, "ConfigMap")["data"]["nodes.py"], "nodes.py", "exec")
    assert len(job_templates(rendered)) == 2
    for template in job_templates(rendered):
        assert {"name": "nodes", "configMap": {"name": "tune-nodes"}} in template["spec"]["volumes"]
        # Its operator starts Ray there.
        assert "command" not in template["spec"]["containers"][0]


@every_kind
def test_a_queue_admits_the_job_and_the_job_alone(kind):
    *others, owner = of_job(made(task(nodes=2), kind=kind, queue="team"))
    assert owner["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert (owner["spec"].get("runPolicy", owner["spec"]))["suspend"] is True
    assert not any("kueue" in str(each) or "suspend" in str(each) for each in others)
    assert "suspend" not in str(of_job(made(task(nodes=2), kind=kind)))


@pytest.mark.parametrize(
    ("kind", "nodes", "longest"),
    [(JobKind.JOBSET, 10, 48), (JobKind.JOBSET, 11, 47), (JobKind.TRAINJOB, 101, 46), (JobKind.RAYJOB, 1, 47)],
)
def test_names_are_short_enough_for_those_of_pods_and_begin_with_a_letter_where_services_do(kind, nodes, longest):
    made(task(nodes=nodes, name="a" * longest), kind=kind)
    for name, said in (("a" * (longest + 1), "--name"), ("7b", "must begin with a letter")):
        with pytest.raises(DevkitError, match=said):
            made(task(nodes=nodes, name=name), kind=kind)
    made(task(name="7b"))


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
