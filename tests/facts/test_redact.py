""""""

import dataclasses
import html
import json
import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devkit.cli.output import OutputOptions, format_doctor_report
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.report import build_report
from devkit.doctor.runner import run_on_host_and_container
from devkit.facts.engine import Endpoint, EngineEnd, EngineFailure
from devkit.facts.gpu import Gpu, KernelLog, NvmlAnswer, Xid
from devkit.facts.machine import Storage, System
from devkit.facts.model import Facts, format_facts, parse_facts
from devkit.facts.secrets import (
    Redaction,
    _texts,
    build_redaction,
    contains_token,
    count_removed,
    find_doubtful_lines,
    holds_secret,
    is_random,
    redact_facts,
)
from devkit.facts.values import ComputeCapability, Release, Unknown
from tests.doctor.machines import healthy, inside
from tests.facts.samples import FACTS
from tests.hosts import MACHINES, facts_of

UNREAD = Unknown("not looked at")
NOTHING = Facts("2026-01-01T00:00:00+00:00", "0.1.0", *([UNREAD] * 11))


def shown(text):
    """What is left of a text somewhere in the facts."""
    return redact_facts(dataclasses.replace(NOTHING, storage=Unknown(text))).storage.reason


@pytest.mark.parametrize(
    ("text", "left"),
    [
        pytest.param("secret=id=Zx81kQwe77", "secret=redacted", id="a secret that begins like a build's name of one"),
        pytest.param("/home/alice/.cache/huggingface", "/home/user/.cache/huggingface", id="a Linux home"),
        pytest.param("/Users/alice/.docker", "/Users/user/.docker", id="a macOS home"),
        pytest.param("C:\\Users\\alice\\.docker", "C:\\Users\\user\\.docker", id="a Windows home"),
        pytest.param("/mnt/c/Users/alice/x", "/mnt/c/Users/user/x", id="a Windows home seen from WSL"),
        pytest.param("unix:///home/alice/d.sock", "unix:///home/user/d.sock", id="a home inside a URL"),
        pytest.param("/home/alice and group alice", "/home/user and group user", id="the name anywhere else"),
        pytest.param("/home/al/malice", "/home/user/malice", id="but not inside other words"),
        pytest.param("/home/al, al and /home/z, z", "/home/user, user and /home/user, z", id="a letter is no name"),
        pytest.param("/srv/homes/alice/x", "/srv/homes/alice/x", id="a folder that only looks like a home"),
        pytest.param("/root/.cache", "/root/.cache", id="root identifies no person"),
        pytest.param("tcp://gpu7.example.com:2376", "tcp://host:2376", id="a remote engine"),
        pytest.param("ssh://bob@gpu7 lost gpu7", "ssh://host lost host", id="a login at a remote engine"),
        pytest.param("tcp://gpu7:1 refused: gpu7", "tcp://host:1 refused: host", id="its name in a message"),
        pytest.param("http://proxy.corp.example:3128", "http://host:3128", id="a company's proxy"),
        pytest.param("socks5://127.0.0.1:7890 is a proxy", "socks5://127.0.0.1:7890 is a proxy", id="a proxy here"),
        pytest.param("tcp://localhost:2375", "tcp://localhost:2375", id="this machine"),
        pytest.param("https://bob:secret@proxy.example.com/", "https://proxy.example.com/", id="a password in a URL"),
        pytest.param("HF_TOKEN=hf_abcdefghijklmnop", "HF_TOKEN=redacted", id="a hub token"),
        pytest.param("ghp_0123456789012345678901234567890123", "redacted", id="a code host's token"),
        pytest.param("GPU-1a2b3c4d-1111-2222-3333-444455556666", "GPU-1a2b3c4d", id="the tail of a UUID"),
        pytest.param("MIG-1a2b3c4d-1111-2222-3333-444455556666", "MIG-1a2b3c4d", id="the tail of a MIG UUID"),
        pytest.param("Nov  2 03:04:05 box kernel: x\nno box", "Nov  2 03:04:05 host kernel: x\nno host", id="a log"),
        pytest.param("login: alice, node: gpu7", "login: user, node: host", id="names beside a word for them"),
        pytest.param("nvidia.com/gpu=0", "nvidia.com/gpu=0", id="a text without a name stays"),
    ],
)
def test_a_text_keeps_only_what_identifies_no_person(text, left):
    assert shown(text) == left


