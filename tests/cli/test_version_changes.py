"""What `devkit update` says of the versions that change, and that devkit.lock holds a whole resolution."""

from dataclasses import replace

from devkit.cli.update import list_version_changes
from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import Resolved
from devkit.render.devkit_lock import parse_lock, parse_locked_plan, render_lock
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve


def resolved(*packages: str, limits: tuple[str, ...] = ()):
    machine = build_machine_from_flags(driver="570.124.06", gpus=("RTX 4090",))
    plan = solve(build_request(machines=(machine,), torch="2.13.0"), load_tables())
    pairs = tuple((name, version) for name, _, version in (each.partition("==") for each in packages))
    return replace(plan, packages=(("torch", "2.13.0"),), limits=limits, resolution=Resolved(pairs, ("b",), ("c 1",)))


def test_each_version_that_changes_is_said_with_its_reason():
    lock = parse_lock(render_lock(resolved("a==1", "b==2", "gone==1"), ()).content)
    assert list(list_version_changes(lock.plan, resolved("a==1", "b==3", "new==1"))) == [
        "b 2 → 3: the newest that fits",
        "gone 1 was removed, because no package requires it anymore",
        "new 1 is new, because a package requires it",
    ]
    assert not list(list_version_changes(lock.plan, resolved("a==1", "b==2", "gone==1")))
    assert not list(list_version_changes({}, resolved("a==1")))


def test_a_lock_gives_back_the_resolution_and_what_is_held_of_it():
    plan = resolved("a==1", "b==2", "torch==2.13.0", limits=("a<2", "a==1", "b==2"))
    read = parse_locked_plan(parse_lock(render_lock(plan, ()).content).plan)
    assert (read.resolution, read.limits) == (plan.resolution, plan.limits)
