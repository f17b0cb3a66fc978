import pytest

from devkit.doctor.model import Confidence, Found, Passed, Severity, Side, Skipped
from devkit.facts.model import EngineKind, LocalImage, StoppedContainer
from devkit.facts.values import Unknown
from tests.doctor.machines import GIB, changed, container, gpu, healthy, inside, limits, r, without_gpu
from tests.doctor.running import build_full_report, find_all, find_codes, find_only, run_check

MIB = 1 << 20


def with_containers(*containers, **engine):
    changes = {f"engine.{name}": value for name, value in engine.items()}
    return changed(healthy(), {"engine.containers": containers, **changes})


def stopped(**changes):
    values = {
        "id": "7a7a7a7a7a7a",
        "name": "dev",
        "image": "vsc-project-1f2e",
        "folder": "/home/dev/project",
        "gpu_request": "driver",
        "state": "exited",
        "exit_code": 0,
        "out_of_memory": False,
        "error": "",
    }
    return StoppedContainer(**values | changes)


def without_request(**changes):
    return container(**{"gpu_request": "", "visible_devices": "all"} | changes)


def test_a_dev_container_without_request_is_named_with_its_fix():
    finding = find_only("CON006", with_containers(without_request()))
    assert (finding.severity, finding.subject, finding.confidence) == (Severity.ERROR, "dev", Confidence.CERTAIN)
    assert finding.fix.where is Side.PROJECT
    assert '"runArgs": ["--gpus", "all"]' in finding.fix.commands


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({"gpu_request": "driver"}, Passed, id="a device request"),
        pytest.param({"gpu_request": "devices"}, Passed, id="devices by hand"),
        pytest.param({"is_privileged": True}, Passed, id="a privileged container sees every device"),
        pytest.param({"runtime": "nvidia"}, Passed, id="the nvidia runtime is judged by its variables"),
        pytest.param({"folder": "/home/dev/other"}, Skipped, id="another project's container"),
        pytest.param({"folder": "/home/dev/project2"}, Skipped, id="a folder that only begins alike"),
        pytest.param({"folder": "/home/dev"}, Found, id="a folder above the project"),
        pytest.param({"folder": ""}, Skipped, id="no dev container at all"),
    ],
)
def test_whose_container_and_which_request(changes, verdict):
    assert isinstance(run_check("CON006", with_containers(without_request(**changes))), verdict)


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        pytest.param({}, "error", id="the image asks for every GPU"),
        pytest.param({"visible_devices": None}, "error", id="the image needs a CUDA version"),
        pytest.param({"visible_devices": None, "require_cuda": None}, "note", id="nothing speaks of a GPU"),
        pytest.param({"visible_devices": "void", "require_cuda": None}, "note", id="the image wants none"),
    ],
)
def test_a_missing_request_counts_where_a_gpu_was_meant(changes, severity):
    assert find_only("CON006", with_containers(without_request(**changes))).severity.value == severity


def test_a_database_beside_the_dev_container_needs_no_gpu():
    database = container(name="db", gpu_request="", is_dev_container=False, service="db", require_cuda="cuda>=12.8")
    assert isinstance(run_check("CON006", with_containers(container(), database)), Passed)


def test_of_two_services_without_labels_none_is_accused():
    services = [without_request(name=name, is_dev_container=False, service=name) for name in ("dev", "db")]
    assert isinstance(run_check("CON006", with_containers(*services)), Skipped)


def test_podman_is_asked_for_the_gpu_by_cdi_and_judged_with_care():
    finding = find_only("CON006", with_containers(without_request(), kind=EngineKind.PODMAN))
    assert finding.confidence is Confidence.LIKELY
    assert '"runArgs": ["--device", "nvidia.com/gpu=all"]' in finding.fix.commands


def test_a_missing_request_explains_what_is_seen_inside():
    from devkit.doctor.registry import BY_CODE

    assert "CON001" in BY_CODE["CON006"].causes