def test_gpus_stay_distinguishable():
    gpus = tuple(
        Gpu(
            number, f"GPU-0000000{number}-1111-2222-3333-444455556666", "H100", ComputeCapability(9, 0), 1, 1, False, ()
        )
        for number in range(2)
    )
    nvml = redact_facts(dataclasses.replace(NOTHING, nvml=NvmlAnswer(Release.parse("580"), UNREAD, gpus))).nvml
    assert [gpu.uuid for gpu in nvml.gpus] == ["GPU-00000000", "GPU-00000001"]


def test_a_name_in_one_fact_is_blanked_in_another():
    facts = dataclasses.replace(
        NOTHING,
        engine=EngineFailure(EngineEnd.ERROR, Endpoint("unix:///home/alice/x.sock", "context alice"), "alice may not"),
        storage=Storage(1000, ()),
    )
    assert "alice" not in format_facts(redact_facts(facts))


SOME = settings(
    max_examples=10,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@SOME
@given(FACTS)
def test_redacting_twice_changes_nothing_more(facts):
    once = redact_facts(facts)
    assert redact_facts(once) == once
    assert not re.search(r"/home/(?!user\b)[a-z]", format_facts(once))


# What identifies a person never comes out, in whatever field it is, in no form of the report.


PERSON, MACHINE, REMOTE = "marlowe", "gpubox17", "fleet-gpu-03"
TOKENS = (
    "hf_QwErTyUiOpAsDfGhJkLz",
    "ghp_0123456789012345678901234567890123",
    "glpat-abcdefghij0123456789",
    "nvapi-abcdefghij0123456789",
    "AKIAABCDEFGHIJKLMNOP",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc_def-ghi",
)
PASSWORD, MAIL = "s3cr3tpw", "f.lastname@corp.example.com"
UUID_TAIL, SERIAL = "aaaa-bbbb-cccc-ddddeeeeffff", "1320921000123"
NEVER = (PERSON, MACHINE, REMOTE, PASSWORD, MAIL, "lastname", UUID_TAIL, SERIAL, *TOKENS)

PLANTS = st.sampled_from(
    [
        *(
            f"{before}{token}{after}"
            for token in TOKENS
            for before, after in [("", ""), ("X=", " y"), ('"', '"'), ("a/", ")")]
        ),
        f"/home/{PERSON}/x",
        f"C:\\Users\\{PERSON}\\.docker",
        f"/mnt/c/Users/{PERSON}/y",
        f"vsc-{PERSON}-project_dev_1",
        f"{PERSON}",
        f"group {PERSON}: no",
        f"({PERSON}@{MACHINE})",
        f"{MACHINE}.corp.example",
        f"Nov  2 03:04:05 {MACHINE} kernel: NVRM: Xid (PCI:0000:01:00): 79",
        f"2026-11-20T10:00:00+01:00 {MACHINE} kernel: NVRM: x",
        f"tcp://{REMOTE}:2376",
        f"ssh://{PERSON}@{REMOTE}",
        f"lost {REMOTE}, again",
        f"https://{PERSON}:{PASSWORD}@git.corp.example/x.git",
        f"mailto {MAIL}.",
        f"GPU-1a2b3c4d-{UUID_TAIL}",
        f"MIG-GPU-1a2b3c4d-{UUID_TAIL}/1/0",
        f"Serial Number : {SERIAL}",
        f"serial={SERIAL},",
    ]
)


def planted(value, plants):
    """`value` with something of a secret in each of its texts."""
    if type(value) is str:
        return f"{value} {next(plants)}"
    if isinstance(value, tuple):
        return tuple(planted(item, plants) for item in value)
    if dataclasses.is_dataclass(value):
        fields = {field.name: planted(getattr(value, field.name), plants) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


def known(facts):
    """The same machine with what makes its names known: its own name, a home folder, an engine elsewhere."""
    log = KernelLog((Xid(79, "PCI:1", f"Nov 20 10:00:00 {MACHINE} kernel: NVRM: Xid, for {PERSON}"),), ())
    system = facts.system if isinstance(facts.system, System) else healthy().system
    return dataclasses.replace(
        facts,
        kernel_log=log,
        system=dataclasses.replace(system, host_name=MACHINE, kernel=f"/home/{PERSON} tcp://{REMOTE}:1"),
    )


def leaks(text):
    """What of the secrets is in a text, markup aside."""
    plain = html.unescape(text).replace("\\", "")
    return [secret for secret in NEVER if secret in text or secret in plain]


def forms_of(facts):
    report = build_report(facts, run_on_host_and_container(CHECKS, facts, clock=lambda: 0.0), devkit="0.1.0")
    for style in ("json", "sarif", "markdown", "html"):
        yield style, format_doctor_report(facts, report, OutputOptions(style, None), exit_code=1)


@pytest.mark.full
@SOME
@given(FACTS, st.data())
def test_saved_facts_identify_no_person(facts, data):
    facts = known(facts)
    plants = data.draw(st.lists(PLANTS, min_size=10, max_size=10))
    count = len([*_texts(facts)])
    dirty = planted(facts, iter(plants * (count // 10 + 1)))
    text = format_facts(redact_facts(dirty))
    assert leaks(text) == []
    assert isinstance(json.loads(text), dict)


@pytest.mark.full
@SOME
@given(st.sampled_from([healthy(), inside(), *map(facts_of, MACHINES[:6])]), st.data())
def test_no_form_of_the_report_names_anybody(facts, data):
    plants = data.draw(st.lists(PLANTS, min_size=7, max_size=7))
    dirty = planted(known(facts), iter(plants * (len([*_texts(facts)]) // 7 + 30)))
    assert {style: found for style, text in forms_of(dirty) if (found := leaks(text))} == {}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.full
def test_redacted_facts_are_judged_as_the_true_ones_are(name):
    """Blanking must not break what the checks compare, such as /dev/nvidia0 for a user who is called dev."""
    facts = facts_of(name)
    shown = [
        [
            (one.check.code, one.finding.severity)
            for one in build_report(side, run_on_host_and_container(CHECKS, side, clock=lambda: 0.0), devkit="x").roots
        ]
        for side in (facts, parse_facts(format_facts(redact_facts(facts))))
    ]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("host_name", "text", "left"),
    [
        pytest.param("gpubox17", "gpubox17 kernel: x", "host kernel: x", id="this machine's name"),
        pytest.param(
            "gpubox17.corp.example", "on gpubox17, gpubox17.corp.example", "on host, host", id="long and short"
        ),
        pytest.param("gpubox17", "gpubox170", "gpubox170", id="not inside of another word"),
        pytest.param("box", "box-mary on box, /home/box-mary", "user on host, /home/user", id="a part of a name"),
        pytest.param("ubuntu", "ubuntu 24.04", "ubuntu 24.04", id="a name that says nothing"),
        pytest.param("10", "10 GPUs", "10 GPUs", id="a number is no name"),
    ],
)
def test_the_machines_own_name(host_name, text, left):
    facts = dataclasses.replace(
        healthy(), system=dataclasses.replace(healthy().system, host_name=host_name, kernel=text)
    )
    assert build_redaction(facts).redact_text(text) == left


def test_a_user_called_dev_keeps_the_device_nodes():
    facts: Facts = healthy()
    assert redact_facts(facts).driver.device_nodes == facts.driver.device_nodes
    assert "/home/dev" not in format_facts(redact_facts(facts))


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("wandb login 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("password: 12345678", "12345678"),
        ("connect to 10.1.2.3 failed", "10.1.2.3"),
        ("peer 203.0.113.7:29500 reset", "203.0.113.7"),
        ("192.168.17.4 is down", "192.168.17.4"),
        ("MASTER_ADDR=10.0.0.5", "10.0.0.5"),
        ("user=zqperson", "zqperson"),
        ('"hostname": "trainbox17"', "trainbox17"),
        ("zqperson@trainbox17:~$ ls", "zqperson"),
        ("zqperson@trainbox17:~$ ls", "trainbox17"),
        ("/mnt/home/zqperson/x.py", "zqperson"),
        ("/data/users/zqperson/x.py", "zqperson"),
        ("passwort=zq-geheim", "zq-geheim"),
        ("contraseña: zq-secreta", "zq-secreta"),
        ("wpa psk=zq-shared", "zq-shared"),
        ("card PIN: 483920175", "483920175"),
        ("seed phrase: ripple lemon orbit canvas", "canvas"),
        ("recovery_codes=zq4f-81aa zq9c-77be", "zq9c"),
        ("password: |\n  zq-block", "zq-block"),
        ("password\tzQ7hunter2Xk9", "zQ7hunter2Xk9"),
        ("https://x.example/b?sv=2022&sig=zQ7%3D", "zQ7"),
        ("https://x.example/k?X-Amz-Signature=0123abcd&x=1", "0123abcd"),
        ("AGE-SECRET-KEY-1QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", "QPZRY9X8"),
    ],
)
def test_names_and_addresses_of_everyday_logs_are_redacted(text, gone):
    assert gone not in Redaction(()).redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=512, num_tokens: 4096",
        "eos_token = '<|endoftext|>'",
        "pad_token: [PAD]",
        "token_type_ids=None",
        'token = os.environ["HF_TOKEN"]',
        "nvidia-cublas-cu12 12.4.5.8",
        "nvidia-curand-cu12==10.3.5.147",
        "nvidia-curand-cu12 10.3.5.147",
        "password authentication failed for user",
        "KeyError: 'token'",
        "Invalid token: expired",
        "HF_TOKEN is not set",
        "uses: actions/checkout@v4",
        "python@sha256:0123",
        "bind 127.0.0.1:8000 and 0.0.0.0:80",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "loss=0.3 passed=3 compass: north",
        "CUDA_VISIBLE_DEVICES=0",
        "user=root hostname: localhost, machine: x86_64",
        "requirepass $REDIS_PASSWORD_1",
        "password: null, api_key=$API_KEY, tokens: 512",
        "OTP 25, signature=(x: int), psk is not set, pin = 18, pin: 2024.1, pin_memory=1000",
        "password='', api_token = \"\"",
    ],
)
def test_what_a_diagnosis_needs_is_kept(text):
    assert Redaction(()).redact_text(text) == text
    assert not holds_secret(text) and not contains_token(text)


def test_a_word_after_a_key_is_secret_where_nobody_speaks_it():
    kept = ["some-where.org", "lib/x86_64", "a1b2c3d4e5f6g7h8i9j"]
    gone = ["a1b2c3d4e5f6g7h8i9j0", "abcdefg!1", "Xb1Cd2Ef3"]
    assert [word for word in (*kept, *gone) if holds_secret(f"api_token {word}")] == gone
    words = ["Xb1Cd2Ef3", "XAb1Cd2E", "xb1cd2ef3", "0xAb12Cd", "XB1CD2EF3", "Ab1Cd2Ef3"]
    assert [word for word in words if is_random(word)] == ["Xb1Cd2Ef3"]


def test_what_was_removed_is_counted_and_lines_that_may_hold_more_are_shown():
    before = "user=alice on node=gpu7\nloss 0.3\nlogin: bob"
    assert count_removed(before, Redaction(()).redact_text(before)) == 3
    assert count_removed(before, before) == 0
    key = "-----BEGIN PRIVATE KEY-----\nAb12\n-----END PRIVATE KEY-----\n"
    assert count_removed(f"{key}{before}", Redaction(()).redact_text(f"{key}{before}")) == 6
    many = "user=alice " * 60
    assert count_removed(many, Redaction(()).redact_text(many)) == 60
    doubtful = [f"id {number}: aB3dE5gH7jK9mN1pQ3sT" for number in range(6)]
    plain = ["commit 0123456789abcdef0123456789abcdef01234567", "torch.nn.modules.Conv2dNormActivation512x"]
    assert find_doubtful_lines("\n".join([*plain, *doubtful, *doubtful])) == (*doubtful[:5],)


@pytest.mark.parametrize(
    "unit", ["a", "password ", "token=", "/home", "a.b-", "1.2.3.4 ", "user=", "-u ", "mysql ", "x@"]
)
def test_redaction_takes_twice_as_long_for_twice_as_much(unit):
    def measure(repeats: int) -> float:
        text = unit * repeats
        started = time.process_time()
        Redaction(()).redact_text(text)
        return time.process_time() - started

    repeats = 40_000 // len(unit)
    assert measure(4 * repeats) < 10 * measure(repeats) + 0.1
