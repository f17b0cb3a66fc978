"""The containers that a project asks for, with an image and a command of a trial in place of theirs."""

import json
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devkit.facts.model import Facts
from devkit.facts.project import Build, DevContainer, Project
from devkit.probe.documents import (
    ABSENT,
    DocumentNode,
    InvalidDocument,
    get_object,
    get_objects,
    get_text,
    get_texts,
    parse_jsonc_tree,
)
from devkit.probe.host import Host
from devkit.trial.surroundings import LISTENING, list_sockets

MAX_REHEARSED = 8
"""Services of a project that start together. Those that ask for a GPU come first."""
MAX_CONTAINERS = 4
"""Of each kind; more would take longer than a doctor may. Those that ask for a GPU come first."""
_KEPT = re.compile(
    r"runtime|gpus|devices|device_cgroup_rules|cpu.*|mem.*|shm_size|pids_limit|ulimits|cap_.*|cgroup.*|storage_opt|sysctls"
    r"|tmpfs|init|deploy|userns_mode|oom_.*|blkio_config|attach|dns.*|domainname|driver_opts|expose|extra_hosts|hostname"
    r"|isolation|logging|restart|security_opt|stop_.*"
)
"""What a service asks of the machine and the engine. All else is of its image, its network, its neighbors or Compose itself.

A stranger may have written it. So it names no logging driver that connects to a host, no program as a runtime, which the
engine would run as root, no profile, which the client would read, and no label of SELinux, which would go onto files of
this machine; and nothing starts it again.
"""
_LOCAL_LOGS = ("json-file", "local", "none")
_OF_MACHINE = re.compile(r"no-new-privilege.*|apparmor[=:].*")
"""What security options say that neither the client reads nor a file gets."""
_NAMESPACES = ("network_mode", "ipc", "pid", "uts")
"""Those of the host, or of another service. Sysctls belong to them: an engine may refuse one in the host's namespace."""
_HOST_FLAGS = re.compile(r"--(?:net(?:work)?|ipc)[= ]host")
_NETWORK = re.compile(
    r"(?:^| )--net(?:work)?[= ](?:container:([\w.-]+)|(?!(?:host|none|bridge|default)\b)([\w.-]+))(?= |$)"
)
_KEPT_FLAGS = re.compile(
    r"--(?:runtime|gpus|device|device-cgroup-rule|cpu\S*|memory\S*|shm-size|pids-limit|ulimit|cap-add|cgroup\S*"
    r"|storage-opt|sysctl|tmpfs|init)"
)
_HEALTHY, _COMPLETED = "service_healthy", "service_completed_successfully"
_RANGES = ("subnet", "ip_range", "gateway", "aux_addresses")
_NO_ADDRESS = "com.docker.network.bridge.inhibit_ipv4"
"""The bridge gets no address, so that no route of this machine changes, whatever range a stranger wrote."""
FILES = ("secrets", "configs")
_PROFILE = re.compile(r"seccomp[=:](?!unconfined|builtin)(?!.*\.\.)([\w.][\w./-]*)")
_OPTIONS = {
    **{"appPort": "--publish", "workspaceMount": "--mount", "mounts": "--mount", "containerUser": "--user"},
    **{"capAdd": "--cap-add", "securityOpt": "--security-opt"},
}
"""Keys of devcontainer.json by the option of `docker run` that the dev container CLI makes of them."""
_NOT_CREATED = re.compile(
    r"-[ev].*|--env|--volume.*|--runtime|--mount|--name|--cidfile|--use-api-socket|--pull|--rm|-[it]*d[it]*|--detach.*|--sig-proxy"
)
"""Options of `run` that `create` lacks, that make a volume or write a file, that may be secret, or name the container."""
_BIND = re.compile(r"(?=.*type=bind)(?!.*bind-create).*")
"""A mount that makes nothing."""
_SOURCE = re.compile(r"\b(?:source|src)=([^,]+)")
_PROJECT_FILE = re.compile(r"(?:--(?:env|label)-file|--security-opt[ =]seccomp)[ =](?!unconfined|builtin)(\S+)")
_KNOWN = re.compile(r"\$\{(\w+)\}")
_VARIABLE = re.compile(r"\$\{(?:localEnv|env):(\w+)(?::([^}]*))?\}")
_GPU = re.compile(r"nvidia|gpu")


