"""Checks of the hub's settings and its live answers, and of the disks that models go to."""

import pytest

from devkit.doctor.model import Found, Passed, Severity, Side, Skipped
from devkit.doctor.thresholds import CLOCK_SKEW_S, FREE_FILES, FULL_FILES, GIB, WINDOWS_DRIVE_BYTES
from devkit.facts.model import CaBundle, Deep, Directory, HubCall, Package, Platform, Proxy, WslSettings
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, healthy, inside, windows_guest, without_gpu
from tests.doctor.running import build_full_report, find_codes, find_only, run_check

UNREAD = Unknown("not read here")
HUB = "https://huggingface.co"


def with_hub(facts=None, **changes):
    return changed(facts or healthy(), {f"hub.{name}": value for name, value in changes.items()})


def call(**changes):
    values = {
        "url": HUB,
        "status": 200,
        "failure": "",
        "message": "",
        "took_ms": 90,
        "clock_ahead_s": 0,
        "token_status": UNREAD,
    }
    return HubCall(**values | changes)


def deep(facts=None, **changes):
    return changed(facts or healthy(), {"deep": Deep(UNREAD, None, call(**changes))})


@pytest.mark.parametrize(
    ("exists", "severity"),
    [
        pytest.param(True, "note", id="with a cache it may be meant"),
        pytest.param(False, "warning", id="nothing cached"),
    ],
)
def test_a_hub_that_is_switched_off(exists, severity):
    facts = with_hub(is_offline=True, offline_by="HF_HUB_OFFLINE")
    facts = changed(facts, {"storage.directories.0.exists": exists})
    finding = find_only("HUB001", facts)
    assert finding.severity.value == severity
    assert finding.fix.commands == ("unset HF_HUB_OFFLINE",)


@pytest.mark.parametrize(
    ("endpoint", "verdict"),
    [
        pytest.param("", Passed, id="the hub itself"),
        pytest.param("https://hf-mirror.com", Passed, id="a mirror"),
        pytest.param("http://localhost:8080/hf", Passed, id="a mirror here, with a path"),
        pytest.param("hf-mirror.com", Found, id="no scheme"),
        pytest.param("https://", Found, id="no host"),
        pytest.param("ftp://mirror", Found, id="another scheme"),
    ],
)
def test_the_address_of_the_hub(endpoint, verdict):
    assert isinstance(run_check("HUB002", with_hub(endpoint=endpoint)), verdict)


def test_an_address_without_scheme_is_written_out_in_the_fix():
    assert find_only("HUB002", with_hub(endpoint="hf-mirror.com/")).fix.commands[0] == (
        "export HF_ENDPOINT=https://hf-mirror.com"
    )


@pytest.mark.parametrize(
    ("token_from", "problem", "verdict"),
    [
        pytest.param("", "", Passed, id="no token is no fault"),
        pytest.param("HF_TOKEN", "", Passed, id="a token"),
        pytest.param("HF_TOKEN", "it is in quotation marks", Found, id="a variable that cannot be one"),
        pytest.param("file", "it is too short", Found, id="a file that cannot be one"),
        pytest.param("file", UNREAD, Skipped, id="not read"),
    ],
)
def test_the_shape_of_a_token(token_from, problem, verdict):
    facts = with_hub(token_from=token_from, token_problem=problem)
    assert isinstance(run_check("HUB003", facts), verdict)


LOCAL = (Proxy("HTTPS_PROXY", "http://127.0.0.1:7890"),)
MIRRORED = WslSettings("/mnt/c/Users/dev/.wslconfig", "", "", True, "mirrored")


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(with_hub(proxies=LOCAL), Passed, id="a proxy on this very host"),
        pytest.param(with_hub(inside(), proxies=LOCAL), Found, id="the container's own loopback"),
        pytest.param(with_hub(windows_guest(), proxies=LOCAL), Found, id="the guest's own loopback"),
        pytest.param(
            changed(with_hub(windows_guest(), proxies=LOCAL), {"system.wsl_settings": MIRRORED}),
            Passed,
            id="WSL that mirrors Windows's network",
        ),
        pytest.param(with_hub(inside(), proxies=(Proxy("https_proxy", "http://proxy:1"),)), Passed, id="elsewhere"),
        pytest.param(with_hub(proxies=(Proxy("ALL_PROXY", "socks://127.0.0.1:1"),)), Found, id="an unknown scheme"),
        pytest.param(with_hub(proxies=(Proxy("ALL_PROXY", "socks5h://x:1"),)), Passed, id="a known scheme"),
        pytest.param(with_hub(proxies=(Proxy("HTTP_PROXY", "proxy:3128"),)), Found, id="no scheme"),
        pytest.param(with_hub(proxies=UNREAD), Skipped, id="not read"),
    ],
)
def test_proxies_lead_somewhere(facts, verdict):
    assert isinstance(run_check("HUB004", facts), verdict)


