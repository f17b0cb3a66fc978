"""`devkit explain` reads in the wheels of a library which releases have a name that a program misses."""

import json
import socket
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from devkit import api
from devkit.cli.explain import explain
from devkit.cli.proof import describe_proof
from devkit.doctor.signatures.log_text import read_words
from devkit.doctor.signatures.missing_names import find_missing_name
from devkit.doctor.signatures.text_facts import read_text_facts
from devkit.facts.dependencies import Resolved
from devkit.probe import release_names
from devkit.render.project import open_project
from tests.cases import cases
from tests.package_server import serve_packages
from tests.render.plans import GPU_PLAN
from tests.wheels import make_wheel

FRAME = 'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n    from torchlib import X\n'
PLACE = "(/opt/env/lib/python3.11/site-packages/torchlib/__init__.py)"
MISSING = f"torch 2.4.0\n{FRAME}ImportError: cannot import name 'Old' from 'torchlib' {PLACE}\n"
VERSIONS = ("1.0", "1.1", "2.0", "2.1", "3.0rc1", "3.0")


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    """The user's settings: no index yet, and an empty home."""
    for name in (
        "UV_INDEX",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_NO_INDEX",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("UV_OFFLINE", "0")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Serve releases of torchlib: `library(files_before, files_after)`, which differ from 2.0 on."""
    running = []

    def start(before, after, *more):
        (folder := tmp_path / "wheels").mkdir()
        sources = [(version, before if version < "2.0" else after) for version in VERSIONS]
        wheels = [make_wheel(folder, "torchlib", version, files=files) for version, files in sources]
        wheels += [make_wheel(folder, name, version, files=files) for name, version, files in more]
        context = serve_packages(wheels)
        served = context.__enter__()
        running.append(context)
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.index)
        return served

    yield start
    for context in running:
        context.__exit__(None, None, None)


def ask(text, *options):
    done = CliRunner().invoke(explain, ["-", "--json", "--no-facts", *options], input=text)
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout)


def init(text):
    return {"torchlib/__init__.py": text}


LAZY = 'import sys\n_import_structure = {"deep": ["Old"]}\nsys.modules[__name__] = _LazyModule(__name__, _import_structure)\n'
PLAIN_CLASS = "class Model:\n    def __init__(self, size):\n        self.size = size\n"
HAS_OLD = {
    "a function": init("def Old(): ...\n"),
    "an import": init("from .deep import Old\n") | {"torchlib/deep.py": "class Old: ...\n"},
    "an import in a condition": init("try:\n    from .deep import Old\nexcept ImportError:\n    pass\n"),
    "__all__": init('__all__ = ["Old"]\n__all__ += ["Other"]\n'),
    "everything of a module": init("from .deep import *\n") | {"torchlib/deep.py": "Old = 1\n"},
    "an import on demand": init(LAZY) | {"torchlib/deep.py": "class Old: ...\n"},
    "__getattr__": init(
        'def __getattr__(name):\n    if name == "Old":\n        return 1\n    raise AttributeError(name)\n'
    ),
    "a submodule": init("") | {"torchlib/Old.py": ""},
}


@pytest.mark.parametrize("files", HAS_OLD.values(), ids=HAS_OLD)
def test_the_release_that_removed_a_name_is_read_however_the_older_ones_have_it(library, files):
    library(files, init("from .deep import other\n") | {"torchlib/deep.py": ""})
    match = ask(MISSING.replace("torch 2.4.0", "torchlib==3.0 torch"))["matches"][0]
    assert (
        match["cause"]
        == "torchlib 2.0 removed torchlib.Old, which the program needs; 1.1 is the last release that has it"
    )
    assert match["fix"]["commands"] == ["pip install 'torchlib<2.0'"]
    assert "or change the program" in match["fix"]["summary"]
    assert match["confidence"] == "likely"
    assert "1.1 has it, 2.0 lacks it" in match["speaks_for"][0]
    assert "torchlib 3.0 is installed, as the text says" in match["speaks_for"]


USES = {
    "a name": ("torchlib.New", True),
    "a name that the older releases had": ("torchlib.Old", False),
    "a submodule's name": ("torchlib.deep.run", True),
    "a submodule's missing name": ("torchlib.deep.walk", False),
    "a name that a loop sets": ("torchlib.deep.SMALL", True),
    "an attribute of a name": ("torchlib.New.anything", True),
    "the module alone": ("torchlib", True),
}


