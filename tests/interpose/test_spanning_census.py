"""Unique ids, and the census of ranks before a communicator is made: simulated vendors, whose programs know theirs alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from doors import DOORS, preloaded
from patience import SOON, patient
from spanning import (
    GAP,
    HANDED,
    SPANS,
    Rank,
    at_once,
    check,
    eventually,
    fleet,
    given,
    run,
    says,
    summed,
    sums,
)


@pytest.mark.parametrize("vendors", ["na", "an", "naa", "nananna"])
@pytest.mark.parametrize("maker", [0, -1])
def test_any_rank_makes_the_id(vendors: str, maker: int, scripted: dict[str, Path]) -> None:
    ranks = fleet(vendors)
    sums(ranks, "init", "ask", maker=maker)
    run(ranks, scripted)
    check(ranks)
    used = {"nccl": 0, "rccl": 0}
    for number, rank in enumerate(ranks):
        assert rank.output == summed(len(ranks))
        assert rank.printed == f"rank {number} of {len(ranks)} on {used[rank.vendor]}\n"
        used[rank.vendor] += 1
        assert SPANS in rank.logged


def test_a_process_that_is_no_rank_makes_the_id(scripted: dict[str, Path], tmp_path: Path) -> None:
    ranks = fleet("nan")
    for number, rank in enumerate(ranks[:2]):
        rank.say(f"join {number} 2", "all_reduce 7 0 5 0 0 0", "wait", f"touch done.{number}", "destroy")
        rank.inputs.append(given(number))
    ranks[2].say("id", "expect done.0", "expect done.1")
    run(ranks, scripted, tmp_path)
    check(ranks)
    assert ranks[0].output == ranks[1].output == summed(2)


def test_an_id_of_another_vendors_process_is_no_id_of_the_library(scripted: dict[str, Path], tmp_path: Path) -> None:
    """Both ranks are NVIDIA's, and the id is RCCL's: NCCL could make nothing of it, so Isthmus carries the communicator."""
    ranks = fleet("nna")
    for number, rank in enumerate(ranks[:2]):
        rank.say(f"join {number} 2", "all_reduce 7 0 5 0 0 0", "wait", f"touch done.{number}", "destroy")
        rank.inputs.append(given(number))
        rank.environment["ISTHMUS_LOG"] = "info"
    ranks[2].say("id", "expect done.0", "expect done.1")
    run(ranks, scripted, tmp_path)
    check(ranks)
    for rank in ranks[:2]:
        assert rank.output == summed(2) and SPANS in rank.logged and "served by nccl" in rank.logged


def test_the_ranks_of_one_vendor_get_its_library(scripted: dict[str, Path]) -> None:
    for vendors, library in (("nnn", "NCCL"), ("aa", "RCCL")):
        ranks = fleet(vendors)
        sums(ranks, "init")
        run(ranks, scripted)
        check(ranks)
        for rank in ranks:
            assert rank.output == summed(len(ranks)) and f"{library} {HANDED}" in rank.logged


@preloaded
def test_the_library_of_one_vendor_sees_what_it_sees_without_isthmus(scripted: dict[str, Path], tmp_path: Path) -> None:
    """Recorded by the simulated library: every call of it, and of the driver, with how often it was made."""

    def calls(name: str, behind: bool, *lines: str) -> list[dict[str, int]]:
        ranks = fleet("nn")
        ranks[0].say("id")
        for number, rank in enumerate(ranks):
            rank.say(*lines, "all_reduce 7 0 5 0 0 0", "group", "all_reduce 7 0 5 0 0 0", "all_reduce 7 0 5 0 0 1", "end")
            rank.say("split 0 0", "all_reduce 7 0 5 0 0 0", "wait", "destroy", "comm 0", "finalize", "destroy")
            rank.inputs.append(given(number, 4))
            rank.environment["REHEARSAL_TRACE"] = str(tmp_path / f"{name}.{number}")
        run(ranks, scripted, tmp_path / name, behind=behind)
        check(ranks)
        assert all(rank.output == summed(2) * 4 for rank in ranks)
        records = [json.loads((tmp_path / f"{name}.{number}").read_text()) for number in range(2)]
        assert all(record["misuses"] == 0 for record in records)
        return [record["calls"] for record in records]

    bare = calls("bare", False, "init")
    assert bare[0]["ncclAllReduce"] == 4 and bare[0]["ncclCommInitRank"] == 1
    # The version of the library, once.
    assert calls("behind", True, "init") == [seen | {"ncclGetVersion": 1} for seen in bare]
    # An init in a group is made at its end, so the device that the program worked on at the call is asked for, and set then.
    bare = calls("bare group", False, "group", "init", "end")
    extra = {"ncclGetVersion": 1, "cuCtxGetCurrent": 2, "cuCtxGetDevice": 2}
    moved = [seen | extra | {"cuCtxSetCurrent": seen["cuCtxSetCurrent"] + 2} for seen in bare]
    assert calls("group", True, "group", "init", "end") == moved


@pytest.mark.parametrize("off", ["1", "0"])
def test_a_rank_without_isthmus_works_in_a_job_of_one_vendor(off: str, scripted: dict[str, Path]) -> None:
    """It comes to the vendor's library at once, the others when they have waited for it, but not for ISTHMUS_TIMEOUT."""
    ranks = fleet("nnn")
    at_once(ranks)
    sums(ranks, "init", maker=int(off))
    for rank in ranks:
        rank.environment |= {"ISTHMUS_CENSUS": str(GAP), "ISTHMUS_TIMEOUT": "1000"}
    ranks[1 - int(off)].environment["ISTHMUS_DISABLE"] = "1"
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.output == summed(3)
        if number == 1 - int(off):
            assert rank.logged == ""
        else:
            assert f"rank {1 - int(off)}: did not come" in rank.logged and "taken for ranks without Isthmus" in rank.logged


