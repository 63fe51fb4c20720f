"""bench/bridge.py: it runs, all its numbers are right, and what it prints says who had the processors."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import isthmus
from hosts import missing
from isthmus._hosts import Hosts
from patience import WHOLE

pytestmark = pytest.mark.computes

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bench" / "bridge.py"


@pytest.fixture(scope="module")
def bridge() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bridge_bench", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks for the names of its types
    spec.loader.exec_module(module)
    return module


def shares(ranks: float, others: float = 0.0) -> dict[str, Any]:
    return {"cpu_share": ranks, "machine_busy_share": ranks + others, "others_share": others, "void": ranks > 0.5}


def timed(ranks: float, others: float = 0.0) -> dict[str, Any]:
    return {"median": 2.0, "min": 1.9, "max": 2.1, **shares(ranks, others), "last": {"seconds": 2.0}}


def row(**more: Any) -> dict[str, Any]:
    return {
        "bridges": "8:4:1",
        "collective": "all_reduce",
        "fleet": "nvidia:1,amd:1,ascend:1",
        "bytes": 1 << 20,
        "least_seconds": 1.92,
        "least_seconds_at_goodput": 1.94,
        "goodput": {"part_of_interface": [0.99]},
        "isthmus": timed(0.3),
        "isthmus_with_equal_shares": timed(0.2),
        "predicted": {"seconds": 1.95},
        "ratio": 2.0 / 1.92,
        "predicted_ratio": 1.95 / 1.92,
        "gloo": {"absent": "left out"},
        "ring_least_seconds": 2.5,
        "right": True,
        "void": False,
        **more,
    }


def latency(with_us: float, most_us: float, ranks: float, others: float = 0.0) -> dict[str, Any]:
    return {
        "fleet": "nvidia:1,amd:1",
        "gate_us": 500,
        "p50_seconds": {"with": [with_us * 1e-6], "without": [200e-6]},
        "hand_offs": {
            "waits": ["asleep", "rank", "gate"],
            "p50_seconds": [90e-6],
            "single_p50_seconds": {"futex": [31e-6], "eventfd": [32e-6]},
        },
        "most_seconds": most_us * 1e-6,
        "gates": 1.1,
        "processors": {"with": shares(ranks, others), "without": {**shares(0.9), "void": False}},
        "right": True,
        "void": ranks > 0.5,
    }


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("rehearsal") for line in lines), lines
    return lines


def test_a_row_whose_ranks_had_more_than_half_of_the_processors_is_void(
    bridge: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    bridge.show(row())
    well = said(capsys)
    assert any(line.endswith("target 1.05: reached") for line in well) and not any("VOID" in line for line in well)
    bridge.show(row(isthmus=timed(0.51), void=True))
    spoilt = said(capsys)
    assert any(line.endswith("target 1.05: VOID") for line in spoilt), spoilt
    assert any("isthmus, median" in line and line.endswith("VOID") for line in spoilt), spoilt


def overlap(part: float, void: bool = False) -> dict[str, Any]:
    return {"overlap": part, "void": void}


def behind(ratio: float, void: bool = False) -> dict[str, Any]:
    links = {"copy_out_gbps": 0.05, "copy_in_gbps": 0.05, "bridge_mbps": 50.0}
    return {"fleet": "nvidia:1,amd:1", "links": links, "ratio": {"sixteen": ratio}, "void": {"sixteen": void}}


@pytest.mark.parametrize(
    ("rows", "of_overlap", "of_latency", "said"),
    [
        ([{}], {"part": 0.91}, (1080, 1090, 0.4), []),
        ([{"ratio": 1.051}], {"part": 0.91}, (1080, 1090, 0.4), ["all_reduce over 8:4:1, clock: 1.051 of T*, limit 1.05"]),
        ([{}, {"predicted_ratio": 1.04, "collective": "scatter"}], {"part": 0.91}, (1080, 1090, 0.4), ["scatter over"]),
        ([{"predicted_ratio": None}], {"part": 0.91}, (1080, 1090, 0.4), ["predicted: - of T*, limit 1.03: unknown"]),
        ([{"void": True}], {"part": 0.91}, (1080, 1090, 0.4), ["clock: 1.042 of T*, limit 1.05: VOID"]),
        ([{}], {"part": 0.89}, (1080, 1090, 0.4), ["overlap: 0.890, limit 0.9"]),
        ([{}], {"part": 0.91, "void": True}, (1080, 1090, 0.4), ["overlap: 0.910, limit 0.9: VOID"]),
        ([{}], {"part": 0.91}, (1100, 1090, 0.4), ["8 bytes: p50 1100 us, limit 1090 us"]),
        ([{}], {"part": 0.91}, (1080, 1090, 0.6), ["8 bytes: p50 1080 us, limit 1090 us: VOID"]),
    ],
)
def test_a_check_names_each_limit_that_is_not_kept_and_each_figure_that_nobody_knows(
    bridge: ModuleType, rows: list[Any], of_overlap: Any, of_latency: tuple[float, ...], said: list[str]
) -> None:
    kept = {"rows": [row(**more) for more in rows], "overlap": overlap(**of_overlap), "behind": [behind(1.09)]}
    found = bridge.missed({**kept, "latency": latency(*of_latency)})
    assert len(found) == len(said) and all(words in line for words, line in zip(said, found, strict=True)), found


def test_what_is_kept_was_measured_on_all_fleets_and_keeps_the_limits(bridge: ModuleType) -> None:
    kept = json.loads((ROOT / "bench" / "results" / "bridge.json").read_text())
    assert bridge.missed(kept) == []
    assert kept["targets"] == bridge.TARGETS
    rows = [(row["bridges"], row["collective"]) for row in kept["rows"]]
    assert rows == [(name, collective) for name, fleet in bridge.FLEETS.items() for collective in fleet.collectives]
    assert [(row["fleet"], row["links"]["copy_out_gbps"] * 1000) for row in kept["behind"]] == bridge.BEHIND_ROWS
    assert all(row["right"] for row in (*kept["rows"], kept["overlap"], *kept["behind"], kept["latency"]))


def test_a_check_judges_operations_behind_each_other(bridge: ModuleType) -> None:
    rows = [behind(1.1), behind(1.11), behind(1.0, void=True)]
    found = bridge.missed({"rows": [], "overlap": overlap(0.91), "behind": rows, "latency": latency(1080, 1090, 0.4)})
    where = "sixteen behind each other, nvidia:1,amd:1, copies of 50 MB/s and interfaces of 50: "
    assert found == [f"{where}1.110 of one, limit 1.1: NOT reached", f"{where}1.000 of one, limit 1.1: VOID"]


@pytest.mark.parametrize(
    ("collective", "ranks", "rates", "seconds"),
    [
        ("all_reduce", (1, 1, 1), (8, 4, 1), 12 / 1),  # the slowest gives all and gets all
        ("all_reduce", (1, 1, 1), (1.5, 1, 1), 2 * 2 * 12 / 3.5),  # four times the message in all
        ("all_gather", (1, 1, 1), (8, 4, 1), 8 / 1),  # the slowest gets the others' two blocks
        ("reduce_scatter", (1, 1, 1), (8, 4, 1), 8 / 1),  # and gives two
        ("all_gather", (10, 1, 1), (1, 8, 8), 10 / 1),  # the first gives ten blocks of twelve
        ("all_gather", (2, 2), (1, 1), 6 / 1),
        ("all_gather", (1, 1, 1, 1), (1, 1, 1, 0.9), 9 / 0.9),
        ("all_to_all", (1, 1, 1), (8, 4, 1), 8 / 1),
        ("all_to_all", (2, 2), (1, 1), 12 / 1),  # two ranks give half of theirs
        ("all_to_all", (3, 1), (4, 1), 9 / 1),  # the one gives three quarters
    ],
)
def test_the_least_time_is_that_of_the_bridge_that_carries_most_for_its_rate(
    bridge: ModuleType, collective: str, ranks: tuple[int, ...], rates: tuple[float, ...], seconds: float
) -> None:
    """Of 12 bytes."""
    assert bridge.least_time(collective, 12, ranks, rates) == pytest.approx(seconds)


def test_the_overlap_is_of_the_times_that_the_resources_were_at_work(bridge: ModuleType) -> None:
    busy = {"copies out": 1.0, "copies in": 1.0, "interface out": 1.2, "interface in": 0.8}
    assert bridge.overlap_of(busy, 1.2) == pytest.approx(1), "the busiest was never idle"
    assert bridge.overlap_of(busy, 4.0) == pytest.approx(0), "one after the other"
    assert bridge.overlap_of(busy, 2.6) == pytest.approx(0.5)


def test_each_figure_has_the_machines_share_and_a_warning_where_others_had_more_than_a_tenth(
    bridge: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    bridge.show(row(isthmus=timed(0.3, others=0.09), gloo=timed(0.1, others=0.85)))
    lines = said(capsys)
    assert any("isthmus, median" in line and "ranks had 30% of the processors, all 39%" in line for line in lines), lines
    assert any("equal shares, median" in line and "ranks had 20% of the processors, all 20%" in line for line in lines)
    assert any("gloo's ring, median" in line and "ranks had 10% of the processors, all 95%" in line for line in lines)
    warnings = [line for line in lines if "WARNING" in line]
    assert warnings == ["rehearsal  WARNING: others had 85% of the processors meanwhile: gloo's ring, median"]


def test_the_latency_is_judged_by_a_limit_beside_the_kernels_hand_offs_and_knows_who_had_the_processors(
    bridge: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts = []
    for found in (latency(1080, 1090, 0.4), latency(1100, 1090, 0.4), latency(1080, 1090, 0.6)):
        bridge.show_latency(found)
        lines = said(capsys)
        verdicts.append(next(line for line in lines if "target" in line).rsplit(": ", 1)[1])
        assert not any("WARNING" in line for line in lines), lines
        assert any("VOID" in line for line in lines) == found["void"], lines
        assert any("p50 of 3 hand-offs alone" in line and " 90 us" in line for line in lines), lines
        assert any("p50 of 3 hand-offs by futex" in line and " 93 us" in line for line in lines), lines
        assert any("p50 of 3 hand-offs by eventfd" in line and " 96 us" in line for line in lines), lines
        assert any("p50 of a whole call without that latency" in line and "all 90%" in line for line in lines), lines
    assert verdicts == ["reached", "NOT reached", "VOID"]
    bridge.show_latency(latency(1080, 1090, 0.4, others=0.2))
    assert [line for line in said(capsys) if "WARNING" in line] == [
        "rehearsal  WARNING: others had 20% of the processors meanwhile: p50 of a call"
    ]


def test_the_chain_of_hand_offs_has_a_time_for_each_round() -> None:
    command = [sys.executable, ROOT / "bench" / "hand_offs.py", "--rounds", "20"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WHOLE, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout)
    assert len(found["hand_offs"]) == 5 and len(found["seconds"]) == 20
    single = found["single_p50_seconds"]
    assert set(single) == {"futex", "eventfd"}
    assert all(0 < seconds < 60 for seconds in (*found["seconds"], *single.values())), found


def figures(value: Any) -> list[float]:
    """All numbers of a document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for part in value for number in figures(part)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


