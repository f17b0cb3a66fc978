"""Checks of the NVIDIA Container Toolkit's settings and releases, and of CDI specifications."""

import pytest

from devkit.doctor.checks.cdi import has_cdi_gpus
from devkit.doctor.model import NotApplicable, Skipped
from devkit.facts.engine import UNREADABLE_SPEC, EngineKind
from devkit.facts.machine import Tegra
from devkit.facts.values import Unknown
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import changed, gpu, healthy, inside, r, spec, windows_guest
from tests.doctor.running import build_full_report, find_only, run_check

WHO_KNOWS = Unknown("not readable")
NOT_LISTED = Unknown("not listed")
PODMAN = {
    "engine.kind": EngineKind.PODMAN,
    "engine.version": r("5.6.2"),
    "engine.runtimes": (),
    "engine.cdi_devices": NOT_LISTED,
}
ROOTLESS = {"engine.is_rootless": True, "toolkit.no_cgroups": True, "engine.cdi_devices": (), "cdi": ()}
BY_NO_CDI = {"cdi": (), "engine.cdi_devices": ()}
MAXWELL = {"nvml.gpus": (gpu(0, "GeForce GTX 970", "5.2"),)}
TWO_GPUS = {"nvml.gpus": (gpu(0), gpu(1))}
HOOK = "engine.hook_on_path"
JETSON = {"engine.cdi_devices": (), "system.tegra": Tegra("NVIDIA Jetson Orin Nano", r("36.4.7"))}


def toolkit(changes=None, **fields):
    return changed(healthy(), {f"toolkit.{name}": value for name, value in fields.items()} | (changes or {}))


def release(version, changes=None):
    return toolkit(changes, version=r(version))


def runc(version, changes=None):
    """An engine with this runc on a machine without links in /dev/char."""
    version = r(version) if isinstance(version, str) else version
    return changed(healthy(), {"toolkit.char_links": False, "engine.runc": version} | (changes or {}))


def missing(*paths, changes=None):
    return changed(healthy(), {"cdi.0.missing_paths": paths} | (changes or {}))


def described(changes=None, **fields):
    return changed(healthy(), {f"cdi.0.{name}": value for name, value in fields.items()} | (changes or {}))


def lying(path, *folders, devices=()):
    return described({"engine.cdi_spec_dirs": folders, "engine.cdi_devices": devices}, path=path)


NO_LDCONFIG = Unknown("no ldconfig in /sbin")
SPEC = "/etc/cdi/nvidia.yaml"
MANY = tuple(f"/usr/lib/libnvidia-{number}.so.1" for number in range(30))
ELSEWHERE = {"Docker Desktop": windows_guest(), "inside a container": inside()}

