"""Commands of Docker in the form of the engine that a text is about.

The catalog writes a container's start as `docker run`. Each of its options has a form in a pod, in Podman, in Apptainer, in
enroot, and in the asker's own file; what has none there is left out.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from devkit.doctor.fixes import list_configure_commands, list_restart_commands
from devkit.doctor.model import Fix, Restart, Side
from devkit.doctor.problems import decode_fix_rows, find_problem_row, render_fix
from devkit.doctor.signatures.text_facts import TextFacts
from devkit.facts.decode import decode_fields
from devkit.formats.documents import load

OF_CONTAINER = ("kubernetes", "podman", "apptainer", "enroot")
"""Engines whose containers no Docker command starts."""

_WITH_VALUE = frozenset((
    "-e", "--env", "-v", "--volume", "-p", "--publish", "-u", "--user", "--gpus", "--runtime", "--device", "--shm-size",
    "--ulimit", "--cap-add", "--security-opt", "--ipc", "--network", "--net", "--entrypoint", "--group-add",
    "--platform", "--add-host", "--name", "--pids-limit", "--memory", "-m", "--env-file", "--mount",
))  # fmt: skip
_LONG = {"-e": "--env", "-v": "--volume", "-p": "--publish", "-u": "--user", "--net": "--network", "-m": "--memory"}
_RUN = re.compile(r"(?:^|(?<=; )|(?<=&& )|(?<=\$ )|(?<=sudo ))docker run\b")
_DAEMON = re.compile(
    r"daemon\.json|\bdockerd\b|docker\.service|systemctl (?:edit|show|enable|start)\b.* docker|-u docker\b"
)
_RESTART = re.compile(
    r"sudo (?:systemctl|service) (?:restart docker|docker restart)\b|systemctl --user restart docker\b"
)
_CONFIGURE = re.compile(r"nvidia-ctk runtime configure --runtime=docker\b")
_CLI = re.compile(
    r"(?<![\w./-])docker (?=(?:build|pull|push|ps|logs|inspect|image|images|exec|login|logout|rm|stop|start|restart|system|info"
    r"|version|compose|network|manifest|events|volume|container)\b)"
)
_IMAGE_WORK = re.compile(r"\bdocker (?:build|buildx|builder|manifest|push)\b|DOCKER_BUILDKIT")
_LINUX_DRIVER = re.compile(
    r"\b(?:modprobe|nvidia-modprobe|dkms|ubuntu-drivers|rmmod)\b|nvidia-persistenced"
    r"|apt-get install\b.* (?:nvidia-(?:driver|dkms|utils)|libnvidia-compute)"
)
"""Commands for a Linux driver, of which WSL has none."""
_INSTALL_TOOLKIT = re.compile(r"nvidia-ctk runtime configure --runtime=docker|install\b.* nvidia-container-toolkit")
_APT = re.compile(
    r"(?:apt(?:-get)? update && )?(?:sudo )?apt(?:-get)? install (?:(?:-y|--only-upgrade|--reinstall|--no-install-recommends) )*"
    r"(?P<packages>[^#;&|]*?)(?=$| *[#;&|])"
)
_OF_APT = re.compile(r"(?:sudo )?(?:apt\b|apt-\w+|dpkg\b|ubuntu-drivers)")
_MANAGERS = {"rhel": "dnf", "fedora": "dnf", "arch": "pacman", "opensuse": "zypper", "suse": "zypper"}
_INSTALL = {"dnf": "sudo dnf install -y", "pacman": "sudo pacman -S --needed", "zypper": "sudo zypper install -y"}
_DOCKER = re.compile(r"\bdocker(?:-compose)?\b(?!\.io|://|-ce|-registry)")
_DOCKER_WORDS = re.compile(
    r"(?i)\bdocker\b|compose\b|`--|\bengine\b|the container is (?:created|started)|Start the container"
)


@dataclass(frozen=True)
class _Option:
    """What an option of `docker run` is elsewhere: lines with {value}, and what it does, in a sentence."""

    does: str
    pod: tuple[str, ...] = ()
    compose: str = ""
    apptainer: str = ""
    node: str = ""
    """A command for the node, where a pod has no such setting."""


_ROOTLESS_CDI = (
    "mkdir -p ~/.config/cdi && nvidia-ctk cdi generate --output=$HOME/.config/cdi/nvidia.yaml",
    '# ~/.config/docker/daemon.json: {"features": {"cdi": true}, "cdi-spec-dirs": ["/home/<user>/.config/cdi"]}',
    "systemctl --user restart docker",
)
"""The daemon of rootless Docker sees its own /etc, and not /etc/cdi."""


@cache
def _load_options() -> Mapping[str, _Option]:
    rows = load(__package__, "engines")["option"]
    return {name: _Option(**decode_fields(row, _Option)) for name, row in rows.items()}


@dataclass(frozen=True)
class _Run:
    """A parsed `docker run`."""

    options: tuple[tuple[str, str], ...]
    image: str
    command: str


def fit_to_engine(fix: Fix, facts: TextFacts) -> Fix:
    """Return a fix with its commands in the form of the text's engine; unchanged for Docker itself."""
    engine = facts.engine
    if engine == "snap" and any(
        _CONFIGURE.search(each) or re.search(r"daemon\.json|snap remove", each) for each in fix.commands
    ):
        return _replace_snap(facts)
    if facts.find("wsl") and fix.where is Side.HOST and any(map(_LINUX_DRIVER.search, fix.commands)):
        return _render_shared("update-wsl", facts)
    if engine == "desktop" and any(map(_INSTALL_TOOLKIT.search, fix.commands)):
        return _render_shared("update-desktop", facts)
    if manager := find_manager(facts):
        names, written = load(__package__, "engines")["package"].get(manager, {}), []
        for command in fix.commands:
            if found := _APT.search(command):
                packages = " ".join(names.get(name, name) for name in found["packages"].split())
                command = f"{command[: found.start()]}{_INSTALL[manager]} {packages}{command[found.end() :]}"
            written.append(command)
        fix = replace(fix, commands=tuple(command for command in written if not _OF_APT.match(command)))
    convert = _CONVERTERS.get(engine)
    if engine == "docker" or not engine:
        return fix if facts.find("form") != "compose" else replace(fix, commands=tuple(_to_compose(fix.commands)))
    is_ours = any(_is_dockers(each) or (engine == "rootless" and "cdi generate" in each) for each in fix.commands)
    if convert is None or not is_ours:
        return fix
    runs = [run for command in fix.commands if (run := _parse_run(command))]
    parts = (
        part for command in fix.commands for part in (command.split(" && ") if _is_dockers(command) else [command])
    )
    commands = tuple(dict.fromkeys(each for part in parts for each in convert(part)))
    summary = fix.summary
    if engine in OF_CONTAINER and _DOCKER_WORDS.search(summary) and runs:
        options, where = (
            _load_options(),
            {"kubernetes": "in the pod's spec", "podman": "when Podman creates the container"},
        )
        names = dict.fromkeys(name for run in runs for name, _ in run.options if name in options)
        said = ", ".join(options[name].does for name in names) or "Change it"
        summary = f"{said[0].upper()}{said[1:]} {where.get(engine, 'when the container starts')}."
    is_gone = engine in ("podman", "apptainer", "enroot") and fix.restart is Restart.ENGINE
    return replace(fix, summary=summary, commands=commands, restart=Restart.NONE if is_gone else fix.restart)


