import json

import pytest

from devkit.doctor.model import Found, Passed, Repair, RepairKind, Severity, Skipped
from devkit.facts.model import EngineEnd, EngineFailure, EngineKind, Runtime
from devkit.facts.values import Release, Unknown
from tests.doctor.machines import changed, healthy, inside, r, windows_guest, without_gpu
from tests.doctor.projects import COMPOSE, DEV, IMAGE, compose_dev, dev, files_of, on, service
from tests.doctor.running import build_full_report, find_all, find_codes, find_only, run_check


def flagged(*arguments):
    return files_of(dev=dev(runArgs=[*arguments]), image=IMAGE)


def composed(text, **changes):
    return files_of(dev=compose_dev(**changes), compose=text, image=IMAGE)


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        pytest.param(("--gpus", "all"), Passed, id="flag and value apart"),
        pytest.param(("--gpus=all",), Passed, id="flag and value with an equals sign"),
        pytest.param(("--gpus all",), Found, id="flag and value in one item"),
        pytest.param(("--shm-size 8g",), Found, id="another flag and its value in one item"),
        pytest.param(("all",), Found, id="the value alone"),
        pytest.param(("-e", "NAME=two words"), Passed, id="a value with a space after its flag"),
        pytest.param(("--label=a b",), Passed, id="a value with a space behind the equals sign"),
        pytest.param(("--name", "all"), Passed, id="a value that looks like a GPU request"),
        pytest.param((), Passed, id="no items"),
    ],
)
def test_items_of_run_args_are_words(tmp_path, arguments, verdict):
    assert isinstance(run_check("PRJ002", on(tmp_path, flagged(*arguments))), verdict)


def test_the_repair_splits_the_item_and_keeps_the_others(tmp_path):
    finding = find_only("PRJ002", on(tmp_path, flagged("--gpus all", "--shm-size=8g")))
    assert finding.fix.repairs == (Repair(RepairKind.SET, DEV, ("runArgs",), '["--gpus", "all", "--shm-size=8g"]'),)
    assert (finding.location.path, finding.location.line) == (DEV, 6)
    assert finding.subject == f"{DEV}:6"


def test_no_repair_would_write_a_blanked_value(tmp_path):
    finding = find_only("PRJ002", on(tmp_path, flagged("--gpus all", "-e", "HF_TOKEN=something")))
    assert finding.fix.repairs == ()
    assert "something" not in repr(finding)


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        pytest.param("device=0,1", Found, id="two devices without quotes"),
        pytest.param('"device=0,1"', Passed, id="two devices in quotes"),
        pytest.param("device=0", Passed, id="one device"),
        pytest.param("all", Passed, id="all of them"),
        pytest.param('all,"capabilities=compute,utility"', Passed, id="quoted capabilities"),
    ],
)
def test_lists_of_gpus_are_quoted(tmp_path, value, verdict):
    assert isinstance(run_check("PRJ003", on(tmp_path, flagged("--gpus", value))), verdict)


def test_the_repair_adds_the_inner_quotes(tmp_path):
    (repair,) = find_only("PRJ003", on(tmp_path, flagged("--gpus", "device=0,1"))).fix.repairs
    assert json.loads(repair.value) == ["--gpus", '"device=0,1"']


@pytest.mark.parametrize(
    ("files", "verdict"),
    [
        pytest.param(flagged("--gpus", "all"), Passed, id="one flag"),
        pytest.param(flagged("--gpus", "all", "--gpus=1"), Found, id="two flags"),
        pytest.param(flagged("--gpus", "all", "--runtime=nvidia"), Passed, id="the runtime stands beside a flag"),
        pytest.param(
            flagged("--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"), Passed, id="two CDI devices"
        ),
        pytest.param(
            files_of(dev=dev(hostRequirements={"gpu": True}), image=IMAGE), Found, id="a flag and hostRequirements"
        ),
        pytest.param(
            files_of(dev=dev(hostRequirements={"gpu": False}), image=IMAGE), Passed, id="hostRequirements say no"
        ),
        pytest.param(composed(service()), Passed, id="one reservation"),
        pytest.param(composed(service("gpus: all")), Found, id="a reservation and the key gpus"),
        pytest.param(composed(service(), hostRequirements={"gpu": "optional"}), Found, id="both files ask"),
    ],
)
def test_the_gpu_is_requested_once(tmp_path, files, verdict):
    assert isinstance(run_check("PRJ004", on(tmp_path, files)), verdict)


