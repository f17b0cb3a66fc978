"""The hub's settings, never with the token, and real requests to the hub."""

import json
import shutil
import sys
import time

import pytest

from devkit.facts.runs import CaBundle, HubCall, Proxy
from devkit.facts.values import Unknown
from devkit.probe.documents import strip_url_credentials
from devkit.probe.host import LocalHost
from devkit.probe.hub import read_hub, read_hub_call
from tests.hosts import written
from tests.probe.hubs import hub, own_certificate

# The hub's settings: where a token comes from and what shape it has, never the token.


TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0fR3u"


def hub_settings(tmp_path, files="", **env):
    variables = "".join(f"{name} = '''{value}'''\n" for name, value in {"HOME": "/h", **env}.items())
    return read_hub(written(tmp_path, f"[env]\n{variables}[files]\n{files}\n"))


@pytest.mark.parametrize(
    ("env", "files", "origin"),
    [
        pytest.param({}, "", "", id="none"),
        pytest.param({"HF_TOKEN": TOKEN}, "", "HF_TOKEN", id="the variable"),
        pytest.param({"HUGGING_FACE_HUB_TOKEN": TOKEN}, "", "HUGGING_FACE_HUB_TOKEN", id="the old variable"),
        pytest.param({"HF_TOKEN": " "}, "", "", id="an empty variable"),
        pytest.param({}, f'"/h/.cache/huggingface/token" = "{TOKEN}\\n"', "file", id="the file"),
        pytest.param({"HF_HOME": "/c"}, f'"/c/token" = "{TOKEN}"', "file", id="the file in HF_HOME"),
        pytest.param({"HF_TOKEN_PATH": "/t"}, f'"/t" = "{TOKEN}"', "file", id="the file that a variable names"),
        pytest.param({"HF_TOKEN": TOKEN}, '"/h/.cache/huggingface/token" = "x"', "HF_TOKEN", id="the variable first"),
    ],
)
def test_where_the_token_comes_from(tmp_path, env, files, origin):
    found = hub_settings(tmp_path, files, **env)
    assert (found.token_from, found.token_problem) == (origin, "")
    assert TOKEN not in repr(found)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param(TOKEN, "", id="a token"),
        pytest.param("a" + "0123456789abcdefghijklmnopqrstuv", "", id="an organization's token of long ago"),
        pytest.param("${localEnv:HF_TOKEN}", "it is a placeholder", id="an unexpanded variable"),
        pytest.param("hf_xxxxxxxxxxxxxxxxxxxx", "it is a placeholder", id="a row of x"),
        pytest.param("your_token_here", "it is a placeholder", id="words"),
        pytest.param(f'"{TOKEN}"', "it is in quotation marks", id="quoted"),
        pytest.param(f"Bearer {TOKEN}", "it has a space or a line break in it", id="a whole header"),
        pytest.param("abc", "it is too short", id="too short"),
    ],
)
def test_the_shape_of_the_token(tmp_path, value, problem):
    found = hub_settings(tmp_path, HF_TOKEN=value)
    assert found.token_problem == problem
    assert value not in repr(found)