@pytest.mark.parametrize(("exists", "verdict"), [(True, Passed), (False, Found)], ids=["there", "gone"])
def test_certificates_that_variables_name(exists, verdict):
    bundle = CaBundle("REQUESTS_CA_BUNDLE", "/company.crt", exists)
    assert isinstance(run_check("HUB005", with_hub(ca_bundles=(bundle,))), verdict)


def hub_package(version, *others):
    return (Package("huggingface-hub", version, ""), *(Package(name, "0.1.9", "") for name in others))


@pytest.mark.parametrize(
    ("wanted", "packages", "verdict"),
    [
        pytest.param(False, hub_package("0.36.0"), Passed, id="not asked for"),
        pytest.param(True, hub_package("0.36.0"), Found, id="asked for and missing"),
        pytest.param(True, hub_package("0.36.0", "hf-transfer"), Passed, id="asked for and there"),
        pytest.param(True, hub_package("1.0.0"), Passed, id="a hub library that knows it no more"),
        pytest.param(True, (), Skipped, id="no hub library"),
        pytest.param(UNREAD, hub_package("0.36.0"), Skipped, id="not read"),
    ],
)
def test_the_package_for_fast_downloads(wanted, packages, verdict):
    facts = changed(with_hub(wants_hf_transfer=wanted), {"python.packages": packages})
    assert isinstance(run_check("HUB006", facts), verdict)


@pytest.mark.parametrize("failure", ["name", "refused", "timed-out", "certificate", "proxy", "unreachable", "odd"])
def test_a_hub_that_does_not_answer(failure):
    facts = deep(status=0, failure=failure, message="because")
    finding = find_only("HUB007", facts)
    assert finding.severity is Severity.ERROR
    assert "because" in finding.evidence[0]
    assert build_full_report(facts).root_causes == ("HUB007",)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(200, Passed), (301, Passed), (403, Passed), (503, Passed), (407, Found)],
    ids=["an answer", "a redirection", "a refusal", "an overloaded hub", "a proxy that wants a login"],
)
def test_any_status_but_a_proxys_is_an_answer(status, verdict):
    assert isinstance(run_check("HUB007", deep(status=status)), verdict)


MODEL = "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        pytest.param({}, None, id="nothing asked for"),
        pytest.param({"token_status": 200}, None, id="a good token"),
        pytest.param({"token_status": 401}, "error", id="a refused token"),
        pytest.param({"model": MODEL, "model_status": 200, "model_error": ""}, None, id="an open model"),
        pytest.param({"model": MODEL, "model_status": 307, "model_error": ""}, None, id="a model that moved"),
        pytest.param({"model": MODEL, "model_status": 401, "model_error": "GatedRepo"}, "error", id="gated, no token"),
        pytest.param(
            {"model": MODEL, "model_status": 401, "model_error": "GatedRepo", "token_status": 200},
            "note",
            id="gated, with a token",
        ),
        pytest.param({"model": MODEL, "model_status": 401, "model_error": "RepoNotFound"}, "warning", id="unknown"),
        pytest.param({"model": MODEL, "model_status": 404, "model_error": "EntryNotFound"}, "warning", id="no config"),
        pytest.param({"model": MODEL, "model_status": 403, "model_error": ""}, "warning", id="refused"),
        pytest.param({"model": MODEL, "model_status": 429, "model_error": ""}, "warning", id="asked too often"),
        pytest.param({"model": MODEL, "model_status": 503, "model_error": ""}, None, id="the hub's own trouble"),
        pytest.param({"model": MODEL, "model_status": UNREAD}, None, id="no answer about it"),
    ],
)
def test_the_token_and_the_model(changes, severity):
    verdict = run_check("HUB008", deep(**changes))
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


