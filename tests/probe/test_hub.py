"""The hub's settings: where a token comes from and what shape it has, never the token."""

import pytest

from devkit.facts.model import CaBundle, Proxy
from devkit.probe.documents import strip_url_credentials
from devkit.probe.hub import read_hub
from tests.hosts import written

TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0fR3u"


def hub(tmp_path, files="", **env):
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
    found = hub(tmp_path, files, **env)
    assert (found.token_from, found.token_problem) == (origin, "")
    assert TOKEN not in repr(found)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param(TOKEN, "", id="a token"),
        pytest.param("a" + "0123456789abcdefghijklmnopqrstuv", "", id="an organisation's token of long ago"),
        pytest.param("${localEnv:HF_TOKEN}", "it is a placeholder", id="an unexpanded variable"),
        pytest.param("hf_xxxxxxxxxxxxxxxxxxxx", "it is a placeholder", id="a row of x"),
        pytest.param("your_token_here", "it is a placeholder", id="words"),
        pytest.param(f'"{TOKEN}"', "it is in quotation marks", id="quoted"),
        pytest.param(f"Bearer {TOKEN}", "it has a space or a line break in it", id="a whole header"),
        pytest.param("abc", "it is too short", id="too short"),
    ],
)
def test_the_shape_of_the_token(tmp_path, value, problem):
    found = hub(tmp_path, HF_TOKEN=value)
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
    found = hub(tmp_path, **env)
    assert (found.offline_by, found.is_offline) == (by, by != "")


def test_proxies_lose_their_logins(tmp_path):
    found = hub(
        tmp_path, HTTPS_PROXY="http://ann:geheim@proxy:3128", all_proxy="socks5://127.0.0.1:1080", HTTP_PROXY=""
    )
    assert found.proxies == (
        Proxy("HTTPS_PROXY", "http://proxy:3128"),
        Proxy("all_proxy", "socks5://127.0.0.1:1080"),
    )


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
    found = hub(tmp_path, '"/ca.pem" = "x"', REQUESTS_CA_BUNDLE="/ca.pem", SSL_CERT_FILE="/gone.pem")
    assert found.ca_bundles == (
        CaBundle("REQUESTS_CA_BUNDLE", "/ca.pem", True),
        CaBundle("SSL_CERT_FILE", "/gone.pem", False),
    )