@pytest.mark.parametrize(
    ("env", "by"),
    [
        ({}, ""),
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE"),
        ({"HF_HUB_OFFLINE": "0"}, ""),
        ({"TRANSFORMERS_OFFLINE": "yes"}, "TRANSFORMERS_OFFLINE"),
        ({"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "1"}, ""),
    ],
    ids=["unset", "on", "off", "the other variable", "the first one decides, as in the library"],
)
def test_what_switches_the_hub_off(tmp_path, env, by):
    found = hub_settings(tmp_path, **env)
    assert (found.offline_by, found.is_offline) == (by, by != "")


def test_proxies_lose_their_logins(tmp_path):
    found = hub_settings(
        tmp_path, HTTPS_PROXY="http://ann:geheim@proxy:3128", all_proxy="socks5://127.0.0.1:1080", HTTP_PROXY=""
    )
    assert found.proxies == (Proxy("HTTPS_PROXY", "http://proxy:3128"), Proxy("all_proxy", "socks5://127.0.0.1:1080"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("proxy:3128", "proxy:3128"),
        ("ann:geheim@proxy:3128", "proxy:3128"),
        ("http://ann:ge@heim@proxy/x?token=geheim", "http://proxy/x"),
        ('"http://ann:geheim@proxy:3128"', "http://proxy:3128"),
        ("x'http://ann:geheim@proxy:3128", "x'http://proxy:3128"),
        ("http://[bad", "not an address"),
        ("", ""),
    ],
    ids=[
        "no scheme",
        "a login without scheme",
        "an @ in the password",
        "in quotes",
        "behind a stray quote",
        "no address",
        "empty",
    ],
)
def test_no_login_is_kept(url, shown):
    assert strip_url_credentials(url) == shown


def test_certificates_are_looked_for(tmp_path):
    found = hub_settings(tmp_path, '"/ca.pem" = "x"', REQUESTS_CA_BUNDLE="/ca.pem", SSL_CERT_FILE="/gone.pem")
    assert found.ca_bundles == (
        CaBundle("REQUESTS_CA_BUNDLE", "/ca.pem", True),
        CaBundle("SSL_CERT_FILE", "/gone.pem", False),
    )


# Real requests to the hub: over real sockets, in a child process, with and without an answer.


SECRET_TOKEN = "hf_" + "secretSecretSecretSecretSecret"
VARIABLES = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "MODEL_ID"),
    *("HF_MODEL_ID", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "HF_TOKEN_PATH"),
)


@pytest.fixture
def ask(monkeypatch, tmp_path):
    """A function that asks a hub in an environment of its own."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))

    def asked(endpoint, deadline_s=10.0, **env) -> HubCall:
        for name, value in {"HF_ENDPOINT": endpoint, **env}.items():
            monkeypatch.setenv(name, value)
        return read_hub_call(LocalHost(), deadline_s=deadline_s)

    return asked


def test_a_hub_that_answers(ask):
    with hub() as url:
        found = ask(url)
    assert (found.url, found.status, found.failure) == (url, 200, "")
    assert abs(found.clock_ahead_s) <= 2
    assert found.token_status == Unknown("no token was sent")
    assert (found.model, found.model_status) == ("", Unknown("no model was given"))


@pytest.mark.parametrize(
    ("status", "error"),
    [(200, ""), (307, ""), (401, "GatedRepo"), (401, "RepoNotFound"), (403, ""), (404, "EntryNotFound"), (429, "")],
    ids=["open", "moved", "gated", "unknown", "refused", "no such file", "asked too often"],
)
def test_how_the_hub_speaks_of_a_model(ask, status, error):
    path = "/meta-llama/Llama-3.1-8B/resolve/main/config.json"
    with hub(answers={path: (status, error)}) as url:
        found = ask(url, MODEL_ID="meta-llama/Llama-3.1-8B")
    assert (found.status, found.model_status, found.model_error) == (200, status, error)


@pytest.mark.parametrize("name", ["/models/llama", "./llama", "llama", "a/b/c", "a b/c"])
def test_a_variable_that_names_no_repository_is_not_requested(ask, name):
    with hub() as url:
        assert ask(url, MODEL_ID=name).model == ""


@pytest.mark.parametrize("ahead_s", [0, 1200, -1200], ids=["right", "the hub is ahead", "the hub is behind"])
def test_the_clock_is_read_from_the_answer(ask, ahead_s):
    with hub(ahead_s=ahead_s) as url:
        assert abs(ask(url).clock_ahead_s + ahead_s) <= 2


def test_the_token_is_sent_to_the_hub_alone(ask):
    seen = []
    with hub(seen=seen) as url:
        found = ask(url, HF_TOKEN=SECRET_TOKEN, MODEL_ID="a/b")
    assert [(method, login) for method, _, login in seen] == [("HEAD", ""), ("HEAD", "")]
    assert found.token_status == Unknown("no token was sent")
    assert SECRET_TOKEN not in repr(found)


@pytest.mark.parametrize(("status", "token"), [(200, SECRET_TOKEN), (401, SECRET_TOKEN)], ids=["known", "refused"])
def test_the_hub_validates_the_token(tmp_path, status, token):
    """The child takes the local server for the hub's own host, for this once."""
    seen = []
    with hub(answers={"/api/whoami-v2": (status, "")}, seen=seen) as url:
        script = (
            "import sys, runpy; module = runpy.run_path(sys.argv[1]);"
            "module['main'].__globals__['TRUSTED_HOSTS'] = (sys.argv[2],); module['main'](*sys.argv[2:5])"
        )
        (tmp_path / "token").write_text(f"{token}\n")
        done = LocalHost().run([sys.executable, "-c", script, ask_hub(), url, str(tmp_path / "token"), ""])
    said = [json.loads(line) for line in done.out.splitlines()]
    assert said[1] == {"token": status}
    assert seen[1] == ("GET", "/api/whoami-v2", f"Bearer {token}")
    assert token not in done.out + done.err


