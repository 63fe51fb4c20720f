"""What bench/gpu.py makes of its figures: the limits, and which target is missed. It needs no GPU, and measures nothing."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from patience import SOON

PROGRAM = Path(__file__).resolve().parents[2] / "bench" / "gpu.py"
MIB = 1 << 20
COPIES = {"out": [20e9], "in": [25e9], "both": [16e9]}  # bytes a second


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_bench", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("collective", "kinds", "pool", "memory", "seconds"),
    [
        # Of 16e9 bytes. Both ways at once make 16 GB/s, and one GPU carries both its ranks' bytes.
        ("all_reduce", "gpu,cpu", 100e9, 1e12, 1.0),
        ("all_reduce", "gpu,gpu", 100e9, 1.0, 2.0),  # what is staged may stay in caches
        ("all_reduce", "gpu,cpu", 8e9, 1e12, 2.0),  # the threads that reduce
        ("all_reduce", "gpu,cpu", 100e9, 16e9, 2.0),  # memory: of the rank on the CPU, read and written
        ("reduce_scatter", "gpu,cpu", 100e9, 1e12, 1.0),
        ("reduce_scatter", "gpu,cpu", 100e9, 12e9, 2.0),
        ("broadcast", "gpu,cpu", 1.0, 1e12, 0.8),  # out alone, and nothing is summed
        ("broadcast", "cpu,gpu", 1.0, 1e12, 0.64),  # in alone
        ("broadcast", "gpu,cpu", 1.0, 8e9, 2.0),
        ("broadcast", "gpu,gpu", 1.0, 1.0, 1.0),
        ("all_gather", "gpu,cpu", 1.0, 1e12, 0.5),
        ("all_gather", "gpu,cpu", 1.0, 12e9, 2.0),
        ("send_recv", "gpu,cpu", 1.0, 1e12, 1.0),
        ("send_recv", "gpu,cpu", 1.0, 16e9, 2.0),
        ("send_recv", "gpu,gpu", 1.0, 1.0, 2.0),
    ],
)
def test_the_limit_is_the_slowest_of_copies_sums_and_memory_and_of_moves_that_of_the_copies(
    bench: ModuleType, collective: str, kinds: str, pool: float, memory: float, seconds: float
) -> None:
    row = {"collective": collective, "bytes": 16e9}
    assert bench.least_seconds(row, kinds.split(","), COPIES, pool, memory) == pytest.approx(seconds)


def result(rows: list[dict[str, Any]], buckets: float = 1.0, product: float = 1.0, broadcasts: int = 9) -> dict[str, Any]:
    return {
        "rows": rows,
        "copies": COPIES,
        "reduction": 100e9,
        "memory": 1e12,
        "buckets": {"number": 10, "bytes": 25_000_000, "whole": [buckets], "separate": [1.0]},
        "products": {"bytes": 256 * MIB, "alone": [1.0], "beside": [product], "broadcasts": [broadcasts]},
    }


def row(collective: str, nbytes: int, seconds: float, gloo: float | None = None, asked: int | None = None) -> dict[str, Any]:
    times = {"isthmus": [seconds], **({} if gloo is None else {"gloo": [gloo]})}
    return {"collective": collective, "asked": asked or nbytes, "bytes": nbytes, "seconds": times}


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        (result([row("all_reduce", 8, 15e-6)]), []),
        (result([row("all_reduce", 8, 16e-6)]), ["all_reduce 8 B: us of a call"]),
        (result([row("broadcast", 16 * MIB, 16 * MIB / 20e9 / 0.93)]), []),
        (result([row("broadcast", 16 * MIB, 16 * MIB / 20e9 / 0.91)]), ["broadcast 16777216 B: share of"]),
        (result([row("send_recv", 16 * MIB, 16 * MIB / 16e9 / 0.91)]), ["send_recv 16777216 B: share of"]),
        (result([row("broadcast", 15 * MIB, 1.0)]), []),  # smaller ones have no limit of this kind
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
    bench: ModuleType, figures: dict[str, Any], missed: list[str]
) -> None:
    short = [verdict["what"] for verdict in bench.judge(figures, ["gpu", "cpu"]) if verdict["good"] is False]
    assert len(short) == len(missed) and all(what.startswith(word) for what, word in zip(short, missed, strict=True)), short


def test_a_run_without_what_a_target_is_for_says_so(bench: ModuleType) -> None:
    small, large = row("all_reduce", 8, 1e-6), row("all_reduce", 16 * MIB, 1.0)
    whole = {"rows": [small, large], "absent": {"relay": "not asked for"}}
    assert bench.not_measured(whole, ["isthmus", "gloo"]) == []
    lacks = bench.not_measured({"rows": [large], "absent": {"gloo": "no such tensors"}}, ["isthmus", "gloo"])
    assert lacks == ["gloo did not take part: no such tensors", "no call of 8 B"]
    assert bench.not_measured({**whole, "rows": [small]}, ["isthmus"]) == ["no call of 16777216 B or more"]


class FewRanks:
    """A team of two, whose ranks do nothing."""

    def __init__(self) -> None:
        self.ranks = [self, self]

    def finish(self) -> None:
        pass

    def together(self, work: Callable[[int], None]) -> None:
        errors: list[BaseException] = []

        def one(number: int) -> None:
            try:
                work(number)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=one, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


def test_broadcasts_beside_the_products_go_on_until_the_block_ends_and_are_counted(bench: ModuleType) -> None:
    some = threading.Event()
    calls = [0, 0]

    def call(number: int) -> None:
        calls[number] += 1
        if min(calls) > 3:
            some.set()

    with bench.Broadcasts(FewRanks(), [lambda: call(0), lambda: call(1)]) as made:
        assert some.wait(SOON)
    assert made.number == calls[0] == calls[1]


def test_a_broadcast_that_fails_on_one_rank_ends_the_others_and_is_raised(bench: ModuleType) -> None:
    begun = threading.Event()

    def fails() -> None:
        begun.set()
        raise ValueError("the device is gone")

    with (
        pytest.raises((ValueError, threading.BrokenBarrierError)),
        bench.Broadcasts(FewRanks(), [lambda: None, fails]),
    ):
        assert begun.wait(SOON)


def test_the_threads_that_reduce_are_the_ranks_own_and_the_pools(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISTHMUS_REDUCE_THREADS", raising=False)
    monkeypatch.setattr(bench.os, "cpu_count", lambda: 16)
    assert bench.reducers(3) == 10
    monkeypatch.setattr(bench.os, "cpu_count", lambda: 8)
    assert bench.reducers(3) == 5
    monkeypatch.setattr(bench.os, "cpu_count", lambda: 6)
    assert bench.reducers(3) == 3
    monkeypatch.setenv("ISTHMUS_REDUCE_THREADS", "5")
    assert bench.reducers(3) == 8


def test_what_several_threads_reduce_at_once_is_measured_while_all_of_them_do(bench: ModuleType) -> None:
    assert bench.reduction_rate(2, seconds=0.2) > 1e6