_OPERATOR = (
    "helm upgrade gpu-operator nvidia/gpu-operator -n gpu-operator --reuse-values"
    " --set toolkit.env[0].name=CONTAINERD_CONFIG --set toolkit.env[0].value={}"
    " --set toolkit.env[1].name=CONTAINERD_SOCKET --set toolkit.env[1].value={}"
)


def fit_to_cluster(fix: Fix, facts: TextFacts) -> Fix:
    """Return a fix with its commands for containerd in the form of a distribution of Kubernetes that has its own."""
    own_paths = load(__package__, "engines")["cluster"].get(facts.find("cluster"))
    if own_paths is None:
        return fix
    config, socket, service = (own_paths[name] for name in ("config", "socket", "service"))
    has_operator = "nvidia-container-toolkit-daemonset" in facts.lowered
    configure = "nvidia-ctk runtime configure --runtime=containerd"
    forms = {
        configure: f"{configure} --config={config}",
        "systemctl restart containerd": f"systemctl restart {service}",
        "containerd config dump | grep -A5 nvidia": f"grep -A5 nvidia {config}",
    }
    written = []
    for command in fix.commands:
        form = next((each for each in forms if each in command), "")
        is_operators = form == configure and has_operator
        written.append(_OPERATOR.format(config, socket) if is_operators else command.replace(form, forms.get(form, "")))
    return replace(fix, commands=tuple(dict.fromkeys(written)))


