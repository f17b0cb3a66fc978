"""Debian packages of the image: those that the user names, that Python packages need, and that the project installs."""

import re
from collections.abc import Iterator
from dataclasses import replace

from devkit.compat.version_tables import RowConfidence, Tables
from devkit.facts.dependencies import BuildNeed, Dependencies, Framework, RequirementRole, Resolved
from devkit.solver.plan import SYSTEM_PACKAGE, CompileMode, Plan, Reason
from devkit.solver.project import does_apply
from devkit.text import join_some, join_words

REQUESTED = "requested"
"""The reason for a package that the user names: the image is not built without it."""

BUILD_TOOLS = ("cmake", "ninja-build")
"""Packages that build CUDA C++, besides its compilers."""

_HEADERS = re.compile(r"lib.+-dev")
"""What a project of C++ is compiled against."""

LEFT_OUT = "-"
"""The end of a name that leaves a package out, as for apt-get."""

_NOT_IN_IMAGE = "not in the image, although"
_OF_IMAGE = re.compile(
    r"awk|bash|cat|cd|ch(?:mod|own)|clear|cp|curl|cut|date|df|diff|dpkg|du|echo|env|exit|export|find|free|g(?:cc|\+\+)|git|[ef]?grep"
    r"|g(?:un)?zip|head|hostname|id|kill|ld(?:config|d)|less|ln|ls|md5sum|mkdir|mv|nohup|nproc|nvcc|nvidia-smi|perl|p(?:grep|kill)"
    r"|pip3?|ps|pwd|pytest|python3?|rm|rmdir|scp|sed|set|sh|sha256sum|sleep|sort|source|split|ssh|tail|tar|tee|test|time(?:out)?"
    r"|top|touch|tr|true|uname|uniq|uptime|uv|wc|which|whoami|xargs|yes"
)
"""Programs of a shell, of the image, and of the driver."""
_ELSEWHERE = re.compile(
    r"cmd|explorer|open|osascript|powershell|pwsh|py|reg|start|sw_vers|tasklist|taskkill|wmic|xdg-open|.*\.exe"
)
"""Programs of Windows, macOS and a desktop, which no container has."""
_NOT_PROPOSED = re.compile(
    r"(?:gcc|g\+\+|clang)(?:-[\w+]+)*|binutils|libc6(?:-dev)?|libgcc-s1|libgomp1|libstdc.*|git|curl"
    r"|wget|ca-certificates|sudo|gnupg.*|gpg.*|apt-.*|software-properties-common|lsb-release|locales|tzdata|tini|dumb-init"
    r"|python(?:[.\d]*|[.\d]*-.*)|pip|vim|nano|htop|tmux|less|unzip|zip|tar|gzip|xz-utils|patch|openssh.*|ssh|rsync|jq"
    r"|base-(?:files|passwd)|bash|bsdutils|coreutils|dash|debianutils|diffutils|dpkg|findutils|grep|hostname|init-system-helpers"
    r"|libc-bin|login|ncurses-(?:base|bin)|perl-base|sed|sysvinit-utils|util-linux"
    r"|docker.*|containerd.*|(?:lib)?(?:cuda|nvidia|cudnn|cublas|cusparse|cusolver|nccl|nvinfer).*"
)
"""What the image has anyway, tools of a shell, and packages of the driver and of CUDA, which come another way.

Source of those that each Debian has: apt-cache's field "Essential: yes" in bookworm.
"""

_NO_LIBRARY = re.compile(
    r"[cm]|dl|rt|util|pthreads?|stdc\+\+.*|gomp|threads|openmp.*|python.*|numpy|cython|pybind11|nanobind|torch.*|skbuild|git"
    r"|cuda.*|cu(?:dart|blas|fft|rand|sparse|solver|dnn).*|nv.*|nccl|c10.*|hip.*|.*[$/].*",
    re.IGNORECASE,
)
"""What every compiler brings, what comes from the package index, and variables: no package of Debian's brings these."""
_DEBIAN_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+", re.ASCII)


def add_system_packages(plan: Plan, dependencies: Dependencies, requested: tuple[str, ...], tables: Tables) -> Plan:
    """Add the Debian packages to the plan, each with its reason, and a warning that names those that are left out.

    Done again, they are those for what uv resolved since.
    """
    found = {each.field: each for each in reversed([*_list_packages(plan, dependencies, requested, tables)])}
    for name in requested:
        found.pop(name.removesuffix(LEFT_OUT) if name.endswith(LEFT_OUT) else "", None)
    known = tables.system_packages.names()
    others = {
        each.name: each.path
        for each in dependencies.system
        if not each.is_from_ci
        and each.name not in known.keys() | found.keys()
        and not _NOT_PROPOSED.fullmatch(each.name)
    }
    warnings = tuple(each for each in plan.warnings if not each.startswith(_NOT_IN_IMAGE))
    if others:
        files = join_words([*dict.fromkeys(others.values())])
        warnings += (f"{_NOT_IN_IMAGE} apt installs it in {files}: {join_some([*others])}; --apt NAME takes one",)
    packages = tables.system_packages.programs()
    # A package of the index that has its name brings it.
    unknown = [
        f"{each.name} ({each.origin})"
        for each in dependencies.programs
        if each.name not in packages.keys() | plan.resolved.keys()
        and not (_OF_IMAGE.fullmatch(each.name) or _ELSEWHERE.fullmatch(each.name))
    ]
    if unknown:
        warnings += (f"{_NOT_IN_IMAGE} the code runs it: {join_some(unknown)}; --apt NAME adds a package",)
    kept = (each for each in plan.reasons if each.value != SYSTEM_PACKAGE)
    return replace(plan, reasons=(*kept, *sorted(found.values(), key=lambda each: each.field)), warnings=warnings)


