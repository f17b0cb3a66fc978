"""PRJ032: the rules in devkit.toml, each kept and broken."""

import pytest

from devkit.doctor.model import Found, Passed, Skipped
from devkit.facts.project import FileState
from devkit.facts.values import Unknown
from tests.doctor.machines import changed
from tests.doctor.projects import IMAGE, compose_dev, dev, files_of, on, service
from tests.doctor.running import find_only, run_check

GOOD = files_of(dev=dev(), image=IMAGE)
LABELLED = '[policy]\nrequired_labels = { team = "ml", "org.example.cost" = "a b" }\n'


def with_policy(policy, **files):
    return {"devkit.toml": policy, **(files_of(**files) if files else GOOD)}


def image(*lines):
    return IMAGE + "".join(f"{line}\n" for line in lines)


KEPT = {
    "a project without rules on anything": with_policy("[policy]\n"),
    "an image of an allowed registry": with_policy('[policy]\nregistries = ["docker.io/library"]\n'),
    "a name that is completed": with_policy('[policy]\nregistries = ["docker.io/library/python"]\n'),
    "root where it is allowed": with_policy("[policy]\nallow_root = true\n", dev=dev(remoteUser="root"), image=IMAGE),
    "privileges where they are allowed": with_policy(
        "[policy]\nallow_privileged = true\n", dev=dev(privileged=True), image=IMAGE
    ),
    "privileged: false": with_policy("[policy]\n", dev=dev(privileged=False), image=IMAGE),
    "labels on one line": with_policy(LABELLED, dev=dev(), image=image('LABEL team=ml "org.example.cost"="a b"')),
    "labels on two lines": with_policy(
        LABELLED, dev=dev(), image=image("LABEL team ml", "LABEL org.example.cost='a b'")
    ),
    "a label by a variable": with_policy(
        LABELLED, dev=dev(), image=image("ARG TEAM=ml", 'LABEL team=$TEAM org.example.cost="a b"')
    ),
    "an image that only a variable names": with_policy(
        '[policy]\nregistries = ["quay.io"]\n', dev=dev(), image="ARG BASE\nFROM $BASE\nUSER dev\n"
    ),
    "a stage built on another stage": with_policy(
        '[policy]\nregistries = ["quay.io"]\n', dev=dev(), image="FROM quay.io/a/b:1 AS base\nFROM base\nUSER dev\n"
    ),
    "the name that a built service gives its image": with_policy(
        '[policy]\nregistries = ["docker.io/library"]\n',
        dev=compose_dev(),
        image=IMAGE,
        compose=service("image: registry.other.example/mine:1"),
    )
    | {".devcontainer/Dockerfile": IMAGE},
}


@pytest.mark.parametrize("files", KEPT.values(), ids=KEPT)
def test_what_keeps_the_policy_is_silent(tmp_path, files):
    assert isinstance(run_check("PRJ032", on(tmp_path, files)), Passed)