def test_host_requirements_add_nothing_where_the_tool_sees_no_runtime(tmp_path):
    files = files_of(dev=dev(hostRequirements={"gpu": True}), image=IMAGE)
    assert isinstance(run_check("PRJ004", on(tmp_path, files, engine__runtimes=(Runtime("runc", "runc"),))), Passed)
    assert isinstance(run_check("PRJ004", on(tmp_path, files, engine=Unknown("not asked"))), Passed)


@pytest.mark.parametrize(
    ("files", "verdict"),
    [
        pytest.param(flagged("--gpus", "all"), Passed, id="a flag"),
        pytest.param(flagged("--runtime", "nvidia"), Passed, id="the runtime"),
        pytest.param(flagged("--device=nvidia.com/gpu=all"), Passed, id="a CDI device"),
        pytest.param(flagged("--device=/dev/ttyUSB0"), Found, id="another device"),
        pytest.param(files_of(dev=dev(runArgs=None), image=IMAGE), Found, id="nothing"),
        pytest.param(
            files_of(dev=dev(runArgs=None, hostRequirements={"gpu": "optional"}), image=IMAGE),
            Passed,
            id="hostRequirements",
        ),
        pytest.param(files_of(dev=dev(runArgs=None), image=IMAGE.replace("cu128", "cpu")), Passed, id="torch for CPU"),
        pytest.param(files_of(dev=dev(runArgs=None), image="FROM python:3.12\n"), Passed, id="no torch"),
        pytest.param({DEV: '{"image": "nvcr.io/nvidia/pytorch:25.09-py3"}'}, Found, id="NVIDIA's PyTorch image"),
        pytest.param(
            {DEV: '{"image": "python:3.12"}', "requirements.txt": "vllm==0.11\n"}, Found, id="a requirement file"
        ),
        pytest.param(composed(service(request="")), Found, id="a service without a reservation"),
        pytest.param(composed(service(request="    gpus: all\n")), Passed, id="the key gpus"),
        pytest.param({"Dockerfile": IMAGE}, Passed, id="a Dockerfile that is started by hand"),
    ],
)
def test_gpu_work_asks_for_a_gpu(tmp_path, files, verdict):
    assert isinstance(run_check("PRJ005", on(tmp_path, files)), verdict)


def test_a_reservation_behind_a_variable_is_one(tmp_path):
    files = composed(
        "services:\n  dev:\n    build: .\n    extends:\n      file: gpu.${GPU:-cpu}.yml\n      service: gpu\n"
    )
    files |= {".devcontainer/gpu.cpu.yml": "services:\n  gpu: {}\n"}
    files |= {".devcontainer/gpu.nvidia.yml": "services:\n  gpu:\n    gpus: all\n"}
    facts = on(tmp_path, files)
    (request,) = facts.project.services[0].requests
    assert request.condition == "${GPU:-cpu}"
    assert isinstance(run_check("PRJ005", facts), Passed)
    assert isinstance(run_check("PRJ011", on(tmp_path, files, without_gpu())), Passed)


def test_without_a_gpu_nobody_has_to_ask(tmp_path):
    files = files_of(dev=dev(runArgs=None), image=IMAGE)
    assert isinstance(run_check("PRJ005", on(tmp_path, files, without_gpu())), Skipped)


