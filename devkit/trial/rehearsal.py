"""The trials of a project: its services as stand-ins, its dev containers' settings, its builds, and what they need to exist."""

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

from devkit.facts.model import Facts
from devkit.facts.runs import Trial, Way
from devkit.probe.attempts import find_error_lines, find_guilty
from devkit.probe.documents import get_object, get_objects, get_text, get_texts, parse_list, parse_object_or_empty
from devkit.probe.engine.client import BUILD_PLUGIN, find_plugin
from devkit.probe.engine.last_words import find_named_settings, flatten
from devkit.probe.host import TIMED_OUT, ProgramResult
from devkit.probe.project.places import (
    drop_repeated,
    list_instructions,
    locate_excerpt,
    locate_setting,
    locate_values,
    take_suggestion,
)
from devkit.trial.builds import OUTLINE, find_build_faults
from devkit.trial.cleanup import list_names
from devkit.trial.programs import (
    MOUNTED,
    NO_EXEC,
    NOT_STARTED,
    LookUp,
    list_image_users,
    list_look_ups,
    list_misnamed,
    name_images,
)
from devkit.trial.project import (
    FILES,
    MAX_CONTAINERS,
    MAX_REHEARSED,
    Request,
    build_rehearsal,
    list_addresses,
    list_drivers,
    list_joints,
    list_pending,
    list_shared_ports,
    list_taken_ports,
)
from devkit.trial.run import (
    LABEL,
    MAX_LOOK_UPS,
    MAX_STARTED,
    NO_NETWORK,
    OPTIONS,
    PREFIX,
    SHELL,
    SHORTEST_S,
    Client,
    Run,
    hold_in_memory,
    isolate,
    list_said,
    make_trial,
)
from devkit.trial.writers import list_writers

_LISTED = '{{.Names}}\t{{.Ports}}\t{{.Label "com.docker.compose.project.working_dir"}}'
_OWN = '{{.Label "com.docker.compose.project.working_dir"}}\t{{.Label "com.docker.compose.project"}}'
_OURS = frozenset({"image", "labels", "entrypoint", "pull_policy", "healthcheck", "read_only", "stdin_open"})
"""Of a stand-in, what the project has not said."""


def rehearse(run: Run, client: Client, facts: Facts) -> tuple[Run, tuple[str, ...]]:
    """Build the project of stand-ins beside what the engine already has of it, and say what is left out."""
    networks, image, label = get_object(run.config, "networks"), f"{PREFIX}:{run.owner}", f"{LABEL}={run.owner}"
    wanted = name_images(run.config, facts)
    questions = (
        ("image", "inspect", "--format", "{{json .}}", "--", *sorted(wanted)),
        ("ps", "--all", "--format", _OWN),
        ("network", "ls", "--format", "{{.Name}}"),
        ("volume", "ls", "--format", "{{.Name}}"),
    )
    with ThreadPoolExecutor(len(questions)) as pool:
        said, listed, there, volumes = (
            each.out for each in pool.map(lambda words: run.ask(*client.command, *words), questions)
        )
    images = _parse_images(said, wanted)
    refusals = dict(_list_refusals(run, client, wanted - images.keys()))
    # The dev container CLI gives the project a different name than Compose; the folder is the same.
    rows = [row.partition("\t") for row in listed.splitlines()]
    started = {name for folder, _, name in rows if f"{folder}/".startswith(f"{run.project}/")}
    present = {
        key
        for key in networks
        if not {get_text(get_object(networks, key), "name"), *(f"{each}_{key}" for each in started)}.isdisjoint(
            there.split()
        )
    }

    def has_health_check(image: str) -> bool | None:
        return bool(images[image].get("Healthcheck")) if image in images else None

    # Podman starts each of its services alone.
    is_whole = client.name == "docker"
    rehearsal, left_out = build_rehearsal(
        run.config,
        image,
        label=label,
        folder=run.project,
        present=present if is_whole else networks,
        has_health_check=has_health_check if is_whole else lambda _image: True,
    )
    # Services of one program are one trial.
    host = run.host if client.settings is not None else None
    names = {
        key for key, each in get_object(run.config, "volumes").items() if get_text(each, "name") in volumes.split()
    }
    found = (
        *(list_look_ups(run.config, images, facts, host, run.project) if client.heeds_seccomp else ()),
        *list_image_users(images, (each.dockerfile for each in run.builds), facts, run.host, run.project),
    )
    misnamed, existing = list_misnamed(run.config, facts, refusals), {*volumes.split(), *names}
    is_here = host is not None and facts.container is None
    writers = list_writers(run.config, images, facts, run.host, run.project, existing) if is_here else ()
    look_ups = tuple({each.words or each.arguments: each for each in (*misnamed, *found, *writers)}.values())
    left_out += tuple(f"what {' '.join(each.arguments)} needs of its image" for each in look_ups[MAX_LOOK_UPS:])
    left_out += () if is_whole else tuple(list_joints(run.config))
    rehearsal = rehearsal if rehearsal["services"] else {}
    pending = tuple(list_pending(run.config, facts, {*images, *refusals}))
    look_ups = (*run.look_ups, *look_ups[:MAX_LOOK_UPS])
    return replace(run, rehearsal=rehearsal, look_ups=look_ups, pending=pending, images=images), left_out