def build_rehearsal(
    config: Mapping[str, Any],
    image: str,
    *,
    label: str,
    folder: str,
    present: Collection[str],
    has_health_check: Callable[[str], bool | None],
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Build the project of stand-ins, so that Compose and the engine check how its parts fit, and list what is not in it.

    A service keeps what it asks of the machine; its bind mounts are read-only, without those whose source Docker would
    create. Networks that the engine has (`present`) are left alone; the others have no address on this machine and no way
    out. `has_health_check` answers for an image by its name, with None where it is not here.
    """
    name, _, value = label.partition("=")
    ours = {"image": image, "pull_policy": "never", "read_only": True, "stdin_open": True, "labels": {name: value}}
    every, found = get_object(config, "services"), get_object(config, "networks")
    names = sorted(every, key=lambda each: not _GPU.search(json.dumps(_keep(get_object(every, each), config, folder))))
    chosen = {each: get_object(every, each) for each in names[:MAX_REHEARSED]}
    own = {key for each in chosen.values() for key in get_object(each, "networks") if key not in present}
    own = {key for key in own if not get_object(found, key).get("external")}
    networks = {key: made for key in own if (made := _isolate(get_object(found, key), {name: value}))}
    untried = [*names[MAX_REHEARSED:], *(f"network {key}" for key in sorted(own - networks.keys()))]
    links = [each for service in chosen.values() for each in get_object(service, "depends_on").items()]
    ending, watched = (
        {key for key, each in links if get_text(each, "condition") == condition} for condition in (_COMPLETED, _HEALTHY)
    )
    services = {}
    for key, service in chosen.items():
        command = ["/bin/sh", "-c", ":" if key in ending else "read line"]
        needed = {
            other: each
            for other, each in get_object(service, "depends_on").items()
            if other in chosen and other not in ending & watched
        }
        stand_in = {**_keep(service, config, folder), **ours, "entrypoint": command, "depends_on": needed}
        joined = {
            each: {name: value for name, value in (options or {}).items() if name == "ipv4_address"}
            for each, options in get_object(service, "networks").items()
            if each in networks
        }
        mode = get_text(service, "network_mode")
        if joined:
            stand_in["networks"] = joined
        else:
            stand_in.setdefault("network_mode", mode if mode.removeprefix("service:") in chosen else "none")
        if mode == "host" and {each.partition(":")[0] for each in get_texts(service, "links")} & chosen.keys():
            stand_in["links"] = service["links"]  # which the engine refuses
        is_checked = key in watched and _is_checked(service, name_image(config, key), has_health_check)
        if is_checked is not False:
            stand_in["healthcheck"] = {"test": ["CMD", "/bin/sh", "-c", ":"], "interval": "100ms"}
        untried += [f"the health of {key}"] if is_checked is None else []
        services[key] = stand_in
    return {"services": services, "networks": networks}, tuple(untried)


def list_pending(config: Mapping[str, Any], facts: Facts, known: Collection[str]) -> Iterator[str]:
    """Yield what shows only where the project itself starts: images that are not `known`, builds, and what services wait for."""
    services = get_object(config, "services")
    images = {name: name_image(config, name) for name in services}
    built = [name for name in services if get_object(services, name, "build") and images[name] not in known]
    own = list_dev_containers(facts)
    yield from (f"the features of {each.path}" for each in own if each.features)
    yield from (f"the build of {name}" for name in (*built, *(each.path for each in own if each.build)))
    pulled = [image for name, image in images.items() if name not in built]
    pulled += [each.image.value for each in own if each.image and not each.build and "$" not in each.image.value]
    yield from (f"the image {each}" for each in dict.fromkeys(pulled) if each not in known)
    for name, service in services.items():
        links = get_object(service, "depends_on").items()
        waits = [other for other, link in links if get_text(link, "condition") in (_HEALTHY, _COMPLETED)]
        # A namespace is gone where its container has ended.
        waits += [mode[8:] for key in _NAMESPACES if (mode := get_text(service, key)).startswith("service:")]
        yield from (f"{name}'s wait for {each}" for each in dict.fromkeys(waits) if each in services)


def list_joints(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of a project shows only where its services start together."""
    services = get_object(config, "services").values()
    links = [get_text(link, "condition") for each in services for link in get_object(each, "depends_on").values()]
    if not {_HEALTHY, _COMPLETED}.isdisjoint(links):
        yield "the order of the services"
    if any(get_objects(get_object(each, "ipam"), "config") for each in get_object(config, "networks").values() if each):
        yield "the addresses of the networks"


def name_image(config: Mapping[str, Any], service: str) -> str:
    """Name the image of a service: that of its file, or the one that Compose builds."""
    return get_text(get_object(config, "services", service), "image") or f"{get_text(config, 'name')}-{service}"


def _is_checked(service: Mapping[str, Any], image: str, has_health_check: Callable[[str], bool | None]) -> bool | None:
    """Say if Docker watches a service's health, by its file or else its image; None where nobody knows."""
    said = get_object(service, "healthcheck")
    if said.get("disable") or get_texts(said, "test")[:1] == ("NONE",):
        return False
    return True if said.get("test") else has_health_check(image)


def list_binds(service: Mapping[str, Any], *, is_written: bool = False) -> dict[str, str]:
    """List the sources of a service's bind mounts by their places; only of those that it may write to, if asked."""
    return {
        get_text(each, "target").rstrip("/"): get_text(each, "source").rstrip("/")
        for each in get_objects(service, "volumes")
        if get_text(each, "type") == "bind" and not (is_written and each.get("read_only"))
    }


def _isolate(network: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any] | None:
    """Copy a network without an effect on this machine's own; None for IPv6 and other drivers, which may have one."""
    ipam = get_object(network, "ipam")
    ranges = [{key: each[key] for key in _RANGES if key in each} for each in get_objects(ipam, "config")]
    has_ipv6 = any(":" in get_text(each, "subnet") for each in ranges)
    if has_ipv6 or not {get_text(network, "driver"), get_text(ipam, "driver")} <= {"", "bridge", "default"}:
        return None
    return {"internal": True, "driver_opts": {_NO_ADDRESS: "true"}, "ipam": {"config": ranges}, "labels": {**labels}}


def _keep(service: Mapping[str, Any], config: Mapping[str, Any], folder: str) -> dict[str, Any]:
    kept = {key: value for key, value in service.items() if _KEPT.fullmatch(key) and value}
    kept |= {key: "host" for key in _NAMESPACES if service.get(key) == "host"}
    kept["security_opt"] = [each for each in get_texts(service, "security_opt") if _OF_MACHINE.fullmatch(each)]
    is_unsafe = {
        "runtime": "/" in get_text(kept, "runtime"),
        "logging": get_text(get_object(kept, "logging"), "driver") not in _LOCAL_LOGS,
        "restart": get_text(kept, "restart") in ("always", "unless-stopped"),
        "security_opt": not kept["security_opt"],
    }
    kept = {key: value for key, value in kept.items() if not is_unsafe.get(key)}
    if resources := get_object(service, "deploy", "resources"):
        kept["deploy"] = {"resources": resources}
    else:
        kept.pop("deploy", None)
    binds = [
        _bind(source, get_text(each, "target"))
        for each in get_objects(service, "volumes")
        if (source := _find_folder(each, config)).startswith("/")
    ]
    named = [
        get_object(config, kind, get_text(each, "source")) for kind in FILES for each in get_objects(service, kind)
    ]
    options = (_PROFILE.fullmatch(each) for each in get_texts(service, "security_opt"))
    profiles = (posixpath.normpath(posixpath.join(folder, found[1])) for found in options if found)
    # podman-compose leaves paths relative.
    files = (path for path in (*(get_text(each, "file") for each in named), *profiles) if path.startswith("/"))
    # Its content is nobody's business here.
    binds += [_bind(path, f"/run/devkit/{number}") for number, path in enumerate(files)]
    environment = {name: value for name, value in get_object(service, "environment").items() if "NVIDIA" in name}
    return {
        **kept,
        **({"volumes": binds} if binds else {}),
        **({"environment": environment} if kept and environment else {}),
    }


def _find_folder(mount: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Find the path on this machine that has to exist for a mount: a bind's, or that of a volume which is one; "" for none."""
    if get_text(mount, "type") == "bind":
        return "" if get_object(mount, "bind").get("create_host_path") is True else get_text(mount, "source")
    options = get_object(config, "volumes", get_text(mount, "source"), "driver_opts")
    return get_text(options, "device") if "bind" in get_text(options, "o").split(",") else ""


def list_prerequisites(config: Mapping[str, Any], facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield kind and name of each network, volume and container that the project expects to exist already."""
    for each in list_dev_containers(facts):
        words = " ".join(item.text for item in each.run_args)
        for container, network in _NETWORK.findall(words):
            yield ("container", container) if container else ("network", network)
    for kind in ("network", "volume"):
        for each in get_object(config, f"{kind}s").values():
            if isinstance(each, dict) and each.get("external") and get_text(each, "name"):
                yield kind, get_text(each, "name")
    for service in get_object(config, "services").values():
        for key in (*_NAMESPACES, "pid"):
            kind, _, name = get_text(service, key).partition(":")
            if kind == "container" and name:
                yield kind, name


def list_addresses(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each network, which may exist before the project starts, with the fixed address that a service wants in it."""
    networks = get_object(config, "networks")
    for service in get_object(config, "services").values():
        for key, joined in get_object(service, "networks").items():
            network, address = get_object(networks, key), get_text(joined or {}, "ipv4_address")
            if address:
                yield get_text(network, "name"), address


def list_drivers(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield kind and name of each driver of the engine that the project names, once, as `docker info` calls the kinds."""
    logs = (get_object(each, "logging") for each in get_object(config, "services").values())
    made = ((kind, each) for kind in ("network", "volume") for each in get_object(config, f"{kind}s").values())
    own = ((kind.title(), each) for kind, each in made if isinstance(each, dict) and not each.get("external"))
    named = ((kind, get_text(each, "driver")) for kind, each in (*own, *(("Log", each) for each in logs)))
    yield from dict.fromkeys((kind, name) for kind, name in named if name not in ("", "none", "default"))


def list_shared_ports(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ports that two services publish on the same address."""
    services = get_object(config, "services").values()
    ports = [each for service in services for each in get_objects(service, "ports") if get_text(each, "published")]
    named = Counter(tuple(get_text(each, key) for key in ("published", "protocol", "host_ip")) for each in ports)
    yield from (port for (port, *_), count in named.items() if count > 1)


def list_taken_ports(host: Host, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the TCP ports that the project publishes on every address of this machine, and on which something listens."""
    taken = {str(port) for _, port in list_sockets(host, "tcp", LISTENING)}
    for service in get_object(config, "services").values():
        for port in get_objects(service, "ports"):
            is_for_all = get_text(port, "protocol") == "tcp" and not get_text(port, "host_ip")
            if is_for_all and get_text(port, "published") in taken:
                yield get_text(port, "published")


def _bind(source: str, target: str) -> dict[str, Any]:
    return {"type": "bind", "source": source, "target": target, "read_only": True, "bind": {"create_host_path": False}}


@dataclass(frozen=True)
class Request:
    """All that a dev container says to `docker run`: for each key of its file, words that belong together."""

    path: str
    image: str
    options: tuple[tuple[str, tuple[str, ...]], ...]
    is_whole: bool
    """Whether this machine knows the variables in all of them; those with others are left out."""

    def list_created(self, folder: str) -> dict[int, tuple[str, ...]]:
        """List by its place what `create` checks: no volume, which it would make, and a mount for a file that the client reads."""
        able: dict[int, tuple[str, ...]] = {}
        for place, (_, words) in enumerate(self.options):
            if found := _PROJECT_FILE.fullmatch(" ".join(words)):
                able[place] = _mount(posixpath.join(folder, found[1]), f"/run/devkit/{posixpath.basename(found[1])}")
            elif not _NOT_CREATED.fullmatch(words[0].partition("=")[0]) or _BIND.fullmatch(words[-1]):
                able[place] = _join(words)
        return able


def list_requests(host: Host, facts: Facts, folder: str) -> Iterator[Request]:
    """Yield what each dev container says to `docker run`."""
    known = {"localWorkspaceFolder": folder, "localWorkspaceFolderBasename": posixpath.basename(folder)}
    known |= {"devcontainerId": "0" * 52}
    for each in list_dev_containers(facts):
        try:
            root = parse_jsonc_tree((folder and host.read(f"{folder}/{each.path}")) or "", file=each.path)
        except InvalidDocument:
            root = ABSENT  # what is wrong with it, another check says
        nodes = ((key, option, root.at(key)) for key, option in _OPTIONS.items())
        given = [(key, option, each) for key, option, node in nodes for each in node.items or ([node] if node else [])]
        options: list[tuple[str, tuple[str, ...]]] = [(key, (option, _write(node))) for key, option, node in given]
        options += [(key, (f"--{key}",)) for key in ("init", "privileged") if root.at(key).text == "true"]
        texts = [item.text for item in each.run_args]
        while texts:
            takes_next = texts[0].startswith("-") and "=" not in texts[0] and not " ".join(texts[1:2]).startswith("-")
            options.append(("runArgs", tuple(texts[: 1 + takes_next])))
            del texts[: 1 + takes_next]
        filled = tuple(
            (
                key,
                tuple(_fill(_KNOWN.sub(lambda found: known.get(found[1], found[0]), word), host.env) for word in words),
            )
            for key, words in options
        )
        # `--help=false` would undo the word by which the client only parses them.
        known_ones = tuple(
            one for one in filled if not any("${" in word or word.startswith("--help") for word in one[1])
        )
        if root.at("initializeCommand"):
            # It runs on this machine before the container is created, and may make what is mounted.
            sources = {words[-1]: _SOURCE.search(words[-1]) for _, words in known_ones if _BIND.fullmatch(words[-1])}
            absent = {word for word, source in sources.items() if source and host.stat(source[1]) is None}
            known_ones = tuple(one for one in known_ones if one[1][-1] not in absent)
        yield Request(each.path, each.image.value if each.image else "", known_ones, known_ones == filled)


def _write(node: DocumentNode) -> str:
    """Write a value as the dev container CLI does: a mount as text."""
    return node.text or ",".join(f"{name}={each.text}" for name, each in node.fields.items())


def list_run_arguments(facts: Facts, requests: Iterable[Request], folder: str) -> Iterator[tuple[str, ...]]:
    """Yield the arguments with which each dev container is started: what it asks of the machine, and its workspace."""
    for each in requests:
        own = [_join(words) for key, words in each.options if key == "runArgs" and _is_of_machine(words)]
        given = [word for words in own for word in words]
        if folder and facts.container is None and all(key != "workspaceMount" for key, _ in each.options):
            given.append("=".join(_mount(folder, "/run/devkit/workspace")))
        if given:
            yield tuple(given)


def _join(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return an option and its value as one word, so that a stranger's value is never the image; no other word counts."""
    return ("=".join(words),) if words[0].startswith("-") else ()


def _is_of_machine(words: Sequence[str]) -> bool:
    text = " ".join(words)
    is_program = text.startswith("--runtime") and "/" in text
    return bool(_HOST_FLAGS.fullmatch(text) or (_KEPT_FLAGS.match(text) and not is_program))


def _fill(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables.get(found[1], found[2] or ""), text)


def list_dev_containers(facts: Facts) -> tuple[DevContainer, ...]:
    """List the dev containers that Compose does not start."""
    known = facts.project if isinstance(facts.project, Project) else None
    return tuple(each for each in known.dev_containers if not each.compose_files) if known else ()


def write_build(build: Build, folder: str) -> dict[str, Any]:
    """Write the build of a dev container as Compose resolves that of a service."""
    return {
        "context": f"{folder}/{build.context}",
        "dockerfile": f"{folder}/{build.dockerfile}",
        "target": build.target,
        "args": {each.name: each.value for each in build.args},
    }


def _mount(source: str, target: str) -> tuple[str, str]:
    return "--mount", f"type=bind,readonly,source={source},target={target}"
