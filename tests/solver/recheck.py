"""The rules once more, written apart from the solver: from the raw tables, sharing no code with devkit.

`violations` says which rules one choice breaks in a situation; `fits` tries every choice there is.
"""

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

TABLES = Path(__file__).resolve().parents[2] / "devkit" / "compat" / "tables"


@cache
def table(name: str) -> dict:
    return tomllib.loads((TABLES / f"{name}.toml").read_text(encoding="utf-8"))


def rows(name: str, array: str) -> list[dict]:
    return table(name)[array]


def numbers(text: str) -> tuple[int, ...]:
    found = [int(part) for part in re.search(r"\d+(?:\.\d+)*", text)[0].split(".")]
    while len(found) > 1 and found[-1] == 0:
        found.pop()
    return tuple(found)


@cache
def meets(version: str, specifier: str) -> bool:
    return SpecifierSet(specifier).contains(version, prereleases=True)


@cache
def needs(line: str) -> tuple[str, str]:
    requirement = Requirement(line)
    return requirement.name, str(requirement.specifier)


def was_read(row: dict) -> bool:
    return row["confidence"] != "inferred"


@dataclass(frozen=True)
class Situation:
    """A request in plain words. `gpus` are names of the tables or compute capabilities."""

    driver: str | None = None
    gpus: tuple[str, ...] = ()
    machine: str = "x86_64"
    platform: str = "linux"
    glibc: str | None = None
    vendor: str | None = None
    gpu_runtime: str | None = None
    torch: str | None = None
    cuda: str | None = None
    python: str | None = None
    image: str | None = None
    pins: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    constraints: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Choice:
    torch: str
    variant: str
    python: str
    image: str
    packages: tuple[tuple[str, str], ...]


def gpu_row(name: str) -> dict:
    for row in rows("gpus", "gpu"):
        if row["name"] == name:
            return row
    return {"capability": name, "kind": "", "forward": False}


def amd_target(name: str) -> str | None:
    return next((row["target"] for row in rows("rocm", "gpu") if row["name"] == name), None)


def build_of(variant: str) -> dict:
    return next(row for row in (*rows("torch", "index"), *rows("rocm", "index")) if row["label"] == variant)


def driver_runs(situation: Situation) -> tuple[int, ...]:
    """R6: the newest CUDA of the driver, (0,) below every branch."""
    major = numbers(situation.driver)[0]
    if situation.platform == "wsl2":
        found = [numbers(row["cuda"]) for row in rows("driver", "windows_branch") if min(row["branches"]) <= major]
        shipped = [row for row in rows("driver", "toolkit") if "windows_driver" in row]
        found += [numbers(row["cuda"]) for row in shipped if at_least(situation.driver, row["windows_driver"])]
    else:
        found = [numbers(row["cuda"]) for row in rows("driver", "branch") if row["branch"] <= major]
    return max(found, default=(0,))


def at_least(driver: str, floor: str) -> bool:
    if "." not in driver.removesuffix(".00"):
        return numbers(driver)[0] >= numbers(floor)[0]
    return numbers(driver) >= numbers(floor)


def how_it_runs(situation: Situation, cuda: str) -> str:
    """R1, R2, R5 or R4."""
    if situation.driver is None:
        return "R1"
    wanted, newest = numbers(cuda), driver_runs(situation)
    column = "windows_driver" if situation.platform == "wsl2" else "linux_driver"
    floors = [row[column] for row in rows("driver", "family") if row["major"] == wanted[0]]
    own = [row[column] for row in rows("driver", "toolkit") if numbers(row["cuda"]) == wanted and column in row]
    is_above = any(at_least(situation.driver, floor) for floor in (*floors, *own[-1:]))
    if newest >= wanted and is_above:
        return "R1"
    if newest[0] == wanted[0] and is_above:
        return "R2"
    return "R5" if find_package_row(situation, wanted) and all_forward(situation) else "R4"


def find_package_row(situation: Situation, wanted: tuple[int, ...]) -> dict | None:
    """The cuda-compat row of a CUDA, or of the next one, when it lists the driver's branch."""
    if situation.platform == "wsl2" or situation.driver is None or driver_runs(situation) >= wanted:
        return None
    later = [row for row in rows("driver", "forward") if numbers(row["cuda"]) >= wanted]
    same = sorted((row for row in later if numbers(row["cuda"])[0] == wanted[0]), key=lambda row: numbers(row["cuda"]))
    return same[0] if same and numbers(situation.driver)[0] in same[0]["host_branches"] else None


def all_forward(situation: Situation) -> bool:
    return bool(situation.gpus) and all(gpu_row(name)["forward"] for name in situation.gpus)


