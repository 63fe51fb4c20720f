"""Python programs that open the library by name and call it with ctypes, as vLLM and others do, on simulated vendors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from doors import DOORS, HERE, ROOT
from interpose_entries import read_table
from patience import SOON, patient
from spanning import SPANS, environment

LIBISTHMUS = DOORS["nccl"].path.parents[1] / "csrc" / "api" / "libisthmus.so"
ROWS = read_table(ROOT / "csrc" / "interpose" / "nccl.symbols")


def job(
    vendors: str,
    case: str,
    folder: Path,
    islands: str = "",
    program: str = "pynccl.py",
    before_amds: Sequence[str] = (),
    **more: str,
) -> list[Any]:
    """What the ranks of a case found. A program other than pynccl.py is for NVIDIA's. Other words may stand before AMD's.
    Between vendors, or islands by their labels, Isthmus carried the communicator of each."""
    processes = []
    for number, letter in enumerate(vendors):
        given = (
            environment(letter) | {"ISTHMUS_LOG": "info"} | more | ({"ISTHMUS_ISLAND": islands[number]} if islands else {})
        )
        script = HERE / (program if letter == "n" else "pynccl.py")
        before = before_amds if letter == "a" else ()
        words = [*before, sys.executable, str(script), str(number), str(len(vendors)), str(folder), case]
        processes.append(subprocess.Popen(words, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        ended = [process.communicate(timeout=patient(120)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for number, process in enumerate(processes):
        assert process.returncode == 0, f"rank {number}: {ended[number]}"
        if len(set(zip(vendors, islands or vendors, strict=True))) > 1:
            assert SPANS in ended[number][1], f"rank {number}: no communicator spanned: {ended[number]}"
    return [json.loads(out) for out, _ in ended]


def test_a_program_that_opens_the_library_by_its_name(tmp_path: Path) -> None:
    assert job("nan", "plain", tmp_path) == [[6.0] * 3] * 3


def test_memory_that_the_library_allocates_is_like_any_other_between_vendors(tmp_path: Path) -> None:
    """ncclMemAlloc takes no communicator: each rank's library gets the call, and takes its memory back."""
    trace = tmp_path / "trace"
    assert job("na", "allocated", tmp_path, REHEARSAL_TRACE=str(trace)) == [[6.0] * 3] * 2
    records = [json.loads(line) for line in trace.read_text().splitlines()]
    assert len(records) == 2
    for record in records:
        assert record["calls"]["ncclMemAlloc"] == record["calls"]["ncclMemFree"] == 1 and record["misuses"] == 0


@pytest.fixture
def cupy() -> str:
    """Where the module of CuPy's wheel is."""
    folder = ROOT / "build" / "vendor-headers" / "cupy"
    if not list(folder.glob("cupy_backends/cuda/libs/nccl.*.so")):
        reason = "no CuPy in build/vendor-headers: scripts/vendor_headers.py fetches it"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    return f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}"  # where tests/patience.py is found, too


def test_cupys_own_communicator_spans_vendors(cupy: str, tmp_path: Path) -> None:
    assert job("nan", "plain", tmp_path, program="cupy_rank.py", PYTHONPATH=cupy) == [[6.0] * 3] * 3


@pytest.mark.computes
def test_cupys_own_communicator_does_all_that_it_can_between_islands(cupy: str, tmp_path: Path) -> None:
    found = job("nnn", "every_method", tmp_path, islands="xyx", program="cupy_rank.py", PYTHONPATH=cupy)
    for rank, told in enumerate(found):
        assert told.pop("asked") == [3, rank, 0, None]  # the last raises what is wrong
        assert told.pop("a root that is none") == "NCCL_ERROR_INVALID_ARGUMENT"
        assert set(told.values()) == {True}, f"rank {rank}: {told}"


