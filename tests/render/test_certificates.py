"""Certificates: taken as they are from any PEM file, and nothing but certificates."""

import pytest

from devkit.errors import DevkitError
from devkit.render.container.settings import parse_certificates

AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBkTCCATegAwIBAgIUMltRIGAEJRYo8HDjtke1/Qq0ODowCgYIKoZIzj0EAwIw
HTEbMBkGA1UEAwwSRXhhbXBsZSBDb21wYW55IENBMCAXDTI2MTEyMTA1NTQ0OFoY
DzIxMjYxMDI4MDU1NDQ4WjAdMRswGQYDVQQDDBJFeGFtcGxlIENvbXBhbnkgQ0Ew
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARhQpuAILoLhcK9Af6o8SDH8OgSFnZK
n5Xy/Ph3M85sF599Fj4C30OOfd6c4O4SN2x6wzIQbf9TDWejwwMexPEfo1MwUTAd
BgNVHQ4EFgQUk8EOwDkiYGTlxGvZ6TFy54BIYbMwHwYDVR0jBBgwFoAUk8EOwDki
YGTlxGvZ6TFy54BIYbMwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBF
AiEAwvk1Ffeh2vog2Mc+ngLuYK4Jn/wf6nxgomtRVS+OF70CICHJiNb1g7xjhYho
U/ASQpeYqtKXv41OWqGHUFWX55f8
-----END CERTIFICATE-----
"""
KEY = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(AUTHORITY, id="the certificate alone"),
        pytest.param(f"# our authority\nsubject=CN\n{AUTHORITY}", id="with openssl's text before it"),
        pytest.param(AUTHORITY.replace("\n", "\r\n"), id="with Windows line ends"),
    ],
)
def test_one_certificate_is_kept_and_the_rest_dropped(text):
    assert parse_certificates(text.encode(), shown_as="ca.pem") == AUTHORITY


def test_a_bundle_keeps_every_certificate_and_a_second_pass_changes_nothing():
    bundle = parse_certificates((AUTHORITY + "\n" + AUTHORITY).encode(), shown_as="ca.pem")
    assert bundle == AUTHORITY * 2
    assert parse_certificates(bundle.encode(), shown_as="ca.pem") == bundle


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param((AUTHORITY + KEY).encode(), "private key", id="a key beside it"),
        pytest.param(KEY.replace("PRIVATE", "RSA PRIVATE").encode(), "private key", id="an RSA key"),
        pytest.param(b"", "not contain a PEM certificate", id="an empty file"),
        pytest.param(b"\x30\x82\x01\x91\xff\xfe", "not contain a PEM certificate", id="a DER file"),
        pytest.param(AUTHORITY.replace("MIIBkTCC", "AAAAAAAA").encode(), "not a valid X.509", id="damaged inside"),
        pytest.param(AUTHORITY[:300].encode(), "not contain a PEM certificate", id="cut short"),
    ],
)
def test_anything_else_is_refused(content, says):
    with pytest.raises(DevkitError, match=says) as refused:
        parse_certificates(content, shown_as="ca.pem")
    assert "ca.pem" in refused.value.message
    assert "\n" not in refused.value.message
