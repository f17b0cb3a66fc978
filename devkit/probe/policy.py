"""Reads the rules of a project out of its devkit.toml."""

import re

from devkit.facts.policy import Policy, WrongPolicy, policy_from
from devkit.facts.values import Unknown
from devkit.probe.project_files import ProjectFiles

POLICY_FILE = "devkit.toml"


def read_policy(files: ProjectFiles) -> Policy | Unknown | None:
    """The [policy] of a project; None without one."""
    text = files.read(POLICY_FILE, POLICY_FILE)
    if text is None:
        return Unknown(f"{POLICY_FILE} cannot be read") if files.has(POLICY_FILE) else None
    import tomllib

    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        place = re.search(r"at line (\d+)", str(error))
        files.broken(POLICY_FILE, str(error), int(place[1]) if place else 1)
        return Unknown(f"{POLICY_FILE} is not TOML")
    if "policy" not in document:
        return None
    try:
        return policy_from(document["policy"])
    except WrongPolicy as wrong:
        return Unknown(f"{POLICY_FILE}: {wrong}")
