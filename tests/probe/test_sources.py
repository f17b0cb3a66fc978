"""What COPY and ADD take in, of stages and of build contexts, on real folders."""

import pytest

from devkit.probe.host import LocalHost
from devkit.probe.project.places import list_instructions

DEV = '{"build": {"dockerfile": "Dockerfile", "context": "%s"}}'


def judge(tmp_path, text, context=".."):
    (tmp_path / ".devcontainer").mkdir(exist_ok=True)
    (tmp_path / ".devcontainer/devcontainer.json").write_text(DEV % context)
    (tmp_path / ".devcontainer/Dockerfile").write_text(text)
    return [(each.note, each.remedy) for each, _ in list_instructions(LocalHost(), str(tmp_path)) if each.note]


@pytest.fixture
def project(tmp_path):
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "inside").symlink_to("data")
    (tmp_path / "outside").symlink_to("/etc")
    (tmp_path / "dangling").symlink_to("/nowhere/at/all")
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("COPY requirements.txt data /x/", id="what is there"),
        pytest.param("COPY ../requirements.txt /x", id="a path above the context, which is inside of it"),
        pytest.param("COPY inside /x", id="a link within the context"),
        pytest.param("COPY *.whl $FILE https://example.com/x /x", id="what nobody knows before the build"),
        pytest.param("COPY --from=base absent /x", id="a stage"),
        pytest.param("COPY --from=nginx absent /x", id="an image"),
        pytest.param("COPY --from=0 absent /x", id="a number"),
        pytest.param("COPY --from=b absent /x", id="an image that the stage without a name is of"),
        pytest.param("COPY <<EOF /x\nabsent\nEOF", id="a here-document"),
    ],
)
def test_nothing_is_wrong_with(project, line):
    assert judge(project, f"FROM a AS base\nFROM b\n{line}\n") == []


@pytest.mark.parametrize(
    ("line", "note", "remedy"),
    [
        ("COPY requirement.txt /x", "requirement.txt is not in", "write requirements.txt in place of requirement.txt"),
        ('ADD ["./absent/z", "/x"]', "absent/z is not in the build context, the project's", "add absent/z"),
        ("COPY outside /x", "outside is a link to /etc, which", "put a copy in the place of the link outside"),
        ("COPY dangling /x", "dangling is a link to a path that is not there", "put a copy"),
        ("COPY --from=bas /a /b", "no stage is called bas", "write --from=base in place of --from=bas"),
        ("COPY --from=late /a /b", "the stage late begins only in line 4", "move that stage above the one of line 3"),
        ("FROM d AS own\nCOPY --from=own /a /b", "the stage own copies from itself", "write --from=base in place"),
        ("RUN <<EOF\n true\n EOF", "line 5 is indented", "write EOF at the beginning of line 5"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_write(project, line, note, remedy):
    ((found, mends),) = judge(project, f"FROM a AS base\nFROM b\n{line}\n" + ("FROM c AS late\n" * ("late" in line)))
    assert (found[: len(note)], mends[: len(remedy)]) == (note, remedy)


def test_a_context_that_is_too_deep_is_the_cause(project):
    (found,) = judge(project, "FROM a\nCOPY requirements.txt /x\n", context=".")
    assert found == (
        "requirements.txt is not in the build context, .devcontainer",
        "set the context in .devcontainer/devcontainer.json:1 to .., as requirements.txt is there",
    )
