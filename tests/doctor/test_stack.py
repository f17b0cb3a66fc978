"""The layers of the stack: every check has one, and each says how it is."""

import dataclasses

import pytest

from devkit.doctor.gpus import find_connection
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.stack import LAYER_READINGS, STACK_LAYERS, LayerState, build_stack, find_layer
from devkit.facts.model import EngineEnd, EngineFailure
from devkit.facts.values import Unknown
from tests.doctor.machines import PCI, changed, gpu, health, healthy, inside, windows_guest, without_gpu
from tests.doctor.reports import CONSEQUENCE, CRASHED, NOTE, PASSED, ROOT, SKIPPED, a_finding, a_report, an_outcome
from tests.doctor.running import build_full_report
from tests.hosts import MACHINES, facts_of


def states(*outcomes):
    return {layer.name: layer.state for layer in build_stack(healthy(), a_report(*outcomes))}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_every_check_has_a_layer(check):
    assert find_layer(check) in {name for name, _, _ in STACK_LAYERS}


@pytest.mark.parametrize(
    ("outcome", "layer", "state"),
    [
        pytest.param(ROOT, "kernel", LayerState.CAUSE, id="the first root error"),
        pytest.param(CONSEQUENCE, "cuda", LayerState.FOLLOWS, id="what follows from it"),
        pytest.param(an_outcome("PYT901", a_finding()), "python", LayerState.PROBLEM, id="another root error"),
        pytest.param(NOTE, "hardware", LayerState.FINE, id="a note is fine"),
        pytest.param(PASSED, "engine", LayerState.FINE, id="what passed"),
        pytest.param(SKIPPED, "container", LayerState.UNJUDGED, id="what was skipped is never fine"),
        pytest.param(CRASHED, "project", LayerState.WARNING, id="a check that crashed"),
    ],
)
def test_the_state_of_a_layer(outcome, layer, state):
    chain = [ROOT, CONSEQUENCE]
    assert states(*chain, *([] if outcome in chain else [outcome]))[layer] is state


def test_a_layer_without_its_gpu_or_engine_is_not_fine():
    facts = changed(without_gpu(), {"engine": EngineFailure(EngineEnd.NOT_RUNNING, healthy().engine.endpoint, "")})
    layers = {layer.name: layer.state for layer in build_stack(facts, a_report(NOTE, PASSED))}
    assert (layers["hardware"], layers["engine"]) == (LayerState.UNJUDGED, LayerState.UNJUDGED)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.turns(3)
def test_every_finding_of_a_recorded_machine_stands_on_one_layer(name):
    facts = facts_of(name)
    report = build_full_report(facts)
    layers = build_stack(facts, report)
    shown = [one for layer in layers for one in (*layer.roots, *layer.consequences)]
    assert sorted(one.check.code for one in shown) == sorted(one.check.code for one in report.findings)
    assert sum(layer.state is LayerState.CAUSE for layer in layers) == int(report.health == "problems")


@pytest.mark.parametrize(
    ("facts", "layer", "reading"),
    [
        pytest.param(healthy(), "hardware", ("GPU", "NVIDIA GeForce RTX 4090, 24 GiB"), id="the GPU"),
        pytest.param(healthy(), "kernel", ("module loaded", "580.95.05 (open)"), id="the module"),
        pytest.param(healthy(), "engine", ("docker", "28.5.1"), id="the engine"),
        pytest.param(healthy(), "toolkit", ("CDI", "2 devices for 580.95.05"), id="a CDI specification"),
        pytest.param(without_gpu(), "hardware", ("PCI", "no NVIDIA GPU"), id="no GPU"),
        pytest.param(without_gpu(), "kernel", ("module loaded", "not loaded"), id="no module"),
        pytest.param(windows_guest(), "windows", ("/dev/dxg", "there"), id="the device of WSL"),
        pytest.param(inside(), "container", ("/dev/shm", "8 GiB"), id="shared memory"),
        pytest.param(inside(), "cuda", ("torch's CUDA", "12.8"), id="torch's CUDA"),
        pytest.param(changed(healthy(), {"inside": inside()}), "python", ("torch", "2.9.1+cu128"), id="torch inside"),
    ],
)
def test_what_is_shown_of_a_layer(facts, layer, reading):
    (found,) = [one for one in build_stack(facts, build_full_report(facts)) if one.name == layer]
    assert reading in [(value.name, value.value) for value in found.readings]


def test_windows_has_a_layer_only_where_it_is():
    assert "windows" not in states(ROOT)
    guest = windows_guest()
    assert "windows" in [layer.name for layer in build_stack(guest, build_full_report(guest))]


def test_nothing_is_claimed_of_what_was_not_read():
    unread = {
        name: Unknown("x") for name in ("driver", "nvml", "engine", "toolkit", "cdi", "python", "storage", "system")
    }
    facts = changed(healthy(), unread | {"compose": Unknown("x")})
    assert not [value for layer in build_stack(facts, build_full_report(facts)) for value in layer.readings]


SWITCH = ("pci0000:16", "0000:16:01.0", "0000:17:00.0")


@pytest.mark.parametrize(
    ("bridges", "others", "nodes", "connection"),
    [
        pytest.param((*SWITCH, "0000:18:00.0"), (*SWITCH, "0000:18:01.0"), (0, 0), "PIX", id="ports of one switch"),
        pytest.param(
            (*SWITCH, "0000:18:00.0"),
            (*SWITCH, "0000:18:01.0", "0000:20:00.0", "0000:21:00.0"),
            (0, 0),
            "PXB",
            id="a switch behind a switch",
        ),
        pytest.param(
            ("pci0000:16", "0000:16:01.0"), ("pci0000:16", "0000:16:03.0"), (0, 0), "PHB", id="one host bridge"
        ),
        pytest.param(("pci0000:16", "0000:16:01.0"), ("pci0000:30", "0000:30:01.0"), (0, 0), "NODE", id="one socket"),
        pytest.param(("pci0000:16", "0000:16:01.0"), ("pci0000:80", "0000:80:01.0"), (0, 1), "SYS", id="two sockets"),
        pytest.param(Unknown("hidden"), SWITCH, (0, 0), Unknown("hidden"), id="a bus that does not show"),
    ],
)
def test_what_data_between_two_gpus_crosses(bridges, others, nodes, connection):
    first, second = (
        dataclasses.replace(PCI, address=f"0000:{bus}:00.0", bridges=above, numa_node=node)
        for bus, above, node in zip(("19", "1a"), (bridges, others), nodes, strict=True)
    )
    assert find_connection(first, second) == connection
    facts = changed(healthy(), {"driver.pci_gpus": (first, second)})
    shown = [reading.value for reading in LAYER_READINGS["hardware"](facts) if reading.name == "pairs of GPUs"]
    assert shown == ([f"1 {connection}"] if isinstance(connection, str) else [])


def test_links_that_are_up_are_shown():
    gpus = tuple(gpu(index, health=health(nvlink_active=active)) for index, active in enumerate((18, 17)))
    readings = LAYER_READINGS["hardware"](changed(healthy(), {"nvml.gpus": gpus}))
    assert [reading.value for reading in readings if reading.name == "NVLinks up"] == ["17 to 18"]
