"""Proof processes that end in every way a real one can. Real processes, played by small programs."""

import sys
import textwrap

PLAY = """
import json, os, signal, sys, time
wanted = next(word for word in sys.argv if word.startswith("--stages=")).removeprefix("--stages=").split(",")
failed = next(word for word in sys.argv if word.startswith("--failed=")).removeprefix("--failed=").split(",")
def say(**event):
    print(json.dumps(event), flush=True)
def start(name):
    say(event="started", stage=name)
def finish(name, status="passed", reason=""):
    say(event="finished", stage=dict(name=name, status=status, measured={}, expected={}, reason=reason, ms=1.0))
def play(name):
    start(name)
    finish(name)
"""


def playing(script):
    """The words of a command that plays `script` after the words above."""
    return [sys.executable, "-c", PLAY + textwrap.dedent(script)]