TOLD = 5  # seconds after which the process that made the id says for whom the others wait
WAITED = re.compile(
    r"warning\] (ranks? .*) of \d did not come within 5 s .*, and the others wait, (.*)\. "
    r".*start all hosts with `isthmus run`, or set ISTHMUS_DISABLE=1 for all ranks"
)


def late(ranks: list[Rank], *names: str) -> None:
    """These, which are the last, begin when they are let go."""
    for name, rank in zip(names, ranks[-len(names) :], strict=True):
        rank.lines.insert(0, f"expect {name}")


def warned(ranks: list[Rank], for_whom: str, how_long: str) -> bool:
    """Rank 0 once, and nobody else."""
    told = [WAITED.findall(rank.logged) for rank in ranks]
    assert [len(of_rank) for of_rank in told] == [1] + [0] * (len(ranks) - 1), told
    return bool(re.fullmatch(for_whom, told[0][0][0]) and re.fullmatch(how_long, told[0][0][1]))


def test_ranks_that_come_one_by_one_are_waited_for(scripted: dict[str, Path], tmp_path: Path) -> None:
    """From the first to the last that is longer than ISTHMUS_CENSUS, but not from one to the next. The log says for whom."""
    ranks = fleet("nnna")
    sums(ranks, "init")
    late(ranks, "second", "third", "fourth")
    census = patient(12)
    for rank in ranks:
        rank.environment["ISTHMUS_CENSUS"] = str(census)

    def let_go(_: object) -> None:
        eventually((tmp_path / "id").exists, "rank 0 has not begun")
        time.sleep(census / 4)
        (tmp_path / "second").touch()
        eventually(says(tmp_path, 0, "did not come within"), "rank 0 says nothing of its wait")
        half = max(TOLD, census / 2)
        time.sleep(half - TOLD)
        (tmp_path / "third").touch()
        time.sleep(census - half + 0.2)
        (tmp_path / "fourth").touch()

    run(ranks, scripted, tmp_path, meanwhile=let_go)
    check(ranks)
    assert all(rank.output == summed(4) and SPANS in rank.logged for rank in ranks)
    # Of those that had not been let go by then, at least.
    assert warned(ranks, "(rank 1, )?rank 2 and rank 3", r"for up to \d+ s more \(ISTHMUS_CENSUS\)"), ranks[0].logged


