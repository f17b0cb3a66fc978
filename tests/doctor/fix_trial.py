"""Runs on the machine of tests/gpu_machine.py: break it, examine it, run what a finding prints in one shell, examine it again.

    python -m tests.doctor.fix_trial CODE BREAK

`BREAK` are shell commands. Prints {"before": codes with their root commands, "after": codes, "ran": commands, "output": text}.
The engine, nvidia-ctk, nvidia-modprobe, apt-get and service are stand-ins that do to files what the real ones do.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.probe.engines import INFO, VERSION, engine

DAEMON_FILE = Path("/etc/docker/daemon.json")
STAND_INS = Path("/usr/local/sbin")
KEPT = Path("/opt/kept")
"""What packages hold, as it was before anything was broken."""

PACKAGES = {
    "libcuda1": ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"),
    "nvidia-container-toolkit": ("/usr/bin/nvidia-container-runtime-hook",),
    "nvidia-container-toolkit-base": ("/usr/bin/nvidia-container-runtime", "/usr/bin/nvidia-ctk"),
    "libnvidia-container-tools": ("/usr/bin/nvidia-container-cli",),
    "libnvidia-container1": (),
    "docker-compose-plugin": ("/usr/libexec/docker/cli-plugins/docker-compose",),
}
SHELL_STAND_INS = {
    "sudo": 'exec "$@"',
    "service": '[ "$1" = docker ] && exec kill -HUP $(cat /run/engine.pid)',
    "nvidia-modprobe": """
        for word; do case $word in
            -u) [ -e /dev/nvidia-uvm ] || mknod -m 666 /dev/nvidia-uvm c 1 3 ;;
            -c=0) for n in nvidia0 nvidiactl; do [ -e /dev/$n ] || mknod -m 666 /dev/$n c 1 3; done ;;
            *) exit 1 ;;
        esac; done""",
}
PYTHON_STAND_INS = ("nvidia-ctk", "apt-get")


def put_stand_ins() -> None:
    """Write the programs that fixes call, and keep what packages hold."""
    for name, text in SHELL_STAND_INS.items():
        write_program(STAND_INS / name, f"#!/bin/sh\n{text}\n")
    for name in PYTHON_STAND_INS:
        call = f'exec {sys.executable} -m tests.doctor.fix_trial --{name} "$@"'
        # The shell that runs a fix may have no PYTHONPATH, as sudo leaves none.
        write_program(STAND_INS / name, f"#!/bin/sh\nPYTHONPATH={Path(__file__).parents[2]} {call}\n")
    Path("/usr/bin/nvidia-ctk").write_bytes((STAND_INS / "nvidia-ctk").read_bytes())
    for paths in PACKAGES.values():
        for path in map(Path, paths):
            (KEPT / path.parent.relative_to("/")).mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", path, KEPT / path.relative_to("/")], check=True)


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def nvidia_ctk(words: list[str]) -> int:
    """Do what nvidia-ctk 1.20 does for the commands that fixes print."""
    import tomlkit

    config = Path("/etc/nvidia-container-runtime/config.toml")
    options = dict(
        word.removeprefix("--").partition("=")[::2] for word in words if word.startswith("--") and "=" in word
    )
    match words:
        case ["--version"]:
            sys.stdout.write("NVIDIA Container Toolkit CLI version 1.20.0\ncommit: d34b304\n")
        case ["config", "--in-place", "--set", setting]:
            content = tomlkit.parse(config.read_text())
            name, _, value = setting.partition("=")
            *sections, key = name.split(".")
            owner = content
            for section in sections:
                owner = owner.setdefault(section, tomlkit.table())
            owner[key] = (
                value == "true" if value in ("true", "false") else value.split(",") if key == "runtimes" else value
            )
            config.write_text(tomlkit.dumps(content))
        case ["config", "default", _] if "output" in options:
            Path(options["output"]).write_text('[nvidia-container-cli]\nldconfig = "@/sbin/ldconfig"\n')
        case ["runtime", "configure", "--runtime=docker", *more] if set(more) <= {"--cdi.enabled"}:
            content = json.loads(DAEMON_FILE.read_text() if DAEMON_FILE.exists() else "{}")
            content.setdefault("runtimes", {})["nvidia"] = {"args": [], "path": "nvidia-container-runtime"}
            if more:
                content.setdefault("features", {})["cdi"] = True
            DAEMON_FILE.parent.mkdir(parents=True, exist_ok=True)
            DAEMON_FILE.write_text(json.dumps(content))
        case ["cdi", "generate", *more] if "output" in options and len(more) == 1:
            path = Path(options["output"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((KEPT / "nvidia.json").read_bytes())
        case _:
            sys.stderr.write(f"stand-in: nvidia-ctk {words}\n")
            return 1
    return 0


def apt_get(words: list[str]) -> int:
    """Install packages again."""
    command, *names = [word for word in words if not word.startswith("-")]
    if command == "update":
        return 0
    unknown = [name for name in names if name not in PACKAGES]
    if command != "install" or unknown:
        sys.stderr.write(f"E: Unable to locate package {unknown}\n")
        return 100
    for path in (path for name in names for path in PACKAGES[name]):
        Path(path).unlink(missing_ok=True)
        subprocess.run(["cp", "-a", KEPT / path[1:], path], check=True)
    return 0


class StandInEngine:
    """An engine that takes its settings from daemon.json when it starts, and does not start with a broken one."""

    def __init__(self) -> None:
        self.answers = {"version": {**VERSION, "Components": [{"Name": "Engine"}]}, "json": [], "json?all=1": []}
        self._running = None
        Path("/proc/self/comm").write_text("dockerd")
        Path("/run/engine.pid").write_text(str(os.getpid()))

    def start(self) -> None:
        """Start, or start again; do not run where the settings cannot be read."""
        self.stop()
        Path("/run/engine.started").touch()
        try:
            settings = json.loads(DAEMON_FILE.read_text()) if DAEMON_FILE.exists() else {}
        except (OSError, ValueError):
            return
        if settings.get("hosts"):
            return
        has_cdi = settings.get("features", {}).get("cdi", True)
        folders = settings.get("cdi-spec-dirs", ["/etc/cdi", "/var/run/cdi"])
        driver = next((o.partition("=")[2] for o in settings.get("exec-opts", []) if "cgroupdriver" in o), "cgroupfs")
        self.answers["info"] = INFO | {
            "Runtimes": {"runc": {"path": "runc"}, **settings.get("runtimes", {})},
            "DefaultRuntime": settings.get("default-runtime", "runc"),
            "CDISpecDirs": folders if has_cdi else [],
            "DiscoveredDevices": [{"Source": "cdi", "ID": one} for one in find_devices(folders if has_cdi else [])],
            "CgroupDriver": driver,
            "CgroupVersion": "2",
        }
        self._running = engine("/run/docker.sock", answers=self.answers)
        self._running.__enter__()

    def stop(self) -> None:
        """Stop listening."""
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self._running = None
        Path("/run/docker.sock").unlink(missing_ok=True)


def find_devices(folders: list[str]) -> list[str]:
    """The devices of the specifications that can be read; of two of one folder with the same name, none."""
    found: dict[str, int] = {}
    for path in sorted(
        path for folder in folders for path in Path(folder).glob("*.*") if path.suffix in (".json", ".yaml")
    ):
        try:
            content = json.loads(path.read_text())
        except ValueError:
            continue
        for device in content.get("devices", []):
            name = f"{content['kind']}={device['name']}"
            found[name] = found.get(name, 0) + 1
    return [name for name, count in found.items() if count == 1]


def examine(environment: dict[str, str] | None = None) -> dict[str, dict]:
    """The findings by code, without notes."""
    words = [sys.executable, "-m", "devkit", "doctor", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    return parse(done.stdout or done.stderr)


def parse(text: str) -> dict[str, dict]:
    document = json.loads(text)
    found = {}
    for outcome in document["outcomes"]:
        for finding in outcome["findings"]:
            if finding["severity"] != "note":
                found.setdefault(outcome["code"], finding)
    return found


def main(code: str, damage: str) -> None:
    """Break the machine, run the fix, and print what was found before and after."""
    put_stand_ins()
    (KEPT / "nvidia.json").write_bytes(Path("/etc/cdi/nvidia.json").read_bytes())
    # The engine is a process of its own, so that its name is dockerd, and lets itself be started again.
    daemon = StandInEngine()
    signal.signal(signal.SIGHUP, lambda *_: daemon.start())
    daemon.start()
    is_stopped = "STOP-ENGINE" in damage
    keeps_running = "KEEP-ENGINE" in damage
    script = damage.replace("STOP-ENGINE", ":").replace("KEEP-ENGINE", ":")
    # Variables that the breakage exports are those of the user's shell, in which the fix runs, too.
    shell = subprocess.Popen(
        ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )

    def type_in(line: str) -> str:
        shell.stdin.write(f"{line}\necho DONE\n")
        return "".join(iter(shell.stdout.readline, "DONE\n"))

    type_in(script)
    if is_stopped:
        daemon.stop()
    elif not keeps_running:
        daemon.start()
    doctor = f"{sys.executable} -m devkit doctor --json"
    type_in(f"{doctor} >/run/before 2>&1")
    before = parse(Path("/run/before").read_text())
    commands = before.get(code, {}).get("fix", {}).get("commands", [])
    output = "".join(type_in(command) for command in commands)
    type_in(f"{doctor} >/run/after 2>&1")
    after = parse(Path("/run/after").read_text())
    shell.stdin.close()
    sys.stdout.write(json.dumps({"before": sorted(before), "after": sorted(after), "ran": commands, "output": output}))
    daemon.stop()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--nvidia-ctk", *words]:
            sys.exit(nvidia_ctk(words))
        case ["--apt-get", *words]:
            sys.exit(apt_get(words))
        case [code, damage]:
            main(code, damage)
