"""Which system an image is built on, by its name alone."""

import pytest

from devkit.compat.images import find_image_system, is_musl
from devkit.compat.version_tables import load_tables


@pytest.mark.parametrize(
    ("image", "glibc"),
    [
        pytest.param("ubuntu:22.04", "2.35", id="a number"),
        pytest.param("docker.io/library/ubuntu:noble-20250910", "2.39", id="a code name with a date"),
        pytest.param("debian:12.7-slim", "2.36", id="a point release"),
        pytest.param(
            "mirror.example:5000/debian:trixie-slim@sha256:0", "2.41", id="a mirror with a port, and a digest"
        ),
        pytest.param("mcr.microsoft.com/devcontainers/base:ubuntu-22.04", "2.35", id="the editors' own images"),
        pytest.param("mcr.microsoft.com/devcontainers/python:1-3.12-bookworm", "2.36", id="the editors' Python"),
        pytest.param("registry.example/team/base:7-ubuntu24.04", "2.39", id="a company's image that says so"),
        pytest.param("python:3.12", "2.31", id="a Python of the Debian of its day"),
        pytest.param("python:3.12-slim", "2.31", id="the slim one"),
        pytest.param("registry.example/team/base:7", "", id="an image that does not say"),
        pytest.param("postgres:12", "", id="a number of something else"),
        pytest.param("registry.example/python-tools:22.04", "", id="a number without the system"),
        pytest.param("python:3.12-alpine3.20", "", id="Alpine, whose C library is another"),
        pytest.param("ubuntu", "", id="no tag"),
    ],
)
def test_the_name_tells_the_system(image, glibc):
    found = find_image_system(image, load_tables().images.systems)
    assert (str(found.glibc) if found else "") == glibc


@pytest.mark.parametrize(("image", "musl"), [("alpine:3.20", True), ("python:3.12-alpine", True), ("x:1", False)])
def test_alpine_is_recognized_by_its_name(image, musl):
    assert is_musl(image) is musl
