"""Checks inside a container, and of containers that run."""

import pytest

from devkit.doctor.model import Skipped
from devkit.doctor.registry import BY_CODE
from devkit.facts.engine import EngineKind, LocalImage, StoppedContainer
from devkit.facts.gpu import NvmlEnd, NvmlFailure
from devkit.facts.machine import Torch
from devkit.facts.runs import ProgramFailure, Trials
from devkit.facts.values import Unknown
from tests.cases import cases
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import (
    GIB,
    changed,
    container,
    gpu,
    healthy,
    inside,
    limits,
    no_library,
    r,
    windows_guest,
    without_gpu,
)
from tests.doctor.running import build_full_report, find_all, find_codes, run_check

MIB = 1 << 20
WHO_KNOWS = Unknown("no answer")
NOT_GIVEN = {
    "driver.nvidiactl": "absent",
    "driver.device_nodes": (),
    "driver.libnvidia_ml": None,
    "driver.libcuda": None,
    "driver.libcuda_paths": (),
    "container.visible_devices": None,
    "container.driver_capabilities": None,
    "container.libcuda_in_cache": False,
    "nvml": no_library(),
}


def within(**changes):
    """The dev container with fields changed: of the container, or where a name has `__` of another part."""
    named = {name.replace("__", ".") if "__" in name else f"container.{name}": each for name, each in changes.items()}
    return changed(inside(), named)


def not_given(opening="absent", **changes):
    named = {f"container.{name}": value for name, value in changes.items()}
    return changed(inside(), NOT_GIVEN | {"driver.nvidiactl": opening} | named)


def capable(capabilities, **absent):
    return within(driver_capabilities=capabilities, **{f"driver__{name}": value for name, value in absent.items()})


def loader(in_cache, *paths):
    return within(libcuda_in_cache=in_cache, driver__libcuda_paths=paths)


def graphics(*missing, capabilities="compute,utility,graphics"):
    return within(driver_capabilities=capabilities, missing_graphics=missing)


def workspace(facts=None, **changes):
    return changed(facts or inside(), {f"storage.directories.1.{name}": value for name, value in changes.items()})


CLOSED = {"is_writable": False}
NO_DRIVER_PART = ("libEGL_nvidia.so.0", "10_nvidia.json", "nvidia_icd.json")

INSIDE = [
    ("CON001", not_given("absent"), "error: got none | where: project", "never requested"),
    ("CON001", not_given("EPERM"), "error: has lost its GPU | where: host", "dropped by the cgroup"),
    ("CON001", not_given("EACCES"), "error: cannot open | where: host", "refused by mode or SELinux"),
    ("CON001", not_given("EIO"), "error: cannot be opened: EIO | where: host", "anything else"),
    ("CON001", not_given("open"), "error: got none | where: project", "no GPU beside the control node"),
    ("CON001", not_given(visible_devices="all", require_cuda=None), "error: requested | devkit doctor", "requested"),
    (
        "CON001",
        not_given(visible_devices="all", require_cuda="cuda>=12.8"),
        "error: got none | docker run",
        "an image of NVIDIA asks for every GPU",
    ),
    ("CON002", capable("compute,utility"), "passed", "both asked for"),
    ("CON002", capable("all"), "passed", "all asked for"),
    ("CON002", capable("utility", libcuda=None), "error", "compute left out"),
    ("CON002", capable("compute", libnvidia_ml=None), "warning", "utility left out"),
    ("CON002", capable("utility"), "passed", "compute left out but there, as with CDI"),
    ("CON002", capable(None), "skipped", "unset means both"),
    ("CON003", within(shm_bytes=64 * MIB), "warning: 64", "Docker's default"),
    ("CON003", within(shm_bytes=GIB - 1), "warning", "one byte short"),
    ("CON003", within(shm_bytes=GIB), "passed", "exactly enough"),
    ("CON003", within(shm_bytes=WHO_KNOWS), "skipped", "not mounted"),
    ("CON004", within(), "passed", "a compiler and headers"),
    ("CON004", within(c_compiler=""), "warning: build-essential | where: image", "no compiler"),
    ("CON004", within(python_headers=False), "warning: python3-dev | where: image", "no headers"),
    (
        "CON004",
        within(c_compiler="", python_headers=False),
        "warning warning: build-essential | python3-dev",
        "neither",
    ),
    ("CON005", loader(True, "/usr/lib/libcuda.so.1"), "passed", "both names known"),
    ("CON005", loader(False, "/usr/lib/libcuda.so.1"), "note", "only the versioned name"),
    ("CON005", loader(False), "warning", "neither name"),
    ("CON005", loader(WHO_KNOWS), "passed", "no cache to read"),
    ("CON013", workspace(), "passed", "a writable workspace"),
    ("CON013", workspace(**CLOSED), "error", "not writable"),
    ("CON013", workspace(**CLOSED, owner_uid=0), "error: sudo chown -R 1000 . | where: host", "root took it"),
    ("CON013", workspace(**CLOSED, exists=False), "skipped", "no folder"),
    ("CON013", workspace(**CLOSED, path="/"), "skipped", "the root"),
    ("CON013", changed(inside(), {"storage": WHO_KNOWS}), "skipped", "folders that were not read"),
    ("CON013", workspace(healthy(), **CLOSED), "skipped", "a host's workspace is judged there"),
    ("CON014", within(nameless_groups=(993,)), "note: 993", "a group without a name"),
    ("CON015", graphics(), "passed", "complete"),
    ("CON015", graphics(*NO_DRIVER_PART), "warning: the driver's libEGL_nvidia | where: host", "a driver without"),
    (
        "CON015",
        graphics("libvulkan.so.1"),
        "warning: the loader libvulkan.so.1 is missing | where: image",
        "no Vulkan loader",
    ),
    (
        "CON015",
        graphics("nvidia_icd.json"),
        "warning: nvidia_icd.json, which the loaders need to find the driver, is missing | where: host",
        "no ICD file",
    ),
    ("CON015", graphics("libvulkan.so.1", capabilities="all"), "skipped", "graphics that nobody asked for by name"),
]