@pytest.mark.parametrize(("name", "has"), USES.values(), ids=USES)
def test_a_package_has_a_name_as_its_newest_wheel_shows(library, name, has):
    deep = "def run(): ...\nclass Size:\n    SMALL = 1\nfor each in vars(Size):\n    globals()[each] = getattr(Size, each)\n"
    served = library(init("def Old(): ...\n"), init("New = 1\n") | {"torchlib/deep.py": deep})
    assert release_names.has_names("torchlib", {name}) is has
    assert not release_names.has_names("torchlib", {"other"})
    assert not release_names.has_names("missing", {"missing"})
    asked = len([each for each in served.requests if ".whl" in each])
    assert release_names.has_names("torchlib", {name}) is has
    assert len([each for each in served.requests if ".whl" in each]) == asked, "what a wheel has is asked once"


@cases("python, pythons", {"the later ones are older": ("3.9", {"3.6", "3.7"}), "one fits": ("3.7", set())})
def test_a_release_without_wheels_has_those_of_the_first_later_one_if_all_are_for_older_pythons(
    tmp_path, monkeypatch, python, pythons
):
    tags = [("1.0", "py3-none-any"), ("1.0", "cp37-cp37m-win_amd64"), ("2.0", "cp39-cp39-manylinux1_x86_64")]
    tags += [("1.1", f"{each}-{each}m-manylinux1_x86_64") for each in ("cp36", "cp37")]
    wheels = [make_wheel(tmp_path, "old", version, tag=tag) for version, tag in tags]
    with serve_packages(wheels) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.index)
        assert {*release_names.list_compiled_pythons("old", "1.0", python)} == pythons
        assert {*release_names.list_compiled_pythons("old", "1.1", python)} == {"3.6", "3.7"}
        with pytest.raises(OSError, match="no package missing"):
            release_names.list_compiled_pythons("missing", "1.0", python)


def test_the_first_line_names_what_the_resolved_release_lacks_and_programs_of_python_2(library, tmp_path):
    filled = {"torchlib/native/__init__.py": "", "torchlib/native/native.so": ""}
    set_later = "import sys\nsetattr(sys.modules[__name__], 'Late', 1)\nNew = 1\n"
    library(init("def Old(): ...\n"), init(set_later) | {"torchlib/deep.py": ""} | filled)
    (tmp_path / "project").mkdir()
    uses = "import torchlib as t\nfrom torchlib import deep, New\nt.Late\nfrom torchlib.native import imread\n"
    (tmp_path / "project/run.py").write_text(f"{uses}t.Old()\ndeep.walk()\n")
    (tmp_path / "project/shadow.py").write_text("from torchlib import deep\nfor deep in (1,):\n    deep.keys\n")
    (tmp_path / "project/main.py").write_text("import os\nprint os.name\n")
    project = open_project(tmp_path / "project")
    url = release_names.list_wheels("torchlib")[-1].url
    found = Resolved(
        (("torchlib", "3.0"),), wheels=(("torchlib", url),), from_source=("old",), elsewhere=(("old", ("3.6",)),)
    )
    found = replace(found, packages=(*found.packages, ("old", "1.0")))
    says = describe_proof(project.root, project.dependencies, replace(GPU_PLAN, resolution=found))
    assert "old may not build: the index has wheels, but none for Python 3.12" in says
    assert "1 program is Python 2 and does not start: main.py:2 (2to3 converts such code)" in says
    assert "torchlib 3.0 lacks torchlib.Old (run.py:5) and 1 more; every import" in says