@pytest.mark.computes
@pytest.mark.parametrize("vendors", ["na", "ann"])
def test_cupys_own_communicator_does_all_with_every_type_across_vendors(vendors: str, cupy: str, tmp_path: Path) -> None:
    """AMD's ranks make the same calls by ctypes. A part of all ranks in the opposite order does so, too."""
    found = job(vendors, "types", tmp_path, program="cupy_rank.py", PYTHONPATH=cupy)
    for rank, (letter, (asked, wrong)) in enumerate(zip(vendors, found, strict=True)):
        assert wrong == [], f"rank {rank}"
        if letter == "n":
            assert asked == [len(vendors), rank, 0, None, len(vendors), len(vendors) - 1 - rank]


def test_several_ids_and_a_configuration(tmp_path: Path) -> None:
    assert job("na", "scalable", tmp_path) == [[3.0] * 3] * 2


def test_the_meetings_of_further_ids_end(tmp_path: Path) -> None:
    found = job("nan", "several_ids", tmp_path, LIBISTHMUS=str(LIBISTHMUS))
    assert [result for result, _ in found] == [[6.0] * 3] * 3
    assert len(found[0][1]) == 4
    for code, text in found[0][1]:
        assert code == 8 and " is over: all its ranks met and have left" in text, text


def test_a_program_may_make_two_thousand_ids_and_use_any_of_them(tmp_path: Path) -> None:
    """The process that makes them has one thread for that, and one socket for each address of lo. Those who use an id are of
    several vendors."""
    found = job("na", "many_ids", tmp_path)
    assert [results for _, results in found] == [[[3.0] * 3] * 2] * 2
    (threads, listeners), _ = found[0]
    assert threads == ["isthmus-tickets"] and listeners in (1, 2), found[0]
    assert found[1][0] == [[], 0]


def test_the_librarys_listener_for_an_id_ends_where_isthmus_carries_what_is_made_with_it(tmp_path: Path) -> None:
    """No rank comes to it, and it would stay for good, with the thread that waits for them."""
    assert job("na", "root_of_the_id", tmp_path) == [[[3.0] * 3, False]] * 2


def test_a_configuration_of_a_call_is_a_hint_unless_it_cannot_be_ignored(tmp_path: Path) -> None:
    for told, result in job("na", "with_config", tmp_path):
        assert [code for code, _ in told] == [0, 0, 0, 5, 5] and result == [24.0] * 3
        assert "algorithm ring is asked for and forced" in told[3][1] and "launch completion event" in told[4][1]
        assert told[3][1].startswith("ncclAllReduceConfig: ")


def test_a_message_of_more_bytes_than_there_are_numbers_for_is_refused(tmp_path: Path) -> None:
    assert job("na", "too_long", tmp_path) == [[[4, 4, 4], [3.0] * 3]] * 2


def options() -> dict[str, str]:
    """The numbers in isthmus.h, for a program that gives them."""
    text = (ROOT / "csrc" / "include" / "isthmus" / "isthmus.h").read_text()
    words = {"VENDOR_OF_OPTIONS": "VENDOR", "TIMEOUT_OPTION": "TIMEOUT", "LABEL_OPTION": "LABEL"}
    found = {name: re.search(rf"\bISTHMUS_NCCL_{word}(?: =)? (\w+)", text) for name, word in words.items()}
    return {name: str(int(match[1], 0)) for name, match in found.items() if match}


def test_a_configuration_of_a_call_has_options_of_isthmus(tmp_path: Path) -> None:
    """Its own are taken, others' passed by, and wrong ones refused. The deadline of the last call is its own."""
    given = options()
    assert 0 < int(given["VENDOR_OF_OPTIONS"]) < 2**24, "NCCL's rule"
    first, second = job("na", "with_options", tmp_path, **given)
    for told in (first, second):
        (taken, *wrong, result), because = told[:6], ("1 or more", "LABEL is NULL", "no option 99", "circle")
        assert taken == [0, ""] and result == [3.0] * 3
        for (code, text), why in zip(wrong, because, strict=True):
            assert code == 4 and text.startswith("ncclAllReduceConfig: ") and why in text, text
    (begun, state, took, why) = first[6:]
    assert begun == [0, ""] and state == 6 and 0.2 < took < SOON and "the step" in why and "0.3 s" in why, first[6:]