@pytest.mark.parametrize(
    ("machine", "changes", "severity"),
    [
        pytest.param(healthy(), {}, None, id="the runtime is there"),
        pytest.param(healthy(), {"engine__runtimes": ()}, Severity.WARNING, id="CDI alone"),
        pytest.param(
            healthy(),
            {"engine__runtimes": (), "engine__cdi_devices": ()},
            None,
            id="nothing: the toolkit's checks say so",
        ),
        pytest.param(
            healthy(),
            {"engine__runtimes": (Runtime("nvidia", "/opt/own-runtime"),)},
            Severity.WARNING,
            id="a runtime of that name with another program",
        ),
        pytest.param(healthy(), {"engine__kind": EngineKind.PODMAN}, Severity.ERROR, id="Podman"),
        pytest.param(windows_guest(), {}, Severity.WARNING, id="Docker Desktop"),
        pytest.param(without_gpu(), {}, None, id="neither runtime nor GPU"),
        pytest.param(
            without_gpu(),
            {"engine__runtimes": (Runtime("nvidia", "/usr/bin/nvidia-container-runtime"),)},
            Severity.ERROR,
            id="the runtime without its GPU",
        ),
    ],
)
def test_the_tool_sees_what_the_engine_can_do(tmp_path, machine, changes, severity):
    files = files_of(dev=dev(runArgs=["--shm-size=8g"], hostRequirements={"gpu": "optional"}), image=IMAGE)
    verdict = run_check("PRJ006", on(tmp_path, files, machine, **changes))
    assert [finding.severity for finding in getattr(verdict, "findings", ())] == ([severity] if severity else [])


def test_without_an_engine_the_tool_cannot_be_judged(tmp_path):
    files = files_of(dev=dev(hostRequirements={"gpu": True}), image=IMAGE)
    silent = EngineFailure(EngineEnd.NOT_RUNNING, healthy().engine.endpoint, "")
    assert isinstance(run_check("PRJ006", on(tmp_path, files, engine=silent)), Skipped)
    assert isinstance(run_check("PRJ006", on(tmp_path, files, inside())), Skipped)
    far = changed(healthy(), {"engine.endpoint.url": "ssh://host"})
    assert isinstance(run_check("PRJ006", on(tmp_path, files, far)), Skipped)


@pytest.mark.parametrize(
    ("compose", "severity"),
    [
        pytest.param(r("2.29.9"), Severity.WARNING, id="Compose that sends no count"),
        pytest.param(r("2.30.0"), Severity.NOTE, id="Compose that fills it in"),
    ],
)
def test_compose_asks_itself(tmp_path, compose, severity):
    files = composed(service(request=""), hostRequirements={"gpu": True})
    finding = find_only("PRJ007", on(tmp_path, files, compose__version=compose))
    assert finding.severity is severity
    assert finding.fix.repairs[0].path == COMPOSE
    assert finding.fix.repairs[0].key == ("services", "dev", "deploy", "resources", "reservations", "devices")


def test_a_whole_reservation_needs_no_host_requirements(tmp_path):
    assert isinstance(run_check("PRJ007", on(tmp_path, composed(service(), hostRequirements={"gpu": True}))), Passed)


@pytest.mark.parametrize(
    ("files", "verdict"),
    [
        pytest.param(flagged("--gpus", "all"), Found, id="a flag"),
        pytest.param(composed(service()), Found, id="a reservation"),
        pytest.param(
            files_of(dev=dev(runArgs=None, hostRequirements={"gpu": "optional"}), image=IMAGE), Passed, id="optional"
        ),
    ],
)
def test_files_insist_on_no_gpu_where_there_is_none(tmp_path, files, verdict):
    assert isinstance(run_check("PRJ011", on(tmp_path, files, without_gpu())), verdict)
    assert isinstance(run_check("PRJ011", on(tmp_path, files)), Skipped)
    assert isinstance(run_check("PRJ011", on(tmp_path, files, driver=Unknown("x"), nvml=Unknown("x"))), Skipped)


