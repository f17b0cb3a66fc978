"""Commands as users type them, in processes of their own, and yet without the time that importing takes each time.

One process has everything imported and forks for each command, which gets arguments, folder, environment and streams of
its own; signals go on to the fork, its exit code comes back. `run_devkit` starts one, and in the shells of `shell_commands`
`devkit` and `python` are small programs that do the same.
"""

import atexit
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from pkgutil import walk_packages

from tests.documents import assert_valid

ROOT = Path(__file__).parents[1]
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
WORKLOAD = (
    "torch",
    "transformers.models.llama.modeling_llama",
    "transformers.tokenization_utils_tokenizers",
    "devkit.workload.finetune.program",
    "devkit.workload.generation.program",
)


def run_devkit(
    *words: str | Path, cwd: Path | None = None, text: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, with no terminal. `text` is its standard input."""
    if not hasattr(os, "fork"):
        argv, env = [sys.executable, "-m", "devkit", *map(str, words)], {**os.environ, **environ}
        return subprocess.run(argv, cwd=cwd, env=env, input=text, capture_output=True, text=True, check=False)
    argv = [str(word) for word in words]
    order = {"name": "devkit", "argv": argv, "cwd": str(cwd or Path.cwd()), "env": {**os.environ, **environ}}
    data = json.dumps(order).encode()
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        socket.socket(socket.AF_UNIX) as server,
    ):
        given.write(text.encode())
        given.seek(0)
        server.connect(_command_server())
        socket.send_fds(server, [len(data).to_bytes(8, "big")], [each.fileno() for each in (given, out, err)])
        server.sendall(data)
        answers = server.makefile()
        _, code = int(answers.readline()), int(answers.readline())
        for each in (out, err):
            each.seek(0)
        printed = out.read().decode()
        assert_valid(printed)
        return subprocess.CompletedProcess(argv, code, printed, err.read().decode())


@cache
def _command_server() -> str:
    """Start the process that forks `run_devkit`'s commands, until the tests end; its address."""
    folder = tempfile.TemporaryDirectory(prefix="devkit-commands-")
    atexit.register(folder.cleanup)
    server = fork_server(Path(folder.name), "devkit")
    atexit.register(server.__exit__, None, None, None)
    return server.__enter__()


@contextmanager
def fork_server(folder: Path, *modules: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a process that has the modules imported and forks for each order that comes to the address, which is handed back.

    It ends with the process that started it, however that ends: it then reads the end of its standard input.
    """
    address = f"{folder}/s"
    argv = [sys.executable, "-m", "tests.forked_commands", address, *modules]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=env, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdout.readline() == "ready\n"
        try:
            yield address
        finally:
            server.terminate()


@contextmanager
def shell_commands(folder: Path) -> Iterator[dict[str, str]]:
    """An environment for shells in which `devkit` and `python` are forks of one process that has torch imported."""
    programs = folder / "bin"
    programs.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with fork_server(folder, *WORKLOAD, env=environment) as address:
        for name in ("devkit", "python"):
            shim = programs / name
            shim.write_text(SHIM.format(python=sys.executable, address=address, name=name))
            shim.chmod(0o755)
        yield environment | {"PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"}


def serve(address: str, modules: list[str]) -> None:
    """Import everything, then fork for each order until ended. Of devkit itself all that does without torch."""
    for name in modules:
        module = importlib.import_module(name)
        if name == "devkit":
            for found in walk_packages(module.__path__, "devkit."):
                if not found.name.startswith(("devkit.workload", "devkit.probe.children", "devkit.__main__")):
                    importlib.import_module(found.name)
            read_shipped_documents()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            readable, _, _ = select.select([listener, sys.stdin], [], [])
            if listener not in readable:
                shutil.rmtree(Path(address).parent, ignore_errors=True)
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                attend(connection)
                os._exit(0)
            connection.close()


def read_shipped_documents() -> None:
    """Read once what each command would read again: the documents and templates that ship with devkit, and its wheel."""
    from devkit.formats.documents import load
    from devkit.render.templates import get_environment
    from devkit.render.wheel import build_devkit_wheel

    for path in (ROOT / "devkit").rglob("*.toml"):
        package = next(folder for folder in path.parents if (folder / "__init__.py").exists())
        load(".".join(package.relative_to(ROOT).parts), path.relative_to(package).with_suffix("").as_posix())
    for path in (ROOT / "templates").rglob("*.j2"):
        get_environment().get_template(path.relative_to(ROOT / "templates").as_posix())
    build_devkit_wheel()


def attend(connection: socket.socket) -> None:
    """Run one order in a fork, and tell who called its number and in the end its exit code."""
    length, streams, _, _ = socket.recv_fds(connection, 8, 3)
    reader = connection.makefile("rb")
    order = json.loads(reader.read(int.from_bytes(length, "big")))
    child = os.fork()
    if child == 0:
        code = 3
        try:
            connection.close()
            reader.close()
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


def run(order: dict, streams: list[int]) -> int:
    """The command itself."""
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace")  # noqa: SIM115
    if "torch" in sys.modules:
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


def renew_thread_pool() -> None:
    """Give a fork torch's pool of threads anew: it does so at the first use, and two at once find none there."""
    import torch

    torch.set_num_threads(1)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
