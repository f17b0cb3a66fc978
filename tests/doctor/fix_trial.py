"""Runs on the machine of tests/gpu_machine.py: break it, examine it, run what findings print in one shell, examine it again.

    python -m tests.doctor.fix_trial '{"damage": [SHELL, …], "codes": [CODE, …]}'

Prints {"before": codes, "after": codes, "ran": {code: commands}, "failed": [[command, its output], …]}; without codes the
doctor's report of the broken machine.
The engine, nvidia-ctk, apt-get and others are stand-ins that do to files what the real ones do; uv, gpg, usermod, ldconfig are real.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

from tests.gpu_machine import GPU
from tests.probe.engines import INFO, VERSION, engine
from tests.wheels import make_wheel

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
    "docker.io": ("/usr/bin/docker",),
    "docker-compose-v2": ("/usr/libexec/docker/cli-plugins/docker-compose",),
    "docker-buildx": (),
}
REPOSITORY = Path("/etc/apt/sources.list.d/nvidia-container-toolkit.list")
KEYRING = Path("/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg")
OLD_TOOLKIT = Path("/opt/old-toolkit")
"""The version that nvidia-ctk says until the toolkit is updated."""
ENGINE_FILE = Path("/opt/engine.json")
"""What an engine answers until it is replaced: {"info": {…}, "version": {…}}."""
WHEELS = KEPT / "wheels"
DESKTOP = Path("/home/dev/.docker/desktop")
"""The folder of Docker Desktop's socket, where it runs beside the engine."""
SYSTEMD = Path("/run/systemd/system")
PROXY_FILES = Path("/etc/systemd/system/docker.service.d")
SHELL_STAND_INS = {
    "sudo": 'exec "$@"',
    "service": '[ "$1" = docker ] && exec kill -HUP $(cat /run/docker.pid)',
    "systemctl": """
        [ -d /run/systemd/system ] || exit 1
        case $* in
            daemon-reload) cp -rT /etc/systemd/system /run/systemd/read ;;
            "restart docker") kill -HUP $(cat /run/docker.pid) ;;
            "restart containerd" | "restart crio") ;;
            "enable --now "*) shift 2; exec /usr/bin/systemctl --root=/ --quiet enable "$@" ;;
            "unmask "*) shift; exec /usr/bin/systemctl --root=/ --quiet unmask "$@" ;;
            *) exit 1 ;;
        esac""",
    "curl": """
        case "$*" in
            "-fsSL https://nvidia.github.io/libnvidia-container/gpgkey") printf key | gpg --quiet --homedir /run --enarmor ;;
            "-fsSL https://nvidia.github.io/libnvidia-container/stable/deb/nvidia-container-toolkit.list")
                echo 'deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /' ;;
            *) exit 22 ;;
        esac""",
    "ubuntu-drivers": "exit 0",
    "snap": """
        [ "$*" = "remove docker" ] && rm -f /opt/engine.json /snap/bin/docker && kill -USR1 $(cat /run/docker.pid)""",
    "setsebool": '[ "$*" = "-P container_use_devices on" ] && echo 1 1 >/sys/fs/selinux/booleans/container_use_devices',
    "driverctl": f"""
        [ "$*" = "unset-override {GPU}" ] || exit 1
        ln -sfn /sys/bus/pci/drivers/nvidia /sys/bus/pci/devices/{GPU}/driver; umount /sys/module /proc/driver""",
    "conda": """
        [ "$*" = "install -c conda-forge libstdcxx-ng" ] || exit 1
        : >"$VIRTUAL_ENV/lib/libstdc++.so.6.0.34"; ln -sf libstdc++.so.6.0.34 "$VIRTUAL_ENV/lib/libstdc++.so.6" """,
    "nvidia-modprobe": """
        for word; do case $word in
            -u) [ -e /dev/nvidia-uvm ] || mknod -m 666 /dev/nvidia-uvm c 1 3 ;;
            -c=0) for n in nvidia0 nvidiactl; do [ -e /dev/$n ] || mknod -m 666 /dev/$n c 1 3; done ;;
            *) exit 1 ;;
        esac; done""",
}
DOCKER_COMMANDS = """case $* in
    "context use default") exec rm /home/dev/.docker/config.json ;;
    "system df") exit ;;
    "builder prune --force" | "image prune --force") exec mount -o remount,size=100g,nr_inodes=1000000 /var/lib/docker ;;
    "desktop restart") rm /opt/engine.json; exec kill -HUP $(cat /run/docker.pid) ;;
esac
"""
NEEDS_DEEP = {"PYT018", "PYT020"}
PYTHON_STAND_INS = ("nvidia-ctk", "apt-get", "pip")


