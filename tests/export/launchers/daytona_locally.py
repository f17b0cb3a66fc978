"""Runs the generated script with Daytona's own SDK, but for its service: a sandbox is this machine.

`python daytona_locally.py SCRIPT LOG [told]`. Every call must fit the signature that the SDK's method has, so that one
with a name that is not there fails as it would there. With `told`, the script gets SIGTERM once its command prints.
"""

import dataclasses
import inspect
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import daytona
from daytona import CreateSandboxFromSnapshotParams, CreateSnapshotParams, DaytonaNotFoundError, Sandbox
from daytona._sync.filesystem import FileSystem
from daytona._sync.process import Process
from daytona._sync.snapshot import SnapshotService

LOG = {"starts": 0, "deleted": False}
COMMANDS = {}


def fits(method, *words, **named):
    """Refuse what the SDK's method would."""
    inspect.signature(method).bind(None, *words, **named)


class Snapshots:
    def get(self, *words, **named):
        fits(SnapshotService.get, *words, **named)
        raise DaytonaNotFoundError("there is no such snapshot")

    def create(self, params, **named):
        fits(SnapshotService.create, params, **named)
        assert isinstance(params, CreateSnapshotParams)
        LOG["snapshot"] = {"name": params.name, "image": params.image}
        asked = {name: value for name, value in dataclasses.asdict(params.resources).items() if value is not None}
        LOG["resources"] = (
            asked | {"gpu_type": [each.value for each in asked["gpu_type"]]} if "gpu_type" in asked else asked
        )


class Files:
    def upload_file(self, file, path, **named):
        fits(FileSystem.upload_file, file, path, **named)
        data = file if isinstance(file, bytes) else Path(file).read_bytes()
        Path(path).write_bytes(data)

    def download_file(self, path, into, **named):
        fits(FileSystem.download_file, path, into, **named)
        shutil.copyfile(path, into)


class Processes:
    def exec(self, command, **named):
        fits(Process.exec, command, **named)
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        return SimpleNamespace(exit_code=done.returncode, result=done.stdout + done.stderr)

    def create_session(self, name, **named):
        fits(Process.create_session, name, **named)

    def execute_session_command(self, session, request, **named):
        fits(Process.execute_session_command, session, request, **named)
        assert request.run_async is True
        LOG["starts"] += 1
        log = Path(f"{sys.argv[2]}.{LOG['starts']}")
        COMMANDS[session] = log, subprocess.Popen(["sh", "-c", request.command], stdout=log.open("wb"))
        return SimpleNamespace(cmd_id="1")

    def get_session_command(self, session, command, **named):
        fits(Process.get_session_command, session, command, **named)
        code = COMMANDS[session][1].poll()
        # What a signal ended has a code beyond 128, as shells say it.
        return SimpleNamespace(exit_code=128 - code if code is not None and code < 0 else code)

    async def get_session_command_logs_async(self, session, command, on_stdout, on_stderr):
        fits(Process.get_session_command_logs_async, session, command, on_stdout, on_stderr)
        log, process = COMMANDS[session]
        while process.poll() is None:
            if sys.argv[3:] == ["told"] and log.read_bytes():
                sys.argv[3:] = []
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.02)
        on_stdout(log.read_text())


class LocalSandbox:
    id = "here"

    def __init__(self):
        self.fs, self.process = Files(), Processes()

    def delete(self, *words, **named):
        fits(Sandbox.delete, *words, **named)
        LOG["deleted"] = True


class Locally:
    def __init__(self):
        self.snapshot = Snapshots()

    def create(self, params, **named):
        fits(daytona_create, params, **named)
        assert isinstance(params, CreateSandboxFromSnapshotParams)
        LOG["sandbox"] = {name: value for name, value in params.model_dump().items() if value is not None}
        unknown = set(params.model_fields_set) - set(type(params).model_fields)
        assert not unknown, unknown
        return LocalSandbox()


daytona_create = daytona.Daytona.create
daytona.Daytona = Locally
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
finally:
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(2)
    Path(sys.argv[2]).write_text(json.dumps(LOG))
