"""Thirty kinds of secrets, planted in every file of a project and in a log: no output and no written file repeats one."""

import json

import pytest

from devkit.facts.redact import redact_tokens
from tests.render.injection import FIXED, ran, tree

A, HEX, B64 = "aB3" * 12, "0a1b2c3d" * 5, "QWxhZGRpbjpvcGVuIHNlc2FtZQ"
PLANTED = {
    "Hugging Face": f"hf_{A}",
    "Hugging Face, organization": f"api_org_{A}",
    "GitHub, personal": f"ghp_{A}",
    "GitHub, fine-grained": f"github_pat_{A}",
    "GitLab": f"glpat-{A}",
    "GitLab, runner": f"glrt-{A}",
    "OpenAI": f"sk-proj-{A}",
    "Anthropic": f"sk-ant-api03-{A}",
    "NVIDIA": f"nvapi-{A}",
    "AWS key id": "AKIAIOSFODNN7PLANTED",
    "Google, API key": f"AIza{A[:35]}",
    "Google, OAuth": f"ya29.{A}",
    "Slack": f"xoxb-{A}",
    "Slack, app": f"xapp-1-{A}",
    "Slack, webhook": f"hooks.slack.com/services/T{A[:8]}/B{A[:8]}/{A[:24]}",
    "Discord, webhook": f"discord.com/api/webhooks/123456789/{A}",
    "Telegram": f"123456789:AA{A[:33]}",
    "JSON web token": f"eyJ{A}.{A}.{A}",
    "Docker Hub": f"dckr_pat_{A}",
    "PyPI": f"pypi-{A}",
    "npm": f"npm_{A}",
    "Groq": f"gsk_{A}",
    "Replicate": f"r8_{A}",
    "Databricks": f"dapi{HEX}",
    "DigitalOcean": f"dop_v1_{HEX}",
    "Vault": f"hvs.{A}",
    "Stripe": f"sk_live_{A}",
    "SendGrid": f"SG.{A[:22]}.{A}",
    "Atlassian": f"ATATT3x{A}",
    "Azure, storage": f"AccountKey={A}{A}==",
    "Azure, signature": f"https://a.blob.core.windows.net/x?sv=1&sig={A}",
    "private key": f"-----BEGIN OPENSSH PRIVATE KEY-----{A}{A}-----END OPENSSH PRIVATE KEY-----",
    "basic authorization": f"Authorization: Basic {B64}",
    "bearer": f"Authorization: Bearer {A}",
    "login in an address": f"https://me:{A}@pypi.example.org/simple",
    "netrc": f"machine example.org login me password {A}",
    "Docker's config": f'"auth": "{B64}"',
    "Hugging Face in base64": "aGZfYUIzYUIzYUIzYUIzYUIzYUIzYUIz",
}
CORES = sorted({A[:20], HEX, B64, "AKIAIOSFODNN7PLANTED", "aGZfYUIzYUIz"})
"""The parts of the values that no output may hold."""


def test_a_text_of_every_kind_is_redacted():
    assert len(PLANTED) >= 30
    for kind, secret in PLANTED.items():
        left = redact_tokens(f"before {secret} after")
        assert left.startswith("before ") and left.endswith("after"), kind
        assert not leaks(left), kind


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    (root / ".devcontainer").mkdir(parents=True)
    values = list(PLANTED.values())
    lines = [json.dumps(value) for value in values]
    (root / "Dockerfile").write_text(
        "FROM python:3.11\n"
        + "".join(
            f"ARG T{n}={line}\nENV E{n}={line}\nRUN echo {line}\nLABEL l{n}={line}\n" for n, line in enumerate(lines)
        )
    )
    environment = "".join(f"      E{n}: {line}\n" for n, line in enumerate(lines))
    (root / "compose.yaml").write_text(
        f"services:\n  app:\n    build: {{context: ., dockerfile: Dockerfile}}\n    environment:\n{environment}"
    )
    container = {
        "dockerComposeFile": "../compose.yaml",
        "service": "app",
        "containerEnv": {f"E{n}": value for n, value in enumerate(values)},
        "remoteEnv": {f"R{n}": value for n, value in enumerate(values)},
        "postCreateCommand": " && ".join(f"echo {line}" for line in lines),
    }
    (root / ".devcontainer/devcontainer.json").write_text(json.dumps(container))
    (root / "requirements.txt").write_text(
        f"--index-url https://me:{A}@pypi.example.org/simple\npeft\ngit+https://me:{A}@example.org/apex.git#egg=apex\n"
        + "".join(f"{value}\n" for value in values)
    )
    (root / ".env").write_text("".join(f"E{n}={value}\n" for n, value in enumerate(values)))
    return root


def leaks(text):
    return [core for core in CORES if core in text]


@pytest.mark.parametrize("style", ["text", "json", "sarif", "markdown", "html"])
def test_no_form_of_the_report_repeats_one(project, style):
    done = ran(project, "doctor", "--format", style, "--verbose", "--save-facts", "../facts.json")
    assert done.code in (0, 1), done.err
    assert not leaks(done.out + done.err)
    assert not leaks((project.parent / "facts.json").read_text())


def test_no_answer_to_a_log_repeats_one(project, monkeypatch):
    text = "CUDA driver version is insufficient for CUDA runtime version\n" + "\n".join(PLANTED.values())
    for words in (("explain", text, "--no-facts"), ("explain", text, "--no-facts", "--json")):
        done = ran(project, *words)
        assert done.code in (0, 1), done.err
        assert not leaks(done.out + done.err)


def test_init_writes_none(project):
    before = tree(project)
    done = ran(project, "init", ".", "--yes", "--no-resolve", *(f"--{name}={value}" for name, value in FIXED.items()))
    assert done.code in (0, 1, 2), done.err
    assert not leaks(done.out + done.err)
    for path, content in done.files.items():
        if before.get(path) is None and not path.endswith(".whl"):
            assert not leaks(content.decode()), path
