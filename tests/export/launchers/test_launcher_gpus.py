"""GPUs are asked for by names that exist at the launchers."""

from pathlib import Path

from devkit.compat.version_tables import load_tables
from devkit.export.launcher_gpus import LauncherGpu, find_launcher_gpu, load_launcher_gpus

SKYPILOT = frozenset((Path(__file__).parent / "skypilot_gpus.txt").read_text().split("\n"))
"""Names in SkyPilot's public catalog, read on 2026-11-21, and in sky.utils.gpu_names of 0.14.1."""


def test_a_gpu_has_each_launchers_name():
    names = {
        "H100": LauncherGpu(("H100", "H100-SXM"), "H100", "H100"),
        "NVIDIA H100 80GB HBM3": LauncherGpu(("H100", "H100-SXM"), "H100", "H100"),
        "A100 80GB": LauncherGpu(("A100-80GB", "A100-80GB-SXM"), "A100", gib=80),
        "A100 40GB": LauncherGpu(("A100",), "A100", gib=40),
        "V100 32GB": LauncherGpu(("V100-32GB",), "V100", gib=32),
        "v100": LauncherGpu(("V100",), "V100", gib=16),
        "RTX 4090": LauncherGpu(("RTX4090",), "RTX4090", "RTX-4090"),
        "AMD Instinct MI355X": LauncherGpu((), "MI355X", "MI355X"),
    }
    assert {name: find_launcher_gpu(name) for name in names} == names
    # "A100" is the card with 80 GB to the estimate, and the one with 40 to SkyPilot: what it counts on is rented.
    assert find_launcher_gpu("A100") == find_launcher_gpu("A100 80GB")


def test_a_gpu_that_no_launcher_rents_has_no_name():
    for name in ("", "banana", "9.0", "H100 MIG 3g.40gb", "NVIDIA H20 96GB", "Jetson AGX Orin"):
        assert find_launcher_gpu(name) == LauncherGpu(), name


def test_every_row_is_a_gpu_of_the_tables_and_skypilot_knows_each_of_its_names():
    known = {*(row.id for row in load_tables().gpus.models), *(row.name for row in load_tables().rocm.gpus)}
    assert {key.partition("@")[0] for key in load_launcher_gpus()} <= known
    names = {name for each in load_launcher_gpus().values() for name in each.skypilot}
    assert len(names) > 30
    assert not names - SKYPILOT