def test_what_programs_ask_of_a_new_communicator_is_answered(tmp_path: Path) -> None:
    """Of its properties rank, number and device, and else that it has none; to register is to be told that nothing is."""
    for rank, (told, why, result) in enumerate(job("nan", "asked_at_init", tmp_path)):
        mine = [rank, 3, 0, -1]
        assert told[0] == [0, *mine, True, [0]]
        assert told[1] == [0, *mine, True, [0, 7]], "no more is written than the program's structure has"
        assert [answer[0] for answer in told[2:4]] == [5, 5] and told[2][1:5] == [7] * 4
        assert told[4:] == [[0, None, 0, 4]] * 2 and "nothing is registered" in why
        assert result == [6.0] * 3


def test_every_call_that_takes_a_configuration_does_what_it_does_without(tmp_path: Path) -> None:
    nothing = [-1.0, -1.0]
    for rank, got in enumerate(job("nan", "every_config", tmp_path)):
        assert got == {
            "ncclAllReduceConfig": [300.0, 303.0],
            "ncclReduceConfig": [300.0, 303.0] if rank == 1 else nothing,
            "ncclBroadcastConfig": [100.0, 101.0],
            "ncclAllGatherConfig": [0.0, 1.0, 100.0, 101.0, 200.0, 201.0],
            "ncclReduceScatterConfig": [300.0 + 6 * rank, 303.0 + 6 * rank],
            "ncclAlltoAllConfig": [100.0 * source + 2 * rank + i for source in range(3) for i in range(2)],
            "ncclGatherConfig": [0.0, 1.0, 100.0, 101.0, 200.0, 201.0] if rank == 1 else nothing * 3,
            "ncclScatterConfig": [100.0 + 2 * rank, 101.0 + 2 * rank],
        }


def test_blocks_of_one_size_by_amds_older_name(tmp_path: Path) -> None:
    found = job("aaa", "even", tmp_path, islands="xyx")
    assert found == [[float(10 * source + rank) for source in range(3)] for rank in range(3)]


@pytest.mark.parametrize("name", ["ncclAlltoAllv", "ncclAllToAllv"])
def test_blocks_of_different_sizes_between_islands_of_amds(name: str, tmp_path: Path) -> None:
    found = job("aaa", "uneven", tmp_path, islands="xyx", NAME=name)
    for rank, got in enumerate(found):
        assert got == [float(10 * s + rank) for s in range(3) for _ in range(rank + 1)]


def test_all_devices_of_a_process_are_the_vendors(tmp_path: Path) -> None:
    assert job("n", "all_of_the_process", tmp_path) == [2]


@pytest.mark.parametrize("letter", ["n", "a"])
def test_every_other_function_refuses_our_communicator(letter: str, tmp_path: Path) -> None:
    """And says why; none hands it to the real library, where it would be a misuse that ends the process."""
    vendor = "nccl" if letter == "n" else "rccl"
    rows = [row for row in ROWS if row.policy == "refuse" and row.is_in(vendor)]
    names, codes = [row.name for row in rows], {row.name: {"Result": 5, "int": -1, "Team": 0}[row.result] for row in rows}
    assert len(names) >= 15 and set(codes.values()) == {5, -1, 0}
    for told, result in job(letter * 2, "vendors_own", tmp_path, islands="xy", NAMES=" ".join(names)):
        assert result == [3.0] * 3 and len(told) == len(names)
        for name, (code, text) in told.items():
            assert code == codes[name] and text.startswith(f"{name}: this communicator spans several vendors"), name


def test_a_forked_child_may_take_part_in_the_census(tmp_path: Path) -> None:
    assert job("n", "forked", tmp_path, LIBISTHMUS=str(LIBISTHMUS)) == [0]
