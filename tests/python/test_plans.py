"""The planner proved on random worlds: hypothesis draws the case, the C++ prover (tests/cpp/prover) judges it."""

from __future__ import annotations

import ctypes
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"int8": 1, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float64": 8, "complex128": 16}
COLLECTIVES = [
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_v", "reduce_scatter", "reduce_scatter_v", "all_to_all",
    "all_to_all_v", "gather", "gather_v", "scatter", "scatter_v", "barrier",
]  # fmt: skip
IN_PLACE = {
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_v", "reduce_scatter", "reduce_scatter_v", "all_to_all",
}  # fmt: skip


def library_path() -> Path:
    """The prover's shared library: PROVER_LIBRARY, else the newest one in a build folder of this tree."""
    named = os.environ.get("PROVER_LIBRARY")
    built = ROOT.glob("build*/**/libisthmus_prover.so")
    found = [Path(named)] if named else sorted(built, key=lambda p: p.stat().st_mtime)
    if not found or not found[-1].exists():
        pytest.fail(
            "libisthmus_prover.so is not built: configure with -DISTHMUS_TESTS=ON and build the target isthmus_prover"
        )
    return found[-1]


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(library_path()))
    lib.isthmus_prove.argtypes = [ctypes.c_char_p]
    lib.isthmus_prove.restype = ctypes.c_char_p
    return lib


def prove(case: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(library().isthmus_prove(json.dumps(case).encode()))
    return answer


def ranks_of(islands: str, hosts: str = "") -> list[dict[str, str]]:
    return [{"island": island, "host": hosts[i] if hosts else "h"} for i, island in enumerate(islands)]


@st.composite
def operations(draw: st.DrawFn, world: int, slots: int) -> dict[str, Any]:
    collective = draw(st.sampled_from(COLLECTIVES))
    dtype = draw(st.sampled_from(sorted(SIZES)))
    floating = dtype not in ("int8", "complex128")
    op = draw(st.sampled_from(["sum", "avg", "prod", *(["premul_sum", "max"] if floating else [])]))
    size = SIZES[dtype]
    count = st.one_of(st.integers(0, 3), st.integers(0, 700))
    out: dict[str, Any] = {
        "collective": collective, "dtype": dtype, "op": op, "root": draw(st.integers(0, world - 1)), "max_slots": slots,
        "chunk_bytes": draw(st.sampled_from([64, 128, 512, 1024])), "small_bytes": draw(st.sampled_from([0, 256])),
        "far": draw(st.booleans()), "way_bytes": draw(st.sampled_from([0, 1000, 1 << 40])),
    }  # fmt: skip
    if collective == "all_to_all_v":
        rows = st.lists(st.one_of(st.just(0), count), min_size=world, max_size=world)
        out["matrix"] = [[n * size for n in draw(rows)] for _ in range(world)]
    elif collective.endswith("_v"):
        out["counts"] = [n * size for n in draw(st.lists(st.one_of(st.just(0), count), min_size=world, max_size=world))]
    elif collective != "barrier":
        out["bytes"] = draw(count) * size
    if collective in IN_PLACE:
        out["in_place"] = draw(st.booleans())
    return out


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    world = draw(st.integers(1, 14))
    islands = draw(st.lists(st.sampled_from("abcd"), min_size=world, max_size=world))
    hosts = draw(st.one_of(st.just(["x"] * world), st.lists(st.sampled_from("xyz"), min_size=world, max_size=world)))
    slots = draw(st.integers(2, 6))
    return {
        "ranks": ranks_of("".join(islands), "".join(hosts)),
        "bridge": draw(st.sampled_from(["auto", "tcp"])),
        "weights": draw(st.lists(st.floats(0.1, 50, allow_nan=False), max_size=4)),
        "operations": [draw(operations(world, slots)) for _ in range(draw(st.integers(1, 3)))],
    }


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases())
def test_every_plan_is_its_definition_without_race_or_deadlock(case: dict[str, Any]) -> None:
    verdict = prove(case)
    assert verdict["ok"], verdict["text"]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 6), st.lists(st.integers(1, 5), min_size=2, max_size=6), st.sampled_from(["float32", "bfloat16"]),
    st.integers(1, 4000),
)  # fmt: skip
def test_bridged_all_reduce_crosses_exactly_the_bound(slots: int, sizes: list[int], dtype: str, lines: int) -> None:
    islands = "".join(chr(ord("a") + i) * n for i, n in enumerate(sizes))
    n = lines * 64
    op = {"collective": "all_reduce", "dtype": dtype, "bytes": n, "chunk_bytes": 4096, "max_slots": slots, "small_bytes": 0}
    verdict = prove({"ranks": ranks_of(islands), "bridge": "tcp", "operations": [op]})
    assert verdict["ok"], verdict["text"]
    groups = len(sizes)
    if dtype == "float32":
        assert verdict["link_bytes"] == 2 * (groups - 1) * n
    assert verdict["token_bytes"] == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.integers(1, 4000))