def test_where_one_vendors_library_could_not_serve_those_that_came_the_rest_is_waited_for(
    scripted: dict[str, Path], tmp_path: Path
) -> None:
    """For ISTHMUS_TIMEOUT, not for ISTHMUS_CENSUS; and the log says so."""
    ranks = fleet("nan")
    at_once(ranks[:2])
    sums(ranks, "init")
    late(ranks, "last")
    for rank in ranks:
        rank.environment["ISTHMUS_CENSUS"] = str(GAP)

    def let_go(_: object) -> None:
        eventually(says(tmp_path, 0, "did not come within"), "rank 0 says nothing of its wait")
        time.sleep(max(0, 2 * GAP - TOLD))  # since rank 1 came, who came within GAP of rank 0, more than ISTHMUS_CENSUS
        (tmp_path / "last").touch()

    run(ranks, scripted, tmp_path, meanwhile=let_go)
    check(ranks)
    assert all(rank.output == summed(3) and SPANS in rank.logged for rank in ranks)
    assert warned(ranks, "rank 2", "until ISTHMUS_TIMEOUT"), ranks[0].logged


OVER = "is over: it failed: rank 2 of 3 did not arrive within "


def when_two_have_gone(folder: Path) -> Callable[[list[subprocess.Popen[bytes]]], None]:
    """Lets a late rank go when ranks 0 and 1 have left the census."""

    def let_go(_: list[subprocess.Popen[bytes]]) -> None:
        for number in range(2):
            eventually(says(folder, number, "taken for ranks without Isthmus"), f"rank {number} does not leave the census")
        (folder / "late").touch()

    return let_go


def test_a_rank_that_comes_too_late_for_the_census_finds_the_others(scripted: dict[str, Path], tmp_path: Path) -> None:
    """They are with the vendor's library by then, and it hears at once that the census is over."""
    ranks = fleet("nnn")
    at_once(ranks[:2])
    sums(ranks, "init")
    late(ranks, "late")
    for rank in ranks[:2]:
        rank.environment["ISTHMUS_CENSUS"] = str(GAP)
    run(ranks, scripted, tmp_path, meanwhile=when_two_have_gone(tmp_path))
    check(ranks)
    assert all(rank.output == summed(3) for rank in ranks)
    assert OVER in ranks[2].logged and "taken for ranks without Isthmus" in ranks[2].logged


def test_a_rank_of_another_vendor_that_comes_too_late_is_told_what_to_set(scripted: dict[str, Path], tmp_path: Path) -> None:
    """The others are with their library, and wait there for a third rank, as they would without Isthmus."""
    ranks = fleet("nna")
    at_once(ranks[:2])
    ranks[0].say("id", "init 0", "expect over")
    ranks[1].say("init 0", "expect over")
    ranks[2].say("expect late", "init", "touch over")
    for rank in ranks:
        rank.environment["ISTHMUS_CENSUS"] = str(GAP)
    run(ranks, scripted, tmp_path, spans=False, meanwhile=when_two_have_gone(tmp_path))
    assert [rank.code for rank in ranks] == [0, 0, 0]
    assert OVER in ranks[2].printed and "ISTHMUS_CENSUS" in ranks[2].printed, ranks[2].printed
    assert all("rank 2: did not come" in rank.logged for rank in ranks[:2])


