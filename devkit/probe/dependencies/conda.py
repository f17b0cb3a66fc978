"""environment.yml of conda: packages of conda, and those of the Python package index.

torch and its CUDA come from the plan, and so does everything whose recipe would bring conda's own torch. What is left is
installed by micromamba where conda alone has it, else by uv like the packages of any other project.

Sources: https://docs.conda.io/projects/conda/en/stable/user-guide/tasks/manage-environments.html,
https://docs.conda.io/projects/conda-build/en/stable/resources/package-spec.html
"""

import re
from dataclasses import replace

from devkit.compat.specifiers import canonicalize_name
from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import CondaPackage, RequirementRole
from devkit.probe.dependencies.requirements import (
    PYTHON,
    RequirementCollector,
    join_lines,
    read_requirement_lines,
    read_requirements_file,
)
from devkit.probe.documents import (
    InvalidDocument,
    NodeKind,
    parse_yaml_tree,
)

ENVIRONMENTS = ("environment.yml", "environment.yaml")
FROM_CONDA = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cpu": "torch"}
"""What conda calls some packages -> what the package index calls them."""
COMPILER = "torch includes CUDA's libraries; --feature nvcc adds the compiler"
DEFAULT_CHANNEL = "conda-forge"
_NEEDS_LOGIN = "a conda channel that needs a login"
_SPEC = re.compile(r"(?:([\w./:-]+)::)?([A-Za-z0-9_][\w.-]*)(\[[^\]]*\])?\s*(.*)", re.DOTALL)
_BUILD = re.compile(r"^(={1,2}\s*[^=\s]+)(?:=\S+|\s+\S+)$")
_SAFE = re.compile(r"[\w./:<>=!~,*|+\[\]'-]+(?: [\w.<>=!~,*|+-]+)*", re.ASCII)
_OF_EVERY_IMAGE = (
    *("pip", "setuptools", "wheel", "uv", "git", "make"),
    *("gcc", "gxx", "compilers", "gcc_linux-64", "gxx_linux-64", "gcc_linux-aarch64", "gxx_linux-aarch64"),
)
_WITH_TORCH = re.compile(
    r"pytorch-(?:cuda|mutex)|libtorch.*|cuda-version|cudatoolkit|cudnn|nccl|triton|torchtriton|magma(?:-cuda.*)?"
    r"|cuda-(?:cudart|cupti|nvrtc|nvtx|runtime|libraries)|libcu.*|libnv.*"
)
"""What torch's own wheels bring."""
_COMPILERS = re.compile(r"cuda(?:-toolkit|-nvcc|-compiler)?|cudatoolkit-dev")
_OF_OTHER_SYSTEMS = re.compile(
    r"^ *- *(?:\S+::)?(?:(?P<windows>vc|vc14_runtime|vs20\d\d_(?:runtime|win-64)|ucrt|win(?:certstore|_inet_pton|32_setctime)"
    r"|pywin32(?:-\S+)?|pywinpty|winpty|menuinst|m2w64-[\w-]+|msys2-[\w-]+)|(?P<macos>appnope|libcxx|python\.app))[ =]\S+=\S+",
    re.MULTILINE,
)
"""Packages that conda has for Windows or macOS alone, with a build: `conda env export` writes those of the system it runs on."""
_EXPORTED = re.compile(r"\A(?:#.*\n)*?# platform: (\S+)|\A(?:#.*\n)*[\w.-]+=\w[\w.!+]*=\w+ *$", re.MULTILINE)
_CHANNELS_OF_TORCH = ("pytorch", "nvidia", "pytorch-nightly")
_PUBLIC_CHANNELS = re.compile(
    r"(?:.*/)?(?:conda-forge|defaults|main|free|r|msys2|anaconda|bioconda|huggingface|pytorch|nvidia|fastai)/?"
)
"""Channels of the packages that the package index has as well, by name or as a mirror has them."""
_LOGIN = re.compile(r"/t/[^/]+|://[^/]*@")
_OF_OTHERS = {
    "not text": r"[\0-\x08\x0e-\x1f]",
    "a conda environment": r"(?m)^dependencies:\s",
    "a TOML file": r"\A(?:\s*#.*\n)*\s*\[[\w\[]",
    "a JSON file": r"\A\s*\{",
    "a program": r"(?m)^(?:FROM|import) \S|^#!",
}
"""What a list that the user chose may be instead -> what shows it."""


