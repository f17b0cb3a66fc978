"""A company's certificate authorities, taken from a PEM file and checked before any image sees them."""

import re

from devkit.errors import DevkitError

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----[A-Za-z0-9+/=\s]+?-----END \1-----")
_CERTIFICATE = ("CERTIFICATE", "TRUSTED CERTIFICATE", "X509 CERTIFICATE")


def certificates_in(content: bytes, *, shown_as: str) -> str:
    """The certificates in a PEM file, without the comments and text around them.

    Raises: DevkitError when there is none, one cannot be parsed, or the file holds a private key.
    """
    text = content.decode("latin-1")
    if "PRIVATE KEY" in text:
        raise DevkitError(
            f"{shown_as} holds a private key",
            "A key has no place in an image. Pass a file with the authority's certificates alone.",
        )
    blocks = [found[0].strip() for found in _BLOCK.finditer(text.replace("\r\n", "\n")) if found[1] in _CERTIFICATE]
    if not blocks:
        raise DevkitError(
            f"{shown_as} holds no PEM certificate",
            f"Convert a DER file first: openssl x509 -inform der -in {shown_as} -out ca.pem",
        )
    for number, block in enumerate(blocks, start=1):
        _check(block, f"certificate {number} of {shown_as}")
    return "".join(f"{block}\n" for block in blocks)


def _check(block: str, name: str) -> None:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=block)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise DevkitError(f"{name} is not a valid X.509 certificate: {reason}", "Export it again as PEM.") from None
