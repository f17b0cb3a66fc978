"""The files of `devkit fleet files` in a real Slurm: a node that lost a GPU is drained, and comes back when it is mended."""

import sys
import time

import pytest

from tests.forked_commands import ROOT, run_devkit
from tests.nvml_stub import build_stub

from .slurm import Cluster

pytestmark = pytest.mark.full

WRAPPER = """\
#!/bin/sh
cd {root}
export NVML_STUB_GPUS=8 LD_LIBRARY_PATH={stub}
[ "$SLURMD_NODENAME" = two ] && [ -e {broken} ] && export NVML_STUB_FAIL=nvmlDeviceGetName@3=15
exec {python} -m devkit "$@" --only GPU002
"""


@pytest.fixture
def broken(cluster: Cluster, tmp_path):
    """A file while which exists node two has lost a GPU; slurmd looks every few seconds."""
    build_stub(tmp_path / "nvml")
    broken = tmp_path / "broken"
    wrapper = tmp_path / "devkit"
    wrapper.write_text(WRAPPER.format(root=ROOT, stub=tmp_path / "nvml", broken=broken, python=sys.executable))
    wrapper.chmod(0o755)
    done = run_devkit("fleet", "files", tmp_path / "files", "--command", wrapper)
    assert done.returncode == 0, done.stderr
    script, conf = tmp_path / "files/devkit-slurm.sh", cluster.state / "slurm.conf"
    # slurmd gives no place of its configuration, which is not the usual one here.
    script.write_text(script.read_text().replace("PATH=$PATH", f"export SLURM_CONF={conf}\nPATH=$PATH"))
    before = conf.read_text()
    conf.write_text(f"{before}HealthCheckProgram={script}\nHealthCheckInterval=3\n")
    cluster.run("scontrol", "reconfigure")
    yield broken
    conf.write_text(before)
    cluster.run("scontrol", "reconfigure")


def await_node(cluster, text, *, present):
    deadline_s = time.monotonic() + 90
    while True:
        shown = cluster.run("scontrol", "--oneliner", "show", "node", "two").stdout
        if (text in shown) is present:
            return shown
        assert time.monotonic() < deadline_s, shown
        time.sleep(0.5)


def test_a_lost_gpu_drains_the_node_until_it_is_mended(cluster, broken):
    broken.touch()
    assert "DRAIN" in await_node(cluster, "Reason=devkit: GPU002", present=True)
    assert "DRAIN" not in cluster.run("scontrol", "--oneliner", "show", "node", "one").stdout
    broken.unlink()
    assert "DRAIN" not in await_node(cluster, "Reason=devkit", present=False)


def test_a_node_that_somebody_else_drained_stays_so(cluster, broken):
    cluster.run("scontrol", "update", "NodeName=two", "State=DRAIN", "Reason=new disk")
    time.sleep(10)
    shown = await_node(cluster, "Reason=new disk", present=True)
    assert "DRAIN" in shown
    cluster.run("scontrol", "update", "NodeName=two", "State=RESUME")