@preloaded
@pytest.mark.parametrize("vendors", ["na", "an", "hn", "ha"])
def test_without_isthmus_no_job_of_several_vendors_works(vendors: str, scripted: dict[str, Path]) -> None:
    """No library meets another's ranks, so what is right in the other tests is right because of Isthmus."""
    ranks = fleet(vendors)
    sums(ranks, "init", "ask", after=())
    ranks[0].environment["HCCL_CONNECT_TIMEOUT"] = "1"
    run(ranks, scripted, behind=False, spans=False)
    told = [re.search(r" init: (\d+), .*\nnone\n", rank.printed) for rank in ranks]
    codes = [match and int(match[1]) for match in told]
    # The first may wait for the second, or find that it has come and gone.
    assert codes[0] in ((9,) if vendors[0] == "h" else (5, 2)) and codes[1] == 4, ranks
    # Of HCCL's longer root info a program gives others the end, which is empty.
    maker = DOORS[ranks[0].vendor].name
    assert ("not an id of" if maker == "HCCL" else f"the id was made by {maker}") in ranks[1].logged
    assert all(summed(2) not in rank.output for rank in ranks)


@pytest.mark.parametrize("off", [0, 1])
def test_a_rank_without_isthmus_ends_a_job_of_several_vendors_with_an_error(off: int, scripted: dict[str, Path]) -> None:
    """Its library can make nothing of the other's id, nor the other's of its own."""
    ranks = fleet("na")
    sums(ranks, "init", "ask", after=())
    for rank in ranks:
        rank.environment["ISTHMUS_CENSUS"] = "0.5"
    ranks[off].environment["ISTHMUS_DISABLE"] = "1"
    run(ranks, scripted, spans=False)
    for rank in ranks:
        assert re.search(r" init: [245], .*\nnone\n", rank.printed), rank
        assert summed(2) not in rank.output
    assert "the id was made by NCCL, and no rank of RCCL can meet its ranks" in ranks[1].logged


def test_an_id_that_was_made_without_isthmus_is_the_vendors(scripted: dict[str, Path]) -> None:
    ranks = fleet("nn")
    sums(ranks, "init")
    ranks[0].environment["ISTHMUS_DISABLE"] = "1"
    run(ranks, scripted)
    check(ranks)
    assert all(rank.output == summed(2) for rank in ranks) and HANDED not in ranks[1].logged


def test_an_id_that_ranks_make_for_themselves_is_left_alone(scripted: dict[str, Path], tmp_path: Path) -> None:
    """NCCL_COMM_ID: every rank makes the id, and they must be alike."""
    ranks = fleet("n")
    ranks[0].say("id")
    for setting, tail in (({}, True), ({"NCCL_COMM_ID": "127.0.0.1:4000"}, False)):
        ranks[0].environment |= setting
        run(ranks, scripted, tmp_path)
        check(ranks)
        assert ((tmp_path / "id").read_bytes()[48:55] == b"Isthmus") == tail


@pytest.mark.parametrize("maker", ["n", "a"])
def test_a_variable_may_hold_anything_before_an_id_and_one_id_after_the_other(
    maker: str, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """Simulated RCCL, 2.22.3, writes its own part of an id alone, and the rest stays as it was; NCCL, 2.29.3, all of it."""
    ranks = fleet("na")
    making = "na".index(maker)
    for number, rank in enumerate(ranks):
        for use in ("first", "second"):
            rank.say(f"use {use}", *(["id"] if number == making else []), "init", "all_reduce 7 0 5 0 0 0", "wait")
            rank.inputs.append(given(number))
        rank.environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted, tmp_path)
    check(ranks)
    for rank in ranks:
        assert rank.output == summed(2) * 2 and rank.logged.count(SPANS) == 2
    first, second = ((tmp_path / name).read_bytes() for name in ("first", "second"))
    assert first[48:56] == second[48:56] == b"Isthmus" + maker.encode().replace(b"a", b"r") and first[56:] != second[56:]