def put_stand_ins() -> None:
    """Write the programs that fixes call, and keep what packages hold."""
    for name, text in SHELL_STAND_INS.items():
        write_program(STAND_INS / name, f"#!/bin/sh\n{text}\n")
    for name in PYTHON_STAND_INS:
        call = f'exec {sys.executable} -m tests.doctor.fix_trial --{name} "$@"'
        # The shell that runs a fix may have no PYTHONPATH, as sudo leaves none.
        write_program(STAND_INS / name, f"#!/bin/sh\nPYTHONPATH={Path(__file__).parents[2]} {call}\n")
    KEPT.mkdir()
    docker = Path("/usr/bin/docker")
    docker.write_text(docker.read_text().replace("case $1", f"{DOCKER_COMMANDS}case $1", 1))
    Path("/usr/bin/nvidia-ctk").write_bytes((STAND_INS / "nvidia-ctk").read_bytes())
    (KEPT / "nvidia.json").write_bytes(Path("/etc/cdi/nvidia.json").read_bytes())
    KEYRING.parent.mkdir(parents=True, exist_ok=True)
    KEYRING.write_bytes(b"key")
    REPOSITORY.parent.mkdir(parents=True, exist_ok=True)
    REPOSITORY.write_text(
        f"deb [signed-by={KEYRING}] https://nvidia.github.io/libnvidia-container/stable/deb/amd64 /\n"
    )
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
            version = OLD_TOOLKIT.read_text().strip() if OLD_TOOLKIT.exists() else "1.20.0"
            sys.stdout.write(f"NVIDIA Container Toolkit CLI version {version}\ncommit: d34b304\n")
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
        case ["runtime", "configure", "--runtime=containerd", *more] if set(more) <= {"--set-as-default"}:
            configure_containerd(is_default=bool(more))
        case ["cdi", "generate", *more] if "output" in options:
            content = json.loads((KEPT / "nvidia.json").read_text())
            content["cdiVersion"] = "0.5.0" if "no-additional-gids-for-device-nodes" in more else "0.7.0"
            path = Path(options["output"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
        case ["system", "create-dev-char-symlinks", "--create-all"]:
            Path("/dev/char/195:255").symlink_to("../nvidiactl")
        case _:
            sys.stderr.write(f"stand-in: nvidia-ctk {words}\n")
            return 1
    return 0


def configure_containerd(*, is_default: bool) -> None:
    """Do what nvidia-ctk 1.20 does: write a file that containerd's own imports, unless that is of version 1."""
    import tomlkit

    path = Path("/etc/containerd/config.toml")
    config = tomlkit.parse(path.read_text()).unwrap()
    version = config.get("version", 1)
    plugin = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")[version - 1]
    pods = config.get("plugins", {}).get(plugin, {}).get("containerd", {})
    runtimes = pods.get("runtimes", {})
    options = runtimes.get("runc", {}).get("options", {}) | {"BinaryName": "/usr/bin/nvidia-container-runtime"}
    pods |= {"runtimes": runtimes | {"nvidia": {"runtime_type": "io.containerd.runc.v2", "options": options}}}
    pods.pop("default_runtime_name", None)
    pods |= {"default_runtime_name": "nvidia"} if is_default else {}
    folder = path.parent / "conf.d"
    folder.mkdir(exist_ok=True)
    written = {"version": version, "plugins": {plugin: {"containerd": pods}}}
    (folder / "99-nvidia.toml").write_text(tomlkit.dumps(written))
    if version > 1:
        path.write_text(f'imports = ["{folder}/*.toml"]\n{path.read_text()}')


def apt_get(words: list[str]) -> int:
    """Install packages again, or purge them."""
    command, *names = [word for word in words if not word.startswith("-")]
    if command == "update":
        return 0
    if command == "purge":
        status = Path("/var/lib/dpkg/status")
        packages = [text for text in status.read_text().split("\n\n") if not matches(text, names)]
        status.write_text("\n\n".join(packages))
        return 0
    unknown = [name for name in names if name not in PACKAGES or ("nvidia" in name and not is_repository_signed())]
    if command != "install" or unknown:
        sys.stderr.write(f"E: Unable to locate package {unknown}\n")
        return 100
    for path in (path for name in names for path in PACKAGES[name]):
        Path(path).unlink(missing_ok=True)
        subprocess.run(["cp", "-a", KEPT / path[1:], path], check=True)
    if "nvidia-container-toolkit" in names:
        OLD_TOOLKIT.unlink(missing_ok=True)
        # The package needs the others, and installs them where they are not.
        if "nvidia-container-toolkit-base" not in names:
            return apt_get(["install", "nvidia-container-toolkit-base", "libnvidia-container-tools"])
    if "docker.io" in names:
        subprocess.run(["groupadd", "--force", "docker"], check=True)
        ENGINE_FILE.unlink(missing_ok=True)
        os.kill(int(Path("/run/docker.pid").read_text()), signal.SIGHUP)
    return 0


def matches(package: str, names: list[str]) -> bool:
    return any(fnmatch(package.partition("Package: ")[2].partition("\n")[0], name) for name in names)


def is_repository_signed() -> bool:
    """Say if apt would take packages of NVIDIA's repository: its key is there, and not in armor."""
    text = REPOSITORY.read_text() if REPOSITORY.exists() else ""
    return f"deb [signed-by={KEYRING}] https://" in text and KEYRING.exists() and KEYRING.read_bytes() == b"key"


def pip(words: list[str]) -> int:
    """Let uv resolve with the wheels of the index that is named, and install into the project's environment."""
    command, *rest = words
    label = "pypi"
    if "--index-url" in rest:
        at = rest.index("--index-url")
        label = "-".join(rest[at + 1].split("/")[3 if "jetson" in rest[at + 1] else -1 :])
        del rest[at : at + 2]
    if not WHEELS.exists():
        make_wheels()
    site = f"{os.environ['VIRTUAL_ENV']}/lib/python3.12/site-packages"
    options = ["--offline", "--quiet", "--python", sys.executable, "--target", site]
    if command == "install":
        options += ["--no-index", "--find-links", str(WHEELS / label)]
        if "--extra-index-url" in rest:
            at = rest.index("--extra-index-url")
            options += ["--find-links", str(WHEELS / rest[at + 1].rpartition("/")[2])]
            del rest[at : at + 2]
    elif "-y" in rest:
        rest.remove("-y")
    done = subprocess.run([sys.executable, "-m", "uv", "pip", command, *options, *rest], check=False)
    return done.returncode


TORCH = {
    "2.14.1": ("cu126", "cu130", "cu132"),
    "2.15.0": ("cu130", "cu132"),
    "2.9.1": ("cpu", "cu126", "cu128", "cu130"),
}
VISION = {"2.14.1": "0.29.1", "2.15.0": "0.30.0", "2.9.1": "0.24.1"}


def make_wheels() -> None:
    """Make the indexes of torch, and one of everything else, from which installing without an index chooses."""
    for release, labels in TORCH.items():
        for label in (*labels, "pypi"):
            local = "" if label == "pypi" else f"+{label}"
            built = labels[-1] if label == "pypi" else label
            cuda = "None" if built == "cpu" else f"'{built[2:4]}.{built[4:]}'"
            version = f"__version__ = '{release}+{built}'\ncuda = {cuda}\nhip = None\n"
            folder = WHEELS / label
            folder.mkdir(parents=True, exist_ok=True)
            make_wheel(folder, "torch", f"{release}{local}", files={"torch/version.py": version})
            make_wheel(folder, "torchvision", f"{VISION[release]}{local}", requires=[f"torch=={release}"])
    (WHEELS / "jp6-cu126").mkdir()
    for name, version in (("torch", "2.8.0"), ("numpy", "1.26.4")):
        files = {f"{name}/version.py": f"__version__ = '{version}'\ncuda = '12.6'\nhip = None\n"}
        make_wheel(WHEELS / "jp6-cu126", name, version, files=files)
    native = {"__init__": "", "cextension": "class CudaBNBNativeLibrary:\n    pass\n\n\nlib = CudaBNBNativeLibrary()\n"}
    for name, version, files in (
        (
            "bitsandbytes",
            "0.50.0",
            {f"bitsandbytes/libbitsandbytes_cuda{n}.so": "" for n in (126, 128, 130)}
            | {f"bitsandbytes/{name}.py": text for name, text in native.items()},
        ),
        ("hf_transfer", "0.1.9", {}),
        ("flash-attn", "2.8.4", {"flash_attn/__init__.py": "", "flash_attn_2_cuda.py": ""}),
        ("numpy", "1.26.4", {}),
        ("numpy", "2.3.0", {}),
        ("transformers", "5.1.0", {}),
        ("accelerate", "1.11.0", {}),
        ("nvidia-cuda-nvrtc-cu12", "12.8.93", {}),
    ):
        make_wheel(WHEELS / "pypi", name, version, files=files)


class StandInEngine:
    """An engine that takes its settings from daemon.json when it starts, and does not start with a broken one."""

    def __init__(self) -> None:
        self.answers = {"version": {**VERSION, "Components": [{"Name": "Engine"}]}, "json": [], "json?all=1": []}
        self._running = None
        Path("/proc/self/comm").write_text("dockerd")
        Path("/run/docker.pid").write_text(str(os.getpid()))

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
        own = json.loads(ENGINE_FILE.read_text()) if ENGINE_FILE.exists() else {}
        proxies = settings.get("proxies", {})
        if SYSTEMD.is_dir() and (Path("/run/systemd/read") / PROXY_FILES.name / "proxy.conf").exists():
            proxies = read_unit_proxies(Path("/run/systemd/read") / PROXY_FILES.name / "proxy.conf")
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
            "HttpProxy": proxies.get("http-proxy", ""),
            "HttpsProxy": proxies.get("https-proxy", ""),
            "NoProxy": proxies.get("no-proxy", ""),
            "SystemTime": datetime.now(UTC).isoformat(),
            **own.get("info", {}),
        }
        self.answers |= own.get("answers", {})
        self.answers["version"] = {**VERSION, "Components": [{"Name": "Engine"}], **own.get("version", {})}
        self._running = ExitStack()
        self._running.enter_context(engine("/run/docker.sock", answers=self.answers))
        if DESKTOP.is_dir():
            answers = self.answers | {"info": self.answers["info"] | {"OperatingSystem": "Docker Desktop"}}
            self._running.enter_context(engine(DESKTOP / "docker.sock", answers=answers))

    def stop(self) -> None:
        """Stop listening."""
        if self._running is not None:
            self._running.close()
            self._running = None
        Path("/run/docker.sock").unlink(missing_ok=True)


def read_unit_proxies(path: Path) -> dict[str, str]:
    """The proxies that a unit's file gives to the daemon, by their names in daemon.json."""
    words = shlex.split(path.read_text().partition("Environment=")[2])
    values = dict(word.partition("=")[::2] for word in words)
    return {name.lower().replace("_", "-"): value for name, value in values.items()}


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


def parse(text: str) -> dict[str, list[str]]:
    """The commands of the findings by code, notes aside."""
    found: dict[str, list[str]] = {}
    for outcome in json.loads(text)["outcomes"]:
        for finding in outcome["findings"]:
            if finding["severity"] != "note":
                found.setdefault(outcome["code"], []).extend(finding["fix"]["commands"])
    return found


def main(damage: list[str], codes: list[str]) -> None:
    """Break the machine, run the fixes, and print what was found before and after."""
    put_stand_ins()
    # The engine is a process of its own, so that its name is dockerd, and lets itself be started again.
    daemon = StandInEngine()
    signal.signal(signal.SIGHUP, lambda *_: daemon.start())
    signal.signal(signal.SIGUSR1, lambda *_: daemon.stop())
    daemon.start()
    # Variables that the breakage exports are those of the user's shell, in which the fix runs, too.
    shell = subprocess.Popen(
        ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )

    def type_in(line: str) -> tuple[int, str]:
        shell.stdin.write(f"{line}\necho DONE $?\n")
        output = ""
        for answer in shell.stdout:
            if answer.startswith("DONE "):
                return int(answer.split()[1]), output
            output += answer
        raise EOFError(output)

    script = "\n".join(damage)
    type_in(script.replace("STOP-ENGINE", ":").replace("KEEP-ENGINE", ":"))
    if "STOP-ENGINE" in script:
        daemon.stop()
    elif "KEEP-ENGINE" not in script:
        daemon.start()
    # The stand-in of docker starts no container; tests/engine tries real ones.
    doctor = f"{sys.executable} -m devkit doctor --json --no-trial" + (" --deep" if NEEDS_DEEP & set(codes) else "")
    type_in(f"{doctor} >/run/before 2>&1")
    if not codes:
        sys.stdout.write(Path("/run/before").read_text())
        daemon.stop()
        return
    before = parse(Path("/run/before").read_text())
    ran = {code: before[code] for code in codes if code in before}
    failed = [
        (command, output)
        for commands in ran.values()
        for command in commands
        for status, output in [type_in(command)]
        if status
    ]
    type_in(f"{doctor} >/run/after 2>&1")
    after = parse(Path("/run/after").read_text())
    shell.stdin.close()
    sys.stdout.write(json.dumps({"before": sorted(before), "after": sorted(after), "ran": ran, "failed": failed}))
    daemon.stop()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--nvidia-ctk", *words]:
            sys.exit(nvidia_ctk(words))
        case ["--apt-get", *words]:
            sys.exit(apt_get(words))
        case ["--pip", *words]:
            sys.exit(pip(words))
        case [trial]:
            main(**json.loads(trial))