def running(*containers, **engine):
    return changed(healthy(), {"engine.containers": containers, **{f"engine.{key}": engine[key] for key in engine}})


def without_request(**changes):
    return container(**{"gpu_request": "", "visible_devices": "all"} | changes)


def unrequested(**changes):
    return running(without_request(**changes))


def hooked(change=None, **engine):
    """A container that has its GPU by NVIDIA's hook."""
    return running(container(**{"gpu_request": "driver"} | (change or {})), **engine)


def by_runtime(mode, version):
    facts = running(container(gpu_request="runtime", runtime="nvidia"))
    return changed(facts, {"toolkit.mode": mode, "toolkit.version": r(version)})


def requiring(requirement):
    return changed(healthy(), {"engine.images.0.require_cuda": requirement})


def image(**changes):
    values = {"name": "vsc-project-9:latest", "machine": "amd64", "require_cuda": "cuda>=14.0", "id": "1"}
    own = LocalImage(**values | {"is_dev_container": True} | changes)
    return changed(healthy(), {"engine.containers": (), "engine.images": (own,)})


def sized(shm, ipc="private", **changes):
    return running(container(shm_bytes=shm, ipc_mode=ipc, **changes))


def speaking(**changes):
    """A container with these variables and request."""
    return running(container(**changes))


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


def ended(*containers, running=(), **changes):
    return changed(healthy(), {"engine.containers": running, "engine.stopped": containers, **changes})


def failed(*settings):
    """The words of the container."""
    failure = ProgramFailure("the container dev", ("no module a",), "docker logs --tail 50 dev", settings=settings)
    return {"trials": Trials((), (), ended=(failure,))}


def service(name, error=""):
    return stopped(name=f"p-{name}-1", service=name, error=error)


def of_compose(name):
    return (container(service=name, is_dev_container=False),)


def labeled(**changes):
    """The container with its GPU under SELinux."""
    selinux = {"engine.has_selinux": True, "limits": limits(selinux="enforcing")}
    return changed(healthy(), selinux | {path.replace("__", "."): value for path, value in changes.items()})