@pytest.mark.parametrize(
    ("change", "engine", "verdict"),
    [
        pytest.param({"gpu_request": "driver"}, {}, Found, id="by the hook"),
        pytest.param({"gpu_request": "cdi"}, {}, Passed, id="by CDI"),
        pytest.param({"gpu_request": "driver", "gpu_devices": ("/dev/nvidia0", "/dev/nvidiactl")}, {}, Passed,
                     id="by the hook, with devices of its own"),
        pytest.param({"gpu_request": "driver", "gpu_devices": ("/dev/nvidia0",)}, {}, Found,
                     id="by the hook, without the control device"),
        pytest.param({"gpu_request": "driver", "is_privileged": True}, {}, Passed, id="privileged"),
        pytest.param({"gpu_request": "driver"}, {"cgroup_driver": "cgroupfs"}, Passed, id="without systemd"),
        pytest.param({"gpu_request": "driver"}, {"is_rootless": True}, Skipped, id="a rootless engine"),
        pytest.param({"gpu_request": "driver"}, {"kind": EngineKind.PODMAN}, Skipped, id="Podman"),
        pytest.param({"gpu_request": "driver"}, {"version": r("29.1.5")}, Found, id="the last Docker by the hook"),
        pytest.param({"gpu_request": "driver"}, {"version": r("29.2.0")}, Passed, id="the first Docker by CDI"),
        pytest.param({"gpu_request": "driver"}, {"version": r("29.2.0"), "cdi_devices": ()}, Found,
                     id="a Docker that could by CDI, and knows no device"),
        pytest.param({"gpu_request": ""}, {}, Skipped, id="no GPU in any container"),
    ],
)  # fmt: skip
def test_which_containers_lose_their_gpu_when_systemd_reloads(change, engine, verdict):
    assert isinstance(run_check("CON007", with_containers(container(**change), **engine)), verdict)


@pytest.mark.parametrize(
    ("mode", "version", "verdict"),
    [
        pytest.param("legacy", "1.18.2", Found, id="set to legacy"),
        pytest.param("auto", "1.17.8", Found, id="auto before 1.18 is legacy"),
        pytest.param("auto", "1.18.0", Passed, id="auto since 1.18 is CDI"),
        pytest.param("cdi", "1.17.8", Passed, id="set to CDI"),
        pytest.param(Unknown("not readable"), "1.17.8", Passed, id="who knows"),
    ],
)
def test_under_the_nvidia_runtime_its_mode_decides(mode, version, verdict):
    facts = with_containers(container(gpu_request="runtime", runtime="nvidia"))
    assert isinstance(
        run_check("CON007", changed(facts, {"toolkit.mode": mode, "toolkit.version": r(version)})), verdict
    )


def test_only_the_container_that_loses_its_gpu_is_named():
    facts = with_containers(container(name="safe"), container(name="frail", gpu_request="driver"))
    assert find_only("CON007", facts).subject == "frail"


@pytest.mark.parametrize(
    ("requirement", "severity"),
    [
        pytest.param("cuda>=12.8", None, id="met"),
        pytest.param("cuda>=13.0", None, id="met to the version"),
        pytest.param("cuda>=13.2", "warning", id="unmet within the major"),
        pytest.param("cuda>=14.0", "error", id="unmet beyond it"),
        pytest.param(None, None, id="the image asks for nothing"),
        pytest.param(Unknown("no answer"), None, id="who knows"),
    ],
)
def test_the_requirement_of_the_projects_image(requirement, severity):
    verdict = run_check("CON008", changed(healthy(), {"engine.images.0.require_cuda": requirement}))
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


def image(**changes):
    values = {"name": "vsc-project-9:latest", "machine": "amd64", "require_cuda": "cuda>=14.0", "id": "1", "is_dev_container": True}  # fmt: skip  # noqa: E501
    return LocalImage(**values | changes)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({}, Found, id="named after the project by the dev container tool"),
        pytest.param({"name": "project_devcontainer-dev:latest"}, Found, id="named after the project by Compose"),
        pytest.param({"name": "localhost/vsc-project-9:latest"}, Found, id="named so by Podman"),
        pytest.param({"name": "vsc-projection-9:latest"}, Skipped, id="of a project whose name begins alike"),
        pytest.param({"name": "vsc-other-9:latest"}, Skipped, id="of another project"),
        pytest.param({"is_dev_container": False}, Skipped, id="named so by accident"),
    ],
)
def test_only_images_of_the_project_are_judged(changes, verdict):
    facts = changed(healthy(), {"engine.containers": (), "engine.images": (image(**changes),)})
    assert isinstance(run_check("CON008", facts), verdict)


def test_an_image_that_was_refused_before_is_the_cause_of_the_failed_start():
    error = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.2, please update your driver"
    changes = {
        "engine.containers": (),
        "engine.stopped": (stopped(state="created", error=error),),
        "engine.images.0.require_cuda": "cuda>=13.2",
    }
    report = build_full_report(changed(healthy(), changes))
    assert report.root_causes == ("CON008",)
    assert [shown.check.code for shown in report.following("CON008")] == ["CON011"]


