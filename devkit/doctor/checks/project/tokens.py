"""Checks that no token gets into an image, a repository, or a shared cache."""

from collections.abc import Iterator
from shlex import quote

from devkit.doctor.checks.project.containers import (
    ProjectContainer,
    build_setting_finding,
    require_project,
    require_project_containers,
)
from devkit.doctor.model import Confidence, Finding, Fix, Severity, Side, check
from devkit.facts.model import Facts, Origin, Setting, Variable

_BUILD_SECRETS = "https://docs.docker.com/build/building/secrets/"

_HUB_VARIABLES = "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables"

_OF_BUILD = ("ARG", "ENV", "build argument")


@check("PRJ017")
def no_token_in_images(facts: Facts) -> Iterator[Finding]:
    seen: set[tuple[str, int, str]] = set()
    for container in require_project_containers(facts):
        for found in _find_in_container(container):
            place = found.location
            key = (place.path, place.line, found.message) if place else ("", 0, found.message)
            if key not in seen:
                seen.add(key)
                yield found
    for file in require_project(facts).env_files:
        if file.ignored_by_git is False and any(_is_token_name(name) for name in file.names):
            yield build_setting_finding(
                Setting("", "", file.path, 1),
                Severity.WARNING,
                f"{file.path} names a token, and .gitignore does not keep it out of the repository",
                Fix(
                    "Add it to .gitignore.",
                    (f"echo {quote(file.path)} >> .gitignore",),
                    where=Side.PROJECT,
                    docs="https://git-scm.com/docs/gitignore",
                ),
            )


def _find_in_container(container: ProjectContainer) -> Iterator[Finding]:
    arguments = container.build.args if container.build else ()
    of_stages = tuple(one for stage in container.stages for one in stage.variables)
    of_file = container.dockerfile.arguments if container.dockerfile else ()
    of_run = tuple(one for one in container.variables if one.place not in _OF_BUILD)
    for variable in (*of_file, *of_stages, *arguments, *of_run):
        found = _find_variable_problem(variable)
        if found is not None:
            yield found
    for stage in container.stages:
        for copied in stage.secret_files:
            yield build_setting_finding(
                copied,
                Severity.ERROR,
                f"{copied.name} takes {copied.value} into the image, with the token in it",
                Fix(
                    f"Add {copied.value} to .dockerignore, and hand it over when the container runs.",
                    where=Side.PROJECT,
                    docs="https://docs.docker.com/build/concepts/context/#dockerignore-files",
                ),
            )
        for command in stage.tokens_in_commands:
            yield build_setting_finding(
                command, Severity.ERROR, "a command of the build contains a token in plain text", _secret_mount_fix()
            )


def _find_variable_problem(variable: Variable) -> Finding | None:
    where = Setting(variable.place, variable.name, variable.path, variable.line)
    if variable.holds_token:
        return build_setting_finding(
            where,
            Severity.ERROR,
            f"{variable.name} is set to a token in {variable.path}, in plain text",
            _revoke_fix(variable),
        )
    if not variable.names_secret or (variable.origin is Origin.EMPTY and variable.place != "ARG"):
        return None
    if variable.place in _OF_BUILD:
        what = {"ARG": "ARG", "ENV": "ENV"}.get(variable.place, "a build argument")
        return build_setting_finding(
            where,
            Severity.WARNING,
            f"{variable.name} reaches the image by {what}: its value stays in the image's history",
            _secret_mount_fix(),
        )
    if variable.origin is Origin.LITERAL and _is_token_name(variable.name):
        return build_setting_finding(
            where,
            Severity.WARNING,
            f"{variable.name} has its value in {variable.path}, which everyone with access to the repository can read",
            _revoke_fix(variable),
            Confidence.LIKELY,
        )
    return None


def _revoke_fix(variable: Variable) -> Fix:
    passing = "${localEnv:%s}" if variable.place in ("containerEnv", "remoteEnv") else "${%s}"
    return Fix(
        f"Revoke the token, then write {passing % variable.name}, which takes the value of your own environment.",
        where=Side.PROJECT,
        docs="https://huggingface.co/docs/hub/security-tokens",
    )


def _secret_mount_fix() -> Fix:
    return Fix(
        "Use a secret mount for the one step that needs it.",
        ("RUN --mount=type=secret,id=hf_token,env=HF_TOKEN …", "docker build --secret id=hf_token,env=HF_TOKEN ."),
        where=Side.PROJECT,
        docs=_BUILD_SECRETS,
    )


def _is_token_name(name: str) -> bool:
    return name.upper().endswith(("TOKEN", "API_KEY", "SECRET_KEY", "SECRET_ACCESS_KEY", "ACCESS_KEY"))


@check("PRJ018")
def shared_cache_holds_no_token(facts: Facts) -> Iterator[Finding]:
    for container in require_project_containers(facts):
        home = container.value("HF_HOME")
        token_path = container.value("HF_TOKEN_PATH")
        has_own_cache = bool(container.value("HF_HUB_CACHE")) and not home
        for mount in container.mounts:
            target = mount.target.rstrip("/")
            holds_home = target.endswith("/.cache/huggingface") or (home and target == home.rstrip("/"))
            token_is_elsewhere = bool(token_path) and not token_path.startswith(f"{target}/")
            if not holds_home or token_is_elsewhere or has_own_cache:
                continue
            shared_with = "the host's own token" if mount.kind == "bind" else "every container with that volume"
            yield build_setting_finding(
                Setting("mount", f"{mount.source}:{mount.target}", mount.path, mount.line),
                Severity.WARNING if mount.kind == "bind" else Severity.NOTE,
                f"{mount.target} holds the hub's token beside the models, and is shared with {shared_with}",
                Fix(
                    "Mount the hub folder alone, or set HF_TOKEN_PATH to a private path in the container.",
                    (f"HF_HUB_CACHE={target}/hub",),
                    where=Side.PROJECT,
                    docs=_HUB_VARIABLES,
                ),
                Confidence.LIKELY,
            )
