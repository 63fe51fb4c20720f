"""Programs for HCCL in jobs that span vendors: simulated ranks, which know their vendor's library alone.

Types and reductions are called by NCCL's numbers in all scripts; script_hccl.c says them in HCCL's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from doors import DOORS, HERE, preloaded
from interpose_entries import read_table
from patience import patient
from spanning import (
    FLOATS,
    GAP,
    HANDED,
    SPANS,
    Rank,
    at_once,
    check,
    environment,
    eventually,
    fleet,
    given,
    run,
    start,
    summed,
    sums,
)
from test_spanning_collectives import (
    BFLOAT16,
    COUNT,
    FLOAT,
    INT64,
    OPS,
    SAME_FLOAT8,
    TYPES,
    Array,
    Job,
    contribution,
    folded,
    long_messages,
    reduces,
)

PARAMETER, NOT_SUPPORTED, TIMEOUT, REMOTE = 1, 5, 9, 21
HCCL_OPS = OPS[:4]  # it has no average
UNSIGNED_8 = 1
# By the numbers of script_hccl.c. Of its own 8-bit floats HCCL's ranks know the bytes alone.
ONLY_HCCL = dict(zip((12, 13, 14, 15), map(np.dtype, ("int16", "uint16", "uint8", "uint8")), strict=True))
COUNT_THERE = 100  # of client_refused_hccl.py


def labelled(job: Job | list[Rank], islands: str) -> None:
    for rank, label in zip(job.ranks if isinstance(job, Job) else job, islands, strict=True):
        rank.environment["ISTHMUS_ISLAND"] = label


# ---- collectives -----------------------------------------------------------------------------------------------------


@pytest.mark.computes
@pytest.mark.parametrize(
    ("vendors", "islands"), [(v, "") for v in ("hn", "nah", "nhah", "nahha", "hnahan")] + [("hhh", "xyx")]
)
def test_every_reduction_of_every_type(vendors: str, islands: str, scripted: dict[str, Path]) -> None:
    job, world = Job(vendors), len(vendors)
    if islands:
        labelled(job, islands)
    for rank in job.ranks:
        rank.environment |= SAME_FLOAT8
    for kind, dtype in enumerate(TYPES):
        mine = [contribution(r, COUNT, dtype) for r in range(world)]
        for op, name in enumerate(HCCL_OPS):
            want = folded(mine, name)
            job.operation("all_reduce", kind, op, mine, [want] * world, place=op % 2)
            wide = [contribution(r, world * 257, dtype) for r in range(world)]
            pieces = np.split(folded(wide, name), world)
            job.operation("reduce_scatter", kind, op, wide, list(pieces), place=1 - op % 2)
    job.end(scripted)


def moves(job: Job, kind: int, dtype: np.dtype[np.generic]) -> None:
    """All that adds nothing."""
    world = len(job.ranks)
    mine = [contribution(r, COUNT, dtype) for r in range(world)]
    root = kind % world
    job.operation("broadcast", kind, 0, mine, [mine[root]] * world, root=root)
    job.operation("bcast", kind, 0, mine, [mine[root]] * world, root=root, place=1)
    job.operation("all_gather", kind, 0, mine, [np.concatenate(mine)] * world, place=kind % 2)
    wide = [contribution(r, world * 99, dtype) for r in range(world)]
    cut = [np.split(x, world) for x in wide]
    turned = [np.concatenate([cut[s][r] for s in range(world)]) for r in range(world)]
    job.operation("all_to_all", kind, 0, wide, turned)
    job.operation("scatter", kind, 0, wide, list(cut[root]), root=root)


@pytest.mark.computes
@pytest.mark.parametrize("vendors", ["nh", "ah", "nahha"])
def test_what_moves_without_adding(vendors: str, scripted: dict[str, Path]) -> None:
    job = Job(vendors)
    for kind, dtype in enumerate(TYPES):
        moves(job, kind, dtype)
    job.end(scripted)


@pytest.mark.parametrize("vendors", ["hn", "ah", "nhah"])
def test_reduce_gives_the_root_alone(vendors: str, scripted: dict[str, Path]) -> None:
    """Of every type and reduction; in place the others keep what they have."""
    job = Job(vendors)
    for rank in job.ranks:
        rank.environment |= SAME_FLOAT8
    reduces(job, HCCL_OPS)
    job.end(scripted)


def test_types_that_hccl_alone_has(scripted: dict[str, Path]) -> None:
    """16-bit integers, which are added too, and two 8-bit floats, which move; between islands of its own."""
    job, world = Job("hhh"), 3
    labelled(job, "xyx")
    for kind, dtype in ONLY_HCCL.items():
        mine = [contribution(r, COUNT, dtype) for r in range(world)]
        root = kind % world
        for op, name in enumerate(HCCL_OPS if dtype.itemsize == 2 else []):
            want = folded(mine, name)
            none = np.zeros(COUNT, dtype)
            job.operation("all_reduce", kind, op, mine, [want] * world, place=op % 2)
            job.operation("reduce", kind, op, mine, [want if r == root else none for r in range(world)], root=root)
            wide = [contribution(r, world * 257, dtype) for r in range(world)]
            job.operation("reduce_scatter", kind, op, wide, list(np.split(folded(wide, name), world)))
        moves(job, kind, dtype)
    job.end(scripted)


@pytest.mark.parametrize("vendors", ["hn", "ah"])
def test_floats_of_8_bits_that_hccl_alone_has_are_bytes_to_others(vendors: str, scripted: dict[str, Path]) -> None:
    ranks = fleet(vendors)
    ranks[0].say("id")
    mine = [contribution(r, COUNT, TYPES[UNSIGNED_8]).tobytes() for r in range(2)]
    for number, rank in enumerate(ranks):
        rank.say("init")
        for kind in (14, 15):
            called = kind if rank.vendor == "hccl" else UNSIGNED_8
            rank.say(f"bcast {called} 0 {COUNT} 1 1 0", f"all_gather {called} 0 {COUNT} 0 0 0")
            rank.inputs += [mine[number]] * 2
        rank.say("wait", "destroy")
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        same = rank.output == (mine[1] + mine[0] + mine[1]) * 2
        assert same and rank.printed == ""


@pytest.mark.computes
def test_long_messages(scripted: dict[str, Path]) -> None:
    long_messages("hnha", "max").end(scripted)


def test_what_hccl_alone_has_between_islands_of_its_own(scripted: dict[str, Path]) -> None:
    """Unequal parts, the barrier, a batch of messages: three ranks in two islands."""
    ranks, world = fleet("hhh"), 3
    labelled(ranks, "xyx")
    ranks[0].say("id")
    want: list[list[Array]] = [[], [], []]
    for rank in ranks:
        rank.say("init")
    for kind, count in ((FLOAT, 5), (4, 300), (9, 1)):
        dtype = TYPES[kind]
        for rank in ranks:
            rank.say("barrier 0")
        gap = np.zeros(1, dtype)
        pieces = [contribution(r, count + r, dtype) for r in range(world)]
        gathered = np.concatenate([part for piece in pieces for part in (piece, gap)])
        wide = [contribution(r, sum(count + q for q in range(world)), dtype) for r in range(world)]
        scattered = np.split(folded(wide, "sum"), np.cumsum([count + r for r in range(world - 1)]))
        for number, rank in enumerate(ranks):
            rank.say(f"gather_v {kind} {count} 0", f"scatter_v {kind} 0 {count} 1", f"batch {kind} {count} 0")
            rank.inputs += [pieces[number].tobytes(), wide[number].tobytes(), pieces[number][:count].tobytes()]
            want[number] += [gathered, scattered[number], pieces[number - 1][:count]]
        for matrix in (0, 1):
            blocks = [[(np.arange(count + s + 2 * d) % 9 + s).astype(dtype) for d in range(world)] for s in range(world)]
            for number, rank in enumerate(ranks):
                rank.say(f"exchange {kind} {count} 0 {matrix}")
                rank.inputs.append(np.concatenate(blocks[number]).tobytes())
                want[number].append(np.concatenate([blocks[s][number] for s in range(world)]))
    for rank in ranks:
        rank.say("wait", "destroy")
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.printed == "" and rank.output == b"".join(x.tobytes() for x in want[number])


@pytest.mark.parametrize("vendors", ["ha", "hah"])
def test_blocks_of_different_sizes_between_vendors(vendors: str, scripted: dict[str, Path]) -> None:
    """Of every type, small ones and longer than a chunk. RCCL has such a call, NCCL has not."""
    ranks, world = fleet(vendors), len(vendors)
    ranks[1].say("id")
    for rank in ranks:
        rank.say("init")
    want: list[list[Array]] = [[] for _ in ranks]
    for kind, count in [(kind, 700 - 50 * kind) for kind in range(len(TYPES))] + [(BFLOAT16, 700_001), (INT64, 200_001)]:
        # Each block begins with other numbers than its neighbours.
        blocks = [
            [((np.arange(count + s + 2 * d) + 4 * d + 2 * s) % 11).astype(TYPES[kind]) for d in range(world)]
            for s in range(world)
        ]
        for number, rank in enumerate(ranks):
            rank.say(f"exchange {kind} {count} 0 0")
            rank.inputs.append(np.concatenate(blocks[number]).tobytes())
            want[number] += [blocks[s][number] for s in range(world)]
    for rank in ranks:
        rank.say("wait", "destroy")
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        same = rank.output == b"".join(x.tobytes() for x in want[number])
        assert same, f"rank {number}"


def test_messages_between_vendors(scripted: dict[str, Path]) -> None:
    """One after the other, in a group in any order, and with a batch at one end and a group at the other."""
    ranks = fleet("hn")
    ranks[0].say("id", "init", "send 7 0 5 1 0 0", "recv 7 0 5 1 0 0")
    ranks[1].say("init", "recv 0 0 20 0 0 0", "send 7 0 5 0 0 0")
    ranks[0].say("group", "recv 7 0 5 1 0 0", "send 7 0 5 1 0 1", "end", "batch 7 5 0", "wait", "destroy")
    ranks[1].say("group", "recv 7 0 5 0 0 0", "send 7 0 5 0 0 1", "end")
    ranks[1].say("group", "send 7 0 5 0 0 0", "recv 7 0 5 0 0 1", "end", "wait", "destroy")
    for number, rank in enumerate(ranks):
        rank.inputs.append(given(number, 3))
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.output == given(1 - number, 3) and rank.printed == ""


@pytest.mark.parametrize("count", [5, 2_000_000])
def test_all_may_send_before_they_receive(count: int, scripted: dict[str, Path]) -> None:
    """On streams of their own, as with HCCL. Ranks 0 and 1 are one island."""
    ranks = fleet("hhnh")
    labelled(ranks, "xxzy")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say(
            "init", f"send 7 0 {count} {(number + 1) % 4} 0 0", f"recv 7 0 {count} {(number + 3) % 4} 0 1", "wait", "destroy"
        )
        rank.inputs.append(contribution(number, count, np.dtype(np.float32)).tobytes())
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        same = rank.output == ranks[number - 1].inputs[0]
        assert same, f"rank {number}"


@pytest.mark.parametrize(("vendors", "islands"), [("hn", ""), ("ah", ""), ("hh", "xy")])
def test_nothing_of_it_is_a_success(vendors: str, islands: str, scripted: dict[str, Path]) -> None:
    """A count of zero, in a group and out of it, with memory and with NULL; where all have them, unequal parts too."""
    calls = ("all_reduce", "reduce", "broadcast", "bcast", "all_gather", "reduce_scatter", "all_to_all", "scatter")
    ranks = fleet(vendors)
    if islands:
        labelled(ranks, islands)
    unequal = ["exchange_nothing 0", "exchange_nothing 1", "nothing_v"] if islands else []
    if vendors == "ah":
        unequal = ["exchange_nothing 0"]
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init")
        rank.inputs.append(given(number))
        for place in (0, 2):
            nothing = [f"{call} 7 0 0 0 {place} 0" for call in calls]
            messages = [f"{call} 7 0 0 {1 - number} {place} 0" for call in ("send", "recv")]
            rank.say(*nothing, *unequal, *messages[:: 1 if number == 0 else -1])
            rank.say("group", *nothing, *unequal, *messages, "end")
        rank.say("all_reduce 7 0 5 0 0 0", "wait", "destroy")
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        assert rank.printed == "" and rank.output == summed(2)


def test_a_group_of_collectives_begins_when_it_ends(scripted: dict[str, Path]) -> None:
    ranks = fleet("hn")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", "group", "all_reduce 7 0 5 0 0 0", "all_reduce 7 0 5 0 0 1", "peek", "end", "wait", "destroy")
        rank.inputs.append(np.full(10, number + 1, np.uint8).astype(np.float32).tobytes())
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        assert rank.printed.endswith("peek: 0\n") and rank.output == np.full(10, 3, np.float32).tobytes()


# ---- ids and the census ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vendors", ["hn", "ha", "nah", "hhaanh"])
@pytest.mark.parametrize("maker", [0, -1])
def test_whoever_makes_the_id_its_last_bytes_are_the_others(vendors: str, maker: int, scripted: dict[str, Path]) -> None:
    ranks = fleet(vendors)
    sums(ranks, "init", "ask", maker=maker)
    run(ranks, scripted)
    check(ranks)
    used = {"nccl": 0, "rccl": 0, "hccl": 0}
    for number, rank in enumerate(ranks):
        assert rank.output == summed(len(ranks)) and SPANS in rank.logged
        assert rank.printed == f"rank {number} of {len(ranks)} on {used[rank.vendor]}\n"
        used[rank.vendor] += 1


def test_an_id_of_nccls_in_front_of_a_root_info_will_do_too(scripted: dict[str, Path], tmp_path: Path) -> None:
    """As a program has it that reads 128 bytes into the beginning of the longer struct."""
    maker = fleet("n")
    maker[0].say("id", "expect used.0", "expect used.1")
    (tmp_path / "ranks").mkdir()
    ranks = fleet("hh")
    for number, rank in enumerate(ranks):
        rank.say("init", "all_reduce 7 0 5 0 0 0", "wait", f"touch used.{number}", "destroy")
        rank.inputs.append(given(number))
        rank.environment["ISTHMUS_LOG"] = "info"
    job = start(maker, scripted, tmp_path)
    try:
        eventually((tmp_path / "id").exists, "there is no id")
        (tmp_path / "ranks" / "id").write_bytes((tmp_path / "id").read_bytes().ljust(4108, b"\0"))
        run(ranks, scripted, tmp_path / "ranks")
    finally:
        for number in range(2):
            (tmp_path / f"used.{number}").touch()
        job[0].wait(patient(60))
    check(ranks)
    for rank in ranks:
        assert rank.output == summed(2) and SPANS in rank.logged, "NCCL made it, so HCCL could make nothing of it"


def test_a_configuration_gives_the_name(scripted: dict[str, Path]) -> None:
    ranks = fleet("hn")
    ranks[0].say("id", "init 1", "name", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
    ranks[1].say("init", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
    for number, rank in enumerate(ranks):
        rank.inputs.append(given(number))
    run(ranks, scripted)
    check(ranks)
    assert ranks[0].printed == "called by name\n" and ranks[0].output == ranks[1].output == summed(2)


def test_the_ranks_of_hccl_alone_get_the_library(scripted: dict[str, Path]) -> None:
    ranks = fleet("hhh")
    sums(ranks, "init")
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        assert rank.output == summed(3) and f"HCCL {HANDED}" in rank.logged


@pytest.mark.parametrize("in_group", [False, True], ids=["alone", "in a group"])
@pytest.mark.parametrize("vendors", ["hhh", "hnh", "hha", "hhnan"])
def test_ranks_may_come_with_several_root_infos(vendors: str, in_group: bool, scripted: dict[str, Path]) -> None:
    """Made by the first and the last rank of HCCL's. The census is held with the first, whose last bytes are the others' id;
    no meeting of the second goes on.
    """
    ranks, last = fleet(vendors), vendors.rindex("h")
    ranks[0].say("root")
    ranks[last].say("use second", "root", "use id")
    for number, rank in enumerate(ranks):
        call = f"scalable {number} {len(ranks)} second" if rank.vendor == "hccl" else "init"
        rank.say(*(["group", call, "end"] if in_group and rank.vendor == "hccl" else [call]))
        rank.say(
            "ask", "all_reduce 7 0 5 0 0 0", "wait", *(["name", "meetings"] if rank.vendor == "hccl" else []), "destroy"
        )
        rank.inputs.append(given(number))
        rank.environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.output == summed(len(ranks)) and rank.printed.startswith(f"rank {number} of {len(ranks)} on ")
        assert (HANDED if set(vendors) == {"h"} else SPANS) in rank.logged and "further id" not in rank.logged, rank.logged
        assert rank.vendor != "hccl" or "called of several\n0 meetings\n" in rank.printed, rank.printed


def test_several_root_infos_of_a_job_that_lacks_a_rank_name_it(scripted: dict[str, Path]) -> None:
    ranks = fleet("hha")
    at_once(ranks)
    ranks[0].say("root", "scalable 0 3 second")
    ranks[1].say("use second", "root")  # and does not come
    ranks[2].say("init")
    for rank in ranks:
        rank.environment["ISTHMUS_TIMEOUT"] = str(GAP)
    run(ranks, scripted, spans=False)
    assert [rank.code for rank in ranks] == [0, 0, 0]
    assert f"scalable: {TIMEOUT}, timeout" in ranks[0].printed and "rank 1 of 3 did not arrive within" in ranks[0].logged
    assert "init: 6, remote process exited" in ranks[2].printed


@preloaded
def test_the_library_of_one_vendor_sees_what_it_sees_without_isthmus(scripted: dict[str, Path], tmp_path: Path) -> None:
    """Recorded by the simulated library: every call of it, and of the runtime, with how often it was made."""

    def calls(name: str, behind: bool) -> list[dict[str, int]]:
        ranks = fleet("hh")
        ranks[0].say("id")
        for number, rank in enumerate(ranks):
            rank.say("init", "all_reduce 7 0 5 0 0 0", "group", "all_reduce 7 0 5 0 0 0", "all_reduce 7 0 5 0 0 1", "end")
            rank.say("barrier 0", "part 7 0 1", "all_reduce 7 0 5 0 0 0", "wait", "destroy", "comm 0", "ask", "destroy")
            rank.inputs.append(given(number, 4))
            rank.environment["REHEARSAL_TRACE"] = str(tmp_path / f"{name}.{number}")
        run(ranks, scripted, tmp_path / name, behind=behind)
        check(ranks)
        assert all(rank.output == summed(2) * 4 for rank in ranks)
        records = [json.loads((tmp_path / f"{name}.{number}").read_text()) for number in range(2)]
        assert all(record["misuses"] == 0 for record in records)
        return [record["calls"] for record in records]

    bare = calls("bare", False)
    assert bare[0]["HcclAllReduce"] == 4 and bare[0]["HcclCommInitRootInfo"] == 1
    assert calls("behind", True) == bare


@pytest.mark.parametrize("off", [0, 1])
def test_a_rank_without_isthmus_works_in_a_job_of_hccl(off: int, scripted: dict[str, Path]) -> None:
    """It comes to the library at once, the others when they have waited for it."""
    ranks = fleet("hhh")
    at_once(ranks)
    sums(ranks, "init", maker=1 - off)
    for rank in ranks:
        rank.environment["ISTHMUS_TIMEOUT"] = str(GAP)
    ranks[off].environment["ISTHMUS_DISABLE"] = "1"
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.output == summed(3)
        if number == off:
            assert rank.logged == ""
        else:
            assert f"rank {off}: did not come" in rank.logged and "taken for ranks without Isthmus" in rank.logged


def test_a_root_info_that_was_made_without_isthmus_is_hccls(scripted: dict[str, Path]) -> None:
    ranks = fleet("hh")
    sums(ranks, "init")
    ranks[0].environment["ISTHMUS_DISABLE"] = "1"
    run(ranks, scripted)
    check(ranks)
    assert all(rank.output == summed(2) for rank in ranks) and HANDED not in ranks[1].logged


def test_a_rank_that_never_comes_is_named(scripted: dict[str, Path]) -> None:
    ranks = fleet("hnh")
    at_once(ranks[:2])
    ranks[0].say("id", "init")
    ranks[1].say("init")
    ranks[2].say("ask")  # has no communicator
    for rank in ranks:
        rank.environment["ISTHMUS_TIMEOUT"] = str(GAP)
    run(ranks, scripted, spans=False)
    assert [rank.code for rank in ranks] == [0, 0, 0]
    assert f"init: {TIMEOUT}, timeout" in ranks[0].printed and "rank 2 of 3 did not arrive within" in ranks[0].logged
    assert "init: 6, remote process exited" in ranks[1].printed


def test_parts_are_hccls_own_or_span_islands(scripted: dict[str, Path]) -> None:
    """Made by their members alone, while the rank of another vendor does something else."""
    ranks = fleet("hhnh")
    labelled(ranks, "xyzx")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init")
        rank.environment["ISTHMUS_LOG"] = "info"
        if rank.vendor != "hccl":
            continue
        rank.say("part 1 3 1 0", "ask", "all_reduce 7 0 5 0 0 0", "comm 0")
        rank.inputs.append(given(number))
        if number != 1:
            rank.say("part 2 0 3", "ask", "all_reduce 7 0 5 0 0 0", "comm 0")
            rank.inputs.append(given(number))
    for number, rank in enumerate(ranks):
        rank.say("comm 0", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
        rank.inputs.append(given(number))
        if rank.vendor == "hccl":
            rank.say("comm 1", "destroy")
    run(ranks, scripted)
    check(ranks)
    three, two = (FLOATS * 7).tobytes(), (FLOATS * 5).tobytes()
    assert [rank.output for rank in ranks] == [
        three + two + summed(4),
        three + summed(4),
        summed(4),
        three + two + summed(4),
    ]
    for number, place in ((0, 2), (1, 1), (3, 0)):
        assert ranks[number].printed.startswith(f"rank {place} of 3 on ")
        line = f"HcclCreateSubCommConfig, rank {place} of 3: {SPANS}"
        assert line in ranks[number].logged
        assert (f"of 2: HCCL {HANDED}" in ranks[number].logged) == (number != 1)


def test_a_part_is_called_by_its_whole_and_its_number(scripted: dict[str, Path]) -> None:
    """As HCCL has it, whether the part is the library's own or not."""
    ranks = fleet("hhh")
    labelled(ranks, "xxy")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say(
            "init 1", "part 5 0 1 2", "name", "destroy", "comm 0", *(["part 6 0 1", "name", "destroy"] if number < 2 else [])
        )
        rank.say("comm 0", "destroy")
    run(ranks, scripted)
    check(ranks)
    assert [rank.printed.splitlines() for rank in ranks[:2]] == [["called by name_sub_5", "called by name_sub_6"]] * 2
    assert ranks[2].printed == "called by name_sub_5\n"


