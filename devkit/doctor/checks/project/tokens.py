"""Checks that no token gets into an image, a repository, or a shared cache."""

from collections.abc import Iterator
from typing import Any

from devkit.doctor.checks.project.containers import ProjectContainer, require_project, require_project_containers
from devkit.doctor.model import check
from devkit.doctor.problems import Problem, problem
from devkit.facts.model import Facts
from devkit.facts.project import Origin, Setting
from devkit.facts.runs import Hub

_OF_BUILD = ("ARG", "ENV", "build argument")


@check("PRJ017")
def no_token_in_images(facts: Facts) -> Iterator[Problem]:
    found = (each for container in require_project_containers(facts) for each in _find_in_container(container))
    yield from {(each.location, each.name, each.evidence): each for each in found}.values()
    for file in require_project(facts).env_files:
        if file.ignored_by_git is False and any(_is_token_name(name) for name in file.names):
            yield problem("env-file", found_at=Setting("", "", file.path, 1), path=file.path)


def _find_in_container(container: ProjectContainer) -> Iterator[Problem]:
    arguments = container.build.args if container.build else ()
    of_stages = tuple(one for stage in container.stages for one in stage.variables)
    of_file = container.dockerfile.arguments if container.dockerfile else ()
    of_run = tuple(one for one in container.variables if one.place not in _OF_BUILD)
    for variable in (*of_file, *of_stages, *arguments, *of_run):
        place = Setting(variable.place, variable.name, variable.path, variable.line)
        values: dict[str, Any] = {"variable": variable.name, "path": variable.path, "place": variable.place}
        if variable.holds_token:
            yield problem("plain-text", found_at=place, **values)
        elif not variable.names_secret or (variable.origin is Origin.EMPTY and variable.place != "ARG"):
            continue
        elif variable.place in _OF_BUILD:
            how = variable.place if variable.place in ("ARG", "ENV") else "a build argument"
            yield problem("in-history", found_at=place, how=how, **values)
        elif variable.origin is Origin.LITERAL and _is_token_name(variable.name):
            yield problem("readable", found_at=place, **values)
    for stage in container.stages:
        for copied in stage.secret_files:
            yield problem("copied", found_at=copied, instruction=copied.name, file=copied.value)
        for command in stage.tokens_in_commands:
            yield problem("in-command", found_at=command)


def _is_token_name(name: str) -> bool:
    return name.upper().endswith(("TOKEN", "API_KEY", "SECRET_KEY", "SECRET_ACCESS_KEY", "ACCESS_KEY"))


@check("PRJ018")
def shared_cache_holds_no_token(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        home = container.value("HF_HOME")
        token_path = container.value("HF_TOKEN_PATH")
        has_own_cache = bool(container.value("HF_HUB_CACHE")) and not home
        for mount in container.mounts:
            target = mount.target.rstrip("/")
            holds_home = target.endswith("/.cache/huggingface") or (home and target == home.rstrip("/"))
            token_is_elsewhere = bool(token_path) and not token_path.startswith(f"{target}/")
            is_hosts = mount.kind == "bind" and facts.container is None
            has_none = is_hosts and isinstance(facts.hub, Hub) and not facts.hub.token_from
            if not holds_home or token_is_elsewhere or has_own_cache or has_none:
                continue
            place = Setting("mount", f"{mount.source}:{mount.target}", mount.path, mount.line)
            yield problem("hosts-token" if mount.kind == "bind" else "shared-volume", found_at=place, target=target)
