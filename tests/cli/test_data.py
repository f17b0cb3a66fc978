"""`devkit data` from the outside: newer tables are validated, used by every command, and never in the way."""

import io
import json
import re
import tarfile
import zipfile

import pytest

from devkit.compat.version_tables import TABLE_NAMES, read_shipped_bytes
from tests.forked_commands import run_devkit
from tests.hosts.golden import facts_file

pytestmark = pytest.mark.full

ADDED = (
    "gpu = [\n",
    (
        'gpu = [\n  { id = "x1", name = "NVIDIA X1", aliases = [], capability = "12.0", kind = "geforce", '
        'memory_gib = [32], forward = false, source = ["cuda-gpus"], confidence = "single-source" },\n'
    ),
)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "data home"


@pytest.fixture
def devkit(home):
    def run(*words, **environ):
        return run_devkit(*words, **{"NO_COLOR": "1", "COLUMNS": "120", "XDG_DATA_HOME": str(home), **environ})

    return run


@pytest.fixture
def gpus(tmp_path):
    """A table of GPUs with one more, which nobody sells."""
    path = tmp_path / "gpus.toml"
    path.write_text(changed("gpus", ADDED))
    return path


def changed(name, *replacements):
    text = read_shipped_bytes(name).decode()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def stored(home):
    return home / "devkit" / "tables.json"


def origins(devkit):
    return {row["name"]: row["origin"] for row in json.loads(devkit("data", "show", "--json").stdout)["tables"]}


def test_the_shipped_tables_are_in_use_without_a_home_file(devkit, home):
    done = devkit("data", "show")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(TABLE_NAMES)
    assert "refreshed" not in done.stdout and not home.exists()


def test_a_newer_table_is_used_by_plan_and_doctor_until_it_is_dropped(devkit, gpus):
    before = devkit("plan", "--gpu", "X1", "--driver", "580.95.05")
    assert before.returncode == 2 and "unknown GPU" in before.stderr
    done = devkit("data", "update", gpus)
    assert done.returncode == 0 and "in use" in done.stdout, done.stderr
    assert origins(devkit)["gpus"] == "refreshed" and origins(devkit)["torch"] == "shipped"
    after = devkit("plan", "--gpu", "X1", "--driver", "580.95.05")
    assert (after.returncode, after.stderr) == (0, "")
    assert "NVIDIA X1 (12.0)" in after.stdout
    examined = devkit("doctor", "--facts", facts_file("ubuntu-4090-ok"), "--json")
    assert (examined.returncode, examined.stderr) == (0, "")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", json.loads(examined.stdout)["data_as_of"])
    assert devkit("data", "reset").returncode == 0
    assert set(origins(devkit).values()) == {"shipped"}
    assert "unchanged" in devkit("data", "reset").stdout


def test_tables_that_do_not_pass_are_listed_whole_and_nothing_is_written(devkit, home, tmp_path):
    (tmp_path / "gpus.toml").write_text(changed("gpus", ('capability = "8.9"', 'capability = "9.0"')))
    (tmp_path / "driver.toml").write_text(changed("driver", ("schema = 1", "schema = 7"), ('"450.80.02"', '"x"')))
    text, document = devkit("data", "update", tmp_path), devkit("data", "update", tmp_path, "--json")
    assert (text.returncode, document.returncode) == (1, 1)
    assert "schema is 7" in text.stdout and "linux_driver is 'x'" in text.stdout
    assert len(json.loads(document.stdout)["faults"]) == 2
    assert json.loads(document.stdout)["verdict"] == "refused"
    assert not home.exists()


def test_force_takes_what_differs_from_the_shipped_tables_and_never_what_is_wrong(devkit, home, tmp_path):
    path = tmp_path / "gpus.toml"
    path.write_text(changed("gpus", ('as_of = "2026-11-21"', 'as_of = "2025-01-01"')))
    refused = devkit("data", "update", path)
    assert refused.returncode == 1 and "--force uses these" in refused.stdout
    assert devkit("data", "update", path, "--force", "--dry-run").returncode == 0 and not home.exists()
    assert devkit("data", "update", path, "--force").returncode == 0
    assert "2025-01-01" in devkit("data", "show").stdout
    path.write_text(changed("gpus", ("schema = 1", "schema = 2")))
    assert devkit("data", "update", path, "--force").returncode == 1


def packed_zip(path, names):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in names.items():
            archive.writestr(name, content)


def packed_tar(path, names):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in names.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(("pack", "name"), [(packed_zip, "t.zip"), (packed_tar, "t.tar.gz")], ids=["zip", "tar"])
def test_an_archive_of_several_tables_is_read_without_unpacking_it(devkit, tmp_path, pack, name):
    text = changed("gpus", ADDED).encode()
    members = {
        "../../gpus.toml": text,
        "tables/torch.toml": read_shipped_bytes("torch"),
        "README.md": b"",
        "x.toml": b"!",
    }
    pack(tmp_path / name, members)
    done = devkit("data", "update", tmp_path / name)
    assert done.returncode == 0, done.stderr
    assert origins(devkit)["gpus"] == "refreshed" and origins(devkit)["torch"] == "shipped"
    assert not (tmp_path.parent / "gpus.toml").exists()


WRONG = {
    "a file that is not there": ("gpus.toml", None, "No such file"),
    "a file that is no TOML": ("gpus.toml", b"gpu = [", "is not TOML"),
    "a file in another encoding": ("gpus.toml", b"# \xff\n", "is not TOML"),
    "brackets without end": ("gpus.toml", b"x = " + b"[" * 5000, "is not TOML"),
    "a table of something else": ("pyproject.toml", b"[project]\n", "none of devkit's version tables"),
    "a file larger than any table": ("gpus.toml", b"#" * (5 << 20), "too large"),
    "an archive that is none": ("tables.zip", b"PK", "no readable archive"),
}


@pytest.mark.parametrize(("name", "content", "says"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_one_line_and_a_hint(devkit, home, tmp_path, name, content, says):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = devkit("data", "update", tmp_path / name)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr.splitlines()[0] and len(done.stderr.splitlines()) == 2
    assert not home.exists()


DAMAGES = {
    "cut off": lambda content: content[: len(content) // 2],
    "changed by one byte": lambda content: content.replace(b'"12.0"', b'"13.0"', 1),
    "JSON of something else": lambda content: b"[1]\n{}\n",
    "validated against other tables": lambda content: content.replace(b'"beside": ', b'"beside": 1', 1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_breaks_no_command_and_is_named_once(devkit, gpus, home, damage):
    devkit("data", "update", gpus)
    stored(home).write_bytes(damage(stored(home).read_bytes()))
    done = devkit("plan", "--gpu", "RTX 4090", "--driver", "580.95.05", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["verdict"] == "plan"
    assert done.stderr.count("\n") == 1
    assert str(stored(home)) in done.stderr and "devkit data reset" in done.stderr
    assert devkit("data", "update", gpus).returncode == 0
    assert origins(devkit)["gpus"] == "refreshed"
    assert devkit("plan", "--gpu", "X1").stderr == ""
