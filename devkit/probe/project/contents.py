"""The facts of a project: its dev containers, Compose services, Dockerfiles, and requirement files."""

import re
from collections.abc import Mapping
from functools import partial

from devkit.facts.project import (
    DevContainer,
    Dockerfile,
    EnvFile,
    Project,
    Service,
)
from devkit.probe.dependencies.local_builds import find_local_builds
from devkit.probe.dependencies.requirement_lists import choose_main_list, find_lists
from devkit.probe.documents import (
    DocumentNode,
    InvalidDocument,
    NodeKind,
    find_toml_line,
    parse_env,
    parse_jsonc_tree,
    parse_toml,
)
from devkit.probe.project.compose import (
    COMPOSE_FILE,
    find_default_compose_files,
    read_compose_build_args,
    read_compose_services,
)
from devkit.probe.project.devcontainer import (
    find_compose_file_nodes,
    parse_dev_container,
    read_dev_container_build_args,
)
from devkit.probe.project.dockerfile import (
    find_needed_stages,
    find_secret_files,
    is_ignored,
    parse_dockerfile,
    parse_ignore_file,
)
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.gpu_packages import LOCK_FILES, read_gpu_requirements

SETTINGS_FILE = "devkit.toml"

MAX_DEV_CONTAINERS = 20
MAX_OTHER_FILES = 20
_CONTAINER_FOLDER = re.compile(r"(?i)^(?!\.devcontainer).*(?:docker|compose|container|deploy)")
DOCKERFILES = ("Dockerfile", ".devcontainer/Dockerfile")
"""Looked at when nothing names a Dockerfile."""


def read_project_contents(files: ProjectFiles) -> Project:
    """Read the project's container files, Dockerfiles and requirement files."""
    # What is wrong with files that no container starts from is not a fact about the project.
    apart = ProjectFiles(files.host, files.folder)
    roots = _dev_container_roots(files)
    dev_containers = tuple(parse_dev_container(root, files) for root in roots)
    services, arguments = _services(roots, files)
    for root in roots:
        arguments = read_dev_container_build_args(root) | arguments
    check_settings_file(files)
    return Project(
        folder=files.folder,
        dev_containers=dev_containers,
        services=services,
        dockerfiles=_dockerfiles(dev_containers, services, arguments, files),
        installs=read_gpu_requirements(files),
        locks=tuple(name for name in LOCK_FILES if files.has(name)),
        env_files=_env_files(files),
        main_list=choose_main_list(apart, find_lists(apart))[0],
        builds=find_local_builds(apart, ()),
        other_services=_find_other_services(apart, {path for service in services for path in service.files}),
        files=files.seen,
    )


def _dev_container_roots(files: ProjectFiles) -> tuple[DocumentNode, ...]:
    """Every devcontainer.json where tools look for one. Source: containers.dev, "devcontainer.json"."""
    below = [f".devcontainer/{name}/devcontainer.json" for name in files.names(".devcontainer")]
    paths = (".devcontainer/devcontainer.json", ".devcontainer.json", *below[:MAX_DEV_CONTAINERS])
    roots = []
    for path in paths:
        text = files.read(path, "devcontainer.json")
        if text is None:
            continue
        try:
            root = parse_jsonc_tree(text, file=path)
        except InvalidDocument as wrong:
            files.broken(path, wrong.problem, wrong.line)
            continue
        if root.kind is NodeKind.OBJECT:
            roots.append(root)
        else:
            files.broken(path, "the top level is not an object", root.line)
    return tuple(roots)


def _services(roots: tuple[DocumentNode, ...], files: ProjectFiles) -> tuple[tuple[Service, ...], dict[str, str]]:
    """The services of each dev container's Compose files; without a dev container those of the folder itself."""
    named: list[tuple[DocumentNode | str, ...]] = [find_compose_file_nodes(root) for root in roots]
    if not roots:
        # Compose reads COMPOSE_FILE from .env. Source: Docker, "Pre-defined environment variables".
        chosen = parse_env(files.read(".env", ".env") or "").get("COMPOSE_FILE", "")
        listed = tuple(name.strip() for name in re.split(r"[:;]", chosen) if name.strip())
        named.append(listed or find_default_compose_files(files))
    services: list[Service] = []
    arguments: dict[str, str] = {}
    for names in filter(None, named):
        found = read_compose_services(names, files)
        services += found
        arguments |= read_compose_build_args(names, files)
    return tuple(services), arguments


