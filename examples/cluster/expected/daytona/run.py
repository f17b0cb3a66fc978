#!/usr/bin/env python3
# Written by devkit 0.2.0. To change it, edit [job] in devkit.toml and run `devkit export daytona` again.
# /// script
# requires-python = ">=3.10"
# dependencies = ["daytona==0.226.1"]
# ///
"""Run the job in a sandbox of Daytona's: uv run run.py, with DAYTONA_API_KEY in the environment.

The project goes there, with what an earlier run left in its output folder; the output comes back, and the sandbox is
deleted. Ctrl-C lets the run save and end. A run that was stopped by others, and saved, exits with 75: it is
started again. Do not keep checkpoints on Daytona's volumes: files on them cannot be renamed.
"""

import asyncio
import os
import shlex
import signal
import sys
import tarfile
import tempfile
import threading
import time
import uuid
from pathlib import Path

from daytona import (
    CreateSandboxFromSnapshotParams,
    CreateSnapshotParams,
    Daytona,
    DaytonaNotFoundError,
    GpuType,  # noqa: F401 - a job without a GPU names none
    Resources,
    Sandbox,
    SessionExecuteRequest,
)

NAME = 'tide'
IMAGE = 'registry.example.org/tide/tune:1'
SNAPSHOT = 'tide-1efb3dcc'
RESOURCES = Resources(cpu=8, memory=16, disk=68, gpu=1, gpu_type=[GpuType('H100')])
COMMAND = [
    'devkit',
    'finetune',
    '--model',
    'meta-llama/Llama-3.1-8B',
    '--data',
    'chats.jsonl',
    '--output',
    'tuned',
    '--max-length',
    '4096',
    '--batch',
    '32',
    '--save-every',
    '50',
]
ENVIRONMENT = {
    'HF_TOKEN_PATH': '/home/dev/.config/huggingface/token',
}
WORKSPACE = '/workspaces/tide'
WORKDIR = '/workspaces/tide'
OUTPUT = '/workspaces/tide/tuned'
LOCAL_OUTPUT = 'tuned'
IS_SPOT = False
TIME_S = 43200
GRACE_S = 180
# The name of the Daytona secret, or the variable for the token in HF_TOKEN.
HUB_SECRET = ''
TOKEN_PATH = '/home/dev/.config/huggingface/token'

PREEMPTED = 75
TRIES = 5
POLL_S = float(os.environ.get("DEVKIT_WAIT_S", "5"))
PROCESS = f"/tmp/devkit-{NAME}.pid"
ARCHIVE = f"/tmp/devkit-{NAME}.tar.gz"
PROJECT = Path(os.environ.get("DEVKIT_PROJECT") or Path(__file__).resolve().parent / '../..')
LEFT_OUT = {".git", ".venv"}


def main() -> int:
    stop = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stop.set())
    daytona = Daytona()
    prepare_snapshot(daytona)
    sandbox = daytona.create(wanted(), timeout=0)
    say(f"sandbox {sandbox.id}")
    try:
        upload(sandbox)
        return run_to_end(sandbox, stop)
    finally:
        try:
            download(sandbox)
        finally:
            sandbox.delete()


def prepare_snapshot(daytona: Daytona) -> None:
    """Make the snapshot, unless it is there: its name changes with the image and the sizes."""
    try:
        daytona.snapshot.get(SNAPSHOT)
    except DaytonaNotFoundError:
        if not IMAGE:
            raise
        params = CreateSnapshotParams(
            name=SNAPSHOT, image=IMAGE, resources=RESOURCES, entrypoint=["sleep", "infinity"]
        )
        daytona.snapshot.create(params, on_logs=say)


def wanted() -> CreateSandboxFromSnapshotParams:
    """A sandbox that ends with the job. Without a visitor for 15 minutes it would stop, however busy it is."""
    return CreateSandboxFromSnapshotParams(
        snapshot=SNAPSHOT,
        env_vars=ENVIRONMENT,
        labels={"devkit.job": NAME},
        secrets={"HF_TOKEN": HUB_SECRET} if HUB_SECRET else None,
        auto_stop_interval=0,
        ephemeral=True,
        ttl_minutes=(TIME_S + GRACE_S) // 60 + 60,
        spot=True if IS_SPOT else None,
    )