DATABASE = container(name="db", gpu_request="", is_dev_container=False, service="db", require_cuda="cuda>=12.8")
TWO_SERVICES = [without_request(name=name, is_dev_container=False, service=name) for name in ("dev", "db")]
NO_DEVICE = 'could not select device driver "" with capabilities: [[gpu]]'
NVIDIA = {"gpu_request": "", "runtime": "nvidia", "visible_devices": None}
FAR = changed(unrequested(), {"nvml.gpus": (gpu(),), "engine.endpoint.url": "tcp://far:2376"})
BOTH_NODES = ("/dev/nvidia0", "/dev/nvidiactl")
PODMAN_REQUEST = '"runArgs": ["--device", "nvidia.com/gpu=all"]'
OF_RUNNING = ("CON006", "CON007", "CON008", "CON009", "CON010", "CON011", "CON012")

OUTSIDE = [
    (
        "CON006",
        unrequested(),
        'error: dev | confidence: certain | where: project | "runArgs": ["--gpus", "all"]',
        "a dev container without request",
    ),
    ("CON006", unrequested(visible_devices=None), "error", "the image needs a CUDA version"),
    ("CON006", unrequested(visible_devices=None, require_cuda=None), "note", "nothing speaks of a GPU"),
    ("CON006", unrequested(visible_devices="void", require_cuda=None), "note", "the image wants none"),
    ("CON006", unrequested(gpu_request="driver"), "passed", "a device request"),
    ("CON006", unrequested(gpu_request="devices"), "passed", "devices by hand"),
    ("CON006", unrequested(is_privileged=True), "passed", "a privileged container sees every device"),
    ("CON006", unrequested(runtime="nvidia"), "passed", "the nvidia runtime is judged by its variables"),
    ("CON006", unrequested(folder="/home/dev/other"), "skipped", "another project's container"),
    ("CON006", unrequested(folder="/home/dev/project2"), "skipped", "a folder that only begins alike"),
    ("CON006", unrequested(folder="/home/dev"), "error", "a folder above the project"),
    ("CON006", unrequested(folder=""), "skipped", "no dev container at all"),
    ("CON006", running(container(), DATABASE), "passed", "a database beside the dev container needs no GPU"),
    ("CON006", running(*TWO_SERVICES), "skipped", "of two services without labels none is accused"),
    ("CON006", running(without_request(), kind=EngineKind.PODMAN), f"error: {PODMAN_REQUEST} | likely", "Podman"),
    ("CON006", FAR, "skipped", "a GPU of another machine is not asked for"),
    ("CON007", hooked(), "warning: dev", "by the hook"),
    ("CON007", running(container(name="safe"), container(name="frail", gpu_request="driver")), "warning: frail", "two"),
    ("CON007", hooked({"gpu_request": "cdi"}), "passed", "by CDI"),
    ("CON007", hooked({"gpu_devices": BOTH_NODES}), "passed", "by the hook, with devices of its own"),
    ("CON007", hooked({"gpu_devices": BOTH_NODES[:1]}), "warning", "by the hook, without the control device"),
    ("CON007", hooked({"is_privileged": True}), "passed", "privileged"),
    ("CON007", hooked(cgroup_driver="cgroupfs"), "passed", "without systemd"),
    ("CON007", hooked(is_rootless=True), "skipped", "a rootless engine"),
    ("CON007", hooked(kind=EngineKind.PODMAN), "skipped", "Podman"),
    ("CON007", hooked(version=r("29.1.5")), "warning", "the last Docker by the hook"),
    ("CON007", hooked(version=r("29.2.0")), "passed", "the first Docker by CDI"),
    ("CON007", hooked(version=r("29.2.0"), cdi_devices=()), "warning", "a Docker that could by CDI, and knows none"),
    ("CON007", hooked({"gpu_request": ""}), "skipped", "no GPU in any container"),
    ("CON007", by_runtime("legacy", "1.18.2"), "warning", "the mode is legacy"),
    ("CON007", by_runtime("auto", "1.17.8"), "warning", "auto before 1.18 is legacy"),
    ("CON007", by_runtime("auto", "1.18.0"), "passed", "auto since 1.18 is CDI"),
    ("CON007", by_runtime("cdi", "1.17.8"), "passed", "the mode is CDI"),
    ("CON007", by_runtime(WHO_KNOWS, "1.17.8"), "passed", "the mode is not known"),
    ("CON008", requiring("cuda>=12.8"), "passed", "met"),
    ("CON008", requiring("cuda>=13.0"), "passed", "met to the version"),
    ("CON008", requiring("cuda>=13.2"), "warning: 13.2", "unmet within the major"),
    ("CON008", requiring("cuda>=14.0"), "error: 14.0", "unmet beyond it"),
    ("CON008", requiring(None), "passed", "the image asks for nothing"),
    ("CON008", requiring(WHO_KNOWS), "passed", "who knows"),
    ("CON008", image(), "error", "named after the project by the dev container tool"),
    ("CON008", image(name="project_devcontainer-dev:latest"), "error", "named after the project by Compose"),
    ("CON008", image(name="localhost/vsc-project-9:latest"), "error", "named so by Podman"),
    ("CON008", image(name="vsc-projection-9:latest"), "skipped", "of a project whose name begins alike"),
    ("CON008", image(name="vsc-other-9:latest"), "skipped", "of another project"),
    ("CON008", image(is_dev_container=False), "skipped", "named so by accident"),
    ("CON009", sized(64 * MIB), "warning: dev", "the engine's default"),
    ("CON009", sized(GIB - 1), "warning", "one byte short"),
    ("CON009", sized(GIB), "passed", "exactly enough"),
    ("CON009", sized(64 * MIB, "host"), "passed", "the host's shared memory"),
    ("CON009", sized(0, "host"), "passed", "an engine that says zero for the host's"),
    ("CON009", sized(WHO_KNOWS), "passed", "who knows"),
    ("CON009", sized(64 * MIB, gpu_request=""), "skipped", "a container without a GPU may have little"),
    ("CON010", speaking(**NVIDIA), "error", "names no GPU"),
    ("CON010", speaking(**NVIDIA | {"visible_devices": "void"}), "passed", "wants none"),
    ("CON010", speaking(**NVIDIA | {"runtime": "runc"}), "passed", "a different runtime"),
    ("CON010", speaking(gpu_request="driver", driver_capabilities="utility"), "error: compute", "without compute"),
    ("CON010", speaking(gpu_request="driver", driver_capabilities="compute"), "warning: utility", "without utility"),
    ("CON010", speaking(gpu_request="driver", driver_capabilities="compute,utility"), "passed", "both"),
    ("CON010", speaking(gpu_request="driver", driver_capabilities="all"), "passed", "all"),
    ("CON010", speaking(gpu_request="driver", driver_capabilities=""), "passed", "empty means both"),
    ("CON010", speaking(gpu_request="cdi", driver_capabilities="utility"), "passed", "CDI reads no variable"),
    ("CON010", running(container(**NVIDIA), default_runtime="nvidia"), "passed", "a default need not be meant"),
    ("CON011", ended(stopped()), "passed", "ended on its own"),
    ("CON011", ended(stopped(exit_code=137)), "passed", "stopped by its user"),
    ("CON011", ended(stopped(exit_code=137, out_of_memory=True)), "warning: memory", "killed for memory"),
    ("CON011", ended(stopped(state="restarting", exit_code=1)), "error: exit code 1", "restarts over and over"),
    ("CON011", ended(stopped(error="no such device")), "error: no such device", "could not start"),
    ("CON011", ended(stopped(error=NO_DEVICE)), f"error: State.Error: {NO_DEVICE}", "a known error"),
    ("CON011", ended(stopped(error="x", folder="/home/dev/other")), "skipped", "of another project"),
    ("CON011", ended(stopped(error="x"), running=(container(),)), "skipped", "a container that runs again"),
    ("CON011", ended(service("train", "x")), "error: p-train-1", "a service that could not start"),
    ("CON011", ended(service("train", "x"), service("db")), "error: p-train-1", "beside one that ended well"),
    ("CON011", ended(service("train", "x"), service("db", "y")), "error error: p-train-1 | p-db-1", "two of them"),
    ("CON011", ended(service("train"), service("train", "old")), "passed", "an older container of a service"),
    ("CON011", ended(service("train", "old"), running=of_compose("train")), "skipped", "a service that runs again"),
    ("CON011", ended(service("train", "x"), running=of_compose("db")), "error: p-train-1", "beside one that runs"),
    ("CON011", ended(stopped(exit_code=1), **failed()), "warning: dev fails: no module a", "its own words"),
    (
        "CON011",
        ended(stopped(exit_code=1), **failed("command in c.yaml:3 (no shell: write text)")),
        "error: no shell (command in c.yaml:3)",
        "a line to correct",
    ),
    ("CON011", ended(stopped(exit_code=1), running=(container(),), **failed()), "skipped", "a failed one runs again"),
    ("CON012", labeled(), "warning", "confined"),
    ("CON012", labeled(limits__selinux="permissive"), "skipped", "permissive"),
    ("CON012", labeled(limits__selinux=WHO_KNOWS), "skipped", "who knows"),
    ("CON012", labeled(limits__selinux_allows_devices=True), "passed", "the policy allows devices"),
    ("CON012", labeled(limits__selinux_allows_devices=WHO_KNOWS), "skipped", "another policy"),
    ("CON012", labeled(engine__has_selinux=False), "skipped", "an engine that does not label"),
    ("CON012", labeled(engine__containers__0__security_options=("label=disable",)), "passed", "exempt"),
    ("CON012", labeled(engine__containers__0__security_options=("label:disable",)), "passed", "exempt, as of old"),
    ("CON012", labeled(engine__containers__0__is_privileged=True), "passed", "privileged"),
    ("CON012", labeled(engine__containers__0__gpu_request=""), "passed", "no GPU container"),
    *((code, without_gpu(), "skipped", "without a GPU") for code in OF_RUNNING),
    *((code, inside(), "skipped", "seen from inside a container") for code in OF_RUNNING),
]
CASES = [*INSIDE, *OUTSIDE]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_container(code):
    assert list_wrong(code, CASES) == []


