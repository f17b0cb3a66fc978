"""The modules of wheels, read by ranges of a file on a server, and the imports that none of them provides."""

import io
import re
import zipfile
from contextlib import ExitStack, suppress

import pytest

from devkit.probe import wheel_files
from devkit.probe.dependencies.imports import find_unprovided_imports
from devkit.probe.host import LocalHost
from devkit.probe.project.files import ProjectFiles
from devkit.probe.wheel_files import MAX_STEPS, MAX_WHOLE_BYTES, WheelReader, find_modules
from tests.loopback import QuietHandler, serving


def wheel(*names: str, padding: int = 0) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("big.bin", b"\0" * padding)
        for name in names:
            archive.writestr(name, "")
    return content.getvalue()


@pytest.fixture
def serve(monkeypatch, tmp_path):
    """A server of one file, with ranges or without; the bytes that it sent are counted."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers = ExitStack()

    def start(content: bytes, *, has_ranges: bool, excess_mb: int = 0):
        class Handler(QuietHandler):
            sent = 0

            def do_GET(self) -> None:  # noqa: N802
                body, first = content, 0
                if has_ranges and (span := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))):
                    first = int(span[1]) if span[1] else max(0, len(content) - int(span[2]))
                    body = content[first : int(span[2]) + 1] if span[1] else content[first:]
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{len(content)}")
                else:
                    self.send_response(200)
                self.send_header("Content-Length", str(len(body) + (excess_mb << 20)))
                self.end_headers()
                with suppress(OSError):
                    for part in (body, *excess_mb * [bytes(1 << 20)]):
                        self.wfile.write(part)
                        Handler.sent += len(part)

        return f"{servers.enter_context(serving(Handler))}/a-1-py3-none-any.whl", Handler

    with servers:
        yield start


def test_of_a_large_wheel_its_end_is_read_and_that_once(serve):
    names = [f"big/module_{number}.py" for number in range(3000)]
    url, handler = serve(wheel(*names, "more.py", padding=MAX_WHOLE_BYTES + 1), has_ranges=True)
    assert WheelReader({"a": url}).modules == {"a": {"big", "more"}}
    assert 0 < handler.sent < 1 << 20
    before = handler.sent
    assert WheelReader({"a": url}).modules == {"a": {"big", "more"}}
    assert handler.sent == before


@pytest.mark.parametrize(("padding", "found"), [(0, {"a": {"small"}}), (MAX_WHOLE_BYTES + 1, {})])
def test_without_ranges_a_wheel_is_read_whole_if_it_is_small(serve, padding, found):
    url, _ = serve(wheel("small/__init__.py", padding=padding), has_ranges=False)
    assert WheelReader({"a": url}).modules == found


def test_a_server_that_sends_without_end_is_not_read_to_it(serve):
    url, handler = serve(wheel("small/__init__.py"), has_ranges=True, excess_mb=100)
    WheelReader({"a": url}).list_imports(())
    assert 0 < handler.sent < 20 << 20


def test_what_cannot_be_read_is_left_out(serve, tmp_path):
    (tmp_path / "b.whl").write_bytes(wheel("local.py"))
    url, _ = serve(b"no wheel", has_ranges=True)
    wheels = {"a": url, "b": (tmp_path / "b.whl").as_uri(), "c": "ftp://x.example/c.whl"}
    assert WheelReader(wheels).modules == {"b": {"local"}}


def test_the_modules_of_a_wheel():
    files = (
        *("yaml/__init__.py", "_yaml/__init__.py", "_cffi.cpython-312-x86_64-linux-gnu.so", "six.py", "fast.abi3.so"),
        *("a.libs/libgfortran.so", "a-1.dist-info/METADATA", "a-1.data/purelib/inner/x.py", "a-1.data/scripts/run.py"),
        "docs/readme.txt",
    )
    assert find_modules(files) == {"yaml", "_yaml", "_cffi", "six", "fast", "inner"}


def test_what_packages_import_is_followed_from_what_a_project_imports(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    files = {
        "net/__init__.py": "",
        "net/log/__init__.py": "import board\nfrom .writer import Writer\nfrom net.hub import load\nimport kept\n",
        "net/_vendor/kept/__init__.py": "",
        "net/log/writer.py": "try:\n    import wheelless\nexcept ImportError:\n    wheelless = None\ndef f():\n    import late\n",
        "net/hub.py": "try:\n    import asked\nexcept ImportError as error:\n    raise ImportError('pip install asked') from error\n",
        "net/unused.py": "import never\n",
        "a-1.data/purelib/flat.py": "from net.log import Writer\nimport chain_1\n",
        **{f"chain_{step}.py": f"import chain_{step + 1}\n" for step in range(1, MAX_STEPS + 2)},
    }
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    url = (tmp_path / "a.whl").as_uri()
    # Of `from net.log import Writer` only net.log is a module.
    found = WheelReader({"a": url}).list_imports(["net.log.Writer", "other"])
    assert found["board"] == ("board", "net/log/__init__.py", 1)
    assert found["asked"] == ("asked", "net/hub.py", 2)
    assert found.keys() == {"net", "board", "asked"}
    followed = WheelReader({"a": url}).list_imports(["flat"])
    assert followed["chain_1"] == ("chain_1", "flat.py", 2) and followed["board"][1] == "net/log/__init__.py"
    assert f"chain_{MAX_STEPS}" in followed and f"chain_{MAX_STEPS + 1}" not in followed
    monkeypatch.setattr(wheel_files, "MAX_MODULES", 1)
    assert WheelReader({"a": url}).list_imports(["chain_1"]).keys() == {"chain_2"}
    monkeypatch.undo()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    # What was read is not read again.
    (tmp_path / "a.whl").unlink()
    assert WheelReader({"a": url}).list_imports(["net.log.Writer", "other"]) == found


def test_imports_that_neither_a_wheel_nor_the_project_provides(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/model.py").write_text(
        "import os, yaml\nimport tensornvme\nfrom pkg import other\n"
        "try:\n    import apex\nexcept ImportError:\n    apex = None\n\ndef late():\n    import lazy\n"
    )
    found = find_unprovided_imports(ProjectFiles(LocalHost(), str(tmp_path)), {"yaml"})
    assert found == (("tensornvme", "pkg/model.py", 2),)
    reached = (("yaml.nodes", "tools/run.py", 1), ("pkg.model", "tools/run.py", 2), ("engine.core", "tools/run.py", 3))
    found = find_unprovided_imports(ProjectFiles(LocalHost(), str(tmp_path)), {"yaml"}, reached)
    assert found == (("engine", "tools/run.py", 3), ("tensornvme", "pkg/model.py", 2))