@pytest.mark.parametrize(
    ("shm", "ipc", "verdict"),
    [
        pytest.param(64 * MIB, "private", Found, id="the engine's default"),
        pytest.param(GIB - 1, "private", Found, id="one byte short"),
        pytest.param(GIB, "private", Passed, id="exactly enough"),
        pytest.param(64 * MIB, "host", Passed, id="the host's shared memory"),
        pytest.param(0, "host", Passed, id="an engine that says zero for the host's"),
        pytest.param(Unknown("not said"), "private", Passed, id="who knows"),
    ],
)
def test_shared_memory_of_gpu_containers(shm, ipc, verdict):
    assert isinstance(run_check("CON009", with_containers(container(shm_bytes=shm, ipc_mode=ipc))), verdict)


def test_a_container_without_gpu_may_have_little_shared_memory():
    assert isinstance(run_check("CON009", with_containers(container(gpu_request="", shm_bytes=64 * MIB))), Skipped)


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        pytest.param({"gpu_request": "", "runtime": "nvidia", "visible_devices": None}, "error", id="names no GPU"),
        pytest.param({"gpu_request": "", "runtime": "nvidia", "visible_devices": "void"}, None, id="wants none"),
        pytest.param({"gpu_request": "", "runtime": "runc", "visible_devices": None}, None, id="another runtime"),
        pytest.param({"gpu_request": "driver", "driver_capabilities": "utility"}, "error", id="without compute"),
        pytest.param({"gpu_request": "driver", "driver_capabilities": "compute"}, "warning", id="without utility"),
        pytest.param({"gpu_request": "driver", "driver_capabilities": "compute,utility"}, None, id="both"),
        pytest.param({"gpu_request": "driver", "driver_capabilities": "all"}, None, id="all"),
        pytest.param({"gpu_request": "driver", "driver_capabilities": ""}, None, id="empty means both"),
        pytest.param({"gpu_request": "cdi", "driver_capabilities": "utility"}, None, id="CDI reads no variable"),
    ],
)
def test_variables_of_gpu_containers(changes, severity):
    verdict = run_check("CON010", with_containers(container(**changes)))
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


def test_where_nvidia_is_the_default_runtime_a_container_need_not_mean_it():
    plain = container(gpu_request="", runtime="nvidia", visible_devices=None)
    assert isinstance(run_check("CON010", with_containers(plain, default_runtime="nvidia")), Passed)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({}, Passed, id="ended by itself"),
        pytest.param({"exit_code": 137}, Passed, id="stopped by its user"),
        pytest.param({"exit_code": 137, "out_of_memory": True}, Found, id="killed for memory"),
        pytest.param({"error": "no such device"}, Found, id="could not start"),
        pytest.param({"error": "no such device", "folder": "/home/dev/other"}, Skipped, id="of another project"),
    ],
)
def test_how_the_last_dev_container_ended(changes, verdict):
    facts = changed(healthy(), {"engine.containers": (), "engine.stopped": (stopped(**changes),)})
    assert isinstance(run_check("CON011", facts), verdict)


@pytest.mark.parametrize(
    ("services", "running", "subjects"),
    [
        pytest.param([("train", "no such device")], "", ["p-train-1"], id="a service that could not start"),
        pytest.param([("train", "no such device"), ("db", "")], "", ["p-train-1"], id="beside one that ended well"),
        pytest.param([("train", "x"), ("db", "y")], "", ["p-train-1", "p-db-1"], id="two of them"),
        pytest.param([("train", ""), ("train", "old")], "", [], id="an older container of a service that ended well"),
        pytest.param([("train", "old")], "train", [], id="a service that runs again"),
        pytest.param([("train", "no such device")], "db", ["p-train-1"], id="beside a service that runs"),
    ],
)
def test_how_the_services_of_compose_ended(services, running, subjects):
    ended = tuple(stopped(name=f"p-{name}-1", service=name, error=error) for name, error in services)
    runs = tuple(container(service=name, is_dev_container=False) for name in (running,) if running)
    verdict = run_check("CON011", changed(healthy(), {"engine.containers": runs, "engine.stopped": ended}))
    assert [finding.subject for finding in getattr(verdict, "findings", ())] == subjects


def test_a_container_that_runs_again_is_forgiven():
    facts = changed(healthy(), {"engine.stopped": (stopped(error="no such device"),)})
    assert isinstance(run_check("CON011", facts), Skipped)


