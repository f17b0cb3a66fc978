"""A stand-in for Daytona's SDK: a sandbox is this machine. That the real one has these calls is for mypy to say.

What was asked for is appended to the file `daytona.log` of the folder HOME, a JSON document a line.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

GpuType = str


class DaytonaNotFoundError(Exception):
    """There is no such snapshot."""


def Resources(**asked):  # noqa: N802 - the SDK's name
    return asked


CreateSnapshotParams = CreateSandboxFromSnapshotParams = SessionExecuteRequest = SimpleNamespace
COMMANDS = {}


def log(what, value):
    with Path(os.environ["HOME"], "daytona.log").open("a") as file:
        file.write(json.dumps([what, value]) + "\n")


class Snapshots:
    def get(self, _name):
        raise DaytonaNotFoundError

    def create(self, params, *, on_logs):
        log("snapshot", vars(params))
        on_logs("made")


class Files:
    def upload_file(self, file, path):
        Path(path).write_bytes(file if isinstance(file, bytes) else Path(file).read_bytes())

    def download_file(self, path, into):
        shutil.copyfile(path, into)


class Processes:
    def exec(self, command):
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        return SimpleNamespace(exit_code=done.returncode, result=done.stderr)

    def create_session(self, name):
        log("start", name)

    def execute_session_command(self, session, request):
        COMMANDS[session] = subprocess.Popen(["sh", "-c", request.command], stdout=subprocess.PIPE, text=True)
        return SimpleNamespace(cmd_id="1")

    def get_session_command(self, session, _command):
        code = COMMANDS[session].poll()
        return SimpleNamespace(exit_code=128 - code if code is not None and code < 0 else code)

    async def get_session_command_logs_async(self, session, _command, on_stdout, _on_stderr):
        for line in COMMANDS[session].stdout:
            on_stdout(line)
            if line == "stop me\n":
                os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)


class Sandbox:
    id, fs, process = "here", Files(), Processes()

    def delete(self):
        log("deleted", True)


class Daytona:
    snapshot = Snapshots()

    def create(self, params, *, timeout):
        log("sandbox", vars(params) | {"timeout": timeout})
        return Sandbox()
