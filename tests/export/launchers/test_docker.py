"""What one machine over a Docker context cannot run, and what nobody sets there."""

from dataclasses import replace

import pytest

from devkit.errors import DevkitError
from devkit.export.docker import DockerContextSettings, render_docker

from .tasks import ONE, SPOT, TWO_NODES, context, volumes

HERE = context("deploy/docker")


def test_what_nobody_limits_or_restarts_there_is_said():
    spot = render_docker(SPOT, DockerContextSettings(), context("a b"))
    assert "48 GiB of memory and 8 cores" in spot.notes[0] and "does not restart automatically" in spot.notes[1]
    assert spot.next_steps == ("sh 'a b/run.sh'",)


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        pytest.param(TWO_NODES, {}, "a Docker context is one machine, but the job needs 2", id="two nodes"),
        pytest.param(ONE, {"context": "a b"}, "is not a context name", id="a context with a space"),
        pytest.param(ONE, {"context": "x\nfoo"}, "is not a context name", id="a context of two lines"),
        pytest.param(ONE, {"user": "root; id"}, "is not a user", id="a user with a command"),
        pytest.param(
            replace(ONE, volumes=volumes(models="a/b")), {}, "neither a volume nor a folder", id="half a path"
        ),
    ],
)
def test_what_one_machine_cannot_run_is_refused_in_one_line(task, settings, message):
    with pytest.raises(DevkitError, match=message) as refused:
        render_docker(task, DockerContextSettings(**settings), HERE)
    assert "\n" not in str(refused.value)
    assert refused.value.hint
