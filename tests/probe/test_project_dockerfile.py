import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.facts.project import Dockerfile
from devkit.probe.project.dockerfile import VariableExpansion, parse_dockerfile, parse_instructions
from devkit.probe.project.shell import find_written_paths


def read(text, **arguments):
    return parse_dockerfile(text, path="Dockerfile", arguments=arguments)


def stage(text, **arguments):
    return read(text, **arguments).stages[-1]


def test_instructions_keep_the_line_where_they_begin():
    text = "# syntax\n\nFROM a\nRUN one \\\n# a comment between\n  two\nrun three\n"
    found = [(one.keyword, " ".join(one.text.split()), one.line) for one in parse_instructions(text)]
    assert found == [("FROM", "a", 3), ("RUN", "one two", 4), ("RUN", "three", 7)]


def test_here_documents_belong_to_their_instruction():
    text = "FROM a\nRUN <<A cat <<-'B'\none\nA\n\ttwo\n\tB\nUSER x\n"
    _, run, user = parse_instructions(text)
    assert (run.heredoc, user.keyword, user.line) == ("one\n\ttwo", "USER", 7)


def test_a_here_document_without_an_end_takes_the_rest():
    assert [one.keyword for one in parse_instructions("FROM a\nRUN <<EOF\nUSER x\n")] == ["FROM", "RUN"]


def test_another_escape_is_heeded():
    (run,) = parse_instructions("# escape=`\nRUN a `\n b\n")
    assert run.text.split() == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "image"),
    [
        pytest.param("FROM a:1", "a:1", id="a plain name"),
        pytest.param("FROM --platform=$BUILDPLATFORM a:1 AS x", "a:1", id="with a platform"),
        pytest.param("ARG T=1\nFROM a:$T", "a:1", id="an argument's default"),
        pytest.param("ARG T=1\nFROM a:${T}-x", "a:1-x", id="in braces"),
        pytest.param("FROM a:${T:-2}", "a:2", id="a default in place"),
        pytest.param("ARG T\nFROM a:${T:+3}", "a:", id="an alternative of nothing"),
        pytest.param("ARG T\nFROM a:$T", "a:$T", id="an argument without a default"),
        pytest.param('ARG T="1"\nFROM a:$T', "a:1", id="a default in quotes"),
    ],
)
def test_the_image_of_a_stage(text, image):
    assert stage(text).image == image


def test_a_build_argument_wins_over_the_default():
    assert stage("ARG T=1\nFROM a:$T", T="9").image == "a:9"
    assert VariableExpansion().expand("${A}/$B/${C:-d}", {"A": "a"}) == "a/$B/d"


@pytest.mark.parametrize(
    ("command", "names", "index", "backend"),
    [
        pytest.param("pip install torch==2.9.1", ["torch==2.9.1"], "", "", id="pip"),
        pytest.param("pip3 install --no-cache-dir 'torch>=2' numpy", ["torch>=2"], "", "", id="pip3 with others"),
        pytest.param("python3 -m pip install torch", ["torch"], "", "", id="python -m pip"),
        pytest.param("/opt/venv/bin/pip install torch", ["torch"], "", "", id="by its path"),
        pytest.param(
            "pip install torch --index-url https://download.pytorch.org/whl/cu128", ["torch"], "cu128", "", id="index"
        ),
        pytest.param("pip install torch==2.9.1+cu126", ["torch==2.9.1+cu126"], "cu126", "", id="a local version"),
        pytest.param("uv pip install --torch-backend=auto torch", ["torch"], "", "auto", id="uv with a backend"),
        pytest.param("uv add torch", ["torch"], "", "", id="uv add"),
        pytest.param("conda install -y -c nvidia torch", ["torch"], "", "", id="conda"),
        pytest.param("sudo -H env A=1 pip install torch", ["torch"], "", "", id="behind sudo"),
        pytest.param("FOO=1 pip install torch", ["torch"], "", "", id="with a variable before it"),
        pytest.param("pip install flash_attn", ["flash-attn"], "", "", id="names are made alike"),
        pytest.param("pip install 'bitsandbytes[dev]==0.49'", ["bitsandbytes==0.49"], "", "", id="with an extra"),
        pytest.param("pip install git+https://github.com/NVIDIA/apex.git@x", ["apexgit"], "", "", id="from git"),
        pytest.param("pip install numpy", None, "", "", id="nothing for GPUs"),
        pytest.param("pip uninstall torch", None, "", "", id="taken away"),
        pytest.param("echo pip install torch", ["torch"], "", "", id="an echo counts, which is rare"),
    ],
)
def test_what_a_command_installs(command, names, index, backend):
    installs = stage(f"FROM a\nRUN {command}\n").installs
    if names is None:
        assert installs == ()
        return
    (install,) = installs
    assert [f"{one.name}{one.specifier}" for one in install.requirements] == names
    assert (install.index, install.backend, install.line) == (index, backend, 2)