@pytest.mark.parametrize(
    ("ahead", "verdict"),
    [
        (CLOCK_SKEW_S.value, Passed),
        (CLOCK_SKEW_S.value + 1, Found),
        (-CLOCK_SKEW_S.value - 1, Found),
        (UNREAD, Skipped),
    ],
    ids=["as far as is allowed", "ahead", "behind", "an answer without a date"],
)
def test_the_clock_against_the_hubs(ahead, verdict):
    assert isinstance(run_check("HUB009", deep(clock_ahead_s=ahead)), verdict)


def test_a_guest_that_slept_is_one_cause():
    facts = deep(changed(windows_guest(), {"wsl.clock_behind_s": 7200}), clock_ahead_s=-7200)
    assert build_full_report(facts).root_causes == ("WSL010",)
    assert find_only("HUB009", facts).fix.commands == ("sudo hwclock -s",)


@pytest.mark.parametrize("code", ["HUB007", "HUB008", "HUB009"])
@pytest.mark.parametrize(
    "facts", [healthy(), changed(healthy(), {"deep": Deep(UNREAD)})], ids=["without --deep", "deep without the hub"]
)
def test_the_hub_is_not_judged_unasked(code, facts):
    assert isinstance(run_check(code, facts), Skipped)


@pytest.mark.parametrize(
    ("free", "facts", "severity"),
    [
        pytest.param(FREE_FILES.value, healthy(), None, id="exactly enough"),
        pytest.param(FREE_FILES.value - 1, healthy(), "warning", id="one short"),
        pytest.param(FULL_FILES.value - 1, healthy(), "error", id="all but none"),
        pytest.param(FREE_FILES.value - 1, without_gpu(), None, id="enough for small images"),
        pytest.param(UNREAD, healthy(), None, id="a file system that does not count"),
    ],
)
def test_room_for_files_of_images(free, facts, severity):
    verdict = run_check("STO004", changed(facts, {"storage.directories.2.free_files": free}))
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


@pytest.mark.parametrize(
    ("cache", "workspace", "severity"),
    [
        pytest.param("ext4", "ext4", None, id="on a volume"),
        pytest.param("overlay", "ext4", "warning", id="in the layer of a dev container"),
        pytest.param("fuse.fuse-overlayfs", "virtiofs", "warning", id="in the layer of rootless Podman"),
        pytest.param("overlay", "overlay", "note", id="in a container where nothing is mounted"),
        pytest.param("", "ext4", None, id="a file system that is not known"),
    ],
)
def test_the_cache_outlives_the_container(cache, workspace, severity):
    facts = changed(
        inside(),
        {"storage.directories.0.file_system": cache, "storage.directories.1.file_system": workspace},
    )
    verdict = run_check("STO005", facts)
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


def test_a_cache_that_nobody_may_write_to_is_reported_once():
    layer = {"storage.directories.0.file_system": "overlay", "storage.directories.0.is_writable": False}
    assert run_check("STO005", changed(inside(), layer)) == Passed()
    assert isinstance(run_check("STO005", healthy()), Skipped)


@pytest.mark.parametrize(
    ("free", "severity"),
    [(WINDOWS_DRIVE_BYTES.value, None), (WINDOWS_DRIVE_BYTES.value - 1, "warning"), (GIB - 1, "error")],
    ids=["exactly enough", "one byte short", "all but full"],
)
def test_the_drive_of_windows_under_the_guests_disk(free, severity):
    drive = Directory("/mnt/c", "Windows drive", True, True, 0, "9p", free)
    facts = changed(windows_guest(), {"storage.directories": (*windows_guest().storage.directories, drive)})
    verdict = run_check("STO002", facts)
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity
    assert run_check("STO003", facts) == Passed()
    if severity:
        assert verdict.findings[0].fix.where is Side.WINDOWS


def test_no_finding_of_the_hub_shows_a_token():
    facts = with_hub(token_from="HF_TOKEN", token_problem="it is too short")
    assert find_codes(facts) == ["HUB003"]
    assert "hf_" not in str(build_full_report(facts).findings).replace("hf_transfer", "")


def test_macos_with_a_proxy_of_its_own_is_fine():
    facts = with_hub(changed(without_gpu(), {"system.platform": Platform.MACOS}), proxies=LOCAL)
    assert run_check("HUB004", facts) == Passed()