def ask_hub():
    from devkit.probe.children.protocol import CHILDREN_FOLDER

    return str(CHILDREN_FOLDER / "ask_hub.py")


@pytest.mark.clock
def test_a_hub_that_accepts_and_never_answers_ends_within_the_deadline(ask):
    started = time.monotonic()
    with hub(hang_at="/") as url:
        found = ask(url, deadline_s=1.0)
    assert time.monotonic() - started < 2.5
    assert (found.failure, found.message) == ("timed-out", "no answer within 1 s")


@pytest.mark.clock
def test_an_answer_about_the_door_survives_a_model_that_hangs(ask):
    with hub(hang_at="/a/b") as url:
        found = ask(url, deadline_s=1.5, MODEL_ID="a/b")
    assert (found.status, found.model_status) == (200, Unknown("no model was given"))


@pytest.mark.parametrize("endpoint", ["hf-mirror.com", "gopher://x", "http://[bad"])
def test_an_address_that_is_none_is_no_crash(ask, endpoint):
    found = ask(endpoint)
    assert isinstance(found, HubCall)
    assert found.failure == "unreachable" or found.failure == "proxy"


def test_a_proxy_that_wants_a_login(ask):
    with hub(answers={"http://hub.invalid/": (407, "")}) as proxy:
        found = ask("http://hub.invalid", http_proxy=proxy, no_proxy="")
    assert (found.status, found.failure) == (407, "")


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


@needs_openssl
def test_an_untrusted_certificate(ask, tmp_path):
    with hub(certificate=own_certificate(tmp_path)) as url:
        found = ask(url)
    assert found.failure == "certificate"
    assert "certificate verify failed" in found.message


@needs_openssl
def test_a_certificate_that_a_variable_names_is_trusted(ask, tmp_path):
    certificate = own_certificate(tmp_path)
    with hub(certificate=certificate) as url:
        found = ask(url, REQUESTS_CA_BUNDLE=f"{certificate}.crt")
    assert (found.status, found.failure) == (200, "")


def test_an_offline_hub_gets_no_request(ask):
    seen = []
    with hub(seen=seen) as url:
        assert ask(url, HF_HUB_OFFLINE="1") == Unknown("HF_HUB_OFFLINE switches the hub off")
    assert seen == []


@pytest.mark.parametrize("out", ["", "garbage", '{"door": 7}', '{"door": {"sta', "[1]"])
def test_a_child_that_says_nothing_sensible_is_unknown(tmp_path, out):
    host = written(
        tmp_path,
        f"""
[env]
HOME = "/h"
[[command]]
argv = ["{{python}}", "-P", "{{devkit}}/ask_hub.py", "https://huggingface.co", "/h/.cache/huggingface/token", ""]
code = 1
out = '''{out}'''
err = "it went wrong"
""",
    )
    assert read_hub_call(host, deadline_s=1) == Unknown("the hub child ended with status 1: it went wrong")
