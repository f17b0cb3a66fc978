"""Checks of the hub's settings and its live answers, and of the disks that models go to."""

import pytest

from devkit.doctor.thresholds import CLOCK_SKEW_S, FREE_FILES, FULL_FILES, GIB, WINDOWS_DRIVE_BYTES
from devkit.facts.machine import Directory, Package, Platform, WslSettings
from devkit.facts.runs import CaBundle, Deep, HubCall, Proxy
from devkit.facts.values import Unknown
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import changed, healthy, inside, windows_guest, without_gpu
from tests.doctor.running import build_full_report, find_codes, find_only

UNREAD = Unknown("not read here")
HUB = "https://huggingface.co"
MODEL = "meta-llama/Llama-3.1-8B"


def with_hub(facts=None, **changes):
    return changed(facts or healthy(), {f"hub.{name}": value for name, value in changes.items()})


def offline(has_cache):
    facts = with_hub(is_offline=True, offline_by="HF_HUB_OFFLINE")
    return changed(facts, {"storage.directories.0.exists": has_cache})


def token(source, problem):
    return with_hub(token_from=source, token_problem=problem)


def proxy(url, facts=None, name="HTTPS_PROXY"):
    return with_hub(facts, proxies=(Proxy(name, url),))


def bundle(exists):
    return with_hub(ca_bundles=(CaBundle("REQUESTS_CA_BUNDLE", "/company.crt", exists),))


def transfer(wanted, version, *others):
    own = (Package("huggingface-hub", version, ""),) if version else ()
    packages = (*own, *(Package(name, "0.1.9", "") for name in others))
    return changed(with_hub(wants_hf_transfer=wanted), {"python.packages": packages})


def deep(facts=None, **changes):
    """The hub was called, and answered so."""
    values = {"url": HUB, "status": 200, "failure": "", "message": "", "took_ms": 90, "clock_ahead_s": 0}
    call = HubCall(**values | {"token_status": UNREAD} | changes)
    return changed(facts or healthy(), {"deep": Deep(UNREAD, None, call)})


def asked(status, error="", **changes):
    return deep(model=MODEL, model_status=status, model_error=error, **changes)


def folder(index, facts=None, **changes):
    """A machine with something changed of its cache (0), its workspace (1) or the engine's folder (2)."""
    return changed(facts or healthy(), {f"storage.directories.{index}.{name}": each for name, each in changes.items()})


def layers(cache, workspace, **changes):
    return folder(0, folder(1, inside(), file_system=workspace), file_system=cache, **changes)


def drive(free):
    """A guest on a drive of Windows with this space."""
    on_windows = Directory("/mnt/c", "Windows drive", True, True, 0, "9p", free)
    return changed(windows_guest(), {"storage.directories": (*windows_guest().storage.directories, on_windows)})


LOCAL = "http://127.0.0.1:7890"
MIRRORED = WslSettings("/mnt/c/Users/dev/.wslconfig", "", "", True, "mirrored")
MIRRORED_GUEST = changed(windows_guest(), {"system.wsl_settings": MIRRORED})
MAC = changed(without_gpu(), {"system.platform": Platform.MACOS})
NO_CALL = changed(healthy(), {"deep": Deep(UNREAD)})
FAILURES = ("name", "refused", "timed-out", "certificate", "proxy", "unreachable", "odd")
CACHE = "/home/dev/.cache/huggingface/hub"