@pytest.mark.everything
def test_the_benchmark_runs_and_its_rows_are_whole_right_and_marked_as_a_rehearsal(tmp_path: Path) -> None:
    try:
        Hosts({"a": 1.0}).close()
    except isthmus.Error as error:
        missing(str(error))
    out = tmp_path / "bridge.json"
    ended = subprocess.run(
        [sys.executable, PROGRAM, "--quick", "--mib", "1", "--repeat", "2", "--out", out],
        env={**os.environ, "ISTHMUS_TIMEOUT": "60"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WHOLE,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    lines = ended.stdout.splitlines()
    assert lines and all(line.startswith("rehearsal") for line in lines), lines
    for words in (
        "T*, at the interfaces' rates",
        "isthmus, median",
        "isthmus, last call, by explain()",
        "isthmus, predicted",
        "isthmus with equal shares, median",
        "ring of equal parts, least",
        "overlap ",
        "sixteen, median",
        "buckets: ",
        "p50 of a call ",
        "p50 of a whole call without that latency",
        "p50 of 5 hand-offs alone",
    ):
        assert any(line.startswith(f"rehearsal  {words}") for line in lines), (words, lines)
    timings = [line for line in lines if "p50 of a" in line or ("median" in line and "gloo" not in line)]
    assert all("of the processors, all" in line for line in timings if "WARNING" not in line), timings
    assert not any("WRONG" in line for line in lines)

    result = json.loads(out.read_text())
    assert result["simulated"] and result["rehearsal"].startswith("rehearsal")
    assert all(math.isfinite(number) for number in figures(result))
    rows, overlap, behind, small = result["rows"], result["overlap"], result["behind"], result["latency"]
    assert [one["collective"] for one in rows] == ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"]
    for each in (*rows, overlap, *behind, small):
        assert each["rehearsal"] == result["rehearsal"] and each["right"] is True
    timed = [one["isthmus"] for one in (*rows, overlap)]
    for each in (*timed, rows[0]["isthmus_with_equal_shares"], *small["processors"].values()):
        assert each["cpu_share"] > 0 and each["machine_busy_share"] >= 0 and "others_share" in each
    for each in timed:
        assert each["min"] > 0 and each["last"]["seconds"] > 0, "what is explained is what ran"
        assert each["explain"].splitlines()[0].count("MiB") or each["explain"].splitlines()[0].count("KiB"), each["explain"]
    for one in rows:
        # Any message takes as long as the bound, and more for the way of one chunk.
        assert one["predicted_ratio"] > 1 and len(one["predicted"]["by_rank"]) == 3
        assert min(one["isthmus"]["interface_bytes"].values()) > 0.9 * (1 << 20) / 3, "a block crosses each way at least"
    # Both copies are of all bytes, at 50 MB/s: the engines cannot have been at work for less.
    busy = overlap["busy_seconds_of_a_rank"]
    assert min(busy["copies out"], busy["copies in"]) >= 0.99 * (1 << 20) / 50e6, busy
    assert min(busy["interface out"], busy["interface in"]) > 0.5 * (1 << 20) / 50e6, busy
    assert min(*small["p50_seconds"]["with"], *small["p50_seconds"]["without"], *small["hand_offs"]["p50_seconds"]) > 0
    # Nothing that was measured is in the limit, so the limit cannot move with what it judges.
    assert small["most_seconds"] == pytest.approx((2 * small["gate_us"] + 60) * 1e-6)