def code_for(capability: str, wheel: dict, *, compiles: bool) -> bool:
    major, minor = (int(part) for part in capability.split("."))
    for target in wheel["sass"]:
        if target[-1] == "a" and capability == target[:-1]:
            return True
        wants_major, wants_minor = (int(part) for part in target.rstrip("af").split("."))
        if target[-1] != "a" and wants_major == major and wants_minor <= minor:
            return True
    reaches = [tuple(int(part) for part in target.split(".")) <= (major, minor) for target in wheel.get("ptx", [])]
    return compiles and any(reaches)


def violations(choice: Choice, situation: Situation) -> set[str]:
    release = next((row for row in rows("torch", "release") if row["version"] == choice.torch), None)
    if release is None or not is_published(choice, release, situation):
        return {"W2"}
    broken = requested(choice, situation) | quantization(choice, situation)
    if situation.constraints:
        # What a project asks for is resolved by uv; the tables judge what the request pins, and a feature's bitsandbytes.
        pinned = {*(pin.partition("==")[0] for pin in situation.pins), "bitsandbytes"}
        broken |= stack(replace(choice, packages=tuple(pair for pair in choice.packages if pair[0] in pinned)), release)
    else:
        broken |= stack(choice, release)
    broken |= image(choice, situation, release)
    if choice.variant.startswith("cu"):
        broken |= hardware(choice, situation)
    if choice.variant.startswith("rocm"):
        broken |= amd(choice, situation)
    if choice.python not in release["pythons"] and was_read(release):
        broken.add("W7")
    if situation.glibc and numbers(situation.glibc) < numbers(release["glibc"]):
        broken.add("W6")
    return broken


def is_published(choice: Choice, release: dict, situation: Situation) -> bool:
    """Whether the build is known to be published; for ROCm a release that was requested may be."""
    if choice.variant == "cpu":
        return True
    if choice.variant.startswith("rocm"):
        found = [row for row in rows("rocm", "release") if row["version"] == choice.torch]
        return choice.variant in found[0]["variants"] if found else bool(situation.torch)
    return choice.variant in release["variants"]


def requested(choice: Choice, situation: Situation) -> set[str]:
    """Find violations of flags and of the project's constraints."""
    broken = set()
    version, _, variant = (situation.torch or "").partition("+")
    is_requested = not version or choice.torch == version or choice.torch.startswith(version + ".")
    cuda = build_of(choice.variant).get("cuda", "")
    has_cuda = not situation.cuda or cuda.startswith(situation.cuda)
    if not (is_requested and variant in ("", choice.variant) and has_cuda):
        broken.add("requested")
    if situation.python not in (None, choice.python) or situation.image not in (None, choice.image):
        broken.add("requested")
    for pin in situation.pins:
        if tuple(pin.split("==")) not in choice.packages:
            broken.add("requested")
    held = {**dict(pin.split("==") for pin in situation.pins), "torch": f"{choice.torch}+{choice.variant}"}
    for name, specifier in situation.constraints:
        versions = [held[name]] if name in held else []
        if name == "python":
            versions = [f"{choice.python}.99"]
        broken |= {"P2" for version in versions if not meets(version, specifier)}
    return broken


def hardware(choice: Choice, situation: Situation) -> set[str]:
    broken = set()
    minor = ".".join(choice.torch.split(".")[:2])
    cuda = build_of(choice.variant)["cuda"]
    key = (minor, choice.variant, situation.machine)
    wheels = [row for row in rows("torch", "wheel") if (row["minor"], row["variant"], row["machine"]) == key]
    release = next(row for row in rows("torch", "release") if row["version"] == choice.torch)
    if not wheels and (release.get("x86_64_only") or situation.machine not in ("x86_64", "aarch64")):
        return {"W2"}
    runs = how_it_runs(situation, cuda)
    if runs == "R4":
        broken.add("R4")
    for name in situation.gpus:
        capability = gpu_row(name)["capability"]
        row = next(row for row in rows("driver", "capability") if row["capability"] == capability)
        broken |= known_to_driver(row, situation)
        tegra = row.get("generic_wheels_from_cuda")
        if tegra and numbers(cuda) < numbers(tegra) and was_read(row):
            broken.add("A4")
        if not wheels:
            broken |= {"A5"} if was_read(row) and not buildable(capability, numbers(cuda)) else set()
        elif not code_for(capability, wheels[0], compiles=runs == "R1"):
            first, last = numbers(row["first_cuda"]), numbers(row.get("last_cuda", "99"))
            is_ruled_out = was_read(row) and not first <= numbers(cuda) <= last
            broken |= {"A1"} if was_read(wheels[0]) or is_ruled_out else set()
        for feature in features(situation):
            if was_read(feature) and numbers_of(capability) < numbers_of(feature["capability"]):
                broken.add("F1")
    return broken


