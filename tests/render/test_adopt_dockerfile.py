"""Changes of somebody's Dockerfile: the words that must change, and no other byte."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.render.adopt.dockerfile import (
    PinnedVersions,
    add_compiler,
    pin_dockerfile,
    pin_requirement,
    pin_requirements_file,
    replace_base_image,
)

CU130 = "https://download.pytorch.org/whl/cu130"
VERSIONS = PinnedVersions({"torch": "2.13.0", "transformers": "5.23.0", "peft": "0.21.2"}, CU130, "cu130")
ADDED = f"--extra-index-url {CU130}"


@pytest.mark.parametrize(
    ("run", "becomes"),
    [
        pytest.param("pip install torch", f"pip install {ADDED} torch==2.13.0+cu130", id="one package"),
        pytest.param("pip install peft rich", "pip install peft==0.21.2 rich", id="no torch, no index"),
        pytest.param("pip install torch==2.9.1", "pip install torch==2.9.1", id="a version of the user's"),
        pytest.param("pip install 'torch>=2'", "pip install 'torch>=2'", id="a range of the user's"),
        pytest.param(
            "pip install \"torch\" 'peft'",
            f"pip install {ADDED} \"torch==2.13.0+cu130\" 'peft==0.21.2'",
            id="quotes stay",
        ),
        pytest.param("pip install transformers[torch]", "pip install transformers[torch]==5.23.0", id="extras stay"),
        pytest.param(
            "pip install torch && python -c 'import torch'",
            f"pip install {ADDED} torch==2.13.0+cu130 && python -c 'import torch'",
            id="another command is left alone",
        ),
        pytest.param(
            "apt-get install -y peft; pip install peft",
            "apt-get install -y peft; pip install peft==0.21.2",
            id="another installer is left alone",
        ),
        pytest.param(
            "pip install --index-url https://download.pytorch.org/whl/cu118 torch",
            f"pip install --index-url {CU130} torch==2.13.0+cu130",
            id="torch's index of another CUDA",
        ),
        pytest.param(
            "pip install --index-url=https://download.pytorch.org/whl/cu118 torch",
            f"pip install --index-url={CU130} torch==2.13.0+cu130",
            id="the same with an equals sign",
        ),
        pytest.param(
            "uv pip install --system torch",
            "uv pip install --torch-backend=cu130 --system torch==2.13.0",
            id="uv gets its backend",
        ),
        pytest.param(
            "uv pip install --torch-backend auto torch",
            "uv pip install --torch-backend cu130 torch==2.13.0",
            id="uv chooses itself",
        ),
        pytest.param(
            "python3 -m pip install -t peft torch",
            f"python3 -m pip install {ADDED} -t peft torch==2.13.0+cu130",
            id="an option's value is no package",
        ),
        pytest.param(
            "pip install -r requirements.txt", f"pip install {ADDED} -r requirements.txt", id="a file that holds torch"
        ),
        pytest.param(
            "pip install -r theirs.txt",
            f"pip install {ADDED} torch==2.13.0+cu130 -r theirs.txt",
            id="a file that holds torch and is not edited",
        ),
        pytest.param(
            "uv pip install -r theirs.txt torch",
            "uv pip install --torch-backend=cu130 -r theirs.txt torch==2.13.0",
            id="such a file, and torch beside it",
        ),
        pytest.param("pip install -r others.txt", "pip install -r others.txt", id="a file that holds none"),
        pytest.param("pip uninstall torch", "pip uninstall torch", id="nothing is installed"),
    ],
)
def test_versions_and_index(run, becomes):
    text = f"FROM x\n# torch\nRUN {run}\nENV A=torch\n"
    changed = pin_dockerfile(text, VERSIONS, files={"requirements.txt": True, "theirs.txt": False})
    assert changed == f"FROM x\n# torch\nRUN {becomes}\nENV A=torch\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_words_on_lines_of_their_own(end):
    lines = ["FROM x", "RUN pip install \\", "    # torch, the newest", "    torch \\", "    peft", "USER y", ""]
    pinned = [
        line.replace("    torch \\", "    torch==2.13.0+cu130 \\").replace("peft", "peft==0.21.2") for line in lines
    ]
    pinned[1] = f"RUN pip install {ADDED} \\"
    assert pin_dockerfile(end.join(lines), VERSIONS) == end.join(pinned)


def test_a_here_document_is_a_script_too():
    text = "FROM x\nRUN <<EOF\npip install peft\necho peft\nEOF\nCMD peft\n"
    assert pin_dockerfile(text, VERSIONS) == text.replace("install peft", "install peft==0.21.2")


def test_a_renewal_touches_only_what_was_pinned_before():
    text = "FROM x\nRUN pip install torch==2.12.0+cu126 peft transformers==5.0.0\n"
    renewed = pin_dockerfile(text, replace(VERSIONS, before={"torch": "2.12.0", "transformers": "5.1.0"}))
    assert renewed == f"FROM x\nRUN pip install {ADDED} torch==2.13.0+cu130 peft transformers==5.0.0\n"


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("torch", "torch==2.13.0"),
        ("torch  # newest", "torch==2.13.0  # newest"),
        ('transformers[torch] ; python_version > "3.8"', 'transformers[torch]==5.23.0 ; python_version > "3.8"'),
        ("torch>=2", "torch>=2"),
        ("torch @ https://example.org/torch.whl", "torch @ https://example.org/torch.whl"),
        ("torchmetrics", "torchmetrics"),
        ("# torch", "# torch"),
        ("-r torch", "-r torch"),
    ],
)
def test_requirement_files(line, becomes):
    assert pin_requirement(f"a\n{line}\nb\n", line=2, versions=VERSIONS) == f"a\n{becomes}\nb\n"


def test_a_renewed_requirement_file():
    versions = replace(VERSIONS, before={"torch": "2.12.0"})
    assert pin_requirements_file("torch==2.12.0\npeft\n", versions) == "torch==2.13.0\npeft\n"


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("FROM nvidia/cuda:12 AS a  # no comment", "FROM ubuntu:22.04 AS a  # no comment"),
        ("from --platform=$BUILDPLATFORM nvidia/cuda:12", "from --platform=$BUILDPLATFORM ubuntu:22.04"),
    ],
)
def test_another_base_image(line, becomes):
    assert replace_base_image(f"# a\n{line}\nRUN b\n", line=2, image="ubuntu:22.04") == f"# a\n{becomes}\nRUN b\n"


def test_a_compiler_comes_before_the_comments_of_the_packages():
    text = "FROM x\nRUN a\n# packages\nRUN pip install torch\n"
    before, block = "FROM x\nRUN a\n\n# Triton", "\n\n# packages\nRUN pip install torch\n"
    changed = add_compiler(text, after=1, has_own_python=True)
    assert changed.startswith(before)
    assert changed.endswith(block)
    assert "python3-dev" not in changed


def test_a_compiler_is_installed_while_the_build_is_root():
    changed = add_compiler("FROM x\nUSER y\nRUN pip install torch\n", after=1, has_own_python=False)
    assert changed.index("python3-dev") < changed.index("USER y")


WORDS = ["FROM x\n", "RUN ", "pip install ", "torch ", "'torch ", '"', "\\\n", "# torch\n", "&& ", "<<E\n", "E\n", "é"]
SNIPPETS = st.lists(st.sampled_from(WORDS), max_size=20)


@given(SNIPPETS)
def test_whatever_the_file_is_nothing_is_lost_and_a_second_time_changes_nothing(parts):
    text = "".join(parts)
    changed = pin_dockerfile(text, VERSIONS)
    rest = iter(changed)
    assert all(char in rest for char in text), "the text is still there, with something added"
    assert pin_dockerfile(changed, VERSIONS) == changed