def _render_shared(name: str, facts: TextFacts) -> Fix:
    return render_fix(decode_fix_rows(name), {}, facts.facts)


def find_manager(facts: TextFacts) -> str:
    """Find the package manager of a text's distribution where it is not apt; "" for apt and where none is known."""
    return _MANAGERS.get(facts.find("distribution"), "")


def _is_dockers(command: str) -> bool:
    return _DOCKER.search(command) is not None and not _IMAGE_WORK.search(command)


def _replace_snap(facts: TextFacts) -> Fix:
    fix = render_fix(find_problem_row("ENG003", "snap").fixes, {}, facts.facts)
    install = (
        () if any("install" in each for each in fix.commands) else ("curl -fsSL https://get.docker.com | sudo sh",)
    )
    return replace(
        fix,
        summary="Replace the snap with Docker Engine, which reads the toolkit's settings; first save the images and volumes that you need.",
        commands=(*fix.commands, *install, *list_configure_commands("docker")),
    )


def _parse_run(command: str) -> _Run | None:
    found = _RUN.search(command)
    if found is None:
        return None
    try:
        words = shlex.split(command[found.end() :].partition("  # ")[0])
    except ValueError:
        return None
    options: list[tuple[str, str]] = []
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        if not equals and name in _WITH_VALUE and words:
            value = words.pop(0)
            while value.count("(") > value.count(")") and words:  # $(getent group render)
                value = f"{value} {words.pop(0)}"
        options.append((_LONG.get(name, name), value))
    image, *rest = words or [""]
    quoted = (each if re.fullmatch(r"[\w@%+=:,./<>…-]*", each) else shlex.quote(each) for each in rest)
    return _Run(tuple(options), image, " ".join(quoted))


def _fill(template: str, value: str) -> str:
    name, _, given = value.partition("=")
    origin, _, target = value.partition(":")
    return template.format(
        value=value,
        name=name,
        given=given or f"${name}",
        origin=origin,
        target=target.partition(":")[0] or origin,
        upper=name.upper(),
        binary=re.sub(r"([kmgKMG])b?$", lambda unit: f"{unit[1].upper()}i", value),
        resource="nvidia.com/gpu" if "nvidia" in value else "rdma/hca" if "infiniband" in value else "<resource>",
    )


def _to_pod(command: str) -> Iterator[str]:
    run = _parse_run(command)
    if run is not None:
        for name, value in dict.fromkeys(run.options):
            option = _load_options().get(name)
            yield from (
                f"# pod: {_fill(line, value) if '{{' in line or '{value}' in line else line}"
                for line in (option.pod if option else ())
            )
            if option and option.node:
                yield _fill(option.node, value)
        if run.command and run.image:
            yield (
                f"kubectl exec <pod> -- {run.command}"
                if "--gpus" in dict(run.options)
                else (f"kubectl run test --rm -it --restart=Never --image={run.image} -- {run.command}")
            )
    elif _CONFIGURE.search(command) or _RESTART.search(command):
        yield from _to_containerd(command)
    elif found := re.search(r"docker (exec|logs|restart|inspect|ps)\b(?: -\S+)* ?(.*)", command):
        verb, rest = found.groups()
        inner = rest.partition(" ")[2]
        yield {
            "exec": f"kubectl exec <pod> -- {inner}",
            "logs": "kubectl logs <pod> --previous",
            "restart": "kubectl delete pod <pod>",
            "inspect": "kubectl describe pod <pod>",
            "ps": "kubectl get pods -o wide",
        }[verb]
    elif "docker login" in command:
        server = found[0] if (found := re.search(r"[\w-]+\.[\w.-]+", command.partition("login")[2])) else "<registry>"
        secret = f"pull-secret --docker-server={server} --docker-username=<name> --docker-password=<token>"
        yield f"kubectl create secret docker-registry {secret}"
        yield "# pod: imagePullSecrets: [{name: pull-secret}]"
    elif found := re.search(r"docker pull (\S+)", command):
        yield f"sudo crictl pull {found[1]}  # on the node"
    elif not _is_dockers(command):
        yield command