BROKEN = {
    "an image of another registry": (with_policy('[policy]\nregistries = ["quay.io"]\n'), "not of an allowed registry"),
    "a builder's image": (
        with_policy(
            '[policy]\nregistries = ["docker.io/library"]\n', dev=dev(), image=f"FROM ghcr.io/a/b:1 AS tools\n{IMAGE}"
        ),
        "ghcr.io/a/b:1",
    ),
    "the image of a service beside": (
        with_policy(
            '[policy]\nregistries = ["docker.io/library"]\n',
            dev=compose_dev(),
            image=IMAGE,
            compose=service() + "  db:\n    image: quay.io/db:1\n    user: db\n",
        ),
        "quay.io/db:1",
    ),
    "an image in devcontainer.json": (
        with_policy(
            '[policy]\nregistries = ["docker.io/library"]\n', dev=dev(build=None, image="mcr.microsoft.com/base:1")
        ),
        "mcr.microsoft.com/base:1",
    ),
    "root by name": (with_policy("[policy]\n", dev=dev(remoteUser="root"), image=IMAGE), "works as root"),
    "root by number": (with_policy("[policy]\n", dev=dev(remoteUser=None), image=image("USER 0:0")), "works as root"),
    "root because nobody is named": (
        with_policy("[policy]\n", dev=dev(remoteUser=None), image="FROM python:3.12\n"),
        "names no user",
    ),
    "a privileged dev container": (with_policy("[policy]\n", dev=dev(privileged=True), image=IMAGE), "privileged"),
    "a privileged service": (
        with_policy("[policy]\n", dev=compose_dev(), image=IMAGE, compose=service("privileged: true")),
        "privileged",
    ),
    "a label that is missing": (
        with_policy(LABELLED, dev=dev(), image=image("LABEL team=ml")),
        "org.example.cost=a b",
    ),
    "a label with another value": (
        with_policy(LABELLED, dev=dev(), image=image('LABEL team=vision org.example.cost="a b"')),
        "team=ml",
    ),
    "a label of a stage that is not built on": (
        with_policy(
            '[policy]\nrequired_labels = { team = "ml" }\n',
            dev=dev(),
            image=f"FROM python:3.12 AS tools\nLABEL team=ml\n{IMAGE}",
        ),
        "team=ml",
    ),
}


@pytest.mark.parametrize(("files", "says"), BROKEN.values(), ids=BROKEN)
def test_what_breaks_the_policy_is_named_with_its_place(tmp_path, files, says):
    finding = find_only("PRJ032", on(tmp_path, files))
    assert says in finding.message
    assert finding.location is not None and finding.location.path in files


def test_a_mirror_is_the_way_out(tmp_path):
    policy = '[policy]\nregistries = ["m.example"]\nmirrors = { "docker.io" = "m.example/hub" }\n'
    finding = find_only("PRJ032", on(tmp_path, with_policy(policy)))
    assert "m.example/hub/library/python" in finding.fix.summary


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(GOOD, id="no devkit.toml"),
        pytest.param({"devkit.toml": "name = 'x'\n", **GOOD}, id="no policy in it"),
        pytest.param(with_policy("[policy]\nregistries = 3\n"), id="a policy that cannot be read"),
        pytest.param(with_policy("[policy\n"), id="a file that is no TOML"),
        pytest.param(with_policy(f"x = {'9' * 5000}\n"), id="a number that nobody can read"),
        pytest.param(with_policy(f"x = {'[' * 9000}\n"), id="brackets without end"),
        pytest.param({"devkit.toml": "[policy]\n"}, id="no container"),
    ],
)
def test_without_rules_there_is_nothing_to_judge(tmp_path, files):
    assert isinstance(run_check("PRJ032", on(tmp_path, files)), Skipped)


def test_a_broken_devkit_toml_is_said_to_be_broken(tmp_path):
    facts = on(tmp_path, with_policy("name = 1\n[policy\n"))
    (broken,) = [file for file in facts.project.files if file.path == "devkit.toml"]
    assert (broken.state, broken.line) == (FileState.BROKEN, 2)
    assert isinstance(facts.project.policy, Unknown)


def test_facts_of_an_older_release_have_no_labels_to_judge(tmp_path):
    facts = on(tmp_path, with_policy(LABELLED))
    (dockerfile,) = facts.project.dockerfiles
    facts = changed(
        facts,
        {"project.dockerfiles": (changed(dockerfile, {"stages": tuple(_older(one) for one in dockerfile.stages)}),)},
    )
    assert isinstance(run_check("PRJ032", facts), Passed)


def _older(stage):
    return changed(stage, {"labels": Unknown("not recorded")})


def test_a_finding_stands_for_each_rule(tmp_path):
    policy = '[policy]\nregistries = ["quay.io"]\nrequired_labels = { team = "ml" }\n'
    files = with_policy(policy, dev=dev(remoteUser="root", privileged=True), image=IMAGE)
    verdict = run_check("PRJ032", on(tmp_path, files))
    assert isinstance(verdict, Found) and len(verdict.findings) == 4
