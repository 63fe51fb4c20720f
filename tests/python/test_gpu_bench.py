"""bench/gpu.py and bench/ddp.py measure on a GPU alone. Here: what is made of figures, the turns of a round, how calls are
timed, what a run leaves that is killed. None of it needs a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from patience import SOON, patient

BENCH = Path(__file__).resolve().parents[2] / "bench"
MIB = 1 << 20
COPIES = {"out": [20e9], "in": [25e9], "both": [16e9]}  # bytes a second
PLENTY = {"sums": [100e9], "memory": [1e12]}
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "send_recv")


@pytest.fixture(scope="module", autouse=True)
def found() -> Iterator[None]:
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))


@pytest.fixture
def judgement() -> ModuleType:
    return importlib.import_module("gpu_judgement")


@pytest.fixture
def limits() -> ModuleType:
    return importlib.import_module("gpu_limits")


@pytest.fixture
def rows() -> ModuleType:
    return importlib.import_module("gpu_rows")


@pytest.mark.parametrize(
    ("collective", "kinds", "pool", "memory", "seconds"),
    [
        # Of 16e9 bytes. Both ways at once make 16 GB/s, and one GPU carries both its ranks' bytes.
        ("all_reduce", "gpu,cpu", 100e9, 1e12, 1.0),
        ("all_reduce", "gpu,gpu", 100e9, 1.0, 2.0),  # what is staged may stay in caches
        ("all_reduce", "gpu,cpu", 8e9, 1e12, 2.0),  # the threads that reduce
        ("all_reduce", "gpu,cpu", 100e9, 16e9, 2.0),  # memory: of the rank on the CPU, read and written
        ("reduce_scatter", "gpu,cpu", 100e9, 1e12, 0.9),  # half of it comes back beside; the other half goes out alone
        ("reduce_scatter", "gpu,cpu", 100e9, 12e9, 2.0),
        ("broadcast", "gpu,cpu", 1.0, 1e12, 0.8),  # out alone, and nothing is summed
        ("broadcast", "cpu,gpu", 1.0, 1e12, 0.64),  # in alone
        ("broadcast", "gpu,cpu", 1.0, 8e9, 2.0),
        ("broadcast", "gpu,gpu", 1.0, 1.0, 1.0),
        ("all_gather", "gpu,cpu", 1.0, 1e12, 0.5),
        ("all_gather", "gpu,cpu,cpu", 1.0, 1e12, 1 / 3 + 16 / 75),  # twice as much in as out
        ("all_gather", "gpu,cpu", 1.0, 12e9, 2.0),
        ("send_recv", "gpu,cpu", 1.0, 1e12, 1.0),
        ("send_recv", "gpu,cpu", 1.0, 16e9, 2.0),
        ("send_recv", "gpu,gpu", 1.0, 1.0, 2.0),
    ],
)
def test_the_limit_is_the_slowest_of_copies_sums_and_memory_and_of_moves_that_of_the_copies(
    judgement: ModuleType, collective: str, kinds: str, pool: float, memory: float, seconds: float
) -> None:
    row = {"collective": collective, "bytes": 16e9}
    rates = {**{limit: rate for limit, (rate,) in COPIES.items()}, "sums": pool, "memory": memory}
    assert judgement.least_seconds(row, kinds.split(","), rates) == pytest.approx(seconds)


def result(
    rows: list[dict[str, Any]], buckets: float = 1.0, product: float = 1.0, broadcasts: int = 9, complete: bool = True
) -> dict[str, Any]:
    return {
        "simulated": False,
        "complete": complete,
        "ranks": ["gpu", "cpu"],
        "absent": {},
        "planned": [(row["collective"], row["asked"]) for row in rows],
        "reducers": 4,
        "rows": rows,
        "buckets": {"number": 10, "bytes": 25_000_000, "whole": [buckets], "separate": [1.0]},
        "products": {"bytes": 256 * MIB, "alone": [1.0], "beside": [product], "broadcasts": [broadcasts]},
    }


def row(collective: str, nbytes: int, seconds: float, gloo: float | None = None, asked: int | None = None) -> dict[str, Any]:
    times = {"isthmus": [seconds], **({} if gloo is None else {"gloo": [gloo]})}
    made: dict[str, Any] = {"collective": collective, "asked": asked or nbytes, "bytes": nbytes, "seconds": times}
    if made["asked"] >= 16 * MIB:
        made["limits"] = {**COPIES, **PLENTY}
    return made


def small(one_at_a_time: float, behind_each_other: float) -> dict[str, Any]:
    return row("all_reduce", 8, behind_each_other) | {"one_at_a_time": {"isthmus": [one_at_a_time]}}


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        (result([small(15e-6, 40e-6)]), []),  # calls behind each other have no target
        (result([small(16e-6, 5e-6)]), ["all_reduce 8 B: us of one call at a time"]),
        (result([row("broadcast", 16 * MIB, 16 * MIB / 20e9 / 0.93)]), []),
        (result([row("broadcast", 16 * MIB, 16 * MIB / 20e9 / 0.91)]), ["broadcast 16777216 B: share of"]),
        (result([row("send_recv", 16 * MIB, 16 * MIB / 16e9 / 0.91)]), ["send_recv 16777216 B: share of"]),
        (result([row("broadcast", 15 * MIB, 1.0)]), []),  # of smaller ones no limit is measured
        # Of equal parts for three ranks there are some bytes less than were asked for.
        (result([row("all_gather", 16 * MIB - 4, 1.0, asked=16 * MIB)]), ["all_gather 16777212 B: share of the limit of"]),
        (result([row("all_reduce", 64 * MIB, 64 * MIB / 16e9 / 0.89)]), []),
        (result([row("all_reduce", 64 * MIB, 64 * MIB / 16e9 / 0.87)]), ["all_reduce 67108864 B: share of the limit of"]),
        (result([row("all_gather", 64 * MIB, 32 * MIB / 16e9 / 0.81)]), []),
        (result([row("all_gather", 64 * MIB, 32 * MIB / 16e9 / 0.79)]), ["all_gather 67108864 B: share of the limit of"]),
        (result([row("reduce_scatter", 64 * MIB, 64 * MIB / 16e9 / 0.79)]), ["reduce_scatter 67108864 B: share of the"]),
        (result([], buckets=0.91), []),
        (result([], buckets=0.89), ["10 all_reduces of 25000000 B behind each other"]),
        (result([], product=1.02), []),
        (result([], product=1.04), ["matrix product beside a broadcast of 268435456 B"]),
        (result([], product=1.0, broadcasts=0), ["matrix product beside a broadcast of 268435456 B"]),
        (result([row("all_reduce", MIB, 1e-3, 20e-3), row("broadcast", MIB, 1e-3, 15e-3)]), []),  # in the mean 17.3
        (result([row("all_reduce", MIB, 1e-3, 20e-3), row("broadcast", MIB, 1e-3, 14e-3)]), ["gloo over isthmus"]),
    ],
)
def test_what_misses_its_target_is_short_and_nothing_else_is(
    judgement: ModuleType, figures: dict[str, Any], missed: list[str]
) -> None:
    short = [verdict["what"] for verdict in judgement.judge(figures) if verdict["good"] is False]
    assert len(short) == len(missed) and all(what.startswith(word) for what, word in zip(short, missed, strict=True)), short


def test_eight_bytes_are_judged_one_call_at_a_time_and_calls_behind_each_other_stand_beside_it(
    judgement: ModuleType,
) -> None:
    alone, behind = judgement.judge(result([small(12e-6, 9e-6)]))[:2]
    assert alone["what"].endswith("us of one call at a time, until its result is there")
    assert alone["median"] == pytest.approx(12) and alone["target"] == 15.0 and alone["good"] is True
    assert behind["what"].endswith("us of a call, of those behind each other")
    assert behind["median"] == pytest.approx(9) and behind["target"] is None and behind["good"] is None


def test_a_share_of_the_limit_is_of_the_rates_of_its_own_round(judgement: ModuleType) -> None:
    """The machine is half as fast in the second round, and in the third one Isthmus alone is."""
    once = 64 * MIB / 20e9
    one = row("broadcast", 64 * MIB, 0.0) | {"seconds": {"isthmus": [once, 2 * once, 2 * once]}}
    one["limits"] = {"out": [20e9, 10e9, 20e9], "in": [25e9] * 3, "both": [16e9] * 3, "memory": [1e12] * 3}
    (share,) = (verdict for verdict in judgement.judge(result([one])) if "share" in verdict["what"])
    assert judgement.shares(one, ["gpu", "cpu"]) == pytest.approx([1.0, 1.0, 0.5])
    assert (share["least"], share["median"], share["most"]) == pytest.approx((0.5, 1.0, 1.0)) and share["good"] is True
    assert share["what"].endswith("the limit of copies and memory")


def test_a_ratio_to_gloo_is_of_one_round(judgement: ModuleType) -> None:
    one = row("all_reduce", 4096, 0.0) | {"seconds": {"isthmus": [1.0, 2.0, 4.0], "gloo": [18.0, 18.0, 18.0]}}
    ratio = judgement.judge(result([one]))[0]
    assert (ratio["least"], ratio["median"], ratio["most"]) == (4.5, 9.0, 18.0)


def all_rows() -> list[dict[str, Any]]:
    return [small(1e-6, 1e-6), *(row(collective, 16 * MIB, 1.0) for collective in COLLECTIVES)]


def test_a_run_without_what_a_target_is_for_says_so(judgement: ModuleType) -> None:
    whole = result(all_rows()) | {"absent": {"relay": "not asked for"}}
    assert judgement.not_measured(whole) == []
    assert judgement.not_measured(whole | {"absent": {"gloo": "no such tensors"}}) == [
        "gloo did not take part: no such tensors"
    ]
    lost = whole | {"rows": [one for one in whole["rows"] if one["collective"] != "broadcast"]}
    assert judgement.not_measured(lost) == ["no row: broadcast 16777216 B", "no broadcast of 16777216 B or more"]
    assert judgement.not_measured(result(all_rows()[1:])) == ["no all_reduce of 8 B"]
    without_limits = result([{k: v for k, v in one.items() if k != "limits"} for one in all_rows()])
    assert judgement.not_measured(without_limits) == [f"no {one} of 16777216 B or more" for one in COLLECTIVES]
    del whole["buckets"]
    assert judgement.not_measured(whole) == ["no buckets"]


def test_a_file_is_judged_and_an_incomplete_one_is_said_to_be_that(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    fast = [one | {"seconds": {"isthmus": [1e-9]}} for one in all_rows()]

    def judged(figures: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        file.write_text(json.dumps(figures))
        command = [sys.executable, BENCH / "gpu.py", "--judge", file, "--check"]
        return subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False)

    said = judged(result(fast))
    assert said.returncode == 0 and said.stderr == "" and "incomplete" not in said.stdout, said.stderr
    assert "GB/s in the median of all rounds, sums by 4 threads: out 20.0, in 25.0, both 16.0" in said.stdout
    said = judged(result(fast, complete=False) | {"rows": fast[:2]})
    assert said.returncode == 3
    assert said.stdout.startswith("incomplete: the run has not come to its end; 2 of 6 rows\n")
    assert "gpu: missed: not measured: incomplete: the run has not come to its end\n" in said.stderr
    assert "gpu: missed: not measured: no row: send_recv 16777216 B\n" in said.stderr
    said = judged({"rows": []})
    assert said.returncode == 1 and said.stderr == f"gpu: {file} is not a file of this version of the program\n"
    said = judged(result(all_rows()))
    assert said.returncode == 3 and "gpu: missed: all_reduce 16777216 B: share of the limit of" in said.stderr


def test_a_run_that_is_killed_after_its_first_row_leaves_that_row_and_is_incomplete(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file, said_by_it = tmp_path / "gpu.json", tmp_path / "said"
    words = ["--rehearse", "nvidia", "--rounds", "1", "--block", "0.001", "--sizes", "8", str(64 * MIB), "--out", file]
    with said_by_it.open("w") as log:
        job = subprocess.Popen([sys.executable, BENCH / "gpu.py", *words], stdout=log, stderr=log)
    try:
        until = time.monotonic() + SOON
        while not (file.is_file() and json.loads(file.read_text())["rows"]):
            assert job.poll() is None and time.monotonic() < until, said_by_it.read_text()
            time.sleep(0.01)
    finally:
        job.kill()
        job.wait()
    left = json.loads(file.read_text())
    assert left["complete"] is False and "products" not in left
    assert left["rows"][0]["collective"] == "all_reduce" and left["rows"][0]["bytes"] == 8
    assert len(left["rows"]) < len(left["planned"]) == 10
    command = [sys.executable, BENCH / "gpu.py", "--judge", file, "--check"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False)
    assert said.returncode == 3 and "rehearsal: incomplete: " in said.stdout and "not measured: incomplete" in said.stderr


def test_a_training_that_fails_leaves_the_runs_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("bench_ddp", BENCH / "ddp.py")
    assert spec and spec.loader
    ddp = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ddp)

    def train(contender: str, *_unused: object) -> dict[str, Any]:
        if contender == "one-island":
            raise SystemExit("ddp: one-island: exit status 1")
        return {"step": 0.5, "said": [], "digest": "same", "gradient_bytes": 4}

    file = tmp_path / "ddp.json"
    monkeypatch.setattr(ddp, "train", train)
    monkeypatch.setattr(sys, "argv", ["ddp.py", "--rehearse", "--out", str(file)])
    with pytest.raises(SystemExit, match="exit status 1"):
        ddp.main()
    left = json.loads(file.read_text())
    assert left["complete"] is False and "parameters" not in left
    assert left["seconds"] == {"gloo": [0.5], "bare": [0.5], "one-island": [], "two-islands": []}
    monkeypatch.setattr(sys, "argv", ["ddp.py", "--rehearse", "--contenders", "gloo", "bare", "--out", str(file)])
    ddp.main()
    assert json.loads(file.read_text())["complete"] is True


def test_a_file_that_grows_is_incomplete_from_the_beginning_until_it_is_ended(tmp_path: Path) -> None:
    result_file = importlib.import_module("result_file")
    path = tmp_path / "some.json"
    path.write_text('{"complete": true}')  # of a run before
    file = result_file.ResultFile(path, some := {"rows": []})
    assert json.loads(path.read_text()) == {"rows": [], "complete": False}
    some["rows"].append(1)
    file.write()
    assert json.loads(path.read_text()) == {"rows": [1], "complete": False}
    file.write(complete=True)
    assert json.loads(path.read_text()) == {"rows": [1], "complete": True}
    assert list(tmp_path.iterdir()) == [path]


def test_the_limits_stand_beside_isthmus_in_every_round(rows: ModuleType) -> None:
    orders = [rows.turns(["isthmus", "gloo", "relay"], number) for number in range(6)]
    assert all(sorted(order) == ["gloo", "isthmus", "limits", "relay"] for order in orders)
    gaps = [order.index("limits") - order.index("isthmus") for order in orders]
    assert gaps == [-1, 1, -1, 1, -1, 1]
    assert rows.turns(["isthmus"], 0) == ["limits", "isthmus"]


class FewRanks:
    """A team of two, whose ranks do nothing but what the calls do."""

    def __init__(self) -> None:
        self.ranks, self.meeting = [self, self], threading.Barrier(2)

    def finish(self) -> None:
        pass

    def together(self, work: Callable[[int], None]) -> None:
        errors: list[BaseException] = []

        def one(number: int) -> None:
            try:
                work(number)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(len(self.ranks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


class Clock:
    """Time stands still but for what a call takes, and what the device then takes to end it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[str] = []

    def perf_counter(self) -> float:
        return self.now

    def call(self, seconds: float) -> None:
        self.said.append("call")
        self.now += seconds


