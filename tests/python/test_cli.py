"""The command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

from isthmus import __main__, launch
from isthmus.cli import bench, layout, svg
from isthmus.cli.explain import parse_bytes
from patience import patient


def command(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, "COLUMNS": "200", **(env or {})}
    words = [sys.executable, "-m", "isthmus", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=patient(90), check=False, env=whole)


def test_doctor_finds_a_working_installation() -> None:
    ended = command("doctor")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 ranks agree" in ended.stdout and "shared memory" in ended.stdout and "TCP" in ended.stdout


def test_doctor_gives_data_and_settings() -> None:
    ended = command("doctor", "--json", "--no-test")
    report = json.loads(ended.stdout)
    assert report["ok"] is True
    assert {"isthmus", "library", "python", "torch", "processor", "front doors"} <= {
        finding["subject"] for finding in report["findings"]
    }
    assert any(row["name"] == "ISTHMUS_TIMEOUT" for row in report["settings"])
    listed = command("doctor", "--settings", "--no-test")
    assert "ISTHMUS_EAGER_BYTES" in listed.stdout and "one-hop" in listed.stdout


def test_doctors_last_line_says_whether_it_works_and_what_nobody_asked_for_is_there_alone() -> None:
    ended = command("doctor", "--no-test", env={"COLUMNS": ""})
    *lines, last = ended.stdout.strip().splitlines()
    assert ended.returncode == 0 and re.match(r"isthmus works(, without .*\(`isthmus doctor --json` says why\))?$", last), (
        last
    )
    assert not any(line.startswith("note") and re.search("librccl|libhccl|libascendcl", line) for line in lines)
    assert not any("…" in line or line.endswith(" ") for line in lines)


def test_doctor_judges_what_was_asked_for() -> None:
    ended = command("doctor", "--no-test", env={"ISTHMUS_DEVICE": "acl:7"})
    last = ended.stdout.strip().splitlines()[-1]
    assert ended.returncode == 1 and last.startswith("isthmus does not work: acl"), ended.stdout


def test_settings_answers_for_one_and_finds_what_was_meant() -> None:
    one = command("settings", "timeout", env={"ISTHMUS_TIMEOUT": "7"})
    assert one.returncode == 0 and one.stdout.startswith("ISTHMUS_TIMEOUT = 7   (given)\n") and "range:" in one.stdout
    every = command("settings").stdout.splitlines()
    assert any(line.split()[:2] == ["ISTHMUS_BRIDGE_RATES", "(empty)"] for line in every)
    wrong = command("settings", "TIMEOT")
    assert wrong.returncode == 1 and "did you mean ISTHMUS_TIMEOUT?" in wrong.stderr


def test_launch_hands_every_setting_on_and_refuses_those_that_it_sets() -> None:
    # One write for each rank: their lines must not mix.
    said = "import os; os.write(1, f\"{os.environ['ISTHMUS_ISLAND']} {os.environ['ISTHMUS_BRIDGE']}\\n\".encode())"
    program = [sys.executable, "-c", said]
    ended = command("launch", "--ranks", "2", "--", *program, env={"ISTHMUS_ISLAND": "far", "ISTHMUS_BRIDGE": "tcp"})
    assert ended.returncode == 0 and ended.stdout.splitlines() == ["far tcp"] * 2, ended.stdout + ended.stderr
    refused = command("launch", "--ranks", "2", "--", *program, env={"ISTHMUS_WORLD_SIZE": "3"})
    assert refused.returncode == 2 and "ISTHMUS_WORLD_SIZE" in refused.stderr


def test_the_page_of_settings_is_the_librarys_table() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
    assert command("doctor", "--markdown").stdout == page.read_text(), "isthmus doctor --markdown > docs/settings.md"


def test_doctor_names_a_bad_setting_and_ends_with_1() -> None:
    ended = command("doctor", "--no-test", env={"ISTHMUS_SPIN_US": "soon"})
    assert ended.returncode == 1
    assert "ISTHMUS_SPIN_US=soon" in ended.stdout and "correct or unset" in ended.stdout


def test_topo_shows_islands_as_text_data_and_drawing(tmp_path: Path) -> None:
    drawing = tmp_path / "topology.svg"
    ended = command("topo", "--ranks", "4", "--islands", "a:2,b:2", "--bridge", "tcp", "--svg", str(drawing))
    assert ended.returncode == 0, ended.stderr
    assert "4 ranks on 2 islands and 1 host" in ended.stdout and "island b" in ended.stdout and "TCP" in ended.stdout
    xml.etree.ElementTree.parse(drawing)
    text = drawing.read_text()
    assert text.count("<circle") == 4 and ">TCP<" in text
    data = json.loads(command("topo", "--islands", "a:1,b:1", "--json").stdout)
    assert [island["ranks"] for island in data["islands"]] == [[0], [1]]


def test_topo_joins_a_launched_job_and_only_rank_0_speaks() -> None:
    with launch.start([sys.executable, "-m", "isthmus", "topo"], 3, islands="x:1,y:2") as job:
        results = job.wait(patient(60))
    assert [end.returncode for end in results] == [0, 0, 0], results
    assert "3 ranks on 2 islands" in results[0].stdout and not results[1].stdout and not results[2].stdout


def test_explain_prints_a_plan() -> None:
    ended = command("explain", "all_reduce", "--ranks", "4", "--islands", "a:2,b:2", "--bridge", "tcp", "-b", "1M")
    assert ended.returncode == 0, ended.stderr
    assert "all_reduce" in ended.stdout and len(ended.stdout.splitlines()) > 3
    assert json.loads(command("explain", "broadcast", "-b", "64", "--json").stdout)


def test_explain_says_what_it_does_not_know() -> None:
    ended = command("explain", "all_reduse")
    assert ended.returncode == 1 and "all_reduse" in ended.stderr and "Traceback" not in ended.stderr


def test_launch_starts_local_ranks() -> None:
    program = "import isthmus; c = isthmus.init(); print(f'hello from {c.rank}\\n', end='', flush=True); c.destroy()"
    ended = command("launch", "--ranks", "2", "--", sys.executable, "-c", program)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["hello from 0", "hello from 1"]
    failed = command("launch", "--ranks", "2", "--", sys.executable, "-c", "raise SystemExit(3)")
    assert failed.returncode == 1 and "rank 0 ended with status 3" in failed.stdout


def test_bench_passes_its_arguments_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "isthmus-bench"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(bench, "find_benchmark", lambda: program)
    called: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: called.append(arguments))
    __main__.main(["bench", "all_reduce", "--ranks", "2", "-b", "8"])
    assert called == [[str(program), "all_reduce", "--ranks", "2", "-b", "8"]]


def test_bench_says_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "find_benchmark", lambda: None)
    monkeypatch.setattr(bench, "find_peers", lambda: None)
    assert __main__.main(["bench", "all_reduce"]) == 1
    assert "make build" in capsys.readouterr().err
    assert __main__.main(["bench", "--peers"]) == 1
    assert "source tree" in capsys.readouterr().err


def test_sizes_are_powers_of_two() -> None:
    assert [parse_bytes(text) for text in ("64", "64K", "8m", "1G")] == [64, 65536, 8 << 20, 1 << 30]
    assert command("explain", "all_reduce", "-b", "many").returncode == 2


def rank(host: str, island: str) -> dict[str, object]:
    return {"host": host, "hostname": host, "island": island, "device": "host", "pid": 1, "numa": 0}


def test_a_drawing_holds_every_host_island_and_rank_also_with_hostile_names() -> None:
    names = ["<a>", "b & c", "'d'"]
    ranks = [rank(f"node-{r // 6}", names[r // 6]) for r in range(18)]
    groups = [{"island": names[h], "ranks": list(range(6 * h, 6 * h + 6)), "host": f"node-{h}"} for h in range(3)]
    hosts = [{"host": f"node-{h}", "hostname": f"node-{h}", "ranks": list(range(6 * h, 6 * h + 6))} for h in range(3)]
    links = [{"from": a, "to": b, "kind": "memory" if a // 6 == b // 6 else "tcp"} for a in range(18) for b in range(18)]
    arranged = layout.Layout({"hosts": hosts, "groups": groups, "ranks": ranks, "links": links})
    assert arranged.title == "18 ranks on 3 islands and 3 hosts" and arranged.bridge == "TCP"
    assert arranged.hosts[0].islands[0].inside == "shared memory"
    root = xml.etree.ElementTree.fromstring(svg.draw(arranged))
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {*names, "node-0", "node-1", "node-2", *map(str, range(18))} <= texts