def _to_podman(command: str) -> Iterator[str]:
    if found := _RUN.search(command):
        rest = command[found.end() :]
        rest = re.sub(
            r"--gpus[ =](?:all|'\"device=[\d,]+\"'|device=\d+|'?\"?\w+\"?'?)", "--device nvidia.com/gpu=all", rest
        )
        rest = re.sub(
            r" ?--runtime[ =]nvidia", "" if "nvidia.com/gpu" in rest else " --device nvidia.com/gpu=all", rest
        )
        rest = re.sub(r" -e NVIDIA_VISIBLE_DEVICES=\w+", "", rest)
        yield f"{command[: found.start()]}podman run{rest}"
    elif _CONFIGURE.search(command):
        yield from list_configure_commands("podman")
    elif _CLI.search(command):
        yield _CLI.sub("podman ", command)
    elif not (_is_dockers(command) or _RESTART.search(command)):
        yield command


def _to_apptainer(command: str) -> Iterator[str]:
    run = _parse_run(command)
    if run is not None:
        options = [
            _fill(option.apptainer, value)
            for name, value in run.options
            if (option := _load_options().get(name)) and option.apptainer
        ]
        if options:
            image = f"docker://{run.image}" if run.image not in ("", "…", "<image>") else "<image>"
            yield " ".join(("apptainer exec", *dict.fromkeys(options), image, run.command or "<command>"))
        if "--shm-size" in dict(run.options):
            yield f"sudo mount -o remount,size={dict(run.options)['--shm-size'].upper()} /dev/shm  # Apptainer shares the host's"
        if "--ulimit" in dict(run.options):
            yield "ulimit -l unlimited  # before Apptainer starts"
    elif found := re.search(r"^docker pull (\S+)", command):
        yield f"apptainer pull docker://{found[1]}"
    elif not _is_dockers(command):
        yield command


def _to_enroot(command: str) -> Iterator[str]:
    run = _parse_run(command)
    if run is not None:
        options = [f"--container-mounts={value}" for name, value in run.options if name == "--volume"]
        variables = [value for name, value in run.options if name == "--env"]
        if variables:
            options.append(f"--export=ALL,{','.join(variables)}")
        image = run.image if run.image not in ("", "…") else "<image>"
        yield " ".join(("srun --gpus=1", f"--container-image={image}", *options, run.command or "<command>"))
    elif not _is_dockers(command):
        yield command


def _to_other_docker(engine: str) -> Callable[[str], Iterator[str]]:
    def convert(command: str) -> Iterator[str]:
        if engine == "desktop" and (
            _CONFIGURE.search(command) or re.search(r"install.* nvidia-container-toolkit", command)
        ):
            return  # Docker Desktop has its own.
        if engine == "rootless" and _CONFIGURE.search(command):
            yield from list_configure_commands(engine)
        elif engine == "rootless" and "nvidia-ctk cdi generate" in command:
            yield from _ROOTLESS_CDI
        elif _RESTART.search(command):
            yield from list_restart_commands(engine)
        else:
            yield command

    return convert


def _to_containerd(command: str) -> Iterator[str]:
    if _CONFIGURE.search(command):
        yield _CONFIGURE.sub("nvidia-ctk runtime configure --runtime=containerd", command)
    elif _RESTART.search(command):
        yield "sudo systemctl restart containerd"
    elif not _DAEMON.search(command):
        yield re.sub(r"(?<![\w./-])docker (?=run|build|pull|ps|logs|inspect|exec|login|compose)", "nerdctl ", command)


_CONVERTERS: Mapping[str, Callable[[str], Iterator[str]]] = {
    "kubernetes": _to_pod,
    "podman": _to_podman,
    "apptainer": _to_apptainer,
    "enroot": _to_enroot,
    "containerd": _to_containerd,
    **{engine: _to_other_docker(engine) for engine in ("snap", "rootless", "desktop")},
}


def _to_compose(commands: Iterable[str]) -> Iterator[str]:
    """Yield the options of a `docker run` that stands for the asker's container as lines of a Compose service."""
    for command in commands:
        run = _parse_run(command)
        if run is None or run.image not in ("", "…"):
            yield command
            continue
        for name, value in run.options:
            if (option := _load_options().get(name)) and option.compose:
                yield f"# compose.yaml, in the service: {_fill(option.compose, value)}"
        yield "docker compose up -d --force-recreate"