def test_one_call_at_a_time_ends_with_its_result_and_a_round_is_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, clock = importlib.import_module("gpu_ranks"), Clock()
    monkeypatch.setattr(ranks, "time", clock)
    one = FewRanks()
    one.ranks, one.meeting = [one], threading.Barrier(1)

    def finish() -> None:
        clock.said.append("finish")
        clock.now += 4.0

    monkeypatch.setattr(one, "finish", finish)
    seconds = iter([1.0, 100.0, 2.0])
    assert ranks.Team.one_at_a_time(one, [lambda: clock.call(next(seconds))], 3) == 6.0
    assert clock.said == ["finish", *["call", "finish"] * 3]


def test_broadcasts_beside_the_products_go_on_until_the_block_ends_and_are_counted(rows: ModuleType) -> None:
    some = threading.Event()
    calls = [0, 0]

    def call(number: int) -> None:
        calls[number] += 1
        if min(calls) > 3:
            some.set()

    with rows.Broadcasts(FewRanks(), [lambda: call(0), lambda: call(1)]) as made:
        assert some.wait(SOON)
    assert made.number == calls[0] == calls[1]


def test_a_broadcast_that_fails_on_one_rank_ends_the_others_and_is_raised(rows: ModuleType) -> None:
    begun = threading.Event()

    def fails() -> None:
        begun.set()
        raise ValueError("the device is gone")

    with (
        pytest.raises((ValueError, threading.BrokenBarrierError)),
        rows.Broadcasts(FewRanks(), [lambda: None, fails]),
    ):
        assert begun.wait(SOON)


def test_the_threads_that_reduce_are_the_ranks_own_and_the_pools(
    limits: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ISTHMUS_REDUCE_THREADS", raising=False)
    for processors, threads in ((16, 10), (8, 5), (6, 3)):
        monkeypatch.setattr(limits.os, "cpu_count", lambda processors=processors: processors)
        assert limits.reducers(3) == threads
    monkeypatch.setenv("ISTHMUS_REDUCE_THREADS", "5")
    assert limits.reducers(3) == 8


def test_what_several_threads_reduce_at_once_is_measured_whenever_it_is_asked_for(limits: ModuleType) -> None:
    sums = limits.Sums(2, "cuda:0")
    assert all(sums.rate(0.05) > 1e6 for _ in range(2))
    sums.close()
    assert [job.returncode for job in sums.jobs] == [0, 0]
    with pytest.raises((SystemExit, OSError, ValueError)):
        sums.rate(0.05)