def find_other_system(content: str) -> str:
    """Name the system that exported an environment.yml with its builds, which Linux does not have; "" for none."""
    found = _OF_OTHER_SYSTEMS.search(content)
    return "" if found is None else "Windows" if found["windows"] else "macOS"


def read_conda_environment(path: str, found: RequirementCollector) -> None:
    """Read an environment.yml: its channels, conda's packages, and those under `pip`."""
    content = found.text(path)
    if content is None:
        return
    try:
        root = parse_yaml_tree(content, file=path)
    except InvalidDocument as wrong:
        found.add_unreadable(path, wrong.line, f"it is not YAML: {wrong.problem}")
        return
    for item in root.at("channels").items:
        if _LOGIN.search(item.text):
            found.add_unreadable(path, item.line, _NEEDS_LOGIN)
        elif not _SAFE.fullmatch(item.text):
            found.add_unreadable(path, item.line, f"{ascii(item.text)[:60]} is not a conda channel")
        elif item.text not in _CHANNELS_OF_TORCH:
            found.conda_channels.append(item.text)
    system = find_other_system(content)
    needs_login = any(_LOGIN.search(item.text) for item in root.at("channels").items)
    if system or needs_login:
        because = f"it was exported on {system}" if system else _NEEDS_LOGIN
        found.exclude("conda's own packages", path, 1, because)
    for item in root.at("dependencies").items:
        if item.kind is NodeKind.TEXT and not ((system or needs_login) and _is_for_conda_alone(item.text)):
            read_conda_spec(item.text, path, item.line, found)
        lines = [(line.line, line.text.strip()) for line in item.at("pip").items if line.kind is NodeKind.TEXT]
        read_requirement_lines(iter(lines), path, found)


def read_list(path: str, found: RequirementCollector, *, group: str = "") -> None:
    """Read a requirement file: one of pip's, or one that `conda list --export` wrote, whatever its name."""
    content = found.files.read(path, "dependencies") or ""
    exported = _EXPORTED.search(content)
    kind = next((each for each, shown in _OF_OTHERS.items() if re.search(shown, content)), "")
    if path in found.choice.requirements and kind and found.text(path) is not None:
        found.add_unreadable(path, 1, f"it is {kind}")
    elif not exported:
        read_requirements_file(path, found, group=group)
    elif found.text(path) is not None:
        found.role = RequirementRole.GENERATED
        if is_foreign := not (exported[1] or "linux").startswith("linux"):
            found.exclude("conda's own packages", path, 1, f"it was exported on {exported[1]}")
        for line, text in join_lines(content):
            if text.endswith("=pypi_0"):
                found.need(text.removesuffix("=pypi_0").replace("=", "==", 1), path, line, group=group)
            elif not (is_foreign and _is_for_conda_alone(text)):
                read_conda_spec(text, path, line, found)
        found.role = RequirementRole.PASSED_THROUGH


def read_conda_spec(text: str, path: str, line: int, found: RequirementCollector) -> None:
    """Read one package of conda, such as "conda-forge::numpy=1.26"."""
    named = _SPEC.fullmatch(text.strip())
    if named is None:
        found.add_unreadable(path, line, f"{ascii(text)[:60]} is not a conda package")
    else:
        _add_package(named[2], named[4], path, line, found, channel=named[1] or "")