def test_a_known_error_of_the_last_start_is_explained():
    error = 'could not select device driver "" with capabilities: [[gpu]]'
    facts = changed(healthy(), {"engine.containers": (), "engine.stopped": (stopped(error=error, state="created"),)})
    finding = find_only("CON011", facts)
    assert error not in finding.message
    assert finding.evidence == (f"State.Error: {error}",)


def test_a_missing_toolkit_is_the_cause_of_a_failed_start():
    changes = {
        "engine.containers": (),
        "engine.stopped": (stopped(error='could not select device driver "" with capabilities: [[gpu]]'),),
        "engine.runtimes": (),
        "engine.cdi_devices": (),
        "engine.hook_on_path": False,
        "toolkit.version": None,
        "toolkit.daemon_files": (),
        "cdi": (),
    }
    assert build_full_report(changed(healthy(), changes)).root_causes == ("CTK001",)


SELINUX = {"engine.has_selinux": True, "limits": limits(selinux="enforcing")}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({}, Found, id="confined"),
        pytest.param({"limits.selinux": "permissive"}, Skipped, id="permissive"),
        pytest.param({"limits.selinux": Unknown("not readable")}, Skipped, id="who knows"),
        pytest.param({"limits.selinux_allows_devices": True}, Passed, id="the policy allows devices"),
        pytest.param({"limits.selinux_allows_devices": Unknown("no such switch")}, Skipped, id="another policy"),
        pytest.param({"engine.has_selinux": False}, Skipped, id="an engine that does not label"),
        pytest.param({"engine.containers.0.security_options": ("label=disable",)}, Passed, id="exempt"),
        pytest.param({"engine.containers.0.security_options": ("label:disable",)}, Passed, id="exempt, as of old"),
        pytest.param({"engine.containers.0.is_privileged": True}, Passed, id="privileged"),
        pytest.param({"engine.containers.0.gpu_request": ""}, Passed, id="no GPU container"),
    ],
)
def test_selinux(changes, verdict):
    assert isinstance(run_check("CON012", changed(healthy(), SELINUX | changes)), verdict)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({}, Passed, id="writable"),
        pytest.param({"storage.directories.1.is_writable": False}, Found, id="not writable"),
        pytest.param(
            {"storage.directories.1.is_writable": False, "storage.directories.1.exists": False}, Skipped, id="no folder"
        ),
        pytest.param(
            {"storage.directories.1.is_writable": False, "storage.directories.1.path": "/"}, Skipped, id="the root"
        ),
        pytest.param({"storage": Unknown("no answer")}, Skipped, id="who knows"),
    ],
)
def test_the_workspace_inside(changes, verdict):
    assert isinstance(run_check("CON013", changed(inside(), changes)), verdict)


def test_a_workspace_that_root_took_is_given_back_on_the_host():
    changes = {"storage.directories.1.is_writable": False, "storage.directories.1.owner_uid": 0}
    fix = find_only("CON013", changed(inside(), changes)).fix
    assert (fix.where, fix.commands) == (Side.HOST, ("sudo chown -R 1000 .",))


def test_the_workspace_of_a_host_is_not_judged_here():
    assert isinstance(run_check("CON013", changed(healthy(), {"storage.directories.1.is_writable": False})), Skipped)


def test_a_group_without_a_name_is_only_noted():
    facts = changed(inside(), {"container.nameless_groups": (993,)})
    assert find_only("CON014", facts).severity is Severity.NOTE
    assert find_codes(facts) == []


@pytest.mark.parametrize("code", ["CON006", "CON007", "CON008", "CON009", "CON010", "CON011", "CON012"])
@pytest.mark.parametrize("facts", [without_gpu(), inside()], ids=["without a GPU", "inside a container"])
def test_elsewhere_nothing_is_said_of_running_containers(code, facts):
    assert isinstance(run_check(code, facts), Skipped)


@pytest.mark.parametrize("code", ["CON006", "CON007", "CON009", "CON010"])
def test_an_engine_that_does_not_list_is_not_accused(code):
    facts = changed(healthy(), {"engine.containers": Unknown("no answer in time")})
    assert run_check(code, facts) == Skipped("no answer in time")


def test_more_than_one_container_gets_more_than_one_finding():
    both = [container(name=name, shm_bytes=64 * MIB, gpu_request="cdi") for name in ("one", "two")]
    assert [finding.subject for finding in find_all("CON009", with_containers(*both))] == ["one", "two"]


def test_a_gpu_of_another_machine_is_not_asked_for():
    facts = changed(
        with_containers(without_request()), {"nvml.gpus": (gpu(),), "engine.endpoint.url": "tcp://far:2376"}
    )
    assert isinstance(run_check("CON006", facts), Skipped)
