"""Checks of how a project asks for GPUs: runArgs, hostRequirements, Compose."""

import json

import pytest

from devkit.doctor.model import Repair, RepairKind, Severity
from devkit.facts.engine import EngineEnd, EngineFailure, EngineKind, ResolvedService, Runtime
from devkit.facts.runs import ProgramFailure
from devkit.facts.values import Unknown
from tests.doctor.judging import list_codes, list_wrong_projects
from tests.doctor.machines import changed, healthy, host, inside, r, windows_guest, without_gpu
from tests.doctor.projects import DEV, IMAGE, RESERVED, compose_dev, dev, files_of, on, service
from tests.doctor.running import build_full_report, find_all, find_codes, find_only


def flagged(*arguments, **changes):
    return files_of(dev=dev(runArgs=[*arguments], **changes), image=IMAGE)


def unflagged(image=IMAGE, **changes):
    return files_of(dev=dev(runArgs=None, **changes), image=image)


def composed(text, **changes):
    return files_of(dev=compose_dev(**changes), compose=text, image=IMAGE)


def listed(image, **lists):
    """devcontainer.json with an image, and lists of requirements."""
    return {DEV: json.dumps({"image": image}), **{f"{name}.txt": text for name, text in lists.items()}}


REQUIRED = {"hostRequirements": {"gpu": True}}
OPTIONAL = {"hostRequirements": {"gpu": "optional"}}
NVIDIA = Runtime("nvidia", "/usr/bin/nvidia-container-runtime")
LAPTOP = without_gpu()
NOT_REQUESTED = composed(service(request=""))
BY_KEY = composed(service(request="    gpus: all\n"))
BY_CDI = composed(service(request="    devices: [nvidia.com/gpu=all]\n"))
TWO_CONTAINERS = {".devcontainer/cpu/devcontainer.json": dev(runArgs=None, build={"dockerfile": "../Dockerfile"})}
BEHIND_A_VARIABLE = composed(
    "services:\n  dev:\n    build: .\n    extends:\n      file: gpu.${GPU:-cpu}.yml\n      service: gpu\n"
) | {
    ".devcontainer/gpu.cpu.yml": "services:\n  gpu: {}\n",
    ".devcontainer/gpu.nvidia.yml": "services:\n  gpu:\n    gpus: all\n",
    ".devcontainer/.env": "GPU=nvidia\n",
}
OLD_COMPOSE = host(compose__version=r("2.29.7"))
NO_COMPOSE = host(compose=Unknown("no answer"))
SILENT = host(engine=EngineFailure(EngineEnd.NOT_RUNNING, healthy().engine.endpoint, ""))
UNREAD = host(driver=Unknown("x"), nvml=Unknown("x"))
RESERVATION = "services.dev.deploy.resources.reservations.devices"
SECOND = service().partition("\n")[2].replace("dev:", "other:")
OFFER = "note: devkit init --compose {} --service dev"


def offered(**files):
    """Compose files by their path, without a dev container."""
    return {"requirements.txt": "torch\n", **files}


WITH_ID_2 = composed(service(request=RESERVED.replace("count: all", 'device_ids: ["2"]')))
FOUR = composed(service(request=RESERVED.replace("count: all", "count: 4")))
REFUSED = ProgramFailure("docker compose config", ("required variable TAG is missing a value",))


def resolved(**changes):
    """What Compose resolves: one service that asks for all GPUs."""
    usual = {"name": "t", "runtime": "", "device_ids": (), "gpu_count": -1, "shm_bytes": None, "memory_bytes": None}
    return host(compose_config=(ResolvedService(**usual | changes),))