def _list_packages(
    plan: Plan, dependencies: Dependencies, requested: tuple[str, ...], tables: Tables
) -> Iterator[Reason]:
    """List the packages with their reasons, the most telling reason of each first."""
    for name in requested:
        if not name.endswith(LEFT_OUT):
            yield Reason(name, SYSTEM_PACKAGE, REQUESTED, "the flags and devkit.toml", RowConfidence.CONFIRMED)
    named = {dependencies.name} | {
        need.name
        for need in dependencies.needs
        if need.role is not RequirementRole.CONSTRAINT and does_apply(need, plan.architectures, plan.python)
    }
    wheels = dict(plan.resolution.wheels) if isinstance(plan.resolution, Resolved) else {}
    for package in sorted(named | plan.resolved.keys()):
        row = tables.system_packages.needs.get(package)
        if row is None or (row.kind == "pure" and not wheels.get(package, "").endswith("-any.whl")):
            continue
        if package in named or row.kind != "program":
            because = f"{package} {row.because}"
            yield from (Reason(name, SYSTEM_PACKAGE, because, row.source[0], row.confidence) for name in row.apt)
    yield from _list_build_packages(plan, dependencies, tables)
    if dependencies.uses_lfs:
        because = ".gitattributes keeps files in Git LFS"
        yield Reason("git-lfs", SYSTEM_PACKAGE, because, ".gitattributes", RowConfidence.CONFIRMED)
    yield from _list_used_packages(plan, dependencies, tables)
    for name in BUILD_TOOLS if plan.framework is Framework.CUDA else ():
        yield Reason(name, SYSTEM_PACKAGE, "builds CUDA C++", "the project", RowConfidence.CONFIRMED)


def _list_used_packages(plan: Plan, dependencies: Dependencies, tables: Tables) -> Iterator[Reason]:
    """List what the project's files install with apt, and the programs that its code runs."""
    known, programs = tables.system_packages.names(), tables.system_packages.programs()
    for each in dependencies.system:
        name = known.get(each.name, "")
        is_cuda = plan.framework is Framework.CUDA
        if is_cuda and _HEADERS.fullmatch(each.name) and not _NOT_PROPOSED.fullmatch(each.name):
            name = name or each.name
        if name:
            because = f"{each.origin} installs {'it' if name == each.name else each.name}"
            yield Reason(name, SYSTEM_PACKAGE, because, each.path, RowConfidence.CONFIRMED)
    for program in dependencies.programs:
        if name := programs.get(program.name, ""):
            because = f"{program.origin} runs {program.name}"
            yield Reason(name, SYSTEM_PACKAGE, because, program.path, RowConfidence.CONFIRMED)


def _list_build_packages(plan: Plan, dependencies: Dependencies, tables: Tables) -> Iterator[Reason]:
    """List what the builds of packages without a wheel, and of the project's own, run and link.

    Debian calls the files that a library is compiled against libNAME-dev; the tables know its exceptions.
    """
    programs, libraries = tables.system_packages.programs(), tables.system_packages.libraries()
    not_built = {each.name for each in plan.compiled if each.mode in (CompileMode.WHEEL, CompileMode.LEFT_OUT)}
    for package, need in _list_build_needs(plan, dependencies):
        because = f"{package} is built from source, and its {need.origin} names {need.name}"
        name, confidence = (programs if need.kind == "program" else libraries).get(need.name), RowConfidence.CONFIRMED
        if name is None and need.kind == "library" and not _NO_LIBRARY.fullmatch(need.name):
            name, confidence = (
                f"lib{need.name.lower().removeprefix('lib').replace('_', '-')}-dev",
                RowConfidence.INFERRED,
            )
        if package not in not_built and name and _DEBIAN_NAME.fullmatch(name):
            yield Reason(name, SYSTEM_PACKAGE, because, need.origin, confidence)


def _list_build_needs(plan: Plan, dependencies: Dependencies) -> Iterator[tuple[str, BuildNeed]]:
    for build in plan.resolution.builds if isinstance(plan.resolution, Resolved) else ():
        yield from ((build.package, need) for need in build.needs)
    installed = {each.place for each in dependencies.local} | ({"."} if dependencies.builds_itself else set())
    for own in dependencies.builds:
        yield from ((own.name or "the project", need) for need in own.needs if own.path in installed)
