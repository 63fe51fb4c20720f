"""The file of a rehearsal's links: what ranks are told of it, and that a bad one is refused before anything starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus import _hosts, _links, rehearse
from patience import patient

FLEET = "nvidia:1,amd:1@a,cpu:1"
SIMULATED = tuple(rehearse.DEVICES)


def read(folder: Path, data: Any, fleet: str = FLEET) -> _links.Links:
    file = folder / "links.json"
    file.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return _links.read_links(file, rehearse.parse_fleet(fleet), SIMULATED)


def test_rates_become_switches_of_their_ranks(tmp_path: Path) -> None:
    links = read(
        tmp_path,
        {
            "nvidia": {"copy_out_gbps": 12, "copy_in_gbps": 11.5, "fabric_gbps": 100, "latency_us": 10, "gate_us": 20},
            "amd": {"copy_out_gbps": 3, "copy_in_gbps": 4},
            "a": {"copy_in_gbps": 5},
        },
        "nvidia:1,amd:1@a,cpu:1,amd:1",
    )
    nvidia, labelled, cpu, amd = links.switches
    assert nvidia == {
        "REHEARSAL_COPY_OUT_GBPS": "12", "REHEARSAL_COPY_IN_GBPS": "11.5", "REHEARSAL_FABRIC_GBPS": "100",
        "REHEARSAL_LATENCY_US": "10", "REHEARSAL_GATE_US": "20",
    }  # fmt: skip
    assert labelled == {"REHEARSAL_COPY_OUT_GBPS": "3", "REHEARSAL_COPY_IN_GBPS": "5"}
    assert amd == {"REHEARSAL_COPY_OUT_GBPS": "3", "REHEARSAL_COPY_IN_GBPS": "4"}
    assert cpu == {} and links.bridges == {}


def test_bridges_are_those_of_islands(tmp_path: Path) -> None:
    assert read(tmp_path, {name: {"bridge_mbps": 50} for name in ("nvidia", "a", "cpu")}).bridges == {
        "nvidia": 50, "a": 50, "cpu": 50,
    }  # fmt: skip
    mixed = {"nvidia": {"bridge_mbps": 1}, "amd": {"bridge_mbps": 2}, "a": {"bridge_mbps": 0.5}}
    assert read(tmp_path, mixed, "nvidia:1@a,amd:1@a,amd:2").bridges == {"a": 0.5, "amd": 2}
    assert read(tmp_path, {}).bridges == {}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not JSON: "),
        (b"{", "not JSON: "),
        (b"\xff", "not JSON: "),
        (b"[" * 60_000, "lists within lists"),
        (b'{"nvidia": {"latency_us": ' + b"1" * 5000 + b"}}", "not JSON: "),
        (b" " * (64 << 10) + b"{}", "more than 64 KiB"),
        (b'{"nvidia": {}, "nvidia": {}}', "nvidia is there twice"),
        ([], "expected an object of JSON, with an entry for each island"),
        ({"nvidia": 5}, "nvidia: expected an object of JSON, with some of copy_out_gbps, "),
        ({"ascend": {}}, "ascend: the fleet has no island and no vendor of this name; it has nvidia, a, amd, cpu"),
        ({"x" * 500: {}}, "x" * 57 + "...: the fleet has no"),
        ({"nvidia": {"copy_gbps": 1}}, "nvidia.copy_gbps: no such rate; there are copy_out_gbps, "),
        ({"nvidia": {"copy_out_gbps": "1"}}, 'nvidia.copy_out_gbps: "1" is not a number from 0.001 to 10000'),
        ({"nvidia": {"copy_out_gbps": True}}, "nvidia.copy_out_gbps: true is not a number"),
        ({"nvidia": {"copy_out_gbps": None}}, "nvidia.copy_out_gbps: null is not a number"),
        ({"nvidia": {"copy_in_gbps": 0}}, "nvidia.copy_in_gbps: 0 is not a number from"),
        ({"a": {"fabric_gbps": -1}}, "a.fabric_gbps: -1 is not a number from"),
        ({"a": {"fabric_gbps": 10_001}}, "a.fabric_gbps: 10001 is not a number from 0.001 to 10000"),
        (b'{"nvidia": {"bridge_mbps": NaN}}', "nvidia.bridge_mbps: NaN is not a number from 0.01 to 100000"),
        ({"nvidia": {"latency_us": 1e7}}, "nvidia.latency_us: 10000000.0 is not a number from 1 to 1e+06"),
        ({"cpu": {"copy_out_gbps": 1}}, "cpu.copy_out_gbps: no rank of it has a simulated device"),
        (
            {"nvidia": {"bridge_mbps": 1}, "cpu": {"bridge_mbps": 1}},
            "a has no bridge_mbps; give it to all islands or to none",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path: Path, data: Any, complaint: str) -> None:
    with pytest.raises(isthmus.ArgumentError) as caught:
        read(tmp_path, data)
    text = str(caught.value)
    assert text.startswith(f"links {tmp_path}/links.json: ") and complaint in text and "\n" not in text, text


def test_islands_whose_rate_is_not_one_are_refused(tmp_path: Path) -> None:
    rates = {"nvidia": {"bridge_mbps": 1}, "amd": {"bridge_mbps": 2}}
    with pytest.raises(isthmus.ArgumentError, match="a: its vendors differ in bridge_mbps"):
        read(tmp_path, rates, "nvidia:1@a,amd:1@a")
    with pytest.raises(isthmus.ArgumentError, match="amd is a label and a vendor whose ranks have none"):
        read(tmp_path, rates, "nvidia:1@amd,amd:1,amd:1@nvidia")


def test_a_file_that_is_not_there_is_named_on_the_command_line(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.json", "No such file"), (tmp_path, "Is a directory")):
        ended = subprocess.run(
            [sys.executable, "-m", "isthmus", "rehearse", "--fleet", "cpu:1", "--links", str(path), "--", "true"],
            capture_output=True, text=True, timeout=patient(60), check=False,
        )  # fmt: skip
        assert ended.returncode == 2 and not ended.stdout
        assert ended.stderr.startswith(f"isthmus rehearse: links {path}: cannot be read: {reason}"), ended.stderr


def test_ranks_are_told_and_a_switch_goes_first(tmp_path: Path) -> None:
    file = tmp_path / "links.json"
    file.write_text('{"nvidia": {"copy_out_gbps": 3, "copy_in_gbps": 2, "latency_us": 7}}')
    program = [sys.executable, "-S", "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    with rehearse.start(program, "nvidia:1,cpu:1", switches={"COPY_IN_GBPS": "9"}, links=file) as job:
        nvidia, cpu = [json.loads(result.stdout) for result in job.wait(patient(60))]
    rates = {name: value for name, value in nvidia.items() if name.startswith(("REHEARSAL_COPY", "REHEARSAL_LATENCY"))}
    assert rates == {"REHEARSAL_COPY_OUT_GBPS": "3", "REHEARSAL_COPY_IN_GBPS": "9", "REHEARSAL_LATENCY_US": "7"}
    assert "REHEARSAL_LATENCY_US" not in cpu and "ISTHMUS_BRIDGE_RATES" not in nvidia and "ISTHMUS_ISLAND" not in nvidia


def test_bridges_go_with_messages_only(tmp_path: Path) -> None:
    file = tmp_path / "links.json"
    file.write_text('{"cpu": {"bridge_mbps": 3}}')
    with pytest.raises(isthmus.ArgumentError, match="bridge=shm, but links with bridge_mbps make a host of every island"):
        rehearse.start(["true"], "cpu:1", bridge="shm", links=file)


def test_without_root_or_tools_bridges_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "links.json"
    file.write_text('{"cpu": {"bridge_mbps": 3}}')
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(isthmus.Error, match="bridge rates need root"):
        rehearse.start(["true"], "cpu:1", links=file)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(_hosts, "_TOOLS", ("sh", "no-such-tool", "nor-this"))
    with pytest.raises(isthmus.Error, match="need `no-such-tool` and `nor-this` .*; not found"):
        rehearse.start(["true"], "cpu:1", links=file)