@pytest.mark.parametrize("code", ["CON006", "CON007", "CON009", "CON010"])
def test_an_engine_that_does_not_list_is_not_accused(code):
    facts = changed(healthy(), {"engine.containers": Unknown("no answer in time")})
    assert run_check(code, facts) == Skipped("no answer in time")


def test_more_than_one_container_gets_more_than_one_finding():
    both = [container(name=name, shm_bytes=64 * MIB, gpu_request="cdi") for name in ("one", "two")]
    assert [finding.subject for finding in find_all("CON009", running(*both))] == ["one", "two"]


LOST = NvmlFailure(NvmlEnd.ERROR, 999, "Unknown Error", "nvmlInit_v2")
NO_TOOLKIT = {
    "engine.runtimes": (),
    "engine.cdi_devices": (),
    "engine.hook_on_path": False,
    "toolkit.version": None,
    "toolkit.daemon_files": (),
    "cdi": (),
}
REFUSED = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.2, please update your driver"


@cases(
    "facts, root, others",
    {
        "a container without a GPU": (
            changed(not_given(), {"python.torch": Torch("2.9.1+cpu", None, None), "python.cuda_visible_devices": "0"}),
            "CON001",
            ["DRV003", "CON005", "PYT001"],
        ),
        "a lost GPU": (changed(inside(), {"driver.nvidiactl": "EPERM", "nvml": LOST}), "CON001", ["DRV003"]),
        "the host has no driver": (
            changed(not_given(), {"driver.loaded": None, "driver.pci_gpus.0.kernel_driver": ""}),
            "DRV001",
            None,
        ),
        "an image that was refused": (
            ended(stopped(state="created", error=REFUSED), **{"engine.images.0.require_cuda": "cuda>=13.2"}),
            "CON008",
            ["CON011"],
        ),
        "no toolkit": (ended(stopped(error=NO_DEVICE), **NO_TOOLKIT), "CTK001", None),
    },
)
def test_what_is_seen_in_a_container_follows_from_its_cause(facts, root, others):
    report = build_full_report(facts)
    assert report.root_causes == (root,)
    assert others is None or {shown.check.code for shown in report.following(root)} == set(others)


def test_a_missing_request_explains_what_is_seen_inside():
    assert "CON001" in BY_CODE["CON006"].causes


def test_files_on_a_windows_drive_are_the_only_fault():
    facts = workspace(windows_guest(), path="/mnt/c/project", file_system="9p")
    assert find_codes(facts) == ["STO003"]