def _find_other_services(files: ProjectFiles, known: set[str]) -> tuple[Service, ...]:
    """Find services that ask for a GPU in other Compose files, beside the others or in folders such as docker/nvidia."""
    folders = ["."]
    for name in filter(_CONTAINER_FOLDER.search, files.names(".")):
        folders += [name, *(f"{name}/{inner}" for inner in files.names(name))]
    paths = [f"{folder}/{name}".removeprefix("./") for folder in folders for name in files.names(folder)]
    paths = [path for path in paths if COMPOSE_FILE.fullmatch(path.rpartition("/")[2]) and path not in known]
    found = (service for path in paths[:MAX_OTHER_FILES] for service in read_compose_services((path,), files))
    return tuple(service for service in found if service.requests)


def _dockerfiles(
    dev_containers: tuple[DevContainer, ...],
    services: tuple[Service, ...],
    arguments: Mapping[str, str],
    files: ProjectFiles,
) -> tuple[Dockerfile, ...]:
    every = [*(one.build for one in dev_containers), *(one.build for one in services)]
    builds = [build for build in every if build is not None]
    wanted = {build.dockerfile: (build.context, build.path, build.line) for build in reversed(builds)}
    if not dev_containers and not services:
        wanted = {path: (path.rpartition("/")[0] or ".", "", 1) for path in DOCKERFILES}
    found = []
    for path, (context, named_by, line) in wanted.items():
        # The path is the project's already, so it must not be taken as one beside the file that names it.
        absolute = path if path.startswith(("/", "..")) or "://" in path else files.absolute(path)
        text = files.read(absolute, "Dockerfile", named_by=named_by, line=line)
        if text is not None:
            sources: list[tuple[str, int]] = []
            taken = partial(find_secret_files, files=files, context=context, dockerfile=path, sources=sources)
            try:
                found.append(parse_dockerfile(text, path=path, arguments=arguments, secret_files=taken))
            except InvalidDocument as error:
                files.broken(files.within(absolute, beside=named_by) or path, error.problem, error.line)
                continue
            needed = find_needed_stages(found[-1], {build.target for build in builds if build.dockerfile == path})
            for source, at in sources if named_by else ():
                if max((each for each in found[-1].stages if each.line <= at), key=lambda each: each.line) in needed:
                    files.expect(source, "COPY source", named_by=path, line=at)
    return tuple(found)


def _env_files(files: ProjectFiles) -> tuple[EnvFile, ...]:
    found = []
    for path in (".env", ".devcontainer/.env"):
        text = files.read(path, ".env")
        if text is None:
            continue
        # Whether a .gitignore names .env files, as far as plain lines say; None without a .gitignore.
        ignore_files = dict.fromkeys((".gitignore", f"{path.rpartition('/')[0]}/.gitignore".lstrip("/")))
        lists = [
            parse_ignore_file(listed) for name in ignore_files if (listed := files.read(name, "ignore")) is not None
        ]
        is_hidden = any(is_ignored(name, lines) for lines in lists for name in (".env", path))
        found.append(EnvFile(path, tuple(parse_env(text)), is_hidden if lists else None))
    return tuple(found)


def check_settings_file(files: ProjectFiles) -> None:
    """Record a devkit.toml that is not TOML as broken, or that has rules, which this release does not check."""
    text = files.read(SETTINGS_FILE, SETTINGS_FILE) or ""
    try:
        if "policy" in parse_toml(text):
            line = next(number for number, each in enumerate(text.splitlines(), 1) if "policy" in each)
            files.broken(SETTINGS_FILE, "[policy] was removed, and its rules are not checked", line)
    except ValueError as error:
        files.broken(SETTINGS_FILE, str(error).partition(" (at")[0], find_toml_line(error))