def buildable(capability: str, cuda: tuple[int, ...]) -> bool:
    major, minor = numbers_of(capability)
    for row in rows("driver", "capability"):
        other = numbers_of(row["capability"])
        is_alike = other[0] == major and other[1] <= minor
        if is_alike and numbers(row["first_cuda"]) <= cuda <= numbers(row.get("last_cuda", "99")):
            return True
    return False


def numbers_of(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


def features(situation: Situation) -> list[dict]:
    return [row for row in rows("stack", "feature") if row["name"] in situation.features]


def known_to_driver(row: dict, situation: Situation) -> set[str]:
    if situation.driver is None or not was_read(row):
        return set()
    runs = {each["branch"]: numbers(each["cuda"]) for each in rows("driver", "branch")}
    newest = driver_runs(situation)
    first, last = runs.get(row.get("first_branch")), runs.get(row.get("last_branch"))
    is_too_old = newest != (0,) and first is not None and newest < first
    return {"R1"} if is_too_old or (last is not None and newest > last) else set()


def amd(choice: Choice, situation: Situation) -> set[str]:
    broken = set() if situation.machine == "x86_64" else {"W2"}
    index = build_of(choice.variant)
    if all(row["version"] != choice.torch for row in rows("rocm", "release")):
        return broken  # Nobody read which index it is in, so neither which code it holds.
    for name in situation.gpus:
        has_code = amd_target(name) in set(index["targets"]) - set(index.get("without_rocblas", []))
        broken |= {"G1"} if not has_code and was_read(index) else set()
    return broken


def image(choice: Choice, situation: Situation, release: dict) -> set[str]:
    """I1 to I4, R5, W1, W6 for the image."""
    cuda = build_of(choice.variant).get("cuda")
    plain = next((row for row in rows("images", "python_image") if choice.image.endswith(row["tag"])), None)
    tag = re.search(r"nvidia/cuda:([\d.]+)-(\w+)-(\w+[\d.]+)$", choice.image)
    if any(row["tag"] == choice.image and was_read(row) for row in rows("images", "withdrawn")):
        return {"I1"}
    if plain is not None:
        needs_more = cuda and how_it_runs(situation, cuda) == "R5"
        broken = {"W1"} if needs_more and situation.image is None else set()
        return broken | ({"W7"} if plain["python"] != choice.python else set())
    if tag is None:
        return set() if choice.image == situation.image else {"I1"}
    key = (tag[1], tag[3])
    row = next((row for row in rows("images", "cuda_image") if (row["cuda"], row["system"]) == key), None)
    broken = set()
    if tag[1].count(".") != 2:
        broken.add("I1")
    if row is not None:
        broken |= {"I1"} if situation.machine not in row["machines"] else set()
        broken |= {"W7"} if row["python"] != choice.python else set()
        is_old = numbers(row["glibc"]) < numbers(release["glibc"]) and was_read(row)
        broken |= {"W6"} if is_old else set()
    same = cuda is not None and tag[1].startswith(f"{cuda}.")
    if cuda and "nvcc" in situation.features and "devel" in choice.image and not same:
        broken.add("W1")
    return broken | (demand(tag[1], situation) if cuda else set())


def demand(cuda: str, situation: Situation) -> set[str]:
    minor = numbers(".".join(cuda.split(".")[:2]))
    if situation.driver is None or driver_runs(situation) >= minor:
        return set()
    row, kinds = find_package_row(situation, minor), [gpu_row(name)["kind"] for name in situation.gpus]
    brands = row is not None and bool(kinds) and all(kinds)
    is_exempt = brands and ("geforce" not in kinds or row.get("exempts_geforce", False))
    if situation.gpu_runtime != "cdi" and not is_exempt:
        return {"I2"}
    rests_on = row or rows("driver", "forward")[0]
    is_broken = any(kind == "geforce" for kind in kinds) and was_read(rests_on)
    return {"R5"} if is_broken else set()


def stack(choice: Choice, release: dict) -> set[str]:
    held = {**dict(choice.packages), "torch": choice.torch}
    listed = listed_packages()
    lines = list(release.get("requires", []))
    broken = set()
    for name, version in choice.packages:
        row = listed.get((name, version))
        lines += row["requires"] if row else []
        if row and not meets(f"{choice.python}.99", row["python"]):
            broken.add("P1")
    for name, specifier in map(needs, lines):
        if name in held and not meets(held[name].partition("+")[0], specifier):
            broken.add("P1")
    return broken


@cache
def listed_packages() -> dict[tuple[str, str], dict]:
    found = {(row["name"], row["version"]): row for row in rows("stack", "package")}
    for row in rows("stack", "bitsandbytes"):
        asks = {"python": row.get("python", ""), "requires": [f"torch{row.get('torch', '')}"]}
        found["bitsandbytes", row["version"]] = asks
    return found


def quantization(choice: Choice, situation: Situation) -> set[str]:
    """B1, B2: a library for the build, and code for every GPU in it; needed only where 4-bit or 8-bit was requested."""
    version = dict(choice.packages).get("bitsandbytes")
    wants = bool({"nf4", "llm-int8"} & set(situation.features))
    if version is None:
        return {"B1"} if wants else set()
    row = next((row for row in rows("stack", "bitsandbytes") if row["version"] == version), None)
    if row is None:
        return set()
    build = build_of(choice.variant)
    if "rocm" in build:
        found = [
            each for each in rows("rocm", "library") if each["version"] == version and build["rocm"] in each["rocms"]
        ]
        served = all(any(amd_target(name) in each["targets"] for each in found) for name in situation.gpus)
        return set() if found and served else {"B1"}
    if "cuda" not in build:
        return set() if row["cpu"] and (row["aarch64"] or situation.machine == "x86_64") else {"B1"}
    if build["cuda"] not in row["cudas"]:
        return {"B1"}
    code = [
        each
        for each in rows("stack", "library")
        if each["version"] == version and build["cuda"] in each["cudas"] and each["machine"] == situation.machine
    ]
    for name in situation.gpus:
        if code and not any(code_for(gpu_row(name)["capability"], each, compiles=True) for each in code):
            return {"B1"}
    return set()


def builds(situation: Situation, kind: str) -> list[tuple[dict, str]]:
    """Every build of a kind, cu, rocm or cpu, that runs on the hardware and was not ruled out by name."""
    labels = [
        row["label"] for row in (*rows("torch", "index"), *rows("rocm", "index")) if row["label"].startswith(kind)
    ]
    bare = replace(situation, pins=(), python=None, image=None)
    # Releases before 1.11 are for those who name them.
    bounds = [bound.strip() for each in situation.constraints if each[0] == "torch" for bound in each[1].split(",")]
    names_torch = bool(situation.torch) or any(bound[:1] in ("<", "=", "~") for bound in bounds)
    found = []
    for release, label in product(rows("torch", "release"), labels):
        choice = Choice(release["version"], label, "3.12", "", ())
        if not names_torch and numbers(release["version"]) < (1, 11):
            continue
        if not is_published(choice, release, situation):
            continue
        runs = {"cu": hardware, "ro": amd}.get(kind[:2], lambda _choice, _situation: set())
        if not runs(choice, situation) and not requested(choice, without_python(bare)):
            found.append((release, label))
    return found


def without_python(situation: Situation) -> Situation:
    return replace(situation, constraints=tuple(each for each in situation.constraints if each[0] != "python"))


def images(situation: Situation, label: str, python: str) -> list[tuple[str, str]]:
    """Images with their Python."""
    if situation.image:
        plain = next(
            (row["python"] for row in rows("images", "python_image") if situation.image.endswith(row["tag"])), None
        )
        tag = re.search(r"nvidia/cuda:([\d.]+)-(\w+)-(\w+[\d.]+)$", situation.image)
        key = (tag[1], tag[3]) if tag else None
        system = [row["python"] for row in rows("images", "cuda_image") if (row["cuda"], row["system"]) == key]
        own = plain or next(iter(system), None)
        return [(situation.image, situation.python or own or python)]
    found = [(row["tag"], python) for row in rows("images", "python_image") if row["python"] == python]
    cuda = build_of(label).get("cuda", "-")
    for row in rows("images", "cuda_image"):
        if row["cuda"].startswith(cuda + "."):
            found += [
                (f"nvidia/cuda:{row['cuda']}-{kind}-{row['system']}", row["python"]) for kind in ("base", "devel")
            ]
    return found


def fits(situation: Situation, kind: str) -> Choice | None:
    """A choice that breaks no rule; None when there is none."""
    pythons = [situation.python] if situation.python else [row["version"] for row in rows("stack", "python")]
    for (release, label), python in product(builds(situation, kind), pythons):
        for tag, own in images(situation, label, python):
            bare = Choice(release["version"], label, own, tag, ())
            if violations(bare, replace(situation, pins=())) - {"B1", "P1"}:
                continue
            for packages in combinations(situation):
                choice = replace(bare, packages=packages)
                if not violations(choice, situation):
                    return choice
    return None


@cache
def combinations(situation: Situation) -> list[tuple[tuple[str, str], ...]]:
    """The ways to choose the packages around torch: the pins, and a bitsandbytes. What nobody named may be left out."""
    pins = dict(pin.split("==") for pin in situation.pins)
    requested = [specifier for limited, specifier in situation.constraints if limited == "bitsandbytes"]
    versions = [row["version"] for row in rows("stack", "bitsandbytes")]
    allowed = [each for each in versions if all(meets(each, one) for one in requested)]
    others = tuple(pins.items())
    if "bitsandbytes" in pins:
        return [others]
    return [others, *((*others, ("bitsandbytes", each)) for each in allowed)]
