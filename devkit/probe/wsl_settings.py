"""The file .wslconfig, which lies on the Windows side and rules over the guest."""

import re

from devkit.facts.model import Platform, WslSettings
from devkit.facts.values import Unknown
from devkit.probe.host import Host

FILE = ".wslconfig"

_USER_ON_PATH = re.compile(r"(?:^|:)(/mnt/[a-z]/Users/[^/:]+)/")
"""WSL appends Windows's PATH, which holds folders of the Windows user."""


def read_wsl_settings(host: Host, platform: Platform) -> WslSettings | Unknown | None:
    """The settings of the Windows user's WSL; None when there is no such file, or no WSL."""
    if platform is Platform.WINDOWS:
        home = host.env.get("USERPROFILE", "")
        path = f"{home}\\{FILE}" if home else ""
    elif platform in (Platform.WSL2, Platform.WSL1):
        user = _USER_ON_PATH.search(host.env.get("PATH", ""))
        path = f"{user[1]}/{FILE}" if user else ""
    else:
        return None
    if not path:
        return Unknown("which Windows user this is cannot be told from here")
    text = host.read(path)
    if text is None:
        return None if host.stat(path) is None else Unknown(f"{path} cannot be read")
    return _settings(path, text)


def _settings(path: str, text: str) -> WslSettings:
    """Its keys without regard to case, in whatever section: some moved from [experimental] to [wsl2]."""
    pairs = re.findall(r"^[ \t]*(\w+)[ \t]*=[ \t]*([^#;\r\n]*)", text.lstrip("\ufeff"), re.MULTILINE)
    values = {key.lower(): value.strip() for key, value in pairs}
    return WslSettings(
        path=path,
        memory=values.get("memory", ""),
        kernel=values.get("kernel", ""),
        gpu_support=values.get("gpusupport", "true").lower() not in ("false", "0"),
        networking=values.get("networkingmode", "").lower(),
    )
