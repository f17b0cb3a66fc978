"""Commands as users type them, in a shell, and yet without the seconds that importing torch takes each time.

`devkit` and `python` on the shell's PATH are small programs that hand arguments, folder, environment and streams to
one process that has everything imported. It forks for each; signals go on to the fork, its exit code comes back.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from tests.workload.finetune.zygote import renew_thread_pool

SHIM = """#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
order = {{"name": {name!r}, "argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
data = json.dumps(order).encode()
socket.send_fds(server, [len(data).to_bytes(8, "big")], [0, 1, 2])
server.sendall(data)
answers = server.makefile()
pid = int(answers.readline())
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
code = int(answers.readline())
sys.exit(code if code >= 0 else 128 - code)
"""


@contextmanager
def commands(folder):
    """An environment for shells in which `devkit` and `python` are forks of one process."""
    programs = folder / "bin"
    programs.mkdir()
    address = f"{folder}/s"
    for name in ("devkit", "python"):
        shim = programs / name
        shim.write_text(SHIM.format(python=sys.executable, address=address, name=name))
        shim.chmod(0o755)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    argv = [sys.executable, "-m", "tests.workload.forked_commands", address]
    root = Path(__file__).parents[2]
    with subprocess.Popen(argv, env=environment, cwd=root, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "ready\n"
        try:
            yield environment | {"PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
        finally:
            server.terminate()


def serve(address):
    """Import everything, then fork for each order until ended."""
    import torch

    torch.set_num_threads(1)
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: F401 - so that forks need not

    import devkit.workload.finetune.program
    import devkit.workload.generation.program  # noqa: F401

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                attend(connection)
                os._exit(0)
            connection.close()


def attend(connection):
    """Run one order in a fork, and tell who called its number and in the end its exit code."""
    length, streams, _, _ = socket.recv_fds(connection, 8, 3)
    reader = connection.makefile("rb")
    order = json.loads(reader.read(int.from_bytes(length, "big")))
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = run(order, streams)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{child}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall(f"{code}\n".encode())


def run(order, streams):
    """The command itself."""
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
    sys.stdin, sys.stdout, sys.stderr = (open(place, mode) for place, mode in enumerate("rww"))  # noqa: PTH123, SIM115
    renew_thread_pool()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    try:
        if order["name"] == "devkit":
            sys.argv = ["devkit", *order["argv"]]
            from devkit.cli import main

            main()
        else:
            sys.argv = order["argv"]
            runpy.run_path(order["argv"][0], run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


if __name__ == "__main__":
    serve(sys.argv[1])
