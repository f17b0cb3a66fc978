"""Query the model hub, as a separate program: name servers, proxies and firewalls may hold a request forever.

Prints one JSON object per line: `{"door": {…}}`, `{"token": STATUS}`, `{"model": {…}}`. The caller sets the
deadline. It imports nothing of devkit, and prints nothing of a token. As a program it downloads nothing.

    python -P ask_hub.py ENDPOINT TOKEN_PATH MODEL
"""

import json
import os
import socket
import ssl
import sys
import urllib.error
import urllib.request
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from time import monotonic, time

RESPONSE_TIMEOUT_S = 4.0
MAX_DOWNLOAD_BYTES = 4 << 20
TRUSTED_HOSTS = ("https://huggingface.co", "https://hub-ci.huggingface.co")
"""Only they are ever sent the token."""

TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
CA_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes a redirection for the answer that it is: nothing is to be downloaded."""

    def redirect_request(self, *_arguments: object) -> None:
        """Return no request to follow."""


def emit(**line: object) -> None:
    """Print one line at once; a line kept in a buffer is lost when the process is killed."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(endpoint: str, token_path: str, model: str) -> None:
    """Report how the hub at `endpoint` answers, whether it knows the token, and whether it shows `model`."""
    opener = urllib.request.build_opener(NoRedirect, urllib.request.HTTPSHandler(context=build_ssl_context()))
    emit(door=send_request(opener, f"{endpoint}/"))
    token = read_token(token_path)
    if token and endpoint in TRUSTED_HOSTS:
        answer = send_request(opener, f"{endpoint}/api/whoami-v2", token=token)
        emit(token=answer["status"])
    if model:
        emit(model=send_request(opener, f"{endpoint}/{model}/resolve/main/config.json"))


def send_request(opener: urllib.request.OpenerDirector, url: str, *, token: str = "") -> dict[str, object]:
    """Send a HEAD request for `url` and describe the response. With a `token` it is a GET: only that names the token's owner."""
    method = "GET" if token else "HEAD"
    started = monotonic()
    try:
        request = urllib.request.Request(url, method=method, headers={"User-Agent": "devkit doctor"})  # noqa: S310
        if token:
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        with opener.open(request, timeout=RESPONSE_TIMEOUT_S) as answer:
            found = summarize_response(answer.status, answer.headers)
    except urllib.error.HTTPError as error:
        found = summarize_response(error.code, error.headers)
    except (OSError, ValueError, HTTPException) as error:
        found = classify_failure(error)
    return {**found, "took_ms": round((monotonic() - started) * 1000)}


def download(url: str, endpoint: str, token_path: str) -> tuple[str | None, str]:
    """Download a small text, with the token where `endpoint` may have it. Return the text, or None and the reason."""
    request = urllib.request.Request(url, headers={"User-Agent": "devkit"})  # noqa: S310
    token = read_token(token_path) if endpoint in TRUSTED_HOSTS else ""
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=build_ssl_context()))
    try:
        with opener.open(request, timeout=RESPONSE_TIMEOUT_S) as answer:
            return answer.read(MAX_DOWNLOAD_BYTES).decode(errors="replace"), ""
    except urllib.error.HTTPError as error:
        return None, error.headers.get("X-Error-Message") or f"{error.code} {error.reason}"
    except (OSError, ValueError, HTTPException) as error:
        return None, f"{classify_failure(error)['message']}"


def summarize_response(status: int, headers: Message) -> dict[str, object]:
    """Return the relevant part of a response: its status, the hub's own name for an error, and this clock's skew."""
    return {
        "status": status,
        "error": headers.get("X-Error-Code", "")[:60],
        "ahead_s": compute_clock_skew_s(headers.get("Date", "")),
    }


def compute_clock_skew_s(date: str) -> int | None:
    """Return how far this clock is ahead of the one that wrote `date`, in seconds; None without a date."""
    try:
        return round(time() - parsedate_to_datetime(date).timestamp())
    except (ValueError, TypeError, OverflowError):
        return None


def classify_failure(error: Exception) -> dict[str, object]:
    """Return the layer that an exception comes from. urllib wraps most of them in its own."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    text = " ".join(str(reason).split())[:200]
    kinds = (
        (ssl.SSLCertVerificationError, "certificate"),
        (ssl.SSLError, "certificate"),
        (socket.gaierror, "name"),
        (ConnectionRefusedError, "refused"),
        (TimeoutError, "timed-out"),
    )
    kind = next((name for failure, name in kinds if isinstance(reason, failure)), "unreachable")
    if "Tunnel connection failed" in text or "unknown url type" in text.lower():
        kind = "proxy"
    return {"status": 0, "failure": kind, "message": text or type(reason).__name__}


def build_ssl_context() -> ssl.SSLContext:
    """Build the certificates that the hub library would trust: a variable's, else certifi's, else the system's."""
    named = next((os.environ[name] for name in CA_BUNDLES if Path(os.environ.get(name) or "/nowhere").is_file()), None)
    if named is None:
        try:
            import certifi
        except ImportError:
            return ssl.create_default_context()
        named = certifi.where()
    try:
        return ssl.create_default_context(cafile=named)
    except (OSError, ValueError):
        return ssl.create_default_context()


def read_token(path: str) -> str:
    """Read the token as the hub library finds it, "" for none, or for one that no header can carry."""
    value = next((os.environ[name] for name in TOKENS if os.environ.get(name)), "")
    if not value and path:
        try:
            value = Path(path).read_text(encoding="ascii")
        except (OSError, ValueError):
            value = ""
    value = value.strip()
    return value if value.isascii() and value.isprintable() else ""


if __name__ == "__main__":
    main(*sys.argv[1:4])
