"""Parts of communicators that span vendors, and what is left of them without some ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from doors import DOORS
from spanning import FLOATS, HANDED, SPANS, check, fleet, given, run, summed, sums


def test_parts_span_vendors_or_are_the_vendors_own(scripted: dict[str, Path]) -> None:
    """Ranks 0 and 2 are NVIDIA's, 1 and 3 AMD's."""
    ranks = fleet("nana")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", f"split {number % 2} {-number}", "ask")  # of one vendor each, the other way round
        rank.say("comm 0", f"split {number // 2} 0", "ask")  # of two
        rank.say("comm 0", f"split {-1 if number == 3 else 7} 0", "ask")  # one stays away
        rank.say("comm 0", f"split {0 if number < 3 else 1} 0", "ask")  # one of each kind
        for part in (1, 2, 4):
            rank.say(f"comm {part}", "all_reduce 7 0 5 0 0 0")
            rank.inputs.append(given(number))
        rank.say("wait")
        rank.environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        told = rank.printed.splitlines()
        assert told[0].startswith(f"rank {1 - number // 2} of 2") and told[1].startswith(f"rank {number % 2} of 2")
        assert told[2] == "none" if number == 3 else told[2].startswith(f"rank {number} of 3")
        assert told[3].startswith("rank 0 of 1" if number == 3 else f"rank {number} of 3")
        parts = [[number, (number + 2) % 4], [number, number ^ 1], [3] if number == 3 else [0, 1, 2]]
        assert rank.output == b"".join((FLOATS * sum(r + 1 for r in part)).tobytes() for part in parts)
        library = DOORS[rank.vendor].library.upper()
        assert rank.logged.count(f"{library} gets the part") == (2 if number == 3 else 1)


def test_a_part_may_be_made_in_a_group(scripted: dict[str, Path]) -> None:
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", "group", f"split 0 {-number}", "end", "ask", "all_reduce 7 0 5 0 0 0", "wait")
        rank.inputs.append(given(number))
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.printed == f"rank {1 - number} of 2 on 0\n" and rank.output == summed(2)


def test_several_parts_of_one_communicator_may_be_made_in_a_group(scripted: dict[str, Path]) -> None:
    """Rows and columns of a square, many times over: each part must be of the ranks that asked for it."""
    ranks, times = fleet("nana"), 5
    ranks[0].say("id")
    parts = [[(number // 2 * 2, number // 2 * 2 + 1), (number % 2, number % 2 + 2)] for number in range(4)]
    for number, rank in enumerate(ranks):
        rank.say("init")
        for turn in range(times):
            rank.say("group", "comm 0", f"split {number // 2} 0", "comm 0", f"split {number % 2} 0", "end")
            for part in (1, 2):
                rank.say(f"comm {2 * turn + part}", "all_reduce 7 0 5 0 0 0", "wait")
                rank.inputs.append(given(number))
            for part in (1, 2):
                rank.say(f"comm {2 * turn + part}", "destroy")
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        expected = [(FLOATS * sum(r + 1 for r in part)).tobytes() for part in parts[number]]
        assert rank.output == b"".join(expected) * times


@pytest.mark.parametrize("group", [True, False])
def test_a_part_works_on_the_device_of_its_parent(group: bool, scripted: dict[str, Path]) -> None:
    """Whatever the program works on meanwhile: first parts of the libraries' own, then one of both."""
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("device 2", "init", "device 3")
        for color in (number, 0):
            rank.say(*["group"] * group, "comm 0", f"split {color} 0", *["end"] * group, "ask")
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.printed == f"rank 0 of 1 on 2\nrank {number} of 2 on 2\n"


def test_a_part_is_made_as_its_parent_was(scripted: dict[str, Path]) -> None:
    """Not blocking, where the split says nothing of it: a part of the library's own is not there when the call ends."""
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init 0", "poll 7", f"split {number} 0", "poll 7", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
        rank.inputs.append(given(number))
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        told = rank.printed.splitlines()
        assert " split: 7, NCCL operation in progress" in told[2] and told[3].endswith("state: 0, ") and len(told) == 4, told
        assert rank.output == given(number)


