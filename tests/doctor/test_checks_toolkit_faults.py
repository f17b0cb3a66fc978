import pytest

from devkit.doctor.checks.cdi import has_cdi_gpus
from devkit.doctor.model import Confidence, Found, NotApplicable, Passed, Severity, Skipped
from devkit.facts.engine import UNREADABLE_SPEC
from devkit.facts.model import EngineKind, Tegra
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, gpu, healthy, inside, r, spec, windows_guest
from tests.doctor.running import build_full_report, find_codes, find_only, run_check

PODMAN = {"engine.kind": EngineKind.PODMAN, "engine.version": r("5.6.2"), "engine.runtimes": (), "engine.cdi_devices": Unknown("not listed")}  # fmt: skip  # noqa: E501
ROOTLESS = {"engine.is_rootless": True, "toolkit.no_cgroups": True, "engine.cdi_devices": (), "cdi": ()}


def severity_of(verdict):
    return verdict.findings[0].severity.value if isinstance(verdict, Found) else None


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        pytest.param("", Passed, id="valid or absent"),
        pytest.param("config.toml is not valid TOML: line 2", Found, id="broken"),
        pytest.param(Unknown("cannot be read by this user"), Skipped, id="not readable"),
    ],
)
def test_the_toolkits_settings_file(error, verdict):
    assert isinstance(run_check("CTK008", changed(healthy(), {"toolkit.config_error": error})), verdict)


@pytest.mark.parametrize(
    ("exists", "verdict"),
    [
        pytest.param(True, Passed, id="there"),
        pytest.param(False, Found, id="not there"),
        pytest.param(Unknown("names none of the host"), Skipped, id="none named"),
    ],
)
def test_ldconfig(exists, verdict):
    assert isinstance(run_check("CTK009", changed(healthy(), {"toolkit.ldconfig_exists": exists})), verdict)


@pytest.mark.parametrize(
    ("path", "commands"),
    [
        pytest.param("/sbin/ldconfig.real", 1, id="as Ubuntu names it"),
        pytest.param("/sbin/ldconfig", 1, id="as Debian and Fedora name it"),
        pytest.param(Unknown("no ldconfig in /sbin"), 0, id="where there is none"),
    ],
)
def test_ldconfig_is_named_as_the_toolkits_own_defaults_name_it(path, commands):
    fix = find_only(
        "CTK009", changed(healthy(), {"toolkit.ldconfig_exists": False, "toolkit.default_ldconfig": path})
    ).fix
    assert len(fix.commands) == commands
    assert all(command.endswith(f"ldconfig=@{path}") for command in fix.commands)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({}, Passed, id="auto"),
        pytest.param({"toolkit.mode": "legacy"}, Passed, id="legacy"),
        pytest.param({"toolkit.mode": "cdi"}, Found, id="cdi"),
        pytest.param({"toolkit.mode": "csv"}, Found, id="csv"),
        pytest.param({"toolkit.mode": "cdi", "engine.hook_on_path": False}, Passed, id="cdi without the hook"),
        pytest.param({"toolkit.mode": "cdi", "engine.hook_on_path": Unknown("hidden")}, Skipped, id="hook unknown"),
        pytest.param({"toolkit.mode": "cdi", "engine.version": r("29.2.0")}, Passed, id="cdi, and Docker asks by CDI"),
        pytest.param({"toolkit.mode": "cdi", **PODMAN}, Skipped, id="Podman calls no hook"),
        pytest.param({"toolkit.mode": Unknown("not readable")}, Skipped, id="mode unknown"),
    ],
)
def test_the_toolkits_mode(changes, verdict):
    assert isinstance(run_check("CTK010", changed(healthy(), changes)), verdict)


@pytest.mark.parametrize(
    ("version", "changes", "severity"),
    [
        pytest.param("1.18.2", {}, None, id="no known fault"),
        pytest.param("1.7.0", {}, "error", id="before control groups of version 2"),
        pytest.param("1.8.0", {}, None, id="with them"),
        pytest.param("1.7.0", {"engine.cgroup_version": "1"}, None, id="before them, where they are not"),
        pytest.param("1.14.0", ROOTLESS, "error", id="1.14.0 reads no settings"),
        pytest.param("1.14.1", ROOTLESS, None, id="1.14.1 does"),
        pytest.param("1.14.0", {}, None, id="1.14.0 under root"),
        pytest.param("1.18.0", ROOTLESS, "warning", id="1.18.0 under a rootless engine"),
        pytest.param("1.18.1", ROOTLESS, None, id="1.18.1 under a rootless engine"),
        pytest.param("1.18.0", ROOTLESS | {"engine.cdi_devices": ("nvidia.com/gpu=0",)}, None, id="1.18.0 with CDI"),
        pytest.param("1.19.1", {"nvml.gpus": (gpu(0, "GeForce GTX 970", "5.2"),)}, "warning", id="1.19.1 on Maxwell"),
        pytest.param("1.19.1", {}, None, id="1.19.1 on another GPU"),
        pytest.param("1.19.0", {"nvml.gpus": (gpu(0, "GeForce GTX 970", "5.2"),)}, None, id="1.19.0 on Maxwell"),
    ],
)
def test_releases_with_faults(version, changes, severity):
    facts = changed(healthy(), {"toolkit.version": r(version)} | changes)
    assert severity_of(run_check("CTK011", facts)) == severity


