"""Mirrors: configured for every program that downloads, and never with a login."""

import json
import re
from dataclasses import replace

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.render.container.settings import build_mirror_variables, find_torch_index, validate_mirror

from .plans import CPU_PLAN, GPU_PLAN
from .test_artifacts import PLAIN, texts

MIRRORED = replace(
    PLAIN,
    index="https://pypi.example.org/simple",
    torch_index="https://t.example.org/whl",
    hub="https://hub.example.org",
)
PASSWORD = "S3cr3t-of-the-index"


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        pytest.param("", "", id="none"),
        pytest.param(
            "https://pypi.example.org/simple/", "https://pypi.example.org/simple", id="a slash at the end goes"
        ),
        pytest.param("http://10.0.0.7:3141/root/pypi/+simple", "http://10.0.0.7:3141/root/pypi/+simple", id="devpi"),
        pytest.param("https://[2001:db8::7]:8443/simple", "https://[2001:db8::7]:8443/simple", id="an IPv6 address"),
    ],
)
def test_an_address_is_kept(address, kept):
    assert validate_mirror("index", address) == kept


@pytest.mark.parametrize(
    "address",
    [
        pytest.param(f"https://me:{PASSWORD}@pypi.example.org/simple", id="a user and a password"),
        pytest.param(f"https://{PASSWORD}@pypi.example.org/simple", id="a token alone"),
        pytest.param(f"me:{PASSWORD}@pypi.example.org", id="a login without a scheme"),
    ],
)
@pytest.mark.parametrize("setting", ["index", "torch_index", "hub"])
def test_a_login_is_refused_and_not_repeated(setting, address):
    with pytest.raises(DevkitError, match="contains a login, which anyone could read in") as refused:
        validate_mirror(setting, address)
    assert PASSWORD not in refused.value.message + refused.value.hint
    assert "DEVKIT_NETRC" in refused.value.hint


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("pypi.example.org/simple", id="no scheme"),
        pytest.param("file:///srv/wheels", id="a file"),
        pytest.param("https://", id="no host"),
        pytest.param("https://pypi.example.org:99999999/simple", id="a port with too many digits"),
        pytest.param("https://pypi.example.org:65536/simple", id="a port that no machine has"),
        pytest.param("https://pypi.example.org:0/simple", id="port zero"),
        pytest.param("https://pypi.example.org/simple\n", id="a line break at the end"),
        pytest.param("https://pypi.example.org/simple?token=abc", id="a query"),
        pytest.param("https://pypi.example.org/a b", id="a space"),
        pytest.param("https://pypi.example.org/$(id)", id="a command"),
        pytest.param("https://pypi.example.org/\nRUN id", id="a line break"),
        pytest.param("https://pypi.exämple.org/simple", id="a letter that no host name has"),
        pytest.param("https://pypi.example.org/" + "a" * 500, id="no end of it"),
    ],
)
def test_what_no_file_could_carry_is_refused_in_one_line(address):
    with pytest.raises(DevkitError, match=r"network\.index cannot be") as refused:
        validate_mirror("index", address)
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("plan", "settings", "index"),
    [
        pytest.param(GPU_PLAN, MIRRORED, "https://t.example.org/whl/cu130", id="the same folder on the mirror"),
        pytest.param(CPU_PLAN, MIRRORED, "https://t.example.org/whl/cpu", id="the CPU's folder"),
    ],
)
def test_torch_comes_from_the_folder_of_its_variant(plan, settings, index):
    assert find_torch_index(plan, settings) == index
    made = texts(plan, settings)
    assert index in made["Dockerfile"]
    if settings is MIRRORED:
        assert "download.pytorch.org" not in re.sub(r"^#.*$", "", made["Dockerfile"], flags=re.MULTILINE)


def test_an_index_without_tls_is_named_to_pip_as_trusted_once():
    plain_http = replace(PLAIN, index="http://m.example:3141/simple", torch_index="http://m.example:3141/whl")
    assert dict(build_mirror_variables(plain_http))["PIP_TRUSTED_HOST"] == '"m.example:3141"'
    assert "PIP_TRUSTED_HOST" not in dict(build_mirror_variables(MIRRORED))


def test_every_program_that_downloads_learns_of_its_mirror():
    text = texts(CPU_PLAN, MIRRORED)["Dockerfile"]
    for line in (
        "PIP_INDEX_URL=https://pypi.example.org/simple",
        "UV_DEFAULT_INDEX=https://pypi.example.org/simple",
        "HF_ENDPOINT=https://hub.example.org",
    ):
        assert line in text


def test_the_login_reaches_each_installation_and_no_other_instruction():
    text = texts(CPU_PLAN, MIRRORED)["Dockerfile"]
    runs = re.findall(r"^RUN (?:[^\n]*\\\n)*[^\n]*", text, re.MULTILINE)
    with_login = [run for run in runs if "type=secret,id=netrc" in run]
    assert with_login == [run for run in runs if "pip install" in run] != []


def test_without_a_login_the_secret_is_a_file_that_exists():
    made = texts(CPU_PLAN, MIRRORED)
    compose = yaml.safe_load(made["docker-compose.yml"])
    assert compose["secrets"] == {"netrc": {"file": "${DEVKIT_NETRC:-no-netrc}"}}
    assert compose["services"]["dev"]["build"]["secrets"] == ["netrc"]
    assert "secrets" not in compose["services"]["dev"]
    assert made["no-netrc"].startswith("#")


def test_without_mirrors_no_login_is_mounted():
    made = texts(CPU_PLAN, PLAIN)
    assert "netrc" not in json.dumps(made)
    assert "ENV PIP_INDEX_URL" not in made["Dockerfile"]


def test_proxies_are_passed_in_both_spellings_to_the_build_and_to_the_container():
    dev = yaml.safe_load(texts(CPU_PLAN, PLAIN)["docker-compose.yml"])["services"]["dev"]
    names = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
    names |= {name.lower() for name in names}
    assert names <= set(dev["build"]["args"])
    assert names <= set(dev["environment"])