@pytest.mark.parametrize(
    ("request_text", "compose", "verdict"),
    [
        pytest.param("    gpus: all\n", r("2.29.7"), Found, id="gpus before 2.30"),
        pytest.param("    gpus: all\n", r("2.30.0"), Passed, id="gpus from 2.30"),
        pytest.param("    devices: [nvidia.com/gpu=all]\n", r("2.29.7"), Found, id="CDI before 2.30"),
        pytest.param("    devices: [/dev/fuse]\n", r("2.29.7"), Passed, id="a device by its path"),
        pytest.param("    gpus: all\n", Unknown("no answer"), Skipped, id="Compose did not answer"),
        pytest.param("", Unknown("no answer"), Passed, id="nothing is asked for"),
    ],
)
def test_compose_knows_the_form(tmp_path, request_text, compose, verdict):
    machine = changed(healthy(), {"compose.version": compose} if isinstance(compose, Release) else {"compose": compose})
    assert isinstance(run_check("PRJ012", on(tmp_path, composed(service(request=request_text)), machine)), verdict)


@pytest.mark.parametrize(
    ("request_text", "kinds"),
    [
        pytest.param("    gpus: all\n", ["set", "remove"], id="all GPUs"),
        pytest.param("    gpus: [{count: 2}]\n", [], id="some of them"),
        pytest.param("    devices: [nvidia.com/gpu=all]\n", [], id="CDI"),
    ],
)
def test_the_key_gpus_becomes_a_reservation_for_an_older_compose(tmp_path, request_text, kinds):
    machine = changed(healthy(), {"compose.version": r("2.29.7")})
    finding = find_only("PRJ012", on(tmp_path, composed(service(request=request_text)), machine))
    assert [repair.kind.value for repair in finding.fix.repairs] == kinds
    assert [repair.key for repair in finding.fix.repairs][1:] == [("services", "dev", "gpus")] * (len(kinds) // 2)


def test_a_key_gpus_beside_another_request_is_left_to_the_reader(tmp_path):
    machine = changed(healthy(), {"compose.version": r("2.29.7")})
    facts = on(tmp_path, composed(service("gpus: all")), machine)
    (finding,) = [each for each in find_all("PRJ012", facts) if "gpus" in str(each.evidence)]
    assert finding.fix.repairs == ()


def test_devices_under_limits_are_misplaced(tmp_path):
    text = service().replace("reservations", "limits")
    finding = find_only("PRJ012", on(tmp_path, composed(text)))
    assert finding.subject == f"{COMPOSE}:8"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param(("count: all", 'count: 1\n              device_ids: ["0"]'), "exclude", id="count and device_ids"),
        pytest.param(("              capabilities: [gpu]\n", ""), "no capabilities", id="no capabilities"),
    ],
)
def test_a_reservation_is_whole(tmp_path, changes, said):
    facts = on(tmp_path, composed(service().replace(*changes)))
    finding = find_only("PRJ013", facts)
    assert said in finding.message
    assert finding.fix.repairs[0].key[:7] == ("services", "dev", "deploy", "resources", "reservations", "devices", "0")
    assert isinstance(run_check("PRJ013", on(tmp_path, composed(service()))), Passed)


def test_reserved_devices_of_others_are_not_gpus(tmp_path):
    text = service(request="").rstrip() + (
        "\n    deploy: {resources: {reservations: {devices: [{driver: cdi, device_ids: [vendor.com/nic=0], "
        "capabilities: [nic]}]}}}\n"
    )
    assert on(tmp_path, composed(text)).project.services[0].requests == ()


def test_causes_keep_their_consequences_quiet(tmp_path):
    assert find_codes(on(tmp_path, flagged("all", "--shm-size=8g"))) == ["PRJ002", "PRJ005"]
    roots = [shown.check.code for shown in build_full_report(on(tmp_path, flagged("all", "--shm-size=8g"))).roots]
    assert "PRJ005" not in roots


