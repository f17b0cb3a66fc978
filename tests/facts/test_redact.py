import dataclasses
import re

import pytest
from hypothesis import HealthCheck, given, settings

from devkit.facts.model import (
    Endpoint,
    EngineEnd,
    EngineFailure,
    Facts,
    Gpu,
    NvmlAnswer,
    Storage,
)
from devkit.facts.redact import redact_facts
from devkit.facts.store import format_facts
from devkit.facts.values import ComputeCapability, Release, Unknown
from tests.amount import examples
from tests.facts.samples import FACTS

UNREAD = Unknown("not looked at")
NOTHING = Facts("2026-01-01T00:00:00+00:00", "0.1.0", *([UNREAD] * 11))


def shown(text):
    """What is left of a text somewhere in the facts."""
    return redact_facts(dataclasses.replace(NOTHING, storage=Unknown(text))).storage.reason


@pytest.mark.parametrize(
    ("text", "left"),
    [
        pytest.param("/home/alice/.cache/huggingface", "/home/user/.cache/huggingface", id="a Linux home"),
        pytest.param("/Users/alice/.docker", "/Users/user/.docker", id="a macOS home"),
        pytest.param("C:\\Users\\alice\\.docker", "C:\\Users\\user\\.docker", id="a Windows home"),
        pytest.param("/mnt/c/Users/alice/x", "/mnt/c/Users/user/x", id="a Windows home seen from WSL"),
        pytest.param("unix:///home/alice/d.sock", "unix:///home/user/d.sock", id="a home inside a URL"),
        pytest.param("/home/alice and group alice", "/home/user and group user", id="the name anywhere else"),
        pytest.param("/home/al/malice", "/home/user/malice", id="but not inside other words"),
        pytest.param("/srv/home/alice/x", "/srv/home/alice/x", id="a folder that only looks like a home"),
        pytest.param("/root/.cache", "/root/.cache", id="root identifies no person"),
        pytest.param("tcp://gpu7.example.com:2376", "tcp://host:2376", id="a remote engine"),
        pytest.param("ssh://bob@gpu7", "ssh://host", id="a login at a remote engine"),
        pytest.param("tcp://gpu7:1 refused: gpu7", "tcp://host:1 refused: host", id="its name in a message"),
        pytest.param("http://proxy.corp.example:3128", "http://host:3128", id="a company's proxy"),
        pytest.param("socks5://127.0.0.1:7890 is a proxy", "socks5://127.0.0.1:7890 is a proxy", id="a proxy here"),
        pytest.param("tcp://localhost:2375", "tcp://localhost:2375", id="this machine"),
        pytest.param("https://bob:secret@proxy.example.com/", "https://proxy.example.com/", id="a password in a URL"),
        pytest.param("HF_TOKEN=hf_abcdefghijklmnop", "HF_TOKEN=redacted", id="a hub token"),
        pytest.param("ghp_0123456789012345678901234567890123", "redacted", id="a code host's token"),
        pytest.param("GPU-1a2b3c4d-1111-2222-3333-444455556666", "GPU-1a2b3c4d", id="the tail of a UUID"),
        pytest.param("MIG-1a2b3c4d-1111-2222-3333-444455556666", "MIG-1a2b3c4d", id="the tail of a MIG UUID"),
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


@settings(
    max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None
)
@given(FACTS)
def test_redacting_twice_changes_nothing_more(facts):
    once = redact_facts(facts)
    assert redact_facts(once) == once
    assert not re.search(r"/home/(?!user\b)[a-z]", format_facts(once))