OTHER_ERRORS = {
    "a submodule": (
        "ModuleNotFoundError: No module named 'torchlib.old'",
        init("") | {"torchlib/old/__init__.py": ""},
        init(""),
        "torchlib.old",
    ),
    "a submodule that the package no longer imports": (
        "AttributeError: module 'torchlib' has no attribute 'old'",
        init("from .old import x\n") | {"torchlib/old.py": "x = 1\n"},
        init("") | {"torchlib/old.py": "x = 1\n"},
        "torchlib.old",
    ),
    "an attribute of a module": (
        "AttributeError: module 'torchlib' has no attribute 'old'",
        init("old = 1\n"),
        init("new = 1\n"),
        "torchlib.old",
    ),
    "an attribute of an object": (
        "from torchlib import Model\nAttributeError: 'Model' object has no attribute 'old'",
        init(f"class Base:\n    def fit(self):\n        self.old = 1\n{PLAIN_CLASS}".replace("Model:", "Model(Base):")),
        init(PLAIN_CLASS),
        "Model.old",
    ),
    "an argument of a class": (
        "from torchlib import Model\nTypeError: Model.__init__() got an unexpected keyword argument 'old'",
        init(PLAIN_CLASS.replace("size)", "size, *, old=None)")),
        init(PLAIN_CLASS),
        "Model.__init__(old)",
    ),
    "an argument of a dataclass": (
        "from torchlib import Model\nTypeError: Model.__init__() got an unexpected keyword argument 'old'",
        init("from dataclasses import dataclass\n@dataclass\nclass Model:\n    old: int = 1\n"),
        init("from dataclasses import dataclass\n@dataclass\nclass Model:\n    new: int = 1\n"),
        "Model.__init__(old)",
    ),
    "an argument of a class that only the line names": (
        "  File \"/app/x\", line 3, in x\n    a = torchlib.Model(old=1)\nTypeError: __init__() got an unexpected keyword argument 'old'",
        init(PLAIN_CLASS.replace("size)", "size, *, old=None)")),
        init(PLAIN_CLASS),
        "Model(old)",
    ),
    "an argument of a function": (
        "from torchlib import load\nTypeError: load() got an unexpected keyword argument 'old'",
        init("def load(path, old=1): ...\n"),
        init("def load(path): ...\n"),
        "load(old)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("error", "with_it", "without", "what"), OTHER_ERRORS.values(), ids=OTHER_ERRORS)
def test_modules_attributes_and_arguments_are_read_too(library, error, with_it, without, what):
    library(with_it, without)
    match = ask(f"torch 2.4 torchlib==3.0\n{error}\n")["matches"][0]
    assert match["cause"].startswith(f"torchlib 2.0 removed {what}, "), match["cause"]
    assert match["fix"]["commands"] == ["pip install 'torchlib<2.0'"]


def test_a_name_that_the_installed_release_does_not_have_yet(library):
    library(init(""), init("def Old(): ...\n"))
    match = ask(MISSING.replace("torch 2.4.0", "$ uv pip install torchlib==1.0 torch\ntorchlib 1.0"))["matches"][0]
    assert match["cause"].startswith("torchlib 1.0 does not have torchlib.Old yet, ")
    assert "2.0 is the first release that has it" in match["cause"]
    assert match["fix"]["commands"] == ["uv pip install 'torchlib>=2.0'"]
    assert match["confidence"] == "certain"


def test_a_release_for_newer_pythons_alone_is_not_proposed(library):
    served = library(init(""), init("def Old(): ...\n"))
    served.pythons = {name: ">=3.12" for name in served.wheels if "-2." in name}
    text = MISSING.replace("torch 2.4.0", "torchlib 1.0 torch")
    assert ask(text)["matches"][0]["fix"]["commands"] == ["pip install 'torchlib>=3.0'"]
    served.pythons |= {name: ">=3.12" for name in served.wheels if "-3." in name}
    assert "none has it" in ask(text)["not_read"]
    assert ask(text.replace("3.11", "3.12"))["matches"][0]["fix"]["commands"] == ["pip install 'torchlib>=2.0'"]


def test_a_newer_release_that_removed_the_name_again_is_left_out(library, tmp_path):
    (folder := tmp_path / "more").mkdir()
    served = library(init(""), HAS_OLD["a function"])
    wheels = [make_wheel(folder, "torchlib", f"4.{number}", files=init("")) for number in range(3)]
    served.wheels |= {each.name: each.read_bytes() for each in wheels}
    match = ask(MISSING.replace("torch 2.4.0", "torchlib 1.0 torch"))["matches"][0]
    assert match["fix"]["commands"] == ["pip install 'torchlib>=2.0,<4.0'"]


def test_an_unknown_installed_release_leaves_it_likely_and_the_fix_fits_an_older_one_too(library, tmp_path):
    (folder := tmp_path / "more").mkdir()
    served = library(HAS_OLD["a function"], init(""))
    wheels = [make_wheel(folder, "torchlib", f"0.{number}", files=init("")) for number in range(9)]
    served.wheels |= {each.name: each.read_bytes() for each in wheels}
    match = ask(MISSING)["matches"][0]
    assert match["cause"].endswith("1.1 is the last release that has it, 1.0 the first")
    assert match["fix"]["commands"] == ["pip install 'torchlib>=1.0,<2.0'"]
    assert match["confidence"] == "likely"


def test_the_installed_release_is_read_where_the_log_is_of_this_machine(library, tmp_path):
    library(HAS_OLD["a function"], init(""))
    (info := tmp_path / "env/site-packages/torchlib-2.1.dist-info").mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchlib\nVersion: 2.1\n")
    frame = f'  File "{info.parent}/caller/a.py", line 3, in <module>\n    from torchlib import Old\n'
    match = ask(f"torch\n{frame}ImportError: cannot import name 'Old' from 'torchlib' {PLACE}\n")["matches"][0]
    assert match["speaks_for"][1] == f"torchlib 2.1 is installed, as {info.parent} says"
    assert match["confidence"] == "certain"


def test_the_calling_package_is_upgraded_where_a_newer_one_no_longer_asks(library):
    asks, free = ({"caller/a.py": f"from torchlib import {name}\n"} for name in ("Old", "New"))
    callers = [("caller", version, asks if version < "0.3" else free) for version in ("0.1", "0.2", "0.3", "0.4")]
    library(HAS_OLD["a function"], init(""), *callers)
    frame = '  File "/opt/lib/site-packages/caller/a.py", line 3, in <module>\n    from torchlib import Old\n'
    match = ask(f"torch torchlib==3.0\n{frame}ImportError: cannot import name 'Old' from 'torchlib' {PLACE}\n")[
        "matches"
    ][0]
    assert "which caller needs" in match["cause"]
    assert match["fix"]["commands"] == ["pip install 'caller>=0.3'", "pip install 'torchlib<2.0'"]
    assert match["confidence"] == "likely"
    assert match["speaks_for"][-1] == "caller/a.py: caller 0.2 asks for it, 0.3 does not"


UNSAID = {
    "any keyword is taken": init("def load(**kwargs): ...\n"),
    "no source": {"torchlib/__init__.cpython-311-x86_64-linux-gnu.so": "\x7fELF"},
    "no Python": init("def load(:\n"),
    "too deep": init("load = " + "(" * 5000),
}


@pytest.mark.parametrize("files", UNSAID.values(), ids=UNSAID)
def test_what_a_source_does_not_say_is_not_claimed(library, files):
    library(init("def load(old): ...\n"), files)
    document = ask(
        "torch torchlib==3.0\nfrom torchlib import load\nTypeError: load() got an unexpected keyword argument 'old'\n"
    )
    assert not any("torchlib 2.0" in match["cause"] for match in document["matches"])
    assert document["not_read"] == "torchlib: of 2 releases read all have it"


def test_a_release_beside_others_that_could_not_be_read_did_not_remove_the_name(library):
    library(HAS_OLD["a function"], init(""), ("torchlib", "1.5", UNSAID["no Python"]))
    match = ask(MISSING)["matches"][0]
    assert "torchlib 2.0 lacks torchlib.Old" in match["cause"]
    assert "1.1 is the last release read that has it" in match["cause"]
    assert match["fix"]["commands"] == ["pip install 'torchlib<=1.1'"]


def test_a_release_that_has_the_name_is_not_blamed(library):
    library(init(""), HAS_OLD["a function"])
    document = ask(MISSING.replace("torch 2.4.0", "torchlib==3.0 torch"))
    assert document["not_read"] == "torchlib 3.0 has it, as its wheel shows"


def test_a_second_text_reads_the_page_of_the_package_alone(library):
    served = library(HAS_OLD["a function"], init(""))
    first = ask(MISSING)
    count = len(served.requests)
    assert ask(MISSING) == first
    assert len(served.requests) == count + 1


QUIET = {
    "UV_OFFLINE": (MISSING, {"UV_OFFLINE": "1"}, "UV_OFFLINE is set"),
    "PIP_NO_INDEX": (MISSING, {"PIP_NO_INDEX": "1"}, "PIP_NO_INDEX is set"),
    "another error": ("torch\nRuntimeError: CUDA out of memory\n", {}, ""),
    "an absent package": ("torch\nModuleNotFoundError: No module named 'torchlib'\n", {}, ""),
    "a module of Python": ("torch\nImportError: cannot import name 'Old' from 'collections' (/usr/lib/x.py)\n", {}, ""),
    "a file of the program": (
        "torch\nImportError: cannot import name 'Old' from 'torchlib' (/app/torchlib.py)\n",
        {},
        "",
    ),
    "an unfinished import": (
        MISSING.replace("from 'torchlib'", "from partially initialized module 'torchlib'"),
        {},
        "",
    ),
    "a module of nobody": ("torch\nImportError: cannot import name 'Old' from 'torchlib'\n", {}, ""),
    "a class of the program": (
        "torch\nfrom torchlib import Model\nAttributeError: 'Model' object has no attribute 'old'\n",
        {},
        "",
    ),
    "a value of Python": ("torch\nAttributeError: 'NoneType' object has no attribute 'old'\n", {}, ""),
    "a healthy log": ("torch\nepoch 1 loss 0.3\nepoch 2 loss 0.2\nTraining completed successfully\n", {}, ""),
}


@pytest.mark.parametrize(("text", "variables", "says"), QUIET.values(), ids=QUIET)
def test_the_index_is_asked_about_an_installed_library_alone(library, monkeypatch, text, variables, says):
    served = library(HAS_OLD["a function"], init(""))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ask(text)["not_read"] == says
    assert served.requests == []


@cases(
    "file, text, says",
    {
        "uv offline": ("uv/uv.toml", "offline = true\n", "offline of uv.toml is set"),
        "uv without an index": ("uv/uv.toml", "no-index = true\n", "no-index of uv.toml is set"),
        "pip": ("pip/pip.conf", "[global]\nno-index = yes\n", "no-index of pip.conf is set"),
        "an index in a folder": (
            "pip/pip.conf",
            "[global]\nindex-url = file:///mirror/simple\n",
            "the index is a folder of this machine",
        ),
    },
)
def test_a_closed_network_that_files_describe_is_left_alone(tmp_path, monkeypatch, file, text, says):
    monkeypatch.setattr(release_names, "send_request", lambda *_, **__: pytest.fail("a request was sent"))
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    (tmp_path / "config" / file).parent.mkdir(parents=True)
    (tmp_path / "config" / file).write_text(text)
    assert ask(MISSING)["not_read"] == says


def test_a_private_index_is_asked_first_and_its_login_stays_with_it(library, tmp_path, monkeypatch):
    public = library(HAS_OLD["a function"], init(""))
    private = [
        make_wheel(tmp_path, "torchlib", version, files=init("Old = 1" if version == "7.0" else ""))
        for version in ("7.0", "8.0")
    ]
    with serve_packages(private, login="me:secret") as own, serve_packages([], redirect=own.url) as elsewhere:
        monkeypatch.setenv("UV_INDEX", own.index.replace("//", "//me:secret@"))
        assert "torchlib 8.0 removed" in ask(MISSING)["matches"][0]["cause"]
        assert public.requests == []
        # A server that sends the requests on does not pass the login on with them.
        monkeypatch.setenv("UV_INDEX", elsewhere.index.replace("//", "//me:secret@"))
        own.requests.clear()
        assert "401" in ask(MISSING)["not_read"]
        assert len(own.requests) == 1
        assert "Authorization" not in own.requests[0]
    assert public.requests == []


def test_an_index_that_hangs_takes_no_longer_than_the_deadline(monkeypatch):
    monkeypatch.setattr(release_names, "DEADLINE_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        assert ask(MISSING)["not_read"] == "the index does not respond"


def test_the_programming_interface_reads_the_same(library):
    library(HAS_OLD["a function"], init(""))
    assert api.explain(MISSING, use_machine=False).to_document() == ask(MISSING)


def test_nothing_of_a_wheel_is_imported(library):
    library(init("import sys\nsys.torchlib_was_run = True\ndef Old(): ...\n"), init(""))
    ask(MISSING)
    assert not hasattr(sys, "torchlib_was_run")


def test_of_the_libraries_that_have_a_class_the_one_that_the_text_names_is_asked_first():
    words = read_words("transformers==4.45.2\nTypeError: Trainer.__init__() got an unexpected keyword argument 'x'")
    missing = find_missing_name(words, read_text_facts(words))
    assert [each.package for each in missing.candidates] == ["transformers", "pytorch-lightning"]
    words = read_words(
        "transformers==4.45.2\npeft==0.13.2\nTypeError: PeftThing.add() got an unexpected keyword argument 'x'"
    )
    assert find_missing_name(words, read_text_facts(words)).candidates[0].package == "peft"


def test_the_package_that_raises_it_asks_for_the_name_and_not_one_that_wraps_the_call():
    frames = "".join(
        f'  File "/env/lib/python3.11/site-packages/{file}", line 9, in f\n    f()\n'
        for file in ("huggingface_hub/utils/_deprecation.py", "trl/trainer/sft_trainer.py")
    )
    text = f"Traceback:\n{frames}TypeError: Trainer.__init__() got an unexpected keyword argument 'tokenizer'"
    words = read_words(text)
    assert find_missing_name(words, read_text_facts(words)).callers[0] == "trl/trainer/sft_trainer.py"


def test_a_package_that_only_wraps_the_call_does_not_ask_for_the_name(library):
    wrapper = (
        "wrapper",
        "1.0",
        {"wrapper/__init__.py": "", "wrapper/run.py": "def call(f, **given):\n    return f(**given)\n"},
    )
    library(init(PLAIN_CLASS), init(PLAIN_CLASS.replace("size", "width")), wrapper)
    frame = '  File "/opt/env/lib/python3.11/site-packages/wrapper/run.py", line 2, in call\n    return f(**given)\n'
    error = "TypeError: Model.__init__() got an unexpected keyword argument 'size'"
    match = ask(f"torch\ntorchlib 3.0\nfrom torchlib import Model\n{FRAME}{frame}{error}\n")["matches"][0]
    assert ", which the program needs" in match["cause"]


CONFLICT = """The conflict is caused by:
    The user requested einops==1.0
    timm 2.0 depends on einops==2.0
"""


@cases(
    "text, command",
    {
        "a package moves": (CONFLICT, "pip install 'einops==1.0' 'timm==1.0'"),
        "a pin moves": (f"{CONFLICT}    The user requested timm==2.0\n", "pip install 'timm==2.0' 'einops==2.0'"),
        "what is installed stays": (
            "timm 2.0 requires einops==2.0, but you have einops 1.0 which is incompatible.",
            "pip install 'einops==1.0' 'timm==1.0'",
        ),
        "uv": (
            "No solution found when resolving dependencies: Because timm==2.0 depends on einops==2.0 and you require"
            " timm==2.0, we can conclude that you require einops==2.0. And because you require einops==1.0, we can",
            "pip install 'einops==1.0' 'timm==1.0'",
        ),
    },
)
def test_requirements_that_contradict_each_other_are_given_to_uv(tmp_path, monkeypatch, text, command):
    wheels = [make_wheel(tmp_path, "einops", version) for version in ("1.0", "2.0")]
    wheels += [make_wheel(tmp_path, "timm", each, requires=[f"einops=={each}"]) for each in ("1.0", "2.0")]
    with serve_packages(wheels) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.index)
        match = ask(text)["matches"][0]
        assert match["fix"]["commands"] == [command]
        assert match["confidence"] == "likely"
        assert "uv resolved" in match["speaks_for"][0]
        served.requests.clear()
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        assert ask(text)["not_read"] == "PIP_NO_INDEX is set"
        assert served.requests == []


def test_a_name_that_may_be_the_users_own_is_not_sent_to_the_index(monkeypatch):
    with serve_packages([]) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.index)
        ask(CONFLICT.replace("timm", "our-project"))
        ask(CONFLICT.replace("einops", "our-library"))
        assert served.requests == []


def test_a_name_whose_module_the_error_does_not_say_is_looked_up_where_a_line_imports_it():
    words = read_words("    from transformers import BeamScorer\nImportError: cannot import name 'BeamScorer'\n")
    missing = find_missing_name(words, read_text_facts(words))
    assert missing is not None
    assert (missing.name, missing.candidates[0].module) == ("BeamScorer", "transformers")