def test_a_fault_that_is_inferred_is_never_an_error():
    facts = changed(healthy(), {"toolkit.version": r("1.18.0"), **ROOTLESS})
    assert find_only("CTK011", facts).confidence is Confidence.POSSIBLE


@pytest.mark.parametrize(
    ("runc", "changes", "verdict"),
    [
        pytest.param("1.1.2", {}, Passed, id="before the fault"),
        pytest.param("1.1.3", {}, Found, id="the first with it"),
        pytest.param("1.1.6", {}, Found, id="the last with it"),
        pytest.param("1.1.7", {}, Passed, id="after it"),
        pytest.param("1.1.5", {"toolkit.char_links": True}, Passed, id="with the links"),
        pytest.param("1.1.5", {"toolkit.char_links": Unknown("no /dev/char")}, Skipped, id="links unknown"),
        pytest.param("1.1.5", {"engine.cgroup_driver": "cgroupfs"}, Skipped, id="without systemd"),
    ],
)
def test_runc_and_the_links_in_dev_char(runc, changes, verdict):
    changes = {"toolkit.char_links": False, "engine.runc": r(runc)} | changes
    assert isinstance(run_check("CTK012", changed(healthy(), changes)), verdict)


def test_an_engine_that_does_not_name_its_runc_is_not_accused():
    facts = changed(healthy(), {"toolkit.char_links": False, "engine.runc": Unknown("not said")})
    assert run_check("CTK012", facts) == Skipped("not said")


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        pytest.param({}, None, id="everything is there"),
        pytest.param({"cdi.0.missing_paths": ("/dev/dri/renderD129",)}, "warning", id="a node is gone"),
        pytest.param({"cdi.0.missing_paths": ("/dev/dri/renderD129",), **PODMAN}, "error", id="gone, and CDI is all"),
        pytest.param({"cdi.0.missing_paths": Unknown("not read")}, None, id="who knows"),
    ],
)
def test_what_cdi_names(changes, severity):
    assert severity_of(run_check("CDI004", changed(healthy(), changes))) == severity


def test_many_missing_paths_are_counted_rather_than_listed():
    paths = tuple(f"/usr/lib/libnvidia-{number}.so.1" for number in range(30))
    evidence = find_only("CDI004", changed(healthy(), {"cdi.0.missing_paths": paths})).evidence
    assert (len(evidence), evidence[-1]) == (5, "and 26 more")


def test_libraries_that_went_with_the_old_driver_follow_from_it():
    changes = {"cdi": (spec(driver=r("575.64.03"), missing_paths=("/usr/lib/libcuda.so.575.64.03",)),)}
    assert build_full_report(changed(healthy(), changes)).root_causes == ("CDI001",)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({}, Passed, id="one of one"),
        pytest.param({"nvml.gpus": (gpu(0), gpu(1))}, Found, id="one of two"),
        pytest.param({"nvml.gpus": (gpu(0), gpu(1, mig_enabled=True))}, Passed, id="MIG has other names"),
        pytest.param({"nvml.gpus": (gpu(0), gpu(1)), "cdi.0.devices": ("GPU-1", "all")}, Passed, id="named by UUID"),
        pytest.param({"cdi.0.without_nodes": ("all",)}, Found, id="a device without a node"),
        pytest.param({"cdi.0.without_nodes": Unknown("not read")}, Passed, id="who knows"),
        pytest.param({"nvml": Unknown("not read")}, Skipped, id="NVML unknown"),
    ],
)
def test_cdi_and_the_number_of_gpus(changes, verdict):
    assert isinstance(run_check("CDI005", changed(healthy(), changes)), verdict)


@pytest.mark.parametrize(
    ("state", "changes", "severity"),
    [
        pytest.param("enabled", {}, None, id="on"),
        pytest.param("", {}, None, id="no such unit"),
        pytest.param("disabled", {}, "note", id="off, beside the hook"),
        pytest.param("disabled", PODMAN, "warning", id="off, and CDI is all"),
        pytest.param("masked", PODMAN, "warning", id="masked, and CDI is all"),
    ],
)
def test_the_unit_that_renews_cdi(state, changes, severity):
    facts = changed(healthy(), {"toolkit.cdi_refresh": state} | changes)
    assert severity_of(run_check("CDI006", facts)) == severity


