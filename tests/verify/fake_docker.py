"""A `docker` program for the order of calls: notes each one, answers as told. Real engines are in tests/engine."""

import json
import stat
import sys
from pathlib import Path

PROGRAM = """#!{python}
import json, os, sys, time
words = sys.argv[1:]
state = {state!r}
with open(state + "/calls", "a") as calls:
    calls.write(json.dumps(words) + "\\n")
if words[:2] == ["compose", "version"]:
    print("2.40.3")
    sys.exit(0)
verb = words[3] if words[0] == "compose" else words[0]
settings = json.load(open(state + "/settings"))
if verb == "ps":
    wanted = "running" if "--status" in words else "there"
    print(settings.get(wanted, ""), end="")
elif verb == "inspect":
    print("sha256:0123")
elif verb in settings["answers"]:
    answer = settings["answers"][verb]
    sys.stderr.write(answer.get("err", ""))
    sys.stderr.flush()
    sys.stdout.write(answer.get("out", ""))
    sys.stdout.flush()
    time.sleep(answer.get("sleep_s", 0))
    sys.exit(answer.get("code", 0))
"""


class FakeDocker:
    """The program in `folder`, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self._state = folder
        program = folder / "docker"
        program.write_text(PROGRAM.format(python=sys.executable, state=str(folder)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.answer()

    def answer(self, *, running="", there="", **answers) -> None:
        """What `ps` finds, and for each other verb its exit code, out, err and sleep_s."""
        settings = {"running": running, "there": there, "answers": answers}
        (self._state / "settings").write_text(json.dumps(settings))

    @property
    def calls(self) -> list[list[str]]:
        """Every command line so far, without those that only ask."""
        file = self._state / "calls"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [words[3:] for words in lines if words[0] == "compose" and words[1] == "--file" and words[3] != "ps"]
