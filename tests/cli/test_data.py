"""`devkit data` lists the version tables."""

import json

from devkit.compat.version_tables import TABLE_NAMES
from tests.forked_commands import run_devkit


def test_every_table_is_listed_with_its_age_and_rows():
    text, document = run_devkit("data"), json.loads(run_devkit("data", "--json").stdout)
    assert [line.split()[0] for line in text.stdout.splitlines()] == list(TABLE_NAMES)
    assert (document["schema"], document["faults"]) == ("devkit.data/1", [])
    assert [each["name"] for each in document["tables"]] == list(TABLE_NAMES)
    assert all(each["rows"] and each["origin"] == "shipped" for each in document["tables"])