CASES = [
    ("CTK008", toolkit(config_error=""), "passed", "valid or absent"),
    ("CTK008", toolkit(config_error="config.toml is not valid TOML: line 2"), "error: line 2", "broken"),
    ("CTK008", toolkit(config_error=WHO_KNOWS), "skipped", "not readable"),
    ("CTK009", toolkit(ldconfig_exists=True), "passed", "there"),
    ("CTK009", toolkit(ldconfig_exists=False), "error: ldconfig=@/sbin/ldconfig.real", "as Ubuntu names it"),
    (
        "CTK009",
        toolkit(ldconfig_exists=False, default_ldconfig="/sbin/ldconfig"),
        "error: ldconfig=@/sbin/ldconfig | never ldconfig=@/sbin/ldconfig.real",
        "as Debian and Fedora name it",
    ),
    ("CTK009", toolkit(ldconfig_exists=False, default_ldconfig=NO_LDCONFIG), "error: never ldconfig=@", "none at all"),
    ("CTK009", toolkit(ldconfig_exists=Unknown("names none of the host")), "skipped", "none named"),
    ("CTK010", healthy(), "passed", "auto"),
    ("CTK010", toolkit(mode="legacy"), "passed", "legacy"),
    ("CTK010", toolkit(mode="cdi"), "warning: `runtime: nvidia` or `--device nvidia.com/gpu=all`", "cdi"),
    ("CTK010", toolkit(mode="csv"), "warning: request the GPU through `--device nvidia.com/gpu=all`", "csv"),
    ("CTK010", toolkit(BY_NO_CDI, mode="csv"), "error: Set the mode back to auto.", "csv, and no other way"),
    ("CTK010", toolkit(JETSON, mode="csv"), "note: --runtime nvidia | never sudo", "csv is right on a Jetson"),
    ("CTK010", toolkit({HOOK: False}, mode="cdi"), "passed", "cdi without the hook"),
    ("CTK010", toolkit({HOOK: WHO_KNOWS}, mode="cdi"), "skipped", "hook unknown"),
    ("CTK010", toolkit({"engine.version": r("29.2.0")}, mode="cdi"), "passed", "cdi, and Docker asks by CDI"),
    ("CTK010", toolkit(PODMAN, mode="cdi"), "skipped", "Podman calls no hook"),
    ("CTK010", toolkit(mode=WHO_KNOWS), "skipped", "mode unknown"),
    ("CTK011", release("1.18.2"), "passed", "no known fault"),
    ("CTK011", release("1.7.0"), "error: 1.7.0", "before control groups of version 2"),
    ("CTK011", release("1.8.0"), "passed", "with them"),
    ("CTK011", release("1.7.0", {"engine.cgroup_version": "1"}), "passed", "before them, where they are not"),
    ("CTK011", release("1.14.0", ROOTLESS), "error: 1.14.0", "1.14.0 reads no settings"),
    ("CTK011", release("1.14.1", ROOTLESS), "passed", "1.14.1 does"),
    ("CTK011", release("1.14.0"), "passed", "1.14.0 under root"),
    ("CTK011", release("1.18.0", ROOTLESS), "warning: confidence: possible", "1.18.0 under a rootless engine"),
    ("CTK011", release("1.18.1", ROOTLESS), "passed", "1.18.1 under a rootless engine"),
    (
        "CTK011",
        release("1.18.0", ROOTLESS | {"engine.cdi_devices": ("nvidia.com/gpu=0",)}),
        "passed",
        "1.18.0 with CDI",
    ),
    ("CTK011", release("1.19.1", MAXWELL), "warning", "1.19.1 on Maxwell"),
    ("CTK011", release("1.19.1"), "passed", "1.19.1 on another GPU"),
    ("CTK011", release("1.19.0", MAXWELL), "passed", "1.19.0 on Maxwell"),
    ("CTK012", runc("1.1.2"), "passed", "before the fault"),
    ("CTK012", runc("1.1.3"), "warning: 1.1.3", "the first with it"),
    ("CTK012", runc("1.1.6"), "warning", "the last with it"),
    ("CTK012", runc("1.1.7"), "passed", "after it"),
    ("CTK012", runc("1.1.5", {"toolkit.char_links": True}), "passed", "with the links"),
    ("CTK012", runc("1.1.5", {"toolkit.char_links": WHO_KNOWS}), "skipped", "links unknown"),
    ("CTK012", runc("1.1.5", {"engine.cgroup_driver": "cgroupfs"}), "skipped", "without systemd"),
    *(
        (code, facts, "skipped", name)
        for code in ("CTK008", "CTK009", "CTK010", "CTK011", "CTK012")
        for name, facts in ELSEWHERE.items()
    ),
    ("CDI004", missing("/dev/dri/renderD129", changes=PODMAN), "error", "gone, and CDI is all"),
    ("CDI004", described(missing_paths=WHO_KNOWS), "passed", "who knows"),
    ("CDI004", missing(*MANY), "warning: and 26 more", "many are counted rather than listed"),
    ("CDI005", described(TWO_GPUS), "warning: 2", "one of two"),
    ("CDI005", described({"nvml.gpus": (gpu(0), gpu(1, mig_enabled=True))}), "passed", "MIG has other names"),
    ("CDI005", described(TWO_GPUS, devices=("GPU-1", "all")), "passed", "named by UUID"),
    ("CDI005", described(without_nodes=("all",)), "warning: all", "a device without a node"),
    ("CDI005", described(without_nodes=WHO_KNOWS), "passed", "who knows"),
    ("CDI005", described({"nvml": WHO_KNOWS}), "skipped", "NVML unknown"),
    ("CDI006", toolkit(cdi_refresh="enabled"), "passed", "on"),
    ("CDI006", toolkit(cdi_refresh=""), "skipped", "no such unit"),
    ("CDI006", toolkit(cdi_refresh="disabled"), "note: never unmask", "off, beside the hook"),
    ("CDI006", toolkit(cdi_refresh="masked"), "note: systemctl unmask", "masked, beside the hook"),
    ("CDI006", toolkit(PODMAN, cdi_refresh="disabled"), "warning", "off, and CDI is all"),
    ("CDI006", toolkit(PODMAN, cdi_refresh="masked"), "warning: unmask", "masked, and CDI is all"),
    ("CDI007", changed(healthy(), PODMAN | {"engine.version": r("4.0.3")}), "error: 4.0.3", "Podman before CDI"),
    ("CDI007", changed(healthy(), PODMAN | {"engine.version": r("4.1.0")}), "passed", "the first with it"),
    ("CDI008", lying("/var/run/cdi/nvidia.yaml", "/run/cdi"), "passed", "/var/run is /run"),
    ("CDI008", lying(SPEC, "/home/dev/.config/cdi"), "warning: /home/dev/.config/cdi", "elsewhere"),
    ("CDI008", lying(SPEC, "/x", devices=("nvidia.com/gpu=0",)), "passed", "elsewhere, yet known"),
    ("CDI008", lying(SPEC), "skipped", "an engine that does not say"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_toolkit(code):
    assert list_wrong(code, CASES) == []


def test_an_engine_that_does_not_name_its_runc_is_not_accused():
    assert run_check("CTK012", runc(Unknown("not said"))) == Skipped("not said")


def test_many_missing_paths_are_shown_by_the_first_of_them():
    assert len(find_only("CDI004", missing(*MANY)).evidence) == 5


def test_libraries_that_went_with_the_old_driver_follow_from_it():
    changes = {"cdi": (spec(driver=r("575.64.03"), missing_paths=("/usr/lib/libcuda.so.575.64.03",)),)}
    assert build_full_report(changed(healthy(), changes)).root_causes == ("CDI001",)


def test_everything_broken_at_once_blames_the_driver():
    changes = {
        "driver.loaded": None,
        "driver.nvidiactl": "absent",
        "driver.pci_gpus.0.kernel_driver": "",
        "toolkit.ldconfig_exists": False,
        "cdi.0.missing_paths": ("/dev/nvidia0",),
        "engine.containers.0.gpu_request": "driver",
    }
    report = build_full_report(changed(healthy(), changes))
    assert [code for code in report.root_causes if code.startswith(("CTK", "CDI", "CON"))] == []


UNREAD = spec(error=UNREADABLE_SPEC, devices=())
OTHER_VENDOR = spec(path="/etc/cdi/intel.yaml", error=UNREADABLE_SPEC, devices=())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"engine.cdi_devices": ("nvidia.com/gpu=0",)}, True, id="listed"),
        pytest.param({"engine.cdi_devices": ("intel.com/gpu=0",)}, False, id="another vendor's listed"),
        pytest.param(PODMAN | {"cdi": (spec(),)}, True, id="a specification"),
        pytest.param(PODMAN | {"cdi": ()}, False, id="no specification"),
        pytest.param(PODMAN | {"cdi": (UNREAD,)}, None, id="one that the engine may read"),
        pytest.param(PODMAN | {"cdi": (UNREAD,), "engine.is_rootless": True}, False, id="one that nobody can read"),
        pytest.param(PODMAN | {"cdi": (OTHER_VENDOR,)}, False, id="another vendor's that cannot be read"),
        pytest.param(PODMAN | {"cdi": (spec(error="line 2", devices=()),)}, False, id="one that is broken"),
    ],
)
def test_whether_an_engine_knows_gpus_by_cdi(changes, expected):
    facts = changed(healthy(), changes)
    if expected is None:
        with pytest.raises(NotApplicable):
            has_cdi_gpus(facts, facts.engine)
    else:
        assert has_cdi_gpus(facts, facts.engine) is expected