def test_a_second_list_of_the_same_file_is_found_once_each(tmp_path):
    finding = find_only("PRJ004", on(tmp_path, composed(service("gpus: all"))))
    assert len(finding.evidence) == 2
    assert [line.rpartition(" ")[2] for line in finding.evidence] == ["all", "all"]
    assert len(find_all("PRJ004", on(tmp_path, composed(service("gpus: all"))))) == 1


@pytest.mark.parametrize(
    ("stage", "command", "severity"),
    [
        pytest.param("initializeCommand", "nvidia-smi", Severity.ERROR, id="before the start"),
        pytest.param("postCreateCommand", "nvidia-smi && pip list", Severity.WARNING, id="after it"),
        pytest.param("initializeCommand", "nvidia-smi || true", None, id="forgiven"),
        pytest.param("initializeCommand", ["echo", "nvidia-smi"], None, id="only named"),
    ],
)
def test_commands_pass_without_a_gpu(tmp_path, stage, command, severity):
    files = files_of(dev=dev(runArgs=None, **{stage: command}), image=IMAGE)
    verdict = run_check("PRJ011", on(tmp_path, files, without_gpu()))
    assert [finding.severity for finding in getattr(verdict, "findings", ())] == ([severity] if severity else [])


def test_one_of_two_dev_containers_may_insist(tmp_path):
    files = flagged("--gpus", "all")
    files[".devcontainer/cpu/devcontainer.json"] = dev(runArgs=None, build={"dockerfile": "../Dockerfile"})
    assert isinstance(run_check("PRJ011", on(tmp_path, files, without_gpu())), Passed)
    assert isinstance(run_check("PRJ005", on(tmp_path, files)), Passed)


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        pytest.param(("profiles: [gpu]",), Passed, id="behind a profile"),
        pytest.param((), Found, id="started at once"),
    ],
)
def test_a_service_behind_a_profile_may_insist(tmp_path, lines, verdict):
    files = {"compose.yaml": service(*lines), "Dockerfile": IMAGE}
    assert isinstance(run_check("PRJ011", on(tmp_path, files, without_gpu())), verdict)


@pytest.mark.parametrize(
    ("files", "command"),
    [
        pytest.param({"docker/compose.yml": service()}, "--compose docker/compose.yml --service dev", id="in docker"),
        pytest.param(
            {"docker/nvidia/docker-compose.yml": service(), "docker/cpu/docker-compose.yml": service(request="")},
            "--compose docker/nvidia/docker-compose.yml --service dev",
            id="in one of several folders below",
        ),
        pytest.param({"compose.yaml": service()}, "--compose compose.yaml --service dev", id="in the folder itself"),
        pytest.param(
            {"compose.yaml": service(request=""), "compose.gpu.yaml": service()},
            "--compose compose.gpu.yaml --service dev",
            id="beside the one that starts by itself",
        ),
        pytest.param(
            {"compose.yaml": service() + service().partition("\n")[2].replace("dev:", "other:")},
            "--compose compose.yaml --service dev",
            id="several in one file",
        ),
        pytest.param({"docker/compose.yml": service(request="")}, None, id="no GPU"),
        pytest.param(
            {"docker/compose.yml": "services: [", "x/compose.yml": service()}, None, id="broken, and elsewhere"
        ),
        pytest.param(
            {"docker/compose.yml": service(), DEV: dev(), **files_of(image=IMAGE)}, None, id="a dev container"
        ),
    ],
)
def test_a_compose_service_with_a_gpu_is_offered(tmp_path, files, command):
    facts = on(tmp_path, {"requirements.txt": "torch\n", **files})
    if command is None:
        assert isinstance(run_check("PRJ034", facts), Passed)
        assert isinstance(run_check("PRJ001", facts), (Passed, Skipped))
    else:
        finding = find_only("PRJ034", facts)
        assert finding.fix.commands == (f"devkit init {command}",)
        assert finding.severity is Severity.NOTE