def test_a_shrink_that_excludes_nobody_is_refused(scripted: dict[str, Path]) -> None:
    ranks = fleet("na")
    sums(ranks, "init", "shrink -1 0")
    run(ranks, scripted)
    for rank in ranks:
        assert rank.code == 0 and rank.output == summed(2)
        assert "shrink: 4, invalid argument" in rank.printed and "no rank is excluded" in rank.printed


@pytest.mark.parametrize("gone", [0, 1])
def test_the_ranks_that_remain_may_go_on_without_one(gone: int, scripted: dict[str, Path], tmp_path: Path) -> None:
    """Ranks 0 and 2 are NVIDIA's; without rank 1 its library gets the rest."""
    ranks = fleet("nan")
    ranks[0].say("id")
    left = [r for r in range(3) if r != gone]
    for number, rank in enumerate(ranks):
        rank.say("init")
        if number == gone:
            rank.say("expect done", "destroy")
            continue
        rank.say(f"shrink {gone} 2", f"shrink {gone} 0", "ask", "all_reduce 7 0 5 0 0 0", "wait", "touch done", "destroy")
        rank.inputs.append(given(number))
        rank.environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted, tmp_path)
    assert ranks[gone].code == 0
    for number in left:
        rank, place = ranks[number], left.index(number)
        assert rank.code == 0, rank.printed + rank.logged
        told = rank.printed.splitlines()
        assert "shrink: 4, " in told[0] and "flags 2: neither NCCL_SHRINK_DEFAULT nor NCCL_SHRINK_ABORT" in told[0]
        assert told[1].startswith(f"rank {place} of 2")
        assert rank.output == (FLOATS * sum(r + 1 for r in left)).tobytes()
        line = next(line for line in rank.logged.splitlines() if f"ncclCommShrink, rank {place} of 2: " in line)
        assert (HANDED if gone == 1 else SPANS) in line


@pytest.mark.parametrize("group", [True, False])
@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(("vendors", "gone"), [("nana", 3), ("nana", 0), ("nan", 1), ("aann", 1)])
def test_the_ranks_that_remain_go_on_when_one_has_died(
    vendors: str, gone: int, blocking: bool, group: bool, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """With an operation pending that can never end. Ranks 0 and 2 of three are NVIDIA's: its library gets what is left."""
    ranks = fleet(vendors)
    ranks[0].say("id")
    left = [r for r in range(len(ranks)) if r != gone]
    for number, rank in enumerate(ranks):
        rank.say("init" if blocking else "init 0", *([] if blocking else ["poll 7"]))
        if number == gone:
            rank.say(*[f"expect ready.{r}" for r in left], "kill")
            continue
        rank.say("bare all_reduce 0", f"touch ready.{number}", "poll 0", f"shrink {gone} 0")
        rank.say(*["group"] * group, "comm 0", f"shrink {gone} 1", *["end"] * group)
        rank.say(*(["poll 7"] if not blocking else []), "ask", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
        rank.say("comm 0", "bare all_reduce 0", "abort")
        rank.inputs.append(given(number))
        rank.environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted, tmp_path)
    assert ranks[gone].code == -9
    alone = len({vendors[r] for r in left}) == 1
    for number in left:
        rank, place = ranks[number], left.index(number)
        assert rank.code == 0, rank.printed + rank.logged
        told = [line for line in rank.printed.splitlines() if " state: 7, " not in line and " state: 0, " not in line]
        assert any(" state: 6, " in line and f"rank {gone}" in line for line in told), told
        assert any(" shrink: 6, " in line for line in told), told  # without the flag
        assert any(line.startswith(f"rank {place} of {len(left)} on ") for line in told), told
        assert told[-1].split()[1:3] == ["all_reduce:", "6,"], told  # the parent stays as it was
        assert rank.output == (FLOATS * sum(r + 1 for r in left)).tobytes()
        line = next(line for line in rank.logged.splitlines() if f"ncclCommShrink, rank {place} of {len(left)}: " in line)
        assert (HANDED if alone else SPANS) in line