def test_a_rank_that_never_comes_is_named(scripted: dict[str, Path]) -> None:
    ranks = fleet("nan")
    at_once(ranks[:2])
    ranks[0].say("id", "init 1")
    ranks[1].say("init")
    ranks[2].say("ask")  # has no communicator
    for rank in ranks:
        rank.environment["ISTHMUS_TIMEOUT"] = str(GAP)
    run(ranks, scripted, spans=False)
    for rank in ranks[:2]:
        assert rank.code == 0
        assert "init: 6, remote process exited" in rank.printed and "rank 2 of 3 did not arrive within" in rank.printed


def test_a_group_that_misses_ranks_names_its_other_communicators(scripted: dict[str, Path], tmp_path: Path) -> None:
    """Rank 1 makes the two one after the other, so it waits for the group, and the group for it."""
    ranks = fleet("na")
    # Both ids are served by the process of rank 1, which stays until rank 0 has its error.
    ranks[1].say("use first", "id", "use second", "id", "use first", "join 1 2", "expect over")
    ranks[0].say("group", "use first", "join 0 2", "use second", "join 0 2", "end", "touch over")
    for rank in ranks:
        rank.environment["ISTHMUS_TIMEOUT"] = str(GAP)
    run(ranks, scripted, tmp_path, spans=False)
    told = ranks[0].printed
    first = (tmp_path / "first").read_bytes()
    assert ranks[0].code == 0 and "end: 6, remote process exited" in told and "rank 1 of 2 did not arrive within" in told
    assert re.search(r"The same group makes 'interposed-\w{8}', and makes nothing before all ranks of all its", told), told
    assert first[48:56] == b"Isthmusr"


# Takes part in the census as a rank on AMD does, and never in what comes behind it.
SILENT = """
import ctypes, pathlib, struct, sys, time
isthmus, folder = ctypes.CDLL(sys.argv[1]), pathlib.Path(sys.argv[2])
while not (folder / "id").exists():
    time.sleep(0.002)
ticket = ctypes.create_string_buffer((folder / "id").read_bytes()[56:], 72)
mine = struct.pack("8sq64sQ", b"rccl", 22203, b"", 0xCBF29CE484222325)
both, meeting = ctypes.create_string_buffer(2 * len(mine)), ctypes.c_void_p()
assert isthmus.isthmus_meeting_join(ticket, 1, 2, ctypes.c_double(300), ctypes.byref(meeting)) == 0
time.sleep(float(sys.argv[3]))
assert isthmus.isthmus_meeting_exchange(meeting, mine, both, ctypes.c_size_t(len(mine))) == 0
assert both.value == b"nccl"
print("met", flush=True)
sys.stdin.read()
"""


@preloaded
def test_a_rank_that_falls_silent_behind_the_census_costs_the_timeout_and_is_named(
    scripted: dict[str, Path], tmp_path: Path
) -> None:
    """From then on, however long the census took."""
    late, timeout = 1.0, GAP
    library = DOORS["nccl"].path.parents[1] / "csrc" / "api" / "libisthmus.so"
    words = [sys.executable, "-c", SILENT, str(library), str(tmp_path), str(late)]
    silent = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ranks = fleet("n")
    ranks[0].say("touch begun", "id", "join 0 2", "touch ended")
    ranks[0].environment["ISTHMUS_TIMEOUT"] = str(timeout)
    try:
        run(ranks, scripted, tmp_path)
    finally:
        met, _ = silent.communicate(timeout=SOON)
    assert met == "met\n" and ranks[0].code == 0
    assert "init: 6, remote process exited" in ranks[0].printed
    assert "rank 1 of 2 did not take part in exchange 1 " in ranks[0].printed, ranks[0].printed
    took = (tmp_path / "ended").stat().st_mtime - (tmp_path / "begun").stat().st_mtime
    assert late + 0.9 * timeout < took < late + timeout + SOON
