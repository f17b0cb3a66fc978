"""The commands that a project's own setup script surely runs: `. ./setup.sh --basic` of a guide."""

import re
from collections.abc import Iterator

from devkit.formats.shell import ShellCommand
from devkit.probe.project.shell import parse_shell_text

_SWITCH = re.compile(r"^\s*(?P<options>-[\w|-]+)\)\s*(?P<name>\w+)=[\"']?(?:true|1|yes)\b", re.MULTILINE)
_SWITCH_TEST = re.compile(r"""\[+ +["']?\$\{?(?P<name>\w+)\}?["']? +==? +["']?(?:true|1|yes)["']? +\]+""")
_OPENS = re.compile(r"(?:if|case|for|while|until|select)\b|(?:function +)?[\w-]+ *\(\)|\{$")
_CLOSES = re.compile(r"(?:fi|esac|done)\b|\}")
_IS_WHOLE = re.compile(r"(?:\b(?:fi|esac|done)\b|[;\s]\})[;\s]*$")
"""The end of a line that closes the block it opens; nothing of it is sure."""
_JOINED = re.compile(r"\\\r?\n")


def list_sure_commands(script: str, arguments: str) -> Iterator[tuple[int, ShellCommand]]:
    """List the commands that a script runs whatever the machine is, with their lines.

    Those within `if [ "$NAME" = true ]` are among them where one of the arguments sets NAME. Those within other
    conditions, in loops, cases and functions are not.
    """
    given = set(arguments.split())
    switches = [(found["name"], given & set(found["options"].split("|"))) for found in _SWITCH.finditer(script)]
    is_set = {name: bool(options) for name, options in switches}
    # Of each block that is open: whether it surely runs, and whether its `else` does.
    within: list[tuple[bool, bool]] = []
    line = 1
    for text in _JOINED.sub("\0", script).split("\n"):
        words = text.replace("\0", " ").strip()
        here, line = line, line + 1 + text.count("\0")
        if _OPENS.match(words) and _IS_WHOLE.search(words):
            continue
        if re.match(r"if\b", words):
            tested = _SWITCH_TEST.fullmatch(words.removeprefix("if").partition(";")[0].strip())
            value = is_set.get(tested["name"]) if tested else None
            within.append((value is True, value is False))
        elif re.match(r"(?:else|elif)\b", words):
            within[-1:] = [(words.startswith("else") and within[-1][1], False)] if within else []
        elif _CLOSES.match(words):
            del within[-1:]
        elif _OPENS.match(words):
            within.append((False, False))
        elif all(is_sure for is_sure, _ in within):
            for command in parse_shell_text(words):
                yield here, command