def test_a_masked_unit_is_unmasked_first():
    finding = find_only("CDI006", changed(healthy(), {"toolkit.cdi_refresh": "masked"}))
    assert "unmask" in finding.fix.commands[0]


@pytest.mark.parametrize(
    ("version", "verdict"),
    [pytest.param("4.0.3", Found, id="before CDI"), pytest.param("4.1.0", Passed, id="the first with it")],
)
def test_podman_and_cdi(version, verdict):
    assert isinstance(run_check("CDI007", changed(healthy(), PODMAN | {"engine.version": r(version)})), verdict)


@pytest.mark.parametrize(
    ("folders", "devices", "path", "verdict"),
    [
        pytest.param(("/etc/cdi",), (), "/etc/cdi/nvidia.yaml", Passed, id="where it looks"),
        pytest.param(("/run/cdi",), (), "/var/run/cdi/nvidia.yaml", Passed, id="/var/run is /run"),
        pytest.param(("/home/dev/.config/cdi",), (), "/etc/cdi/nvidia.yaml", Found, id="elsewhere"),
        pytest.param(("/x",), ("nvidia.com/gpu=0",), "/etc/cdi/nvidia.yaml", Passed, id="elsewhere, yet known"),
        pytest.param((), (), "/etc/cdi/nvidia.yaml", Skipped, id="an engine that does not say"),
    ],
)
def test_where_cdi_lies(folders, devices, path, verdict):
    changes = {"engine.cdi_spec_dirs": folders, "engine.cdi_devices": devices, "cdi.0.path": path}
    assert isinstance(run_check("CDI008", changed(healthy(), changes)), verdict)


@pytest.mark.parametrize("code", ["CTK008", "CTK009", "CTK010", "CTK011", "CTK012"])
@pytest.mark.parametrize("facts", [windows_guest(), inside()], ids=["Docker Desktop", "inside a container"])
def test_the_toolkit_is_judged_where_it_is_used(code, facts):
    assert isinstance(run_check(code, facts), Skipped)


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


def test_a_healthy_machine_is_healthy():
    assert find_codes(healthy()) == []
    assert Severity.ERROR not in {shown.finding.severity for shown in build_full_report(healthy()).findings}


def test_a_mode_that_leaves_no_other_way_is_an_error():
    by_hook_alone = {"toolkit.mode": "csv", "cdi": (), "engine.cdi_devices": ()}
    finding = find_only("CTK010", changed(healthy(), by_hook_alone))
    assert finding.severity is Severity.ERROR
    assert finding.fix.summary == "Set the mode back to auto."


@pytest.mark.parametrize(
    ("mode", "ways"),
    [
        pytest.param("cdi", "`runtime: nvidia` or `--device nvidia.com/gpu=all`", id="the runtime resolves CDI names"),
        pytest.param("csv", "`--device nvidia.com/gpu=all`", id="the runtime finds nothing to give"),
    ],
)
def test_the_ways_that_a_mode_leaves_are_named(mode, ways):
    finding = find_only("CTK010", changed(healthy(), {"toolkit.mode": mode}))
    assert finding.fix.summary == f"Set the mode back to auto, or ask by {ways} instead."


def test_mode_csv_is_right_on_a_jetson():
    board = {
        "toolkit.mode": "csv",
        "engine.cdi_devices": (),
        "system.tegra": Tegra("NVIDIA Jetson Orin Nano", r("36.4.7")),
    }
    finding = find_only("CTK010", changed(healthy(), board))
    assert (finding.severity, finding.fix.commands) == (Severity.NOTE, ())
    assert "--runtime nvidia" in finding.fix.summary


UNREAD = spec(error=UNREADABLE_SPEC, devices=())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"engine.cdi_devices": ("nvidia.com/gpu=0",)}, True, id="listed"),
        pytest.param({"engine.cdi_devices": ("intel.com/gpu=0",)}, False, id="another vendor's listed"),
        pytest.param(PODMAN | {"cdi": (spec(),)}, True, id="a specification"),
        pytest.param(PODMAN | {"cdi": ()}, False, id="no specification"),
        pytest.param(PODMAN | {"cdi": (UNREAD,)}, None, id="one that the engine may read"),
        pytest.param(PODMAN | {"cdi": (UNREAD,), "engine.is_rootless": True}, False, id="one that nobody can read"),
        pytest.param(
            PODMAN | {"cdi": (spec(path="/etc/cdi/intel.yaml", error=UNREADABLE_SPEC, devices=()),)},
            False,
            id="another vendor's that cannot be read",
        ),
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
