"""`devkit exporter` and `doctor --format prometheus`, read by Prometheus' own client while the driver hangs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from devkit.cli.doctor import doctor
from tests.forked_commands import ROOT
from tests.hosts import MACHINES
from tests.hosts.golden import expected_document
from tests.nvml_stub import build_stub, stub_environment

SCRAPE_S = 0.05


def parse(text):
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


@pytest.mark.parametrize("machine", sorted(MACHINES)[::40])
def test_a_report_is_valid_text_for_the_textfile_collector(machine, tmp_path):
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps(expected_document(machine)))
    found = parse(CliRunner().invoke(doctor, ["--facts", str(facts), "--format", "prometheus"]).stdout)
    document = json.loads(CliRunner().invoke(doctor, ["--facts", str(facts), "--json"]).stdout)
    assert {each.labels["verdict"]: each.value for each in found["devkit_doctor_verdict"]}[document["verdict"]] == 1
    assert sum(each.value for each in found["devkit_doctor_verdict"]) == 1
    codes = {row["code"] for row in document["outcomes"] if row["status"] == "found"}
    assert {each.labels["code"] for each in found["devkit_doctor_finding"]} == codes
    assert sum(each.value for each in found["devkit_doctor_checks"]) == len(document["outcomes"])


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is a Linux library")
def test_a_scrape_is_answered_at_once_while_the_driver_hangs(tmp_path):
    stub = build_stub(tmp_path)
    environment = {**os.environ, **stub_environment(stub, gpus=8, fail="nvmlInit_v2=hang")}
    words = [sys.executable, "-m", "devkit", "exporter", "--port", "0", "--every", "1", "--timeout", "2"]
    with subprocess.Popen(words, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True) as server:
        try:
            address = server.stderr.readline().split()[1]
            port = int(address.rsplit(":", 1)[1].split("/")[0])
            times, found, deadline_s = [], {}, time.monotonic() + 60
            while "devkit_doctor_finding" not in found or len(times) < 40:
                assert time.monotonic() < deadline_s, found
                began = time.process_time(), time.monotonic()
                found = parse(urllib.request.urlopen(address, timeout=10).read().decode())
                times.append(time.monotonic() - began[1])
                if len(times) == 5:
                    with socket.create_connection(("127.0.0.1", port)) as garbage:
                        garbage.sendall(os.urandom(4096))
                time.sleep(0.1)
            assert sorted(times)[len(times) // 2] < SCRAPE_S
            assert {each.labels["code"] for each in found["devkit_doctor_finding"]} >= {"DRV003"}
            assert found["devkit_exporter_up"][0].value == 1
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(20) == 130
