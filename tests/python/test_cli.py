"""The command line."""

from __future__ import annotations

import argparse
import io
import json
import mmap
import os
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from isthmus import __main__, launch
from isthmus.cli import bench, common, doctor, layout, svg, topo, tune
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
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"
    assert command("doctor", "--markdown").stdout == page.read_text(), (
        "isthmus doctor --markdown > docs/reference/settings.md"
    )


@pytest.mark.parametrize(
    ("switch", "state"), [("always [advise] never", "ok"), ("always advise [never]", "note"), (None, "note")]
)
def test_doctor_says_whether_staging_memory_may_be_of_huge_pages(
    monkeypatch: pytest.MonkeyPatch, switch: str | None, state: str
) -> None:
    def read(path: Path) -> str:
        if switch is None:
            raise FileNotFoundError(2, "No such file or directory")
        return switch + "\n"

    monkeypatch.setattr(Path, "read_text", read)
    found = doctor.huge_pages()
    assert found.state == state and "shmem_enabled" in found.text
    assert bool(found.remedy) == (switch is not None and state == "note")


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
    loud = {"ISTHMUS_LOG": "info"}
    with launch.start([sys.executable, "-m", "isthmus", "topo"], 3, islands="x:1,y:2", env=loud) as job:
        results = job.wait(patient(60))
    assert [end.returncode for end in results] == [0, 0, 0], results
    assert "3 ranks on 2 islands" in results[0].stdout and not results[1].stdout and not results[2].stdout
    assert "rank 0 of 3" in results[0].stderr and "2 islands" in results[0].stderr  # the log counts alike
    assert re.search(r"host \S+ \(127\.0\.0\.1\)\n", results[0].stdout) and "rank 0  cpu  pid" in results[0].stdout


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
    monkeypatch.setattr(bench, "before_exec", lambda: None)  # this process goes on
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


def rank(host: str, island: str, **more: object) -> dict[str, object]:
    return {"host": host, "hostname": host, "island": island, "device": "host", "pid": 1, "numa": 0, **more}


def arranged(ranks: list[dict[str, Any]], groups: list[list[int]], **more: object) -> layout.Layout:
    """Ranks of a host share memory, others have TCP."""
    hosts = [{"host": one, "hostname": ranks[0]["hostname"]} for one in dict.fromkeys(rank["host"] for rank in ranks)]
    for host in hosts:
        host["hostname"] = next(rank["hostname"] for rank in ranks if rank["host"] == host["host"])
    numbers = range(len(ranks))
    same = [[ranks[a]["host"] == ranks[b]["host"] for b in numbers] for a in numbers]
    links = [{"from": a, "to": b, "kind": "memory" if same[a][b] else "tcp"} for a in numbers for b in numbers]
    made = [{"island": ranks[g[0]]["island"], "ranks": g, "host": ranks[g[0]]["host"], **more} for g in groups]
    return layout.Layout({"hosts": hosts, "groups": made, "ranks": ranks, "links": links})