def test_a_part_with_a_rank_of_another_vendor_is_refused_at_once(scripted: dict[str, Path]) -> None:
    """That rank has no such call: the others would wait for it."""
    ranks = fleet("hnh")
    sums(ranks, "init")
    for rank in ranks[::2]:
        rank.environment["ISTHMUS_TIMEOUT"] = "1000"
        rank.lines[-3:-3] = ["part 1 0 1 2", "comm 0"]
    run(ranks, scripted)
    check(ranks)
    for rank in ranks[::2]:
        assert f"part: {NOT_SUPPORTED}, " in rank.printed and "rank 1 is not HCCL's" in rank.logged
    assert all(rank.output == summed(3) for rank in ranks)


# ---- what is refused, and ends ----------------------------------------------------------------------------------------


def test_a_capture_is_refused_and_the_communicator_goes_on(scripted: dict[str, Path]) -> None:
    ranks = fleet("hn")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", "capture 1", "bare all_reduce 1", "stop 1", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
        rank.inputs.append(given(number))
    run(ranks, scripted)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert ranks[0].output == ranks[1].output == summed(2)
    assert f"all_reduce: {NOT_SUPPORTED}, " in ranks[0].printed and "being captured into a graph" in ranks[0].logged


def test_what_cannot_be_is_refused_with_a_line_of_the_log(scripted: dict[str, Path]) -> None:
    ranks = fleet("hn")
    wrong = {
        "typed 12 0": "data type 12 is none",
        "typed 14 0": "numbers of that type are not added",
        "typed 4 4": "reduction 4 is none",
        "broadcast 7 0 0 5 0 0": "rank 5 is not in 0 to 1",
        "send 7 0 0 0 0 0": "a rank sends itself nothing",
        "register": "HcclCommRegister: this communicator spans several vendors or islands",
    }
    sums(ranks, "init")
    ranks[0].lines[2:2] = [*wrong, "group", "part 1 0", "end", "comm 0"]
    run(ranks, scripted)
    check(ranks)
    assert ranks[0].output == ranks[1].output == summed(2)
    told = ranks[0].printed.splitlines()
    codes = [NOT_SUPPORTED, NOT_SUPPORTED, PARAMETER, PARAMETER, PARAMETER, NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED]
    assert [int(line.split()[2].strip(",")) for line in told] == codes, told
    for text in wrong.values():
        assert ranks[0].logged.count(text) == 1, text
    assert "a part of a communicator that spans vendors is not made in a group" in ranks[0].logged