CASES = [
    ("HUB001", healthy(), "passed", "on"),
    ("HUB001", offline(has_cache=True), "note: unset HF_HUB_OFFLINE", "off, and with a cache it may be meant"),
    ("HUB001", offline(has_cache=False), "warning: unset HF_HUB_OFFLINE", "off, and nothing cached"),
    ("HUB002", with_hub(endpoint="https://hf-mirror.com"), "passed", "a mirror"),
    ("HUB002", with_hub(endpoint="http://localhost:8080/hf"), "passed", "a mirror here, with a path"),
    ("HUB002", with_hub(endpoint="hf-mirror.com/"), "error: HF_ENDPOINT=https://hf-mirror.com", "no scheme"),
    ("HUB002", with_hub(endpoint="https://"), "error", "no host"),
    ("HUB002", with_hub(endpoint="ftp://mirror"), "error", "another scheme"),
    ("HUB003", token("", ""), "passed", "no token is no fault"),
    ("HUB003", token("HF_TOKEN", ""), "passed", "a token"),
    ("HUB003", token("HF_TOKEN", "it is in quotation marks"), "warning: HF_TOKEN | quotation", "not the shape of one"),
    ("HUB003", token("file", "it is too short"), "warning: too short", "a file that cannot be one"),
    ("HUB003", token("file", UNREAD), "skipped", "not read"),
    ("HUB004", proxy(LOCAL, inside()), "warning: 127.0.0.1", "the container's own loopback"),
    ("HUB004", proxy(LOCAL, windows_guest()), "warning", "the guest's own loopback"),
    ("HUB004", proxy(LOCAL, MIRRORED_GUEST), "passed", "WSL that mirrors Windows's network"),
    ("HUB004", proxy(LOCAL, MAC), "passed", "a proxy on this very Mac"),
    ("HUB004", proxy("http://proxy:1", inside(), "https_proxy"), "passed", "elsewhere"),
    ("HUB004", proxy("socks://127.0.0.1:1", name="ALL_PROXY"), "warning: socks", "an unknown scheme"),
    ("HUB004", proxy("socks5h://x:1", name="ALL_PROXY"), "passed", "a known scheme"),
    ("HUB004", proxy("proxy:3128", name="HTTP_PROXY"), "warning", "no scheme"),
    ("HUB004", with_hub(proxies=UNREAD), "skipped", "not read"),
    ("HUB005", bundle(exists=True), "passed", "certificates are there"),
    ("HUB005", bundle(exists=False), "warning: REQUESTS_CA_BUNDLE | /company.crt", "certificates are gone"),
    ("HUB006", transfer(False, "0.36.0"), "passed", "not asked for"),
    ("HUB006", transfer(True, "0.36.0"), "error: hf_transfer", "asked for and missing"),
    ("HUB006", transfer(True, "0.36.0", "hf-transfer"), "passed", "asked for and there"),
    ("HUB006", transfer(True, "1.0.0"), "passed", "a hub library that knows it no more"),
    ("HUB006", transfer(True, ""), "skipped", "no hub library"),
    ("HUB006", transfer(UNREAD, "0.36.0"), "skipped", "not read"),
    *(("HUB007", deep(status=0, failure=each, message="because"), "error: because", each) for each in FAILURES),
    *(("HUB007", deep(status=status), "passed", f"the answer {status}") for status in (200, 301, 403, 503)),
    ("HUB007", deep(status=407), "error: proxy", "a proxy that wants a login"),
    ("HUB008", deep(), "passed", "nothing asked for"),
    ("HUB008", deep(token_status=200), "passed", "a good token"),
    ("HUB008", deep(token_status=401), "error", "a refused token"),
    ("HUB008", asked(200), "passed", "an open model"),
    ("HUB008", asked(307), "passed", "a model that moved"),
    ("HUB008", asked(401, "GatedRepo"), f"error: {MODEL}", "gated, no token"),
    ("HUB008", asked(401, "GatedRepo", token_status=200), "note", "gated, with a token"),
    ("HUB008", asked(401, "RepoNotFound"), "warning", "unknown"),
    ("HUB008", asked(404, "EntryNotFound"), "warning", "no config"),
    ("HUB008", asked(403), "warning", "refused"),
    ("HUB008", asked(429), "warning", "asked too often"),
    ("HUB008", asked(503), "passed", "the hub's own trouble"),
    ("HUB008", asked(UNREAD), "passed", "no answer about it"),
    ("HUB009", deep(clock_ahead_s=CLOCK_SKEW_S), "passed", "as far as is allowed"),
    ("HUB009", deep(clock_ahead_s=CLOCK_SKEW_S + 1), "warning", "ahead"),
    ("HUB009", deep(clock_ahead_s=-CLOCK_SKEW_S - 1), "warning", "behind"),
    ("HUB009", deep(clock_ahead_s=UNREAD), "skipped", "an answer without a date"),
    *((code, healthy(), "skipped", "without --deep") for code in ("HUB007", "HUB008", "HUB009")),
    *((code, NO_CALL, "skipped", "deep without the hub") for code in ("HUB007", "HUB008", "HUB009")),
    ("STO001", inside(), "passed", "the user's own cache"),
    (
        "STO001",
        folder(0, inside(), is_writable=False, owner_uid=0),
        f"error: {CACHE}: owned by user 0; this user is 1000 | where: container",
        "a hub cache of another user",
    ),
    ("STO002", folder(0, free_bytes=20 * GIB), "passed", "just enough for a model"),
    ("STO002", folder(0, free_bytes=20 * GIB - 1), "warning", "not quite enough for a model"),
    ("STO002", folder(0, free_bytes=GIB - 1), "error", "full"),
    ("STO002", folder(2, free_bytes=25 * GIB - 1), "warning", "not quite enough for an image"),
    ("STO002", folder(1, free_bytes=2 * GIB), "passed", "a project needs little"),
    ("STO002", folder(1, free_bytes=UNREAD), "passed", "nobody knows"),
    ("STO002", drive(WINDOWS_DRIVE_BYTES), "passed", "exactly enough on the drive of Windows"),
    ("STO002", drive(WINDOWS_DRIVE_BYTES - 1), "warning: where: windows", "one byte short on the drive"),
    ("STO002", drive(GIB - 1), "error: where: windows", "a drive that is all but full"),
    ("STO003", drive(GIB - 1), "passed", "a drive that no files of the project are on"),
    ("STO004", folder(2, free_files=FREE_FILES), "passed", "exactly enough files"),
    ("STO004", folder(2, free_files=FREE_FILES - 1), "warning", "one short"),
    ("STO004", folder(2, free_files=FULL_FILES - 1), "error", "all but none"),
    ("STO004", folder(2, without_gpu(), free_files=FREE_FILES - 1), "passed", "enough for small images"),
    ("STO004", folder(2, free_files=UNREAD), "passed", "a file system that does not count"),
    ("STO005", layers("ext4", "ext4"), "passed", "on a volume"),
    ("STO005", layers("overlay", "ext4"), "warning", "in the layer of a dev container"),
    ("STO005", layers("fuse.fuse-overlayfs", "virtiofs"), "warning", "in the layer of rootless Podman"),
    ("STO005", layers("overlay", "overlay"), "note", "in a container where nothing is mounted"),
    ("STO005", layers("", "ext4"), "passed", "a file system that is not known"),
    ("STO005", layers("overlay", "ext4", is_writable=False), "passed", "nobody may write to it: reported once"),
    ("STO005", healthy(), "skipped", "on a host"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_hub_and_disks(code):
    assert list_wrong(code, CASES) == []


def test_a_hub_that_does_not_answer_is_the_root():
    assert build_full_report(deep(status=0, failure="name", message="because")).root_causes == ("HUB007",)


def test_a_guest_that_slept_is_one_cause():
    facts = deep(changed(windows_guest(), {"wsl.clock_behind_s": 7200}), clock_ahead_s=-7200)
    assert build_full_report(facts).root_causes == ("WSL010",)
    assert find_only("HUB009", facts).fix.commands == ("sudo hwclock -s",)


def test_no_finding_of_the_hub_shows_a_token():
    facts = token("HF_TOKEN", "it is too short")
    assert find_codes(facts) == ["HUB003"]
    assert "hf_" not in str(build_full_report(facts).findings).replace("hf_transfer", "")