def test_over_a_long_way_each_group_sends_its_whole_sum_to_each_other_where_that_is_worth_a_way(
    sizes: list[int], lines: int
) -> None:
    islands = "".join(chr(ord("a") + i) * n for i, n in enumerate(sizes))
    n, groups = lines * 64, len(sizes)
    op = {"collective": "all_reduce", "dtype": "float32", "bytes": n, "chunk_bytes": 4096, "small_bytes": 0, "far": True}
    more = (groups - 1) * (groups - 2) * n // groups  # bytes of a bridge, than in pieces
    for way, crosses in ((more + n, groups * (groups - 1) * n), (more // 2, 2 * (groups - 1) * n)):
        verdict = prove({"ranks": ranks_of(islands), "bridge": "tcp", "operations": [{**op, "way_bytes": way}]})
        assert verdict["ok"], verdict["text"]
        assert verdict["link_bytes"] == crosses
        assert verdict["token_bytes"] == 0


def test_hundreds_of_ranks() -> None:
    islands = "a" * 70 + "b" * 50 + "ab" * 20
    for collective in ("all_reduce", "reduce", "broadcast", "all_gather", "barrier"):
        op = {"collective": collective, "bytes": 0 if collective == "barrier" else 16384, "chunk_bytes": 8192, "root": 33}
        for bridge in ("auto", "tcp"):
            verdict = prove({"ranks": ranks_of(islands), "bridge": bridge, "operations": [op, op]})
            assert verdict["ok"], verdict["text"]


def test_small_credits_do_not_deadlock() -> None:
    op = {"collective": "all_reduce", "bytes": 65536, "chunk_bytes": 1024, "small_bytes": 0}
    verdict = prove({"ranks": ranks_of("aabbbc"), "bridge": "tcp", "operations": [op], "credit_chunks": 4})
    assert verdict["ok"], verdict["text"]


def test_the_prover_says_what_is_wrong_with_a_request() -> None:
    verdict = prove({"ranks": ranks_of("aab", "xxy"), "bridge": "shm", "operations": []})
    assert not verdict["ok"]
    assert "island 'a'" in verdict["text"] and "island 'b'" in verdict["text"]
    verdict = prove({"ranks": ranks_of("aa"), "operations": [{"collective": "all_reduce", "op": "bxor", "bytes": 4}]})
    assert "bxor of float32 has no meaning" in verdict["text"]


def test_explain_is_data_and_text() -> None:
    op = {"collective": "all_reduce", "bytes": 1 << 20}
    plan = prove({"ranks": ranks_of("aabb"), "bridge": "tcp", "operations": [op], "explain": 3})
    assert plan["collective"] == "all_reduce" and plan["rank"] == 3 and plan["flat"] is False
    assert [stage["name"] for stage in plan["stages"]] == ["copy in", "reduce", "finish", "collect", "copy out"]
    assert plan["bridge"]["shares"] == [0.5, 0.5]
    for words in ("send", "partial results", "copied in", "T*", "cost"):
        assert words in plan["text"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("nbytes", [256, 1 << 20])
def test_explain_states_the_dtype_in_which_sums_cross(dtype: str, nbytes: int) -> None:
    def crosses(islands: str, collective: str = "all_reduce", bridge: str = "tcp") -> tuple[Any, str]:
        op = {"collective": collective, "dtype": dtype, "bytes": nbytes}
        plan = prove({"ranks": ranks_of(islands), "bridge": bridge, "operations": [op], "explain": 0})
        lines = [line for line in plan["text"].splitlines() if line.startswith("  crosses ")]
        return plan["crosses"], lines[0].removeprefix("  crosses ") if lines else ""

    alone, text = crosses("ab")
    assert alone == {"sent": [dtype], "received": [dtype]}, "a rank's own data"
    assert text == f"sends {dtype}, receives {dtype}"
    several, text = crosses("aabb")
    assert several["sent"][0] == several["received"][0] == "float32", "sums of several ranks are not rounded on their way"
    assert ("float32 (partial sums)" in text) == (dtype != "float32")
    assert crosses("aabb", "all_gather") == crosses("aabb", bridge="auto") == ({"sent": [], "received": []}, "")