def threads(ranks: int, *names: str) -> tuple[list[list[float]], dict[str, int]]:
    """What client_refused_hccl.py found."""
    words = [sys.executable, str(HERE / "client_refused_hccl.py"), str(ranks), *names]
    given = environment("h") | {"ISTHMUS_LOG": "off"}
    ended = subprocess.run(words, env=given, text=True, capture_output=True, timeout=patient(60), check=False)
    assert ended.returncode == 0, ended
    sums, codes = json.loads(ended.stdout)
    return sums, codes


@preloaded
def test_every_other_function_refuses_our_communicator() -> None:
    """None hands it to the real library, where it would be a misuse that ends the process."""
    rows = [row for row in read_table(DOORS["hccl"].rows) if row.policy == "refuse"]
    assert len(rows) > 40
    sums, codes = threads(1, *(f"{row.name}:{row.communicator}" for row in rows))
    assert sums == [[float(i) for i in range(COUNT_THERE)]]
    assert codes == {row.name: NOT_SUPPORTED for row in rows}


@preloaded
def test_ranks_may_be_threads() -> None:
    sums, _ = threads(3)
    assert sums == [[float(3 * i + 3) for i in range(COUNT_THERE)]] * 3


def test_a_killed_rank_is_seen_by_the_others(scripted: dict[str, Path], tmp_path: Path) -> None:
    ranks = fleet("hnhn")
    sums(ranks, "init", after=())
    for rank in ranks[:3]:
        rank.say("touch ready", "poll 0", "all_reduce 7 0 0 0 0 0", "destroy")
    ranks[3].say("expect ready", "kill")
    run(ranks, scripted, tmp_path)
    assert ranks[3].code == -9
    for rank in ranks[:3:2]:
        assert rank.code == 0, rank.printed + rank.logged
        assert f" state: {REMOTE}, " in rank.printed and f"all_reduce: {REMOTE}, " in rank.printed
        assert "HcclGetCommAsyncError: " in rank.logged and "rank 3" in rank.logged


