"""Size and build time of the generated image against the shape that tutorials use: one engine, base, set of wheels.

The other Dockerfile is a CUDA base with pip from apt, packages without versions, and no cache. Here both stand on
the base that the engine tests make from Debian's packages, and take torch for the CPU from an index on this machine:
no image registry is asked. So what a CUDA base adds, a second copy of CUDA, is not in these figures.
"""

import re
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import record
from tests.engine import binaries, cache, daemon, image, network, package_index, project, tools
from tests.engine.commands import run

STEP = re.compile(r"^#(\d+) \[[^\]]*\d+/\d+\] (RUN .*)$", re.MULTILINE)
TORCH = re.compile(r"pip install [^&]*(?<=\s)torch(?:==|\s|$)")
# What apt brings along with python3-pip unless it is told not to stands here by name: the base has pip already.
TUTORIAL = """\
FROM {base}
RUN apt-get update && apt-get install -y python3-pip python3-dev build-essential git
RUN pip install --index-url {index} --trusted-host {host} {packages}
COPY . /app
WORKDIR /app
CMD ["sleep", "infinity"]
"""
PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes")


@dataclass(frozen=True)
class Build:
    """One build: seconds, and the RUN steps that the cache did not answer."""

    seconds: float
    repeated: tuple[str, ...]

    @property
    def installs_torch(self) -> bool:
        """Whether torch was installed again."""
        return any(TORCH.search(step) for step in self.repeated)

    def document(self) -> dict[str, object]:
        """The same for the record."""
        steps = {"repeated_steps": len(self.repeated), "installs_torch_again": self.installs_torch}
        return {"seconds": round(self.seconds, 1), **steps}


def main() -> int:
    """Build both three times: from nothing, after an edit of the code, with one more requirement. Record it."""
    found = binaries.find()
    with tempfile.TemporaryDirectory(prefix="devkit-size-") as scratch:
        folder = Path(scratch)
        (folder / "indexes").mkdir()
        with ExitStack() as held:
            held.enter_context(cache.only_one())
            held.enter_context(network.bridged())
            engine = held.enter_context(daemon.engine(found, daemon.Flavor.CPU))
            results = _compare(engine, folder, held.enter_context(package_index.serving(folder / "indexes")))
    path = record("image_size", {"versions": found.versions, **results})
    print(f"recorded in {path}")
    ours = results["generated"]
    return int(ours["edited"]["repeated_steps"] != 0 or ours["one_more"]["installs_torch_again"])


def _compare(engine: daemon.Engine, folder: Path, address: str) -> dict[str, dict[str, dict[str, object]]]:
    ours, theirs = folder / "ours", folder / "theirs"
    flags = ("--index", f"{address}/simple", "--torch-index", f"{address}/whl")
    project.init(ours, *project.PLAN, *flags)
    _publish(folder / "indexes", folder / "draft")
    base = image.base_image_of(ours / ".devcontainer/Dockerfile")
    image.provide(engine, base)
    theirs.mkdir()
    host = address.partition("//")[2].partition(":")[0]
    tutorial = {"base": base, "index": f"{address}/simple", "host": host}
    (theirs / "Dockerfile").write_text(TUTORIAL.format(**tutorial, packages=" ".join(PACKAGES)))
    generated = ["docker", "compose", "--progress", "plain", "--file", ".devcontainer/docker-compose.yml", "build"]
    plain = ["docker", "build", "--progress", "plain", "--tag", "devkit-size-theirs", "."]
    # Whoever builds first finds nothing in the disk's cache and the mirrors': both do that once, unmeasured.
    for where, argv in ((ours, generated), (theirs, plain)):
        _build(engine, where, [*argv, "--no-cache"])
    # What uv kept of that would make the first build of ours too quick.
    engine.docker("builder", "prune", "--force", "--filter", "type=exec.cachemount")
    results = {
        "generated": _three(engine, ours, generated, lambda: _ask_for_six(ours)),
        "tutorial": _three(engine, theirs, plain, lambda: _ask_plainly(theirs, tutorial)),
    }
    for name, tag in (("generated", _tag(engine, ours)), ("tutorial", "devkit-size-theirs")):
        results[name]["size"] = {"bytes": int(str(engine.inspect(tag)["Size"]))}
    return results


def _three(
    engine: daemon.Engine, folder: Path, argv: list[str], ask_for_more: Callable[[], None]
) -> dict[str, dict[str, object]]:
    first = _build(engine, folder, [*argv, "--no-cache"])
    again = _build(engine, folder, argv)
    (folder / "train.py").write_text("print('edited')\n")
    edited = _build(engine, folder, argv)
    ask_for_more()
    more = _build(engine, folder, argv)
    named = {"from_nothing": first, "unchanged": again, "edited": edited, "one_more": more}
    for name, build in named.items():
        torch = "torch again" if build.installs_torch else "no torch"
        print(f"{folder.name} {name}: {build.seconds:.1f} s, {len(build.repeated)} steps, {torch}")
    return {name: build.document() for name, build in named.items()}


def _build(engine: daemon.Engine, folder: Path, argv: list[str]) -> Build:
    started = time.perf_counter()
    done = run(argv, env=engine.env, cwd=folder, deadline_s=1800)
    seconds = time.perf_counter() - started
    log = done.stdout + done.stderr
    cached = set(re.findall(r"^#(\d+) CACHED$", log, re.MULTILINE))
    return Build(seconds, tuple(text for number, text in dict(STEP.findall(log)).items() if number not in cached))


def _publish(folder: Path, draft: Path) -> None:
    """Real wheels, in one index for all and one for torch; `six` is the requirement that comes later."""
    wheels = [*project.wheels_for(draft).glob("*.whl"), *tools.wheelhouse(["six==1.17.0"]).glob("*.whl")]
    package_index.write_index(folder, "simple", wheels)
    package_index.write_index(folder, "whl/cpu", wheels)


def _ask_for_six(folder: Path) -> None:
    (folder / "requirements.txt").write_text("six==1.17.0\n")
    project.init(folder)


def _ask_plainly(folder: Path, tutorial: dict[str, str]) -> None:
    (folder / "Dockerfile").write_text(TUTORIAL.format(**tutorial, packages=" ".join((*PACKAGES, "six"))))


def _tag(engine: daemon.Engine, folder: Path) -> str:
    argv = ["docker", "compose", "--file", ".devcontainer/docker-compose.yml", "config", "--images"]
    return run(argv, env=engine.env, cwd=folder).stdout.split()[0]


if __name__ == "__main__":
    sys.exit(main())