def test_requirement_files_are_named():
    (install,) = stage("FROM a\nRUN pip install -r a.txt --requirement=b.txt\n").installs
    assert install.files == ("a.txt", "b.txt")


def test_commands_in_other_forms():
    assert stage('FROM a\nRUN ["pip", "install", "torch"]\n').installs
    assert stage("FROM a\nRUN --mount=type=cache,target=/x set -eux; \\\n  pip install torch\n").installs
    assert stage("FROM a\nRUN <<EOF\nset -e\npip install torch\nEOF\n").installs
    assert stage("FROM a\nRUN echo 'unbalanced && pip install torch\n").installs


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("mkdir -p /a && date > /b 2>&1; echo x>>/dev/null | tee -a c", ["/a/", "/b", "c"]),
        ("cd /x && touch y /z $HOME/w", ["/z", "$HOME/w"]),
        ("sudo mkdir /a; mkdir /b", []),
        ("mkdir /a || true; [ -d /b ] && mkdir /c; if x; then touch /d; fi; touch /e", ["/e"]),
        ("import os\nos.makedirs('/a')\nwith open('b.txt', 'w') as f: x > y\n    open('c', 'w')", ["/a/", "b.txt"]),
    ],
)
def test_paths_that_a_text_surely_writes_to(text, paths):
    assert [*find_written_paths(text)] == paths


def test_users_folders_and_compilers():
    found = stage(
        "FROM a\nARG U=1000\nRUN apt-get install -y g++-12 && useradd -m -u $U -s /bin/bash dev \\\n"
        " && install -d -o dev /opt/x && mkdir /root-made\nUSER dev\nRUN mkdir -p /home/dev/y\nWORKDIR /w\n"
    )
    assert [(user.name, user.uid) for user in found.users] == [("dev", "1000")]
    assert found.folders == ("/opt/x", "/home/dev/y", "/w")
    opened = stage(
        "FROM a\nWORKDIR /w\nRUN chown me . && chmod g+w a && chmod 755 b && useradd -d /h me\nCOPY --chown=me x y/\n"
    )
    assert opened.folders == ("/w", "/w/a", "/h", "/w/y")
    assert found.compilers == ("g++-12",)
    assert (found.user.value, found.user.line) == ("dev", 5)


@pytest.mark.parametrize(
    ("command", "name", "uid"),
    [
        pytest.param("useradd dev", "dev", "", id="useradd"),
        pytest.param("useradd --uid 1234 --create-home dev", "dev", "1234", id="useradd with an id"),
        pytest.param("useradd -ms /bin/bash dev", "dev", "", id="useradd with a shell"),
        pytest.param("adduser --disabled-password --gecos '' dev", "dev", "", id="adduser"),
        pytest.param("useradd -m $NAME", "$NAME", "", id="a name without a value"),
    ],
)
def test_made_users(command, name, uid):
    (user,) = stage(f"FROM a\nRUN {command}\n").users
    assert (user.name, user.uid) == (name, uid)


def test_secrets_are_named_and_never_kept():
    token = "hf_" + "Q" * 20
    found = stage(f"FROM a\nARG HF_TOKEN\nENV WANDB_API_KEY=abc12345 X=1\nRUN hf login --token {token}\n")
    assert [(one.name, one.place, one.names_secret) for one in found.variables] == [
        ("HF_TOKEN", "ARG", True),
        ("WANDB_API_KEY", "ENV", True),
    ]
    assert found.tokens_in_commands[0].line == 4
    assert token not in repr(found)
    assert "abc12345" not in repr(found)


def test_a_secret_is_never_filled_in():
    text = "ARG HF_TOKEN=plain-but-hidden\nFROM a:$HF_TOKEN\nARG API_TOKEN=also-hidden\nRUN nvidia-smi $API_TOKEN\n"
    assert "hidden" not in repr(read(text))
    assert "given" not in repr(read("FROM a\nARG HF_TOKEN\nRUN nvidia-smi $HF_TOKEN\n", HF_TOKEN="given"))


def test_build_arguments_reach_the_stages():
    text = "FROM a\nARG INDEX=cu126\nRUN pip install torch --index-url https://download.pytorch.org/whl/$INDEX\n"
    assert [stage(text, **given).installs[0].index for given in ({}, {"INDEX": "cu130"})] == ["cu126", "cu130"]


def test_the_old_form_of_env_is_read():
    (variable,) = stage("FROM a\nENV HF_HOME /data/hf\n").variables
    assert (variable.name, variable.value) == ("HF_HOME", "/data/hf")


@settings(max_examples=80, deadline=None)
@given(st.text(alphabet="FROMARGUNaX \n\\\"'$<>{}=&|;#[],-", max_size=80))
def test_no_text_breaks_the_reader(text):
    assert isinstance(read(text), Dockerfile)
    found = read(f"FROM a\nRUN {text}\nCOPY {text}\nENV {text}\nUSER {text}\n")
    # Whatever follows, the first stage stands, on its line.
    assert (found.stages[0].image, found.stages[0].line) == ("a", 1)
