"""uv over a project's requirements, with a small index of its own: nothing here needs a network."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.facts.dependencies import Refused, RequirementSources, ResolutionRequest, Resolved
from devkit.facts.values import Unknown
from devkit.probe import package_indexes, release_names, uv_resolver
from devkit.probe.package_indexes import describe_proxy
from devkit.probe.uv_resolver import UvResolver, build_uv_environment, find_uv
from devkit.render.container.packages import render_constraints
from devkit.render.container.settings import ContainerSettings, FromIndex
from devkit.user_folder import write_user_file
from tests.cases import cases
from tests.loopback import serve_requests
from tests.render.plans import GPU_PLAN
from tests.wheels import make_archive, make_index, make_wheel

REQUEST = ResolutionRequest("3.12", "x86_64", "2.36")
SETUP = "open({marker!r}, 'w').write('the package ran')\nfrom setuptools import setup\nsetup()\n"


def make_source(folder: Path, name: str, version: str, *, requires: str | None, marker: Path) -> Path:
    """A source distribution as setuptools once wrote them: its requirements are beside its metadata, if at all."""
    stem = f"{name}-{version}"
    metadata = f"Metadata-Version: 1.2\nName: {name}\nVersion: {version}\n"
    files = {"setup.py": SETUP.format(marker=str(marker)), "module.py": ""}
    if requires is not None:
        files |= {
            "PKG-INFO": metadata,
            f"{name}.egg-info/PKG-INFO": metadata,
            f"{name}.egg-info/requires.txt": requires,
        }
    return make_archive(folder, stem, files)


@pytest.fixture
def index(tmp_path, monkeypatch):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    releases = [
        *(make_wheel(wheels, "torch", version) for version in ("2.12.0", "2.13.0", "2.14.1")),
        make_wheel(wheels, "engine", "0.1", requires=["torch>=2"]),
        make_wheel(wheels, "engine", "9.0", requires=["torch==2.13.0"]),
        *(make_wheel(wheels, "transformers", version, requires=["hub<1"]) for version in ("4.0", "4.5")),
        *(make_wheel(wheels, "hub", version) for version in ("0.9", "2.4")),
        make_wheel(wheels, "compiled", "1.0", tag="cp311-cp311-manylinux_2_28_x86_64"),
        *(
            make_wheel(wheels, "both", "1.0", tag=tag)
            for tag in ("py2.py3-none-any", "py2.py3-none-manylinux_2_28_x86_64")
        ),
        make_wheel(wheels, "pywin32", "306", tag="cp312-cp312-win_amd64"),
        make_wheel(wheels, "appkit", "1", tag="cp312-cp312-macosx_11_0_arm64"),
        make_source(wheels, "compiled", "1.0", requires="hub", marker=tmp_path / "ran"),
        make_source(wheels, "old", "1.0", requires="hub<1\n\n[extra]\ntorch\n", marker=tmp_path / "ran"),
        make_source(wheels, "silent", "1.0", requires=None, marker=tmp_path / "ran"),
        make_source(wheels, "wrong", "1.0", requires="hub>=1<2\n", marker=tmp_path / "ran"),
    ]
    monkeypatch.delenv("UV_OFFLINE", raising=False)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", make_index(tmp_path / "simple", releases))
    return tmp_path


def resolve(text: str, request: ResolutionRequest = REQUEST, **sources):
    files = {"requirements.txt": text, **sources.pop("files", {})}
    return UvResolver(RequirementSources(tuple(files.items()), ("requirements.txt",), **sources))(request)


def shorten(answer: Resolved) -> Resolved:
    """The same, with the file names of the wheels in place of their addresses, and without hashes."""
    return replace(
        answer,
        hashes=(),
        builds=(),
        wheels=tuple((name, address.rpartition("/")[2]) for name, address in answer.wheels),
    )


def limited(*constraints: str, **requested) -> ResolutionRequest:
    return ResolutionRequest("3.12", "x86_64", "2.36", constraints, **requested)


def test_every_package_is_resolved_with_its_version(index):
    answer = resolve("transformers==4.0\n")
    assert shorten(answer) == Resolved(
        packages=(("hub", "0.9"), ("transformers", "4.0")),
        wheels=(("hub", "hub-0.9-py3-none-any.whl"), ("transformers", "transformers-4.0-py3-none-any.whl")),
    )


@pytest.mark.parametrize("listed", ["engine\n", "torch\nengine\n", "torch>=2.12,<3\nengine\ntorchvision\n"])
def test_torch_is_chosen_last_so_that_others_keep_their_newest_release(index, listed):
    answer = resolve(listed, limited("torch>=2.12.0,<=2.14.1"))
    assert dict(answer.packages) == {"engine": "9.0", "torch": "2.13.0"}


def test_a_changed_file_of_a_held_version_is_not_installed(index, tmp_path, monkeypatch):
    """The hash of the index, as the image's constraints hold it, in the hands of the installer that the image has."""
    wheel = next((tmp_path / "wheels").glob("hub-2.4-*.whl"))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    found = resolve("hub\nengine")
    assert dict(found.hashes)["hub"] == (digest,)
    plan = replace(GPU_PLAN, limits=("hub==2.4",), resolution=found)
    (held,) = render_constraints(plan, ContainerSettings("Demo", "demo", FromIndex("0.1.0")))
    (tmp_path / "constraints.txt").write_bytes(held.content)
    install = [find_uv(), "pip", "install", "-c", tmp_path / "constraints.txt", "hub", "--target"]
    assert subprocess.run([*install, tmp_path / "a"], check=False, capture_output=True).returncode == 0
    wheel.write_bytes(make_wheel(tmp_path, "hub", "2.4", requires=["torch"]).read_bytes())
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "another cache"))
    done = subprocess.run([*install, tmp_path / "b"], check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "Hash mismatch" in done.stderr


def test_a_wheel_for_the_machine_goes_before_one_for_every_machine(index):
    assert dict(resolve("both").wheels)["both"].endswith("-manylinux_2_28_x86_64.whl")


def test_torch_stays_within_the_constraint(index):
    assert dict(resolve("engine\n", limited("torch==2.14.1")).packages) == {"engine": "0.1", "torch": "2.14.1"}


def test_a_refusal_says_why_in_the_words_of_the_requirements(index):
    answer = resolve("transformers==4.5\nhub==2.4\n")
    assert isinstance(answer, Refused)
    assert answer.reason == "transformers>=4.5 depends on hub<1 and you require transformers==4.5; you require hub==2.4"
    assert answer.mentions("hub") and not answer.mentions("Python", "trans")


def test_a_requirement_can_be_relaxed_to_see_what_would_fit(index):
    answer = resolve("transformers==4.5\nhub==2.4  # the newest\n", limited(relaxed=("hub",)))
    assert dict(answer.packages) == {"hub": "0.9", "transformers": "4.5"}


def test_requirements_and_constraints_of_the_plan_count(index):
    answer = resolve("hub\n", limited("hub<1", requirements=("engine==0.1",)))
    assert dict(answer.packages)["engine"] == "0.1"
    assert dict(answer.packages)["hub"] == "0.9"


def test_a_source_distribution_is_read_and_not_run(index):
    answer = resolve("old\ncompiled\n")
    assert shorten(answer) == Resolved(
        (("compiled", "1.0"), ("hub", "0.9"), ("old", "1.0")),
        from_source=("compiled", "old"),
        wheels=(("hub", "hub-0.9-py3-none-any.whl"),),
    )
    assert [each.package for each in answer.builds] == ["compiled", "old"]
    assert not (index / "ran").exists()


def test_a_source_distribution_that_says_nothing_is_named_and_not_run(index):
    answer = resolve("silent\nhub\n")
    assert shorten(answer) == Resolved(
        (("hub", "2.4"),),
        unread=("silent 1.0, which only its setup.py defines",),
        wheels=(("hub", "hub-2.4-py3-none-any.whl"),),
    )
    assert not (index / "ran").exists()


def test_a_source_distribution_with_a_line_that_is_no_requirement_ends_no_other_resolution(index):
    assert resolve("wrong\nhub\n").unread == ("wrong 1.0, which only its setup.py defines",)
    assert resolve("old\n").packages == (("hub", "0.9"), ("old", "1.0"))


def test_a_package_with_files_for_other_systems_alone_is_left_out_and_named(index):
    answer = resolve("hub\npywin32==306\nappkit\n", limited(requirements=("pywin32==306",)))
    assert dict(answer.packages) == {"hub": "2.4"}
    assert answer.absent == ("appkit", "pywin32")


def test_another_python_may_have_a_wheel(index):
    assert resolve("compiled\n", ResolutionRequest("3.11", "x86_64", "2.36")).from_source == ()


def test_a_package_can_be_looked_up_without_what_it_needs(index):
    request = ResolutionRequest("3.11", "x86_64", requirements=("compiled==1.0",), is_alone=True, follows=False)
    assert shorten(resolve("nope\n", request)) == Resolved(
        (("compiled", "1.0"),), wheels=(("compiled", "compiled-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"),)
    )


def test_a_repository_is_not_fetched_and_is_named(index):
    answer = resolve(
        "hub @ git+https://git.example.invalid/hub.git\n-e git+https://git.example.invalid/x#egg=x\ntransformers\n",
        unchecked=("hub", "x"),
    )
    assert shorten(answer) == Resolved(
        (("transformers", "4.5"),),
        unread=("hub, which comes from a URL", "x, which comes from a URL"),
        wheels=(("transformers", "transformers-4.5-py3-none-any.whl"),),
    )


def test_the_index_of_torch_need_not_be_reachable(index):
    listed = (
        "--extra-index-url https://download.pytorch.org/whl/cu121\ntorch==2.4.1+cu121 \\\n  --hash=sha256:00\nhub\n"
    )
    assert dict(resolve(listed).packages) == {"hub": "2.4"}


def test_included_lists_and_tables_of_pyproject_are_read(index):
    pyproject = (
        '[project]\nname = "p"\nversion = "1"\ndependencies = ["torch==1.0+cu118", "hub<1"]\n[dependency-groups]\n'
        'dev = ["engine==0.1"]\n[tool.uv.sources]\nengine = { index = "pt" }\n'
        '[[tool.uv.index]]\nname = "pt"\nurl = "https://download.pytorch.org/whl/cu118"\n'
    )
    files = (
        ("requirements/a.txt", "-r b.txt\n"),
        ("requirements/b.txt", "transformers\n"),
        ("pyproject.toml", pyproject),
    )
    sources = RequirementSources(files, ("requirements/a.txt", "pyproject.toml"), ("--group=pyproject.toml:dev",))
    answer = UvResolver(sources)(limited("torch==2.13.0"))
    assert dict(answer.packages) == {"engine": "0.1", "hub": "0.9", "torch": "2.13.0", "transformers": "4.5"}


def test_nothing_is_left_behind(index, monkeypatch):
    temporary = index / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    resolve("old\n")
    assert list(temporary.iterdir()) == []


def test_without_a_network_it_was_not_checked(index, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    assert resolve("hub\n") == Unknown("uv cannot reach the package index at 127.0.0.1:9")


def test_what_uv_cannot_read_was_not_checked(index):
    answer = resolve("--find-links ./wheels\nhub\n")
    assert isinstance(answer, Unknown)
    assert answer.reason.startswith("uv ended with Invalid URL in `requirements.txt` at position 0: ./wheels")


def test_without_uv_it_was_not_checked(index, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "uv", None)
    assert resolve("hub\n") == Unknown("uv is not installed")


def test_what_uv_cannot_resolve_for_was_not_checked(index, monkeypatch):
    answer = resolve("hub\n", replace(REQUEST, machine="riscv64"))
    assert answer == Unknown("uv resolves for x86_64 and aarch64, not for riscv64")
    monkeypatch.setattr("devkit.probe.uv_resolver.MAX_SOURCE_DISTRIBUTIONS", 1)
    assert resolve("old\n") == Unknown("more than 1 packages have only a source distribution")
    assert dict(resolve("hub\n").packages) == {"hub": "2.4"}
    monkeypatch.setattr("devkit.probe.uv_resolver.find_uv", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        resolve("hub\n")


def test_packages_of_a_day_are_asked_for_by_their_upload_and_those_named_are_not(index, tmp_path):
    dated = replace(REQUEST, as_of="2026-01-01")
    assert isinstance(resolve("hub\n", dated), Unknown | Refused), "the index says no day of any file"
    assert dict(resolve("hub\n", replace(dated, undated=("hub",))).packages) == {"hub": "2.4"}
    words = [*UvResolver(RequirementSources())._write_inputs(tmp_path, replace(dated, undated=("hub=31",)))]
    assert "--exclude-newer-package=hub=2026-02-01" in words


def test_a_given_index_takes_the_place_of_the_users_own(index, monkeypatch):
    address = os.environ["UV_DEFAULT_INDEX"]
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    sources = RequirementSources((), (), lines=("hub",))
    with pytest.raises(DevkitError, match=r"^devkit.toml:1 has packages taken from"):
        UvResolver(sources, index=address)
    answer = UvResolver(sources, index=address, allowed=(address,))(REQUEST)
    assert dict(answer.packages) == {"hub": "2.4"}
    assert answer.asked == (address,)


def test_without_a_folder_for_temporary_files_it_was_not_checked(index, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/dev/null/x")
    assert resolve("hub\n") == Unknown("cannot create a temporary folder: Not a directory")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_settings_of_the_working_folder_are_not_read(index, monkeypatch):
    monkeypatch.chdir(index)
    os.mkfifo("uv.toml")
    started = time.monotonic()
    assert isinstance(resolve("hub\n"), Resolved)
    assert time.monotonic() - started < 60  # without an end before


# What a stranger's files make uv ask for must not carry a secret of the environment.

SECRET = "hf_PLANTED0123456789"


@pytest.fixture
def server(index, monkeypatch):
    for name in ("HF_TOKEN", "UV_PLANTED_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    with serve_requests() as (url, requests):
        yield url, requests
        assert not [path for path in requests if SECRET in path]


def test_a_variable_in_a_list_is_refused_with_file_and_line(server):
    url, _ = server
    for variable in ("HF_TOKEN", "UV_PLANTED_TOKEN"):
        for option in ("--extra-index-url", "--index-url", "-i", "--find-links", "-f"):
            with pytest.raises(DevkitError, match=rf"^requirements.txt:2: .*\${{{variable}}}"):
                resolve(f"# the index of our team: ${{HF_TOKEN}}\n{option} {url}/${{{variable}}}/simple\nhub\n")


def test_a_variable_in_an_included_list_is_refused(server):
    url, _ = server
    with pytest.raises(DevkitError, match=r"^b/more.txt:1: "):
        resolve("-r b/more.txt\n", files={"b/more.txt": f"--extra-index-url {url}/${{HF_TOKEN}}/simple\n"})


def test_a_list_on_a_server_is_not_downloaded(server):
    url, requests = server
    for option in ("-r ", "-r", "--requirement=", "-c ", "--constraint "):
        with pytest.raises(
            DevkitError, match=r"^requirements.txt:1: this line refers to a requirements file on a server"
        ):
            resolve(f"{option}{url}/more.txt\nhub\n")
    assert requests == []


def test_indexes_of_pyproject_get_no_variable(server):
    url, _ = server
    text = f"""
[project]
name = "x"
version = "1"
dependencies = ["unknown-to-all"]
[tool.uv]
index = [{{ name = "evil", url = "{url}/${{UV_PLANTED_TOKEN}}/%HF_TOKEN%/$HF_TOKEN/simple" }}]
sources = {{ unknown-to-all = {{ index = "evil" }} }}
"""
    with pytest.raises(DevkitError, match=r"^pyproject.toml:7: "):
        UvResolver(RequirementSources((("pyproject.toml", text),), ("pyproject.toml",)))


def test_the_login_of_an_index_is_not_sent_to_the_address_that_a_project_gives_its_name(server, monkeypatch):
    url, requests = server
    monkeypatch.setenv("UV_INDEX_CORP_USERNAME", SECRET)
    monkeypatch.setenv("UV_INDEX_CORP_PASSWORD", SECRET)
    project = f"""
[project]
name = "x"
version = "1"
dependencies = ["private"]
[tool.uv]
index = [{{ name = "corp", url = "{url}/simple" }}]
sources = {{ private = {{ index = "corp" }} }}
"""
    sources = RequirementSources((("pyproject.toml", project),), ("pyproject.toml",))
    with pytest.raises(
        DevkitError, match=r"^pyproject.toml:1 has packages taken from .*/simple, which you have not allowed"
    ):
        UvResolver(sources)
    assert not requests
    UvResolver(sources, allowed=(url,))(REQUEST)
    assert requests
    assert not [each for each in requests if "Authorization" in each]


def test_a_variable_in_the_table_of_another_tool_is_not_refused():
    text = '[project]\nname = "x"\nversion = "1"\n[tool.poe.tasks]\nrun = "echo ${HOME}"\n'
    UvResolver(RequirementSources((("pyproject.toml", text),), ("pyproject.toml",)))


def test_uv_gets_no_variable_that_it_does_not_need(server):
    environment = build_uv_environment()
    assert "HF_TOKEN" not in environment
    assert environment["UV_DEFAULT_INDEX"] and environment["PATH"]


def test_uv_offline_is_respected(index, monkeypatch):
    monkeypatch.setenv("UV_OFFLINE", "1")
    assert resolve("hub\n") == Unknown("UV_OFFLINE is set")


def test_an_index_that_does_not_answer_costs_no_more_than_the_deadline(index, monkeypatch, tmp_path):
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        started = time.monotonic()
        answer = UvResolver(RequirementSources(lines=("hub",)), deadline_s=1)(REQUEST)
        assert answer == Unknown("uv did not finish within 1 s")
        assert time.monotonic() - started < 10


def test_what_is_resolved_beside_is_what_would_be_resolved_in_turn(index):
    sources = RequirementSources((("requirements.txt", "old\n"),), ("requirements.txt",))
    requests = [replace(REQUEST, requirements=("silent",)), replace(REQUEST, python="3.11"), REQUEST]
    # silent is unread since the first answer: what was begun before does not know that, and is asked for again.
    with UvResolver(sources) as beside, UvResolver(sources) as in_turn:
        for request in requests:
            beside.expect(request)
        answers = [beside(request) for request in requests]
        assert answers == [in_turn(request) for request in requests]
        assert answers[2].unread == ("silent 1.0, which only its setup.py defines",)
        assert beside(requests[0]) == answers[0]


def test_what_was_begun_ends_with_the_resolver(index, monkeypatch):
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(60)
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        with UvResolver(RequirementSources(lines=("hub",))) as resolver:
            future = resolver.expect(REQUEST)
            connection, _ = silent.accept()
            ended_at = time.monotonic()
        assert future.done() and time.monotonic() - ended_at < 10
        connection.settimeout(60)
        while connection.recv(4096):  # until uv's end of the connection is closed
            pass
        connection.close()


INTERRUPTED = """
import sys
from devkit.facts.dependencies import RequirementSources, ResolutionRequest
from devkit.probe.uv_resolver import UvResolver
print("started", flush=True)
UvResolver(RequirementSources(lines=("hub",)))(ResolutionRequest("3.12", "x86_64"))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_control_c_ends_uv_and_leaves_nothing(index, monkeypatch):
    import socket

    temporary = index / "temporary"
    temporary.mkdir()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(60)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        environment = os.environ | {"UV_DEFAULT_INDEX": url, "TMPDIR": str(temporary)}
        process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], env=environment, stderr=subprocess.PIPE)
        connection, _ = silent.accept()  # uv is waiting for its answer
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate(timeout=60)[1]
        connection.settimeout(60)
        while connection.recv(4096):  # until uv's end of the connection is closed: it was killed
            pass
        connection.close()
    assert [path for path in temporary.iterdir() if path.name.startswith("devkit-")] == []


@cases(
    "text, found",
    {
        "an index for chosen packages is not asked for others": (
            '[[index]]\nurl = "https://a.example/simple"\nexplicit = true\n[[index]]\nurl = "https://b.example/simple"\n',
            ("https://b.example/simple", "https://pypi.org/simple"),
        ),
        "another default": ('index-url = "https://own/simple"', ("https://own/simple",)),
        "an index that is the default": (
            '[[index]]\nurl = "https://own/simple"\ndefault = true',
            ("https://own/simple",),
        ),
    },
)
def test_the_indexes_of_uvs_own_file(tmp_path, monkeypatch, text, found):
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "PIP_INDEX_URL", "HOME"):
        monkeypatch.setenv(variable, "")
    (tmp_path / "uv.toml").write_text(text)
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
    assert package_indexes.list_own_indexes() == found


def test_where_uv_distrusts_the_index_the_certificates_of_the_system_are_tried(index, monkeypatch):
    """A stand-in says what uv says behind a company's proxy: the certificates of this system are not a test's to change."""
    program, refusal = index / "uv", "invalid peer certificate: UnknownIssuer"
    program.write_text(
        f"""#!/bin/sh
case "$UV_SYSTEM_CERTS $*" in " pip compile"*) echo "error: error sending request: {refusal}" >&2; exit 2 ;; esac
exec {find_uv()} "$@"
"""
    )
    program.chmod(0o755)
    monkeypatch.setattr("devkit.probe.uv_resolver.find_uv", lambda: str(program))
    for variable in ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS", "SSL_CERT_DIR"):
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv("SSL_CERT_FILE", "/the/users/own.pem")
    refused = resolve("hub\n")
    assert isinstance(refused, Unknown)
    assert "does not trust the certificate of the package index" in refused.reason
    monkeypatch.setenv("SSL_CERT_FILE", "")
    assert dict(resolve("hub\n").packages) == {"hub": "2.4"}


def test_without_the_package_uv_the_one_on_path_is_taken(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uv", None)
    program = tmp_path / ("uv.exe" if sys.platform == "win32" else "uv")
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_uv() == str(program)


def test_settings_of_pip_and_uv_are_read_from_their_files_and_variables(tmp_path, monkeypatch):
    variables = (*package_indexes._VARIABLES, *package_indexes._OFFLINE)
    for variable in (*variables, "UV_CONFIG_FILE", "PIP_CONFIG_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".config/pip"
    folder.mkdir(parents=True)
    (folder / "pip.conf").write_text(
        "[global]\nindex-url = https://a.example/simple\nfind-links = /srv/wheels https://a.example/wheels\n"
        "[install]\nextra-index-url = https://b.example/simple file:///srv/simple\nno-index = no\n"
    )
    assert package_indexes.find_pip_index() == ("https://a.example/simple", ("https://b.example/simple",))
    assert package_indexes.list_wheel_folders() == ("/srv/wheels", "https://a.example/wheels")
    assert package_indexes.find_offline_setting() == ""
    environment = build_uv_environment()
    assert environment["UV_DEFAULT_INDEX"] == "https://a.example/simple"
    assert environment["UV_INDEX"] == "https://b.example/simple"
    allowed = package_indexes.find_allowed_indexes()
    assert {"https://a.example/simple", "https://b.example/simple", "/srv/wheels"} < {*allowed}
    monkeypatch.setenv("PIP_INDEX_URL", "file:///srv/simple")
    monkeypatch.setenv("UV_FIND_LINKS", "/srv/own,/srv/wheels")
    assert package_indexes.find_pip_index()[0] == "https://a.example/simple"
    assert package_indexes.list_wheel_folders() == ("/srv/own", "/srv/wheels", "https://a.example/wheels")
    monkeypatch.setenv("UV_INDEX", "own=https://me:secret@c.example/simple/")
    assert package_indexes.find_pip_index() == ("", ())
    allowed = package_indexes.find_allowed_indexes()
    assert "https://c.example/simple" in allowed and "secret" not in str(allowed)
    (tmp_path / "own.conf").write_text("[global]\nno-index = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "own.conf"))
    assert package_indexes.find_offline_setting() == "no-index of pip.conf"
    monkeypatch.setenv("PIP_NO_INDEX", "on")
    assert package_indexes.find_offline_setting() == "PIP_NO_INDEX"


def test_what_the_user_allows_is_remembered_once_and_for_this_run_without_a_home(tmp_path, monkeypatch):
    monkeypatch.setattr("devkit.probe.package_indexes._ALLOWED_NOW", set())
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    one, two = "https://a.example", "https://b.example"
    for address in (one, two, one):
        package_indexes.remember_indexes([address])
    assert json.loads((tmp_path / "devkit/allowed-indexes.json").read_text()) == [one, two]
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "gone"))
    with pytest.raises(DevkitError, match="no home folder for x"):
        write_user_file("x", b"")
    package_indexes.remember_indexes(["https://c.example"])
    assert "https://c.example" in package_indexes.find_allowed_indexes()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with pytest.raises(DevkitError, match=r"cannot write .*/file/devkit/x: Not a directory"):
        write_user_file("x", b"")


@pytest.mark.parametrize(
    ("environment", "url", "says"),
    [
        (
            {"HTTPS_PROXY": "http://me:secret@proxy:3128"},
            "https://pypi.org",
            " through the proxy proxy:3128 (HTTPS_PROXY)",
        ),
        ({"ALL_PROXY": "http://proxy:1"}, "https://pypi.org/simple", " through the proxy proxy:1 (ALL_PROXY)"),
        ({"HTTPS_PROXY": "me:secret@proxy:1"}, "https://pypi.org", " through the proxy proxy:1 (HTTPS_PROXY)"),
        ({"HTTP_PROXY": "http://proxy:1"}, "https://pypi.org", ""),
        ({"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": ".org"}, "https://pypi.org", ""),
    ],
)
def test_an_address_that_is_not_reached_is_told_with_its_proxy(monkeypatch, environment, url, says):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert describe_proxy(url) == says


def test_a_resolver_refuses_a_variable_that_is_no_address(monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "an index of packages")
    with pytest.raises(DevkitError, match="UV_DEFAULT_INDEX"):
        UvResolver(RequirementSources())


def test_what_is_known_of_a_source_distribution_or_left_out_is_not_read_once_more():
    unbuilt = uv_resolver.UNBUILT.search("Failed to build `a==1`")
    resolver = UvResolver(RequirementSources())
    assert not resolver._read_metadata("uv", unbuilt, {("a", "1"): ()}, {})
    assert not resolver._read_metadata("uv", unbuilt, {}, {"a": "1"})


def test_the_index_is_asked_once_for_the_pythons_of_a_package(monkeypatch):
    asked = []
    monkeypatch.setattr(uv_resolver, "find_offline_setting", lambda: "")
    monkeypatch.setattr(release_names, "list_compiled_pythons", lambda *each: asked.append(each) or ("3.11",))
    resolver = UvResolver(RequirementSources())
    for _ in range(2):
        assert [*resolver._list_elsewhere([("a", "1", "3.13")])] == [("a", ("3.11",))]
    assert asked == [("a", "1", "3.13")]
