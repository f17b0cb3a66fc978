"""The file for build servers."""

import re
from dataclasses import replace

import pytest

from devkit.facts.dependencies import Dependencies, PackageManager, PackageRequirement
from devkit.render.container.image import render_bake_file
from devkit.render.container.settings import ContainerSettings, FromIndex

from .plans import CPU_PLAN

PLAN = replace(CPU_PLAN, architectures=("aarch64", "x86_64"))
PLAIN = ContainerSettings("Demo", "demo", FromIndex("0.1.0"), bake=True)


def text(settings: ContainerSettings = PLAIN) -> str:
    (made,) = render_bake_file(PLAN, settings)
    return made.content.decode()


def test_it_asks_for_both_attestations_and_every_processor_of_the_plan():
    assert 'attest = ["type=sbom", "type=provenance,mode=max"]' in text()
    assert 'platforms = ["linux/arm64", "linux/amd64"]' in text()


def test_it_names_no_build_argument_for_the_record_to_show():
    for settings in (PLAIN, replace(PLAIN, uses_wheelhouse=True), replace(PLAIN, index="https://x.example.org")):
        assert not re.search(r"^\s*args", text(settings), re.MULTILINE)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        pytest.param(replace(PLAIN, uses_wheelhouse=True), "wheelhouse = DEVKIT_WHEELHOUSE", id="a wheelhouse"),
        pytest.param(replace(PLAIN, index="https://x.example.org"), "id=netrc,src=${DEVKIT_NETRC}", id="a login"),
        pytest.param(
            replace(
                PLAIN,
                dependencies=Dependencies(
                    PackageManager.PIP,
                    "",
                    needs=(PackageRequirement("trl", "", "r.txt", 1),),
                    lists=("r.txt",),
                    files=("r.txt",),
                ),
            ),
            'project = "."',
            id="files of the project",
        ),
    ],
)
def test_it_hands_the_build_what_the_dockerfile_asks_for(settings, says):
    assert says in text(settings)
    assert says not in text()


def test_podman_has_no_use_for_it():
    assert not list(render_bake_file(PLAN, replace(PLAIN, engine="podman")))


def test_only_who_wants_it_has_it():
    assert list(render_bake_file(PLAN, replace(PLAIN, bake=False))) == []