def _parse_images(said: str, wanted: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Parse how each wanted image that the engine has is configured, by the name that the project has for it."""
    found: dict[str, Mapping[str, Any]] = {}
    listed = parse_list(said)  # Podman 4 answers with a list, over many lines
    every = map(parse_object_or_empty, said.splitlines()) if listed is None else listed
    for image in (each for each in every if isinstance(each, dict)):
        names = {_shorten(each) for key in ("RepoTags", "RepoDigests") for each in get_texts(image, key)}
        found |= {each: get_object(image, "Config") for each in wanted if _shorten(each) in names}
    return found


def _list_refusals(run: Run, client: Client, images: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each name of an image that the engine cannot parse, with its words."""
    for image in images:
        said = run.ask(*client.command, "image", "inspect", "--", image).err
        if "invalid reference" in said:
            yield image, f"invalid reference{said.partition('invalid reference')[2].rstrip()}"


def _shorten(image: str) -> str:
    """Return the name of an image as engines shorten it, with its tag."""
    name = image.removeprefix("localhost/").removeprefix("docker.io/").removeprefix("library/")
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def list_project_trials(run: Run, client: Client, image: str) -> Iterator[Callable[[], Trial | None]]:
    """List what the project asks for: its services by Compose, its dev containers as the dev container CLI would."""
    label, command = f"{LABEL}={run.owner}", ("-c", ":")

    def name(number: int) -> tuple[str, str]:
        return "--name", f"{PREFIX}-{run.owner}-{Way.PROJECT}-{number}"

    def compose(content: Mapping[str, Any], *words: str, arguments: tuple[str, ...]) -> Trial:
        def start(services: Mapping[str, Any]) -> ProgramResult:
            with hold_in_memory(json.dumps({**content, "services": services}).encode()) as path:
                options = ("--project-name", f"{PREFIX}-{run.owner}", "--file", path)
                return run.ask(*client.compose, *options, *words)

        return _tell_rehearsal(run, client, start, content, arguments)

    def run_service(number: int, service: str, asked: dict[str, Any]) -> Trial:
        network = "host" if asked.get("network_mode") == "host" else "none"
        alone = {"entrypoint": ["/bin/sh", *command], "network_mode": network, "depends_on": {}}
        # podman-compose would leave a pod behind.
        content = {"services": {service: asked | alone}, "x-podman": {"in_pod": False}}
        return compose(content, "run", "--rm", "--no-deps", *name(number), service, arguments=("run", service))

    for number, arguments in enumerate(run.run_arguments):
        words = (*name(number), "--label", label, *arguments, image, *command)
        yield partial(_run_container, run, client, words, arguments)
    if run.builds and (plugin := find_plugin(run.host, BUILD_PLUGIN)):
        yield partial(_read_builds, run, client, plugin)
    for number, look_up in enumerate(run.look_ups, MAX_CONTAINERS + MAX_REHEARSED):
        yield partial(_look_up, run, client, number, look_up)
    if client.name == "docker":
        yield from (partial(_check, run, client, image, each) for each in run.requests[:MAX_CONTAINERS] if each.options)
        if run.rehearsal:
            # A stand-in heeds no signal, and would hold up the next attempt.
            words = ("up", "--detach", "--no-build", "--timeout=0")
            yield partial(compose, run.rehearsal, *words, arguments=("up",))
    else:
        services = get_object(run.rehearsal, "services")
        for number, each in enumerate(services.items(), len(run.run_arguments)):
            yield partial(run_service, number, *each)


def _check(run: Run, client: Client, image: str, request: Request) -> Trial:
    """Let the client parse all that a dev container says, and the engine check it; nothing starts.

    The container is of the image that its file names where that is here. The trial names the settings without which it can be created.
    """
    # The engine would copy what an image has for a volume.
    is_plain = request.image in run.images and not run.images[request.image].get("Volumes")
    made = request.image if is_plain and not request.image.startswith("-") else image
    name = f"{PREFIX}-{run.owner}-{Way.PROJECT}-{MAX_STARTED + run.requests.index(request)}"

    def attempt(options: Mapping[int, Sequence[str]], without: Collection[str] = ()) -> ProgramResult:
        words = [word for place, each in options.items() if str(place) not in without for word in each]
        if options is parsed:
            # An engine that is not there starts nothing, whatever they say.
            return run.ask(client.command[0], "--host", "unix:///dev/null", "run", "--help", *words)
        named = ("--name", "-".join((name, *without)), "--label", f"{LABEL}={run.owner}")
        return run.ask(*client.command, "create", "--pull=never", SHELL, *named, *words, made)

    parsed = {place: words for place, (_, words) in enumerate(request.options)}
    created = request.list_created(run.project)
    options, arguments, done = (
        parsed,
        ("run", request.path),
        attempt(parsed) if request.is_whole else ProgramResult(0, "", ""),
    )
    if done.code == 0:
        options, arguments, done = created, ("create", request.path), attempt(created)
    trial = make_trial(client, Way.PROJECT, done, 0, arguments=arguments)
    if done.code in (0, TIMED_OUT):
        return trial
    guilty = find_guilty([*map(str, options)], lambda without: attempt(options, without).code == 0)
    settings = []
    for key, words in (request.options[int(place)] for place in guilty):
        found = locate_setting(run.host, run.project, (key,), words[-1])
        shown = " ".join(words) if key == "runArgs" else key
        settings.append(str(replace(found, name=shown)) if found else f"{shown} in {request.path}")
    return replace(trial, settings=tuple(settings))


def _run_container(run: Run, client: Client, words: tuple[str, ...], arguments: tuple[str, ...]) -> Trial:
    """Start a container of a project's arguments, and tell how it ends, with the settings that the engine's words repeat."""

    def ask(*network: str) -> ProgramResult:
        return run.ask(*client.command, "run", *OPTIONS, SHELL, *network, *words)

    done = ask() if any(word.startswith("--net") for word in arguments) else isolate(client, ask)
    trial = make_trial(client, Way.PROJECT, done, 0, arguments=("run", *arguments))
    # What an engine refuses of a GPU is a matter of its settings, not of the project.
    is_own = done.code not in (0, TIMED_OUT) and not re.search("nvidia|gpu", done.err, re.IGNORECASE)
    places = locate_values(run.host, run.project, done.err) if is_own else ()
    return replace(trial, settings=tuple(map(str, places)), is_suspected=True)


def _tell_rehearsal(
    run: Run,
    client: Client,
    start: Callable[[Mapping[str, Any]], ProgramResult],
    content: Mapping[str, Any],
    arguments: tuple[str, ...],
) -> Trial:
    """Start stand-ins of the project and tell how they end, with the settings without which they start.

    Those that the engine names are suspected first. Where it names some and none is guilty, they are reported as suspects.
    """
    done = start(content["services"])
    # In the names that the user's own containers and networks would have.
    done = replace(done, err=re.sub(rf"{PREFIX}-{run.owner}[-_]", "", done.err))
    trial = make_trial(client, Way.PROJECT, done, 0, arguments=("compose", *arguments))
    # Another doctor may rehearse the same project just now, and have its ranges.
    others: list[str] = []
    with suppress(OSError):
        others = [name for name in list_names(run.ask, client)[1] if run.owner not in name] if done.code else []
    if "overlap" in done.err and not others and (found := _find_overlap(run, client)):
        return make_trial(client, Way.PROJECT, ProgramResult(1, "", found[1]), 0, arguments=found[0])
    trial = replace(trial, is_timed_out=trial.is_timed_out or others != [])
    if done.code == 0 or trial.is_timed_out:
        return trial
    asked = {name: {key: each[key] for key in each.keys() - _OURS} for name, each in content["services"].items()}
    files = {kind: get_object(run.config, kind) for kind in FILES}
    values = dict.fromkeys((*flatten(files), *flatten(asked)))
    named = find_named_settings(done.err, (("", key, value) for key, value in values))
    keys = [each.removesuffix(" in ") for each in named]
    every = [f"{name}.{key}" for name, each in asked.items() for key in sorted(each) if each[key] not in ({}, "none")]

    def works(without: Collection[str]) -> bool:
        services = {
            name: {key: each[key] for key in each if f"{name}.{key}" not in without}
            for name, each in content["services"].items()
        }
        for each in services.values():
            each.update({} if "networks" in each else {"network_mode": each.get("network_mode", "none")})
        return time.monotonic() + SHORTEST_S < run.ends_at and start(services).code == 0

    # Compose tells its progress beside an error.
    said = " ".join(find_error_lines(done.err)).lower()

    def count_named(key: str) -> float:
        """Return the share of a key's words that the engine says; 1 also where it repeats the value."""
        words = re.findall(r"[a-z]{3,}(?=s)|[a-z]{3,}", key.rpartition(".")[2])
        repeats = any(f"{each}.".startswith(f"{key}.") for each in keys)
        return 1 if repeats else sum(word in said for word in words) / max(1, len(words))

    suspects = sorted(filter(count_named, every), key=count_named, reverse=True)
    guilty = find_guilty(suspects, works) or find_guilty([each for each in every if each not in suspects], works)
    shown = [each for each in keys if not guilty or each.startswith((*guilty, *FILES))] or [*guilty]
    shown = shown or [each for each in suspects if count_named(each) == 1]
    settings = tuple(dict.fromkeys(_locate(run, key, values) for key in shown))
    return replace(trial, settings=settings, is_suspected=not guilty)


def _locate(run: Run, key: str, values: Iterable[tuple[str, str]]) -> str:
    """Locate a setting of a service, or of a file that services read, in the files of the project."""
    path = key.split(".") if key.startswith(FILES) else ["services", *key.split(".")]
    value = next((value for name, value in values if name == key), "")
    place = locate_setting(run.host, run.project, path, value)
    if place and key.endswith(".depends_on"):
        # The stand-ins themselves are healthy, and end as they should.
        remedy = "give the service that it waits for a healthcheck, or wait for service_started"
        place = replace(place, note="it waits for a health check that no file defines", remedy=remedy)
    return str(replace(place, name=key)) if place else f"{key} in the project"


def _find_overlap(run: Run, client: Client) -> tuple[tuple[str, ...], str] | None:
    """Find the network of the engine that already has a range of the project's, as arguments of a trial and its fault."""
    networks = get_object(run.rehearsal, "networks").values()
    wanted = [
        get_text(each, "subnet") for network in networks for each in get_objects(get_object(network, "ipam"), "config")
    ]
    names = run.ask(*client.command, "network", "ls", "--format", "{{.Name}}").out.split()
    shown = "{{.Name}} {{range .IPAM.Config}}{{.Subnet}} {{end}}"
    rows = run.ask(*client.command, "network", "inspect", "--format", shown, *names).out.splitlines() if names else []
    for name, *ranges in filter(None, map(str.split, rows)):
        for subnet in wanted:
            with suppress(ValueError):
                if any(ip_network(subnet).overlaps(ip_network(each)) for each in ranges if ":" not in each):
                    arguments = ("network", "create", "--subnet", name)
                    return arguments, f"the network {name} already has addresses of {subnet}"
    return None


def _look_up(run: Run, client: Client, number: int, wanted: LookUp) -> Trial | None:
    """Let the runtime look up what is wanted in an image of the project, and not run it.

    None where the engine refuses the profile that forbids running it: then nothing is known.
    """
    named = ("--name", f"{PREFIX}-{run.owner}-{Way.PROJECT}-{number}", "--label", f"{LABEL}={run.owner}")
    done = ProgramResult(0, "", "")
    if wanted.judge is not None:
        done = run.ask(*client.command, "run", *OPTIONS, NO_NETWORK, *named, *wanted.words)
        found = wanted.judge(list_said(done)) if done.code == 0 else None
        return make_trial(client, Way.PROJECT, ProgramResult(1, "", found[1]), 0, arguments=found[0]) if found else None
    if wanted.words:
        with hold_in_memory(json.dumps(NO_EXEC).encode()) as path:
            profile = (f"--security-opt=seccomp={path}", *(("--runtime=runc",) if client.name == "docker" else ()))
            done = run.ask(*client.command, "run", *OPTIONS, NO_NETWORK, *profile, *named, *wanted.words)
    if done.code in NOT_STARTED and "seccomp" in done.err:
        return None
    is_refused, arguments = done.code in NOT_STARTED, wanted.arguments
    place = next((each for each in wanted.mounts if f'at "{each}"' in done.err), "")
    # What the engine refuses for another reason says nothing of what is looked up.
    is_reported = arguments[0] == "compose" or place or arguments[-1] in done.err or done.code == TIMED_OUT
    if is_refused and not is_reported:
        return None
    fault = wanted.mounts.get(place, done.err) if is_refused else ""
    if place:
        arguments = (*MOUNTED, place)
        fault += "".join(f" ({each})" for each in locate_values(run.host, run.project, place)[:1])
    if wanted.absence:
        fault = "" if is_refused else wanted.absence
    code = TIMED_OUT if done.code == TIMED_OUT else (done.code if is_refused else 1) if fault else 0
    trial = make_trial(client, Way.PROJECT, ProgramResult(code, "", fault), 0, arguments=arguments)
    is_named = arguments[0] == "compose" and "executable file not found" in fault
    places = locate_values(run.host, run.project, fault) if is_named else ()
    return replace(trial, settings=tuple(map(str, places)), is_suspected=True)


def _read_builds(run: Run, client: Client, plugin: str) -> Trial:
    """Let BuildKit read the project's Dockerfiles; the first fault is that of the trial."""
    content = {"target": {f"b{number}": each.target for number, each in enumerate(run.builds)}}
    ours = ("local://*", f"docker-image://docker.io/library/{PREFIX}:*")
    rules = [("DENY", "*"), *(("ALLOW", each) for each in ours)]
    policy = {"rules": [{"action": action, "selector": {"identifier": each}} for action, each in rules]}
    with (
        hold_in_memory(json.dumps(content).encode()) as path,
        hold_in_memory(json.dumps(policy).encode()) as policy_path,
    ):
        settings = (f"DOCKER_HOST={client.command[-1]}", f"EXPERIMENTAL_BUILDKIT_SOURCE_POLICY={policy_path}")
        options = ("--builder=default", *OUTLINE, f"--file={path}")
        words = ("env", *settings, plugin, "bake", *options, *content["target"])
        done = run.ask(*words, without=("DOCKER_CONTEXT", "BUILDX_CONFIG"))
    faults = (
        (each, *found)
        for number, each in enumerate(run.builds)
        for found in find_build_faults(run.host, each, done, f"b{number}")
    )
    build, fault, known = next(faults, (None, "", ()))
    written = [each for each, _ in list_instructions(run.host, run.project)]
    last = {each.file: each.line for each in written if each.name == "FROM"}
    able = [each for each in run.builds if "target" not in each.target]
    # Of a stage before the last one, a build may need nothing.
    noted = [(build, one) for build in able for one in written if one.note and one.file == build.dockerfile]
    noted = [(build, one) for build, one in noted if one.line >= last.get(one.file, 0)]
    # A variable without a value may be fine, and a command on this machine may make a file.
    is_lasting = locate_setting(run.host, run.project, ("initializeCommand",)) is None
    lacking = [each for each in noted if each[1].name in ("COPY", "ADD") and "$" not in each[1].text and is_lasting]
    if build is None and lacking:
        build, fault = lacking[0][0], lacking[0][1].note
    if done.code == TIMED_OUT or build is None:
        done = done if done.code == TIMED_OUT else ProgramResult(0, "", "")
        return make_trial(client, Way.PROJECT, done, 0, arguments=("build",))
    # What was built before starts without a build.
    arguments = known or (
        *(("build", "--file") if build.image in run.images else ("compose", "build")),
        build.dockerfile,
    )
    trial = make_trial(client, Way.PROJECT, ProgramResult(1, "", fault), 0, arguments=arguments)
    if known:
        return trial
    target, key = get_text(build.target, "target"), f"services.{build.service}.build.target"
    is_named = bool(target) and target in fault and "target" in fault
    number = re.search(r"\bline (\d+)", fault)
    own = [each for each in written if each.file == build.dockerfile and number and each.line == int(number[1])]
    found = (
        locate_setting(run.host, run.project, key.split("."), target) if is_named and build.service else None,
        locate_excerpt(run.host, run.project, done.err),
        *(take_suggestion(each, fault) for each in own),
        *(one for each, one in lacking or noted if each is build),
        *locate_values(run.host, run.project, fault),
    )
    return replace(trial, settings=tuple(map(str, drop_repeated(filter(None, found)))), is_suspected=True)


def list_lookups(run: Run, client: Client) -> Iterator[Callable[[], Trial]]:
    """List what the project needs of the engine before it starts: what it expects to exist, and names and ports that are free.

    No container joins a network, has one of the names or publishes a port.
    """

    def tell(done: ProgramResult, fault: str, *arguments: str) -> Trial:
        end = done if done.code else ProgramResult(int(bool(fault)), "", fault)
        return make_trial(client, Way.PROJECT, end, 0, arguments=arguments)

    answered = ProgramResult(0, "", "")

    def inspect(kind: str, wanted: str) -> Trial:
        return tell(run.ask(*client.command, kind, "inspect", wanted), "", "inspect", "--type", kind, wanted)

    def list_containers() -> tuple[ProgramResult, list[tuple[str, str, bool]]]:
        # The dev container CLI gives the project a different name than Compose; the folder is the same.
        done = run.ask(*client.command, "ps", "--all", "--format", _LISTED)
        rows = [line.split("\t") for line in done.out.splitlines() if line.count("\t") == 2]
        return done, [(name, ports, f"{folder}/".startswith(f"{run.project}/")) for name, ports, folder in rows]

    def find_owner(wanted: str) -> Trial:
        done, found = list_containers()
        is_taken = any(name == wanted and not is_own for name, _, is_own in found)
        fault = f"another container has the name {wanted}" if is_taken else ""
        return tell(done, fault, "create", "--name", wanted)

    def find_listener(port: str) -> Trial:
        done, found = list_containers()
        is_ours = any(f":{port}->" in ports and is_own for _, ports, is_own in found)
        fault = "" if is_ours else f"another program already listens on port {port}"
        return tell(done, fault, "run", "--publish", port)

    def find_address(network: str, address: str) -> Trial:
        ranges = "{{range .IPAM.Config}}{{.Subnet}} {{end}}"
        done = run.ask(*client.command, "network", "inspect", "--format", ranges, network)
        # What is not there, another lookup says.
        is_fine = done.code != 0
        with suppress(ValueError):
            is_fine |= any(ip_address(address) in ip_network(each) for each in done.out.split())
        fault = "" if is_fine else f"the network {network}, {done.out.strip()}, does not have the address {address}"
        return tell(answered, fault, "run", "--network", network, "--ip", address)

    def find_driver(kind: str, name: str) -> Trial:
        done = run.ask(*client.command, "info", "--format", f"{{{{json .Plugins.{kind}}}}}")
        known = parse_list(done.out)
        is_fine = known is None or name in known or f"{name}:latest" in known
        fault = "" if is_fine else f"the engine has no {kind.lower()} driver {name}"
        words = ("run", "--log-driver") if kind == "Log" else (kind.lower(), "create", "--driver")
        return tell(answered, fault, *words, name)

    yield from (partial(find_address, *each) for each in list_addresses(run.config))
    yield from (partial(find_driver, *each) for each in list_drivers(run.config) if client.name == "docker")
    if client.name == "docker":
        yield from (partial(find_listener, port) for port in list_taken_ports(run.host, run.config))
        shared = ((f"two services publish port {port}", port) for port in list_shared_ports(run.config))
        yield from (partial(tell, answered, fault, "run", "--publish", port) for fault, port in shared)
        services = get_object(run.config, "services").values()
        yield from (partial(find_owner, name) for each in services if (name := get_text(each, "container_name")))
    for kind, required in run.prerequisites:
        yield partial(inspect, kind, required)