CASES = [
    ("PRJ038", {}, "passed", "Compose resolves it", resolved()),
    ("PRJ038", {}, "error: docker compose config fails | TAG=", "it refuses", host(compose_config=REFUSED)),
    ("PRJ039", composed(service()), "passed", "all GPUs"),
    (
        "PRJ039",
        WITH_ID_2,
        "error: requests the GPU 2, but this machine has only 1 GPU | nvidia-smi -L",
        "an id of another machine",
    ),
    ("PRJ039", FOUR, "error: requests 4 GPUs, but this machine has 1 GPU", "more than there are"),
    ("PRJ039", flagged("--gpus", '"device=0,3"'), "error: requests the GPU 3", "a list of ids in runArgs"),
    ("PRJ039", {}, "passed", "as Compose resolves it", resolved()),
    ("PRJ039", {}, "error: t requests the GPU 1", "an id that .env names", resolved(device_ids=("1",), gpu_count=0)),
    ("PRJ039", {}, "error: GPU-ffff", "the UUID of another GPU", resolved(device_ids=("GPU-ffff",))),
    ("PRJ039", {}, "passed", "a MIG device is not counted", resolved(device_ids=("MIG-ffff",))),
    ("PRJ039", {}, "error: 8 bytes | shm_size: 8gb", "a size without its unit", resolved(shm_bytes=8)),
    (
        "PRJ039",
        {},
        "error: the nvidia runtime, which this engine does not have | nvidia-ctk runtime configure",
        "a runtime that is not registered",
        changed(resolved(runtime="nvidia"), {"engine.runtimes": (Runtime("runc", "runc"),)}),
    ),
    ("PRJ039", {}, "skipped", "nothing asks for a GPU", host(compose_config=())),
    ("PRJ002", flagged("--gpus", "all"), "passed", "flag and value apart"),
    ("PRJ002", flagged("--gpus=all"), "passed", "flag and value with an equals sign"),
    ("PRJ002", flagged("--gpus all"), "error: --gpus all", "flag and value in one item"),
    ("PRJ002", flagged("--shm-size 8g"), "error", "another flag and its value in one item"),
    ("PRJ002", flagged("all"), "error", "the value alone"),
    ("PRJ002", flagged("-e", "NAME=two words"), "passed", "a value with a space after its flag"),
    ("PRJ002", flagged("--label=a b"), "passed", "a value with a space behind the equals sign"),
    ("PRJ002", flagged("--name", "all"), "passed", "a value that looks like a GPU request"),
    ("PRJ002", flagged(), "passed", "no items"),
    ("PRJ003", flagged("--gpus", "device=0,1"), 'error: set runArgs.1 "\\"device=0,1\\""', "without quotes"),
    ("PRJ003", flagged("--gpus", '"device=0,1"'), "passed", "two devices in quotes"),
    ("PRJ003", flagged("--gpus", "device=0"), "passed", "one device"),
    ("PRJ003", flagged("--gpus", "all"), "passed", "all of them"),
    ("PRJ003", flagged("--gpus", 'all,"capabilities=compute,utility"'), "passed", "quoted capabilities"),
    ("PRJ004", flagged("--gpus", "all"), "passed", "one flag"),
    ("PRJ004", flagged("--gpus", "all", "--gpus=1"), "warning", "two flags"),
    ("PRJ004", flagged("--gpus", "all", "--runtime=nvidia"), "passed", "the runtime stands beside a flag"),
    ("PRJ004", flagged("--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"), "passed", "two CDI devices"),
    ("PRJ004", flagged("--gpus", "all", **REQUIRED), "warning: hostRequirements", "a flag and hostRequirements"),
    ("PRJ004", flagged("--gpus", "all", hostRequirements={"gpu": False}), "passed", "hostRequirements say no"),
    ("PRJ004", composed(service()), "passed", "one reservation"),
    ("PRJ004", composed(service("gpus: all")), "warning: gpus", "a reservation and the key gpus"),
    ("PRJ004", composed(service(), **OPTIONAL), "warning", "both files ask"),
    ("PRJ004", flagged("--gpus=all", **REQUIRED), "passed", "no runtime", host(engine__runtimes=())),
    ("PRJ004", flagged("--gpus=all", **REQUIRED), "passed", "no engine", host(engine=Unknown("not asked"))),
    ("PRJ005", flagged("--gpus", "all"), "passed", "a flag"),
    ("PRJ005", flagged("--runtime", "nvidia"), "passed", "the runtime"),
    ("PRJ005", flagged("--device=nvidia.com/gpu=all"), "passed", "a CDI device"),
    ("PRJ005", flagged("--device=/dev/ttyUSB0"), "warning", "another device"),
    ("PRJ005", unflagged(), "warning: --gpus", "nothing"),
    ("PRJ005", unflagged(**OPTIONAL), "passed", "hostRequirements"),
    ("PRJ005", unflagged(IMAGE.replace("cu128", "cpu")), "passed", "torch for CPU"),
    ("PRJ005", unflagged("FROM python:3.12\n"), "passed", "no torch"),
    ("PRJ005", listed("nvcr.io/nvidia/pytorch:25.09-py3"), "warning", "NVIDIA's PyTorch image"),
    ("PRJ005", listed("python:3.12", requirements="vllm==0.11\n"), "warning: vllm", "a requirement file"),
    ("PRJ005", NOT_REQUESTED, "warning: deploy.resources.reservations | never set", "a service without a reservation"),
    ("PRJ005", BY_KEY, "passed", "the key gpus"),
    ("PRJ005", BEHIND_A_VARIABLE, "passed", "a reservation behind a variable"),
    ("PRJ005", {"Dockerfile": IMAGE}, "passed", "a Dockerfile that is started by hand"),
    ("PRJ005", unflagged(), "skipped", "without a GPU nobody has to ask", LAPTOP),
    ("PRJ005", flagged("--gpus", "all") | TWO_CONTAINERS, "passed", "one of two dev containers asks"),
    ("PRJ006", flagged("--shm-size=8g", **OPTIONAL), "passed", "the runtime is there"),
    ("PRJ006", flagged("--shm-size=8g", **OPTIONAL), "warning", "CDI alone", host(engine__runtimes=())),
    (
        "PRJ006",
        flagged("--shm-size=8g", **OPTIONAL),
        "passed",
        "nothing: the toolkit's checks say so",
        host(engine__runtimes=(), engine__cdi_devices=()),
    ),
    (
        "PRJ006",
        flagged("--shm-size=8g", **OPTIONAL),
        "warning",
        "a runtime of that name with another program",
        host(engine__runtimes=(Runtime("nvidia", "/opt/own-runtime"),)),
    ),
    ("PRJ006", flagged("--init", **OPTIONAL), "error", "Podman", host(engine__kind=EngineKind.PODMAN)),
    ("PRJ006", flagged("--init", **OPTIONAL), "warning", "Docker Desktop", windows_guest()),
    ("PRJ006", flagged("--init", **OPTIONAL), "passed", "neither runtime nor GPU", LAPTOP),
    (
        "PRJ006",
        flagged("--init", **OPTIONAL),
        "error",
        "the runtime without its GPU",
        host(LAPTOP, engine__runtimes=(NVIDIA,)),
    ),
    ("PRJ006", flagged("--init", **REQUIRED), "skipped", "no engine answers", SILENT),
    ("PRJ006", flagged("--init", **REQUIRED), "skipped", "in a container", inside()),
    ("PRJ006", flagged("--init", **REQUIRED), "skipped", "an engine elsewhere", host(engine__endpoint__url="ssh://x")),
    (
        "PRJ007",
        composed(service(request=""), **REQUIRED),
        "warning: the whole reservation | never set",
        "Compose that sends no count",
        host(compose__version=r("2.29.9")),
    ),
    (
        "PRJ007",
        composed(service(request=""), **REQUIRED),
        "note: the whole reservation | never set",
        "Compose that fills it in",
        host(compose__version=r("2.30.0")),
    ),
    ("PRJ007", composed(service(), **REQUIRED), "passed", "a whole reservation needs no hostRequirements"),
    ("PRJ011", flagged("--gpus", "all"), "error", "a flag", LAPTOP),
    ("PRJ011", composed(service()), "error", "a reservation", LAPTOP),
    ("PRJ011", unflagged(**OPTIONAL), "passed", "optional", LAPTOP),
    ("PRJ011", BEHIND_A_VARIABLE, "passed", "a reservation behind a variable", LAPTOP),
    ("PRJ011", flagged("--gpus", "all") | TWO_CONTAINERS, "passed", "one of two may insist", LAPTOP),
    ("PRJ011", {"compose.yaml": service(), "Dockerfile": IMAGE}, "error", "a service that starts at once", LAPTOP),
    ("PRJ011", {"compose.yaml": service("profiles: [gpu]"), "Dockerfile": IMAGE}, "passed", "a profile", LAPTOP),
    ("PRJ011", unflagged(initializeCommand="nvidia-smi"), "error: nvidia-smi", "before the start", LAPTOP),
    ("PRJ011", unflagged(postCreateCommand="nvidia-smi && pip list"), "warning", "after it", LAPTOP),
    ("PRJ011", unflagged(initializeCommand="nvidia-smi || true"), "passed", "forgiven", LAPTOP),
    ("PRJ011", unflagged(initializeCommand=["echo", "nvidia-smi"]), "passed", "only named", LAPTOP),
    ("PRJ011", flagged("--gpus", "all"), "skipped", "a machine with a GPU"),
    ("PRJ011", flagged("--gpus", "all"), "skipped", "a machine that may have one", UNREAD),
    ("PRJ012", BY_KEY, "error: the long form | never remove", "gpus before 2.30", OLD_COMPOSE),
    ("PRJ012", BY_KEY, "passed", "gpus from 2.30", host(compose__version=r("2.30.0"))),
    ("PRJ012", BY_CDI, "error: never set services", "CDI before 2.30", OLD_COMPOSE),
    ("PRJ012", composed(service(request="    devices: [/dev/fuse]\n")), "passed", "a device by its path", OLD_COMPOSE),
    ("PRJ012", BY_KEY, "skipped", "Compose did not answer", NO_COMPOSE),
    ("PRJ012", NOT_REQUESTED, "passed", "nothing is asked for", NO_COMPOSE),
    ("PRJ034", offered(**{"docker/compose.yml": service()}), OFFER.format("docker/compose.yml"), "in docker"),
    (
        "PRJ034",
        offered(
            **{"docker/nvidia/docker-compose.yml": service(), "docker/cpu/docker-compose.yml": service(request="")}
        ),
        OFFER.format("docker/nvidia/docker-compose.yml"),
        "in one of several folders below",
    ),
    ("PRJ034", offered(**{"compose.yaml": service()}), OFFER.format("compose.yaml"), "in the folder itself"),
    (
        "PRJ034",
        offered(**{"compose.yaml": service(request=""), "compose.gpu.yaml": service()}),
        OFFER.format("compose.gpu.yaml"),
        "beside the one that starts by itself",
    ),
    ("PRJ034", offered(**{"compose.yaml": service() + SECOND}), OFFER.format("compose.yaml"), "several in one file"),
    ("PRJ034", offered(**{"docker/compose.yml": service(request="")}), "passed", "no GPU"),
    ("PRJ034", offered(**{"docker/compose.yml": "services: [", "x/compose.yml": service()}), "passed", "broken"),
    ("PRJ034", offered(**{"docker/compose.yml": service()}) | flagged(), "passed", "a dev container"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_request(tmp_path, code):
    assert list_wrong_projects(tmp_path, code, CASES) == []


def test_the_repair_joins_the_item_and_touches_no_other(tmp_path):
    finding = find_only("PRJ002", on(tmp_path, flagged("--gpus all", "-e", "HF_TOKEN=something")))
    assert finding.fix.repairs == (Repair(RepairKind.SET, DEV, ("runArgs", "0"), '"--gpus=all"'),)
    assert (finding.location.path, finding.location.line, finding.subject) == (DEV, 6, f"{DEV}:6")


def test_no_repair_would_write_a_blanked_value(tmp_path):
    finding = find_only("PRJ002", on(tmp_path, flagged("-e HF_TOKEN=something")))
    assert finding.fix.repairs == ()
    assert "something" not in repr(finding)


def test_a_project_with_services_needs_compose(tmp_path):
    broken = ProgramFailure(
        "/usr/libexec/docker/cli-plugins/docker-compose", ("Exec format error",), "docker-compose", 126
    )
    facts = on(tmp_path, composed(service("image: x")), compose=None, programs=(broken,))
    assert {find_all(code, facts)[0].severity for code in ("ENG005", "CTK018")} == {Severity.ERROR}


def test_a_reservation_behind_a_variable_keeps_its_condition(tmp_path):
    (request,) = on(tmp_path, BEHIND_A_VARIABLE).project.services[0].requests
    assert request.condition == "gpu.${GPU:-cpu}.yml"


def test_a_key_gpus_beside_another_request_is_left_to_the_reader(tmp_path):
    facts = on(tmp_path, composed(service("gpus: all")), OLD_COMPOSE)
    (finding,) = [each for each in find_all("PRJ012", facts) if "gpus" in str(each.evidence)]
    assert finding.fix.repairs == ()


def test_reserved_devices_of_others_are_not_gpus(tmp_path):
    other = "{driver: cdi, device_ids: [vendor.com/nic=0], capabilities: [nic]}"
    text = service(request="").rstrip() + f"\n    deploy: {{resources: {{reservations: {{devices: [{other}]}}}}}}\n"
    assert on(tmp_path, composed(text)).project.services[0].requests == ()


def test_causes_keep_their_consequences_quiet(tmp_path):
    facts = on(tmp_path, flagged("all", "--shm-size=8g"))
    assert find_codes(facts) == ["PRJ002", "PRJ005"]
    assert "PRJ005" not in [shown.check.code for shown in build_full_report(facts).roots]


def test_two_requests_of_one_file_are_the_evidence_of_one_finding(tmp_path):
    finding = find_only("PRJ004", on(tmp_path, composed(service("gpus: all"))))
    assert [line.rpartition(" ")[2] for line in finding.evidence] == ["all", "all"]
