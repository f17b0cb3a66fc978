"""The builds of a project as BuildKit reads them: nothing is built, and no registry is asked."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from devkit.facts.model import Facts
from devkit.facts.project import Project
from devkit.probe.documents import InvalidDocument, get_object, get_objects, get_text, get_texts, parse_object_or_empty
from devkit.probe.host import Host, ProgramResult
from devkit.probe.project.dockerfile import parse_dockerfile
from devkit.trial.project import list_dev_containers, name_image, write_build

OUTLINE = ("--allow=fs.read=*", "--progress=plain", "--call=outline,format=json")
"""Options of `docker buildx bake`, by which it prints what the instructions need."""
_LEFT_OUT = re.compile(r'CopyIgnoredFile: Attempting to Copy file "(.+)" that .* \(line (\d+)\)')
_USUAL = re.compile(r"^(?:(?:index\.)?docker\.io/)?(?:library/)?|:latest$")
"""What BuildKit leaves out of an image's name, by which it finds what stands in for it. Source: distribution/reference."""
_FROM = re.compile(r"--(?:mount=\S*\b)?from=([^,\s]+)")
_SYNTAX = re.compile(r"^\s*(?:#|//)\s*syntax\s*=.*", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Build:
    """A build of the project: the Dockerfile's path, what `docker buildx bake` makes of it, and the secrets that it has."""

    dockerfile: str
    target: dict[str, Any]
    secrets: frozenset[str]
    """IDs; "ssh" and the ID of an agent are those of an SSH agent."""
    service: str
    image: str
    """Which it makes; "" where nobody knows its name."""


def list_builds(host: Host, config: Mapping[str, Any], facts: Facts, folder: str, image: str) -> Iterator[Build]:
    """Yield the builds of services and dev containers whose Dockerfile lies in the project, with `image` for each base image.

    So no registry is asked for a base image, and, without the line that names it, for a version of the Dockerfile's syntax.
    """
    known = facts.project if isinstance(facts.project, Project) else None
    files = {f"{folder}/{each.path}" for each in known.dockerfiles} if known else set()
    services = get_object(config, "services")
    wanted = [(name, name_image(config, name), get_object(each, "build")) for name, each in services.items()]
    own = (each.build for each in list_dev_containers(facts))
    wanted += [("", "", write_build(each, folder)) for each in own if each is not None]
    for service, image_name, build in wanted:
        context = get_text(build, "context")
        path = posixpath.normpath(posixpath.join(context, get_text(build, "dockerfile") or "Dockerfile"))
        text = host.read(path) if path in files else None
        if text is None or "dockerfile_inline" in build or host.stat(f"{path}.dockerignore") is not None:
            continue
        # A name of BuildKit's own would choose a program that reads the file, from a registry.
        arguments = get_object(build, "args").items()
        given = {key: str(value) for key, value in arguments if value is not None and not key.startswith("BUILDKIT")}
        try:
            parsed = parse_dockerfile(text, path=path, arguments=given).stages
        except InvalidDocument:
            continue  # what is wrong with it, another check says
        stages = {stage.name.lower() for stage in parsed}
        images = {*(stage.image for stage in parsed), *_FROM.findall(text)}
        others = {each for each in images if each.lower() not in stages and each != "scratch" and not each.isdigit()}
        others |= get_object(build, "additional_contexts").keys()
        if any("$" in each for each in others) or "--platform" in text:
            continue
        secrets = {get_text(each, key) for each in get_objects(build, "secrets") for key in ("source", "target")}
        secrets |= {f"ssh {name.partition('=')[0]}" for name in get_texts(build, "ssh")}
        target = {
            "context": context,
            "dockerfile-inline": _SYNTAX.sub("#", text),
            "args": {**given, "BUILDKIT_DOCKERFILE_CHECK": "experimental=all"},
            "contexts": {_USUAL.sub("", each): f"docker-image://{image}" for each in others},
        }
        if stage := get_text(build, "target"):
            target["target"] = stage
        yield Build(posixpath.relpath(path, folder), target, frozenset(secrets), service, image_name)


def find_build_faults(
    host: Host, build: Build, said: ProgramResult, target: str
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what BuildKit refuses of a build by its outline, and which files and secrets its instructions would not get.

    Each comes with the words that tell it, empty where it is the build as a whole.
    """
    refusals = re.findall(rf"^ERROR: (?:target {target}: )?failed to solve: (.*)", said.err, re.MULTILINE)
    # What a registry has, the policy of the trial forbids BuildKit to ask.
    yield from ((each, ()) for each in refusals if "source metadata" not in each)
    context = get_text(build.target, "context")
    patterns = host.read(f"{context}/.dockerignore") or ""
    lines = get_text(build.target, "dockerfile-inline").splitlines()
    for name, line in dict.fromkeys(_LEFT_OUT.findall(said.err)):
        found = host.stat(f"{context}/{name}")
        # Of a folder, a line with "!" may take something back in.
        is_whole = found is not None and (found.kind == "file" or "!" not in patterns)
        # Of several builds, BuildKit does not say whose line it is.
        if is_whole and any(name in text for text in lines[int(line) - 1 : int(line)]):
            fault = f"line {line} of {build.dockerfile}: .dockerignore leaves {name} out of the build"
            yield fault, ("build", "--ignorefile", f"{context}/.dockerignore", f"!{name}")
    outline = get_object(parse_object_or_empty(said.out), "target", target, "outline")
    for prefix, key in (("", "secrets"), ("ssh ", "ssh")):
        for each in get_objects(outline, key):
            if (name := prefix + get_text(each, "name")) not in build.secrets:
                line = next((number for number, text in enumerate(lines, 1) if get_text(each, "name") in text), 1)
                fault = f"line {line} of {build.dockerfile} mounts {name}, a secret that nothing gives to the build"
                yield fault, ("build", "--secret", prefix.strip() or "secret", get_text(each, "name"))