def printed(shown: layout.Layout) -> str:
    console = Console(file=io.StringIO(), width=40)  # narrower than most lines
    topo.show(console, shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def texts(drawing: str) -> list[str]:
    root = xml.etree.ElementTree.fromstring(drawing)
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_a_drawing_holds_every_host_island_and_rank_also_with_hostile_names() -> None:
    names = ["<a>", "b & c", "'d'"]
    shown = arranged(
        [rank(f"node-{r // 6}", names[r // 6]) for r in range(18)], [list(range(6 * h, 6 * h + 6)) for h in range(3)]
    )
    assert shown.title == "18 ranks on 3 islands and 3 hosts" and shown.bridge == "TCP"
    assert shown.hosts[0].islands[0].inside == "shared memory"
    assert {*names, "node-0", "node-1", "node-2", *map(str, range(18))} <= set(texts(svg.draw(shown)))


def test_islands_without_a_label_are_counted_and_named_alike_on_one_host_and_on_two() -> None:
    one = arranged([rank("n1", ""), rank("n1", "")], [[0, 1]])
    two = arranged([rank(host, "") for host in ("n1", "n1", "n2", "n2")], [[0, 1], [2, 3]])
    assert one.title == "2 ranks on 1 island and 1 host" and two.title == "4 ranks on 2 islands and 2 hosts"
    for shown in (one, two):
        text, drawn = printed(shown), texts(svg.draw(shown))
        islands = len(shown.hosts)
        assert text.count("island cpu  (2 ranks, shared memory inside)") == islands and drawn.count("island") == islands
        assert text.count("host ") == islands and text.count("rank 0  cpu  pid 1") == 1, text
        assert shown.title in text and shown.title in drawn


def test_hosts_of_one_name_are_told_apart() -> None:
    by_address = arranged(
        [rank(one, "", hostname="pod", address=f"10.0.0.{n}") for n, one in enumerate("ab", 1)], [[0], [1]]
    )
    assert "host pod (10.0.0.1)" in printed(by_address) and "host pod (10.0.0.2)" in printed(by_address)
    assert {"pod (10.0.0.1)", "pod (10.0.0.2)"} <= set(texts(svg.draw(by_address)))
    by_identity = arranged([rank(one, "", hostname="pod", address="10.0.0.1") for one in ("a1", "b2")], [[0], [1]])
    assert [host.title() for host in by_identity.hosts] == ["pod a1 (10.0.0.1)", "pod b2 (10.0.0.1)"]


def test_an_island_that_a_library_serves_on_two_hosts_is_one_with_a_part_on_each() -> None:
    shown = arranged([rank(host, "a") for host in ("n1", "n2", "n2")], [[0, 1, 2]], ccl="x")
    text, drawing = printed(shown), svg.draw(shown)
    assert shown.title == "3 ranks on 1 island and 2 hosts"
    assert "island a  (1 rank of 3, x inside)" in text and "island a  (2 ranks of 3, x inside)" in text
    assert drawing.count("<circle") == 3 and len(set(re.findall("rx='20' fill='(#[0-9a-f]+)'", drawing))) == 1


def test_devices_of_two_makers_and_two_devices_of_one_number_are_told_apart() -> None:
    devices = [("red", "cuda:0", "Red 9 at 01:00.0"), ("red", "cuda:0", "Red 9 at 02:00.0"), ("blue", "cuda:0", "Blue 7")]
    ranks = [rank("n1", "", device=device, maker=maker, device_name=name) for maker, device, name in devices]
    shown = arranged(ranks, [[0, 1], [2]])
    text, drawing = printed(shown), svg.draw(shown)
    assert "rank 0  cuda:0 (Red 9 at 01:00.0)" in text and "rank 1  cuda:0 (Red 9 at 02:00.0)" in text
    assert "island red" in text and "island blue" in text
    assert (
        texts(drawing).count("blue") == 2 and "<title>Red 9 at 02:00.0</title>" in drawing
    )  # an island's name and a rank's maker


def boxes(drawing: str) -> tuple[tuple[float, float], list[tuple[str, float, float, float, float]], list[tuple[float, ...]]]:
    """The drawing's size; its texts, each with left, top, right and bottom; its circles."""
    root = xml.etree.ElementTree.fromstring(drawing)
    found = []
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        x, y, size = (float(element.attrib[name]) for name in ("x", "y", "font-size"))
        # DejaVu Sans, bold: the widest of those that a viewer takes.
        wide = svg.text_width(element.text or "", size)
        left = x - wide / 2 if element.attrib["text-anchor"] == "middle" else x
        found.append((element.text or "", left, y - 0.76 * size, left + wide, y + 0.24 * size))
    circles = root.iter("{http://www.w3.org/2000/svg}circle")
    return (
        (float(root.attrib["width"]), float(root.attrib["height"])),
        found,
        [tuple(float(one.attrib[name]) for name in ("cx", "cy", "r")) for one in circles],
    )


def test_nothing_in_a_drawing_is_cut_off_and_no_label_touches_a_circle_or_another_label() -> None:
    fleet = "nvidia:2,amd:1,ascend:4,cpu:1@a-label-that-is-rather-long,cpu:1@b,nvidia:2,amd:1,ascend:4"
    ranks = [rank("n1", "", device=f"cuda:{n}", maker="somebody", device_name=f"Device {n}") for n in range(9, 16)]
    ranks += [rank("a-host-with-a-long-name.example", "", address="fd5a:213:7::1") for _ in range(40)]
    shown = arranged(ranks, [list(range(7)), list(range(7, len(ranks)))])
    for one in shown.hosts[1].islands[0].ranks:
        one.number += 1000
    shown.title += f" (rehearsal of {fleet})"
    (width, height), found, circles = boxes(svg.draw(shown))
    assert len(circles) == len(ranks)
    for text, left, top, right, bottom in found:
        assert 0 <= left and right <= width and 0 <= top and bottom <= height, (text, width, left, right)
    for n, (one, left, top, right, bottom) in enumerate(found):
        for other, left2, top2, right2, bottom2 in found[:n]:
            assert left >= right2 or left2 >= right or top >= bottom2 or top2 >= bottom, (one, other)
    numbers = {str(one.number) for host in shown.hosts for island in host.islands for one in island.ranks}
    for text, left, top, right, bottom in found:
        for cx, cy, r in circles:
            x, y = min(max(cx, left), right), min(max(cy, top), bottom)  # the nearest point of the text
            if (x - cx) ** 2 + (y - cy) ** 2 >= (r + 1) ** 2:
                continue
            corners = max((one - cx) ** 2 + (two - cy) ** 2 for one in (left, right) for two in (top, bottom))
            assert text in numbers and corners < (r - 1) ** 2, f"{text} touches a circle"


def test_the_title_of_a_drawing_is_wrapped_and_whole() -> None:
    shown = arranged([rank("n1", "")], [[0]])
    shown.title = (
        "4 ranks on 3 islands and 1 host (rehearsal of nvidia:2,amd:1,ascend:1,cpu:1,nvidia:2,amd:1,ascend:1,cpu:1)"
    )
    drawn = texts(svg.draw(shown))
    lines = drawn[: drawn.index("host")]
    assert len(lines) > 1 and "".join(lines).replace(" ", "") == shown.title.replace(" ", "")


def test_a_drawing_that_cannot_be_written_is_named_in_one_line(tmp_path: Path) -> None:
    place = tmp_path / "nowhere" / "topology.svg"
    ended = command("topo", "--ranks", "2", "--svg", str(place))
    assert (ended.returncode, ended.stderr) == (1, f"isthmus: {place}: No such file or directory\n")


@pytest.mark.parametrize(("to", "status"), [(">&-", 0), (">/dev/full", 1)])
def test_an_output_that_is_closed_or_full_is_no_traceback(to: str, status: int) -> None:
    words = ["sh", "-c", f'exec "$@" {to}', "sh", sys.executable, "-m", "isthmus", "settings"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=patient(90), check=False)
    assert ended.returncode == status and "Traceback" not in ended.stderr, ended


def asked() -> Any:
    options = argparse.Namespace(ranks=2, islands=None, bridge=None, ccl=None, timeout=patient(60))
    return common.ask_ranks("topology", {}, options)


def test_what_a_library_prints_when_a_rank_ends_is_not_the_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = "import atexit\natexit.register(print, 'n0:7 NCCL INFO comm 0x1 rank 0 - Destroy COMPLETE')\n"
    (tmp_path / "sitecustomize.py").write_text(said)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    assert len(asked()["ranks"]) == 2


def test_what_lies_in_the_working_directory_is_none_of_the_ranks_modules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("isthmus.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong one')\n")
    monkeypatch.chdir(tmp_path)
    assert len(asked()["ranks"]) == 2


@pytest.mark.parametrize("form", ["--json", "--settings"])
def test_doctor_reports_a_bad_setting_in_every_form(form: str) -> None:
    ended = command("doctor", form, "--no-test", env={"ISTHMUS_SPIN_US": "soon"})
    assert ended.returncode == 1 and "ISTHMUS_SPIN_US=soon" in ended.stdout, ended
    if form == "--json":
        report = json.loads(ended.stdout)
        assert report["ok"] is False and report["settings"] == []


def test_doctor_reports_also_where_the_output_has_ascii_alone() -> None:
    ended = command("doctor", env={"PYTHONIOENCODING": "ascii"})
    assert ended.returncode == 0 and "2 ranks agree" in ended.stdout, ended.stderr


def test_a_mapped_file_whose_name_is_no_utf_8_hides_no_library(tmp_path: Path) -> None:
    with open(os.path.join(os.fsencode(tmp_path), b"weights-\xff"), "wb+") as file:
        file.write(b"x")
        file.flush()
        with mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ):
            assert "libisthmus.so" in doctor.loaded_library() and not tune.simulated_library()