def test_a_killed_rank_of_hccl_is_seen_by_the_others(scripted: dict[str, Path], tmp_path: Path) -> None:
    ranks = fleet("nah")
    sums(ranks, "init", after=())
    for rank in ranks[:2]:
        rank.say("touch ready", "poll 0", "abort")
    ranks[2].say("expect ready", "kill")
    run(ranks, scripted, tmp_path)
    for rank in ranks[:2]:
        assert rank.code == 0 and " state: 6, " in rank.printed and "rank 2" in rank.printed


def test_a_communicator_that_was_destroyed_is_known_for_it(scripted: dict[str, Path]) -> None:
    ranks = fleet("hn")
    sums(ranks, "init", after=("destroy",))
    ranks[0].say("destroy", "bare all_reduce 0", "poll 0")
    run(ranks, scripted)
    assert ranks[1].code == 0 and ranks[0].code == 3, "poll takes the error for the program's"
    assert [line.split()[1:3] for line in ranks[0].printed.splitlines()] == [
        ["destroy:", f"{PARAMETER},"],
        ["all_reduce:", f"{PARAMETER},"],
    ]
    assert "HcclCommDestroy: this communicator, which spanned vendors, was destroyed" in ranks[0].logged


def test_nothing_is_left_when_it_is_destroyed(scripted: dict[str, Path], tmp_path: Path) -> None:
    """As the simulated vendor counts at the end: what the program itself has, and no more of it after more communicators."""

    def left(times: int, pause: int) -> dict[str, int]:
        ranks = fleet("hnh")
        trace = tmp_path / f"trace.{times}.{pause}"
        ranks[0].environment["REHEARSAL_TRACE"] = str(trace)
        for turn in range(times):
            for number, rank in enumerate(ranks):
                if number == 0:
                    rank.say(*(f"expect over.{q}.{turn - 1}" for q in (1, 2) if turn), "id", f"touch id.{turn}")
                rank.say(
                    f"expect id.{turn}", "init", "all_reduce 7 0 5 0 0 0", "wait", "destroy", f"touch over.{number}.{turn}"
                )
                rank.inputs.append(given(number))
        ranks[0].say(f"sleep {pause}")
        run(ranks, scripted, tmp_path / f"job.{times}.{pause}")
        check(ranks)
        assert all(rank.output == summed(3) * times for rank in ranks)
        record = json.loads(trace.read_text())
        assert record["misuses"] == 0
        assert record["calls"]["HcclCommInitRootInfo"] == record["calls"]["HcclCommDestroy"] == times, "of the island"
        live: dict[str, int] = record["live"]
        return live

    # The last reference may be one of a thread of Isthmus'. What is lost is lost however long one waits.
    for pause in (100, 1000, 10_000):
        once, more = left(1, pause), left(3, pause)
        if once["communicator"] == 0 and more == once:
            return
    pytest.fail(f"after one communicator {once}, after three {more}")


@preloaded
def test_without_the_bridge_the_door_is_a_pass_through(scripted: dict[str, Path], tmp_path: Path) -> None:
    door = DOORS["hccl"]
    alone = tmp_path / "alone" / door.soname
    alone.parent.mkdir()
    alone.write_bytes(door.path.read_bytes())
    ranks = fleet("hh")
    sums(ranks, "init")
    for rank in ranks:
        rank.environment |= {"LD_PRELOAD": str(alone), "ISTHMUS_LOG": "warn"}
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        assert rank.output == summed(2)
        assert rank.logged.count("\n") == 1 and "libisthmus_bridge.so cannot be used" in rank.logged