def upload(sandbox: Sandbox) -> None:
    """The project, and the hub token into its file."""
    say(f"copying {PROJECT}")
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder, "project.tar.gz")
        with tarfile.open(packed, "w:gz") as archive:
            archive.add(PROJECT, ".", filter=lambda each: None if Path(each.name).name in LEFT_OUT else each)
        sandbox.fs.upload_file(str(packed), ARCHIVE)
    inside(sandbox, ["sh", "-c", 'mkdir -p "$1" && tar -C "$1" --no-same-owner -xzf "$2"', "sh", WORKSPACE, ARCHIVE])
    token = os.environ.get("HF_TOKEN", "")
    if TOKEN_PATH and token and not HUB_SECRET:
        inside(sandbox, ["mkdir", "-p", str(Path(TOKEN_PATH).parent)])
        sandbox.fs.upload_file(token.encode(), TOKEN_PATH)
        inside(sandbox, ["chmod", "600", TOKEN_PATH])


def download(sandbox: Sandbox) -> None:
    """The output folder, in place of the one here. Nothing when there is none yet."""
    if sandbox.process.exec(shlex.join(["test", "-d", OUTPUT])).exit_code:
        return
    inside(sandbox, ["tar", "-C", OUTPUT, "-czf", ARCHIVE, "."])
    into = PROJECT / LOCAL_OUTPUT
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder, "output.tar.gz")
        sandbox.fs.download_file(ARCHIVE, str(packed))
        with tarfile.open(packed) as archive:
            # Python has the filter since 3.11.4; without it, skip links and paths outside the folder.
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {"members": list_plain_members(archive)}
            archive.extractall(into, **safe)
    say(f"the output is in {into}")


def list_plain_members(archive: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """The files and folders of an archive whose paths stay below the folder that it is unpacked into."""
    plain = [member for member in archive if member.isreg() or member.isdir()]
    return [member for member in plain if not member.name.startswith("/") and ".." not in Path(member.name).parts]


def run_to_end(sandbox: Sandbox, stop: threading.Event) -> int:
    """The command's exit code; 75 only when this script stopped it, or others keep stopping it."""
    short = 0
    while True:
        began = time.monotonic()
        code = run_once(sandbox, stop)
        short = short + 1 if time.monotonic() - began < 60 else 1
        if code != PREEMPTED or stop.is_set() or short > TRIES:
            return code
        say("the run was stopped, and saved: it resumes")


def run_once(sandbox: Sandbox, stop: threading.Event) -> int:
    session = f"devkit-{uuid.uuid4().hex}"
    sandbox.process.create_session(session)
    # The command keeps the shell's process ID, so it receives the signal.
    line = shlex.join(
        ["sh", "-c", 'echo "$$" >"$1" && cd "$2" && shift 2 && exec "$@"', "sh", PROCESS, WORKDIR, *COMMAND]
    )
    command = sandbox.process.execute_session_command(session, SessionExecuteRequest(command=line, run_async=True)).cmd_id
    threading.Thread(target=follow, args=(sandbox, session, command), daemon=True).start()
    ends, kill_at = time.monotonic() + TIME_S, float("inf")
    while True:
        code = sandbox.process.get_session_command(session, command).exit_code
        if code is not None:
            return int(code)
        now = time.monotonic()
        if kill_at == float("inf") and (stop.is_set() or now >= ends):
            stop.set()
            tell(sandbox, "TERM")
            kill_at = now + GRACE_S
        elif now >= kill_at:
            tell(sandbox, "KILL")
        time.sleep(POLL_S)


def tell(sandbox: Sandbox, name: str) -> None:
    sandbox.process.exec(shlex.join(["sh", "-c", f'kill -{name} "$(cat "$1")"', "sh", PROCESS]))


def follow(sandbox: Sandbox, session: str, command: str) -> None:
    """What the command prints, as long as the connection holds; it runs on without."""
    try:
        asyncio.run(sandbox.process.get_session_command_logs_async(session, command, show, show))
    except Exception as error:  # noqa: BLE001 - whatever ends the log does not end the run
        say(f"the log can no longer be followed: {error}")


def inside(sandbox: Sandbox, words: list[str]) -> None:
    done = sandbox.process.exec(shlex.join(words))
    if done.exit_code:
        raise SystemExit(f"devkit: {words[0]} failed in the sandbox: {done.result}")


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def say(text: str) -> None:
    sys.stderr.write(f"devkit: {text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