def _add_package(
    name: str, version: str, path: str, line: int, found: RequirementCollector, *, channel: str = ""
) -> None:
    """Add one package of conda: Python and torch limit the plan, what depends on torch comes from the package index."""
    name, specifier = name.lower(), convert_conda_version(version)
    known = FROM_CONDA.get(name, name)
    on_torch = {row.name: row.distribution for row in load_tables().conda.on_torch}
    if name == PYTHON:
        if specifier:
            found.add_python(specifier, path, line)
    elif known == "torch":
        if specifier:
            found.need(f"torch{specifier}", path, line, is_limit=True)
    elif _COMPILERS.fullmatch(name):
        found.exclude(name, path, line, COMPILER)
    elif name in ("torchvision", "torchaudio") or name in on_torch:
        found.need(f"{on_torch.get(name, name)}{specifier}", path, line)
    elif name not in _OF_EVERY_IMAGE and not _WITH_TORCH.fullmatch(name):
        separator = "" if not version or version[0] in "=<>!~" else " " if "|" in version or "," in version else "="
        spec = f"{name}{separator}{version.strip()}" if version.strip() != "*" else name
        if _LOGIN.search(channel):
            found.exclude(name, path, line, _NEEDS_LOGIN)
        elif not _SAFE.fullmatch(spec):
            found.add_unreadable(path, line, f"{ascii(spec)[:60]} is not a conda package")
        else:
            found.conda.append((CondaPackage(f"{channel}::{spec}" if channel else spec, path, line), name, specifier))


def choose_conda_packages(found: RequirementCollector) -> tuple[CondaPackage, ...]:
    """Choose what micromamba installs: everything, where conda alone or a channel of somebody's own has a package, else nothing.

    Then uv installs them from the package index, and the image does without conda.
    """
    distributions = list_distributions()
    bound = [package.spec.partition("::")[0] for package, _, _ in found.conda if "::" in package.spec]
    channels = [*bound, *(each for each in found.conda_channels if "://" in each)]
    is_public = all(_PUBLIC_CHANNELS.fullmatch(each) for each in channels)
    if not is_public or any(name not in distributions for _, name, _ in found.conda):
        return tuple(replace(package, name=distributions.get(name, name)) for package, name, _ in found.conda)
    from_pip = {need.name for need in found.needs}
    for package, name, specifier in found.conda:
        # pip comes after conda, and replaces what conda installed.
        if canonicalize_name(distributions[name]) not in from_pip:
            found.need(f"{distributions[name]}{specifier}", package.path, package.line)
    return ()


def list_distributions() -> dict[str, str]:
    """List conda's names of packages that the package index has as well, with their names there."""
    tables = load_tables()
    distributions = {name: name for name in tables.imports.distributions().values()}
    distributions |= {name: name for row in tables.conda.same for name in row.distributions}
    return distributions | {row.name: row.distribution for row in tables.conda.renamed}


def _is_for_conda_alone(text: str) -> bool:
    """Return whether neither the plan nor the package index has a package of conda."""
    named = _SPEC.fullmatch(text.strip())
    name = named[2].lower() if named else ""
    return name not in (PYTHON, *FROM_CONDA, "torchvision", "torchaudio", *list_distributions()) and not any(
        row.name == name for row in load_tables().conda.on_torch
    )


def convert_conda_version(written: str) -> str:
    """Convert a version of conda to PEP 440: `=1.26` is ==1.26.*, `=1.26.4` is ==1.26.4; the build string is left out."""
    written = _BUILD.sub(r"\1", written.strip())
    if not written or written == "*" or "|" in written:
        return ""
    clauses = []
    for clause in (each.strip() for each in written.split(",")):
        fuzzy = re.fullmatch(r"=?\s*(\d[\w.!+]*?)(?:\.\*|\*)?", clause)
        if fuzzy and not re.fullmatch(r"[\d.]+", fuzzy[1]):
            # The package index writes other letters: tzdata 2023c of conda is 2023.3 there.
            clauses += [f"=={fuzzy[1]}"] if re.fullmatch(r"[\d.]+\.post\d+", fuzzy[1]) else []
        elif fuzzy:
            # Three numbers are a whole version in practice, and the index finds a release that was yanked by that alone.
            is_open = clause.endswith("*") or (clause.startswith("=") and fuzzy[1].count(".") < 2)
            clauses.append(f"=={fuzzy[1]}.*" if is_open else f"=={fuzzy[1]}")
        elif clause not in ("", "*"):
            clauses.append(clause)
    return ",".join(clauses)
