"""Communicators that span vendors, and lose or get ranks: by ncclCommRevoke, ncclCommShrink and ncclCommGrow."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from patience import patient
from spanning import (
    FLOATS,
    HANDED,
    SPANS,
    WITHOUT_GATES,
    Rank,
    asleep,
    at_once,
    check,
    eventually,
    fleet,
    given,
    inside_a_call,
    run,
    summed,
)

SUM = ("all_reduce 7 0 5 0 0 0", "wait")


def total(ranks: list[int]) -> bytes:
    return (FLOATS * sum(r + 1 for r in ranks)).tobytes()


def states(rank: Rank) -> list[str]:
    return [line.split(" state: ")[1].split(",")[0] for line in rank.printed.splitlines() if " state: " in line]


def codes(rank: Rank, call: str) -> list[int]:
    return [int(line.split(f" {call}: ")[1].split(",")[0]) for line in rank.printed.splitlines() if f" {call}: " in line]


def pending(ranks: list[Rank], but: int) -> None:
    """All have an operation in flight that cannot end, because that rank does not call it."""
    for number, rank in enumerate(ranks):
        rank.say("init", *["bare all_reduce 0"] * (number != but))
    at_once(ranks)


# ---- revoke --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("vendors", ["na", "nana"])
def test_a_revoke_ends_what_is_pending_on_all_ranks(
    vendors: str, blocking: bool, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """Rank 0 revokes, and the others hear of it as of a rank that has failed, until they revoke as well."""
    ranks = fleet(vendors)
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init" if blocking else "init 0", *([] if blocking else ["poll 7"]))
        rank.say(*["bare all_reduce 0"] * (number + 1 < len(ranks)))
    at_once(ranks)
    for number, rank in enumerate(ranks):
        rank.say(*["poll 0"] * (number > 0), "revoke 0", "revoke 0", "poll 7", "bare all_reduce 0", "finalize", "destroy")
    run(ranks, scripted, tmp_path)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert states(rank)[0 if blocking else 1 :] == (["0"] if number == 0 else ["6", "0"]), rank.printed
        assert codes(rank, "revoke") == [] and codes(rank, "destroy") == [], rank.printed
        assert codes(rank, "all_reduce") == [5] and "was revoked: it takes no more operations" in rank.printed
        assert codes(rank, "finalize") == [5] and "destroy or abort it" in rank.printed


def test_a_revoked_communicator_is_in_progress_until_its_operations_have_ended(
    scripted: dict[str, Path], tmp_path: Path
) -> None:
    """And the program's streams go on: what stands behind an operation on its stream is done."""
    ranks = fleet("na")
    ranks[0].say("id")
    pending(ranks, 1)
    ranks[0].say("revoke 0", "poll 7", "wait", "touch done", "destroy")
    ranks[1].say("expect done", "abort")
    run(ranks, scripted, tmp_path)
    check(ranks)
    assert states(ranks[0]) == ["0"]


def test_a_revoke_by_another_thread_ends_a_call_that_waits(scripted: dict[str, Path], tmp_path: Path) -> None:
    """No stream of rank 0's waits for the host, so its call returns when the exchange is over. Rank 1 never comes."""
    ranks = fleet("na")
    record = tmp_path / "record"
    ranks[0].environment |= WITHOUT_GATES | {"ISTHMUS_DUMP": str(record)}
    ranks[0].say("id", "init", "touch ready", "revoke_upon inside", "bare all_reduce 0", "poll 7", "touch done")
    ranks[0].say("destroy")
    ranks[1].say("init", "expect done", "poll 0", "abort")

    def let_go(job: list[subprocess.Popen[bytes]]) -> None:
        eventually((tmp_path / "ready").exists, "rank 0 has no communicator")
        eventually(inside_a_call(job[0], record), "rank 0 does not call")
        (tmp_path / "inside").touch()

    run(ranks, scripted, tmp_path, meanwhile=let_go)
    check(ranks)
    assert codes(ranks[0], "all_reduce") == [6] and states(ranks[0]) == ["0"], ranks[0].printed
    assert states(ranks[1]) == ["6"]


def test_a_revoke_with_flags_is_refused_and_the_communicator_goes_on(scripted: dict[str, Path]) -> None:
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", "revoke 1", *SUM, "destroy", "revoke 0")
        rank.inputs.append(given(number))
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        assert codes(rank, "revoke") == [4, 4] and "flags 1: not NCCL_REVOKE_DEFAULT" in rank.printed
        assert rank.output == summed(2)


def test_a_communicator_that_is_still_made_is_not_revoked(scripted: dict[str, Path], tmp_path: Path) -> None:
    ranks = fleet("na")
    ranks[0].say("id", "init 0", "revoke 0", "touch asked", "poll 7", *SUM, "destroy")
    ranks[1].say("expect asked", "init 0", "poll 7", *SUM, "destroy")
    for number, rank in enumerate(ranks):
        rank.inputs.append(given(number))
    run(ranks, scripted, tmp_path)
    check(ranks)
    assert codes(ranks[0], "revoke") == [4] and "is not ready yet" in ranks[0].printed
    assert [rank.output for rank in ranks] == [summed(2)] * 2


@pytest.mark.parametrize("call", ["bare all_reduce 0", "split 0 0"])
def test_in_a_group_a_revoked_communicator_is_refused_operations_and_makes_parts(
    call: str, scripted: dict[str, Path]
) -> None:
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", "revoke 0", "poll 7", "group", call, "end")
        rank.say(*([*SUM, "destroy"] if call.startswith("split") else []), "comm 0", "destroy")
        rank.inputs.append(given(number))
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        if call.startswith("split"):
            assert rank.output == summed(2)
        else:
            assert codes(rank, "all_reduce") == [5] and codes(rank, "end") == [5], rank.printed


@pytest.mark.parametrize("group", [True, False])
def test_parts_of_a_revoked_communicator_span_vendors_or_are_the_vendors_own(
    group: bool, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """Ranks 0 and 2 are NVIDIA's. Rank 3 stays away from the second part."""
    ranks = fleet("nana")
    ranks[0].say("id")
    pending(ranks, 3)
    parts = [[0, 2], [1, 3], [0, 1, 2]]
    for number, rank in enumerate(ranks):
        rank.say(*["poll 0"] * (number > 0), "revoke 0", *["group"] * group, f"split {number % 2} 0")
        rank.say("comm 0", f"split {-1 if number == 3 else 4} {-number}", *["end"] * group)
        for part in (1, *([2] if number < 3 else [])):
            rank.say(f"comm {part}", "ask", *SUM, "destroy")
            rank.inputs.append(given(number))
        rank.say("comm 0", "destroy")
        rank.environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted, tmp_path)
    check(ranks)
    for number, rank in enumerate(ranks):
        mine = [part for part in parts if number in part]
        assert rank.output == b"".join(total(part) for part in mine)
        told = [line for line in rank.printed.splitlines() if line.startswith("rank ")]
        places = [mine[0].index(number), *([2 - number] if number < 3 else [])]
        assert [line.split()[1] for line in told] == [str(place) for place in places]
        lines = [line for line in rank.logged.splitlines() if "ncclCommSplit, rank" in line]
        assert HANDED in lines[0] and (number == 3 or SPANS in lines[1]), lines


# ---- shrink --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [0, 2])
@pytest.mark.parametrize("ending", ["dead", "alive"])
def test_ranks_that_have_revoked_shrink_without_an_abort(
    ending: str, gone: int, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """The rank that is excluded has ended, or lives and does not call. Ranks 1 and 3 are AMD's."""
    ranks = fleet("nana")
    ranks[0].say("id")
    pending(ranks, gone)
    left = [r for r in range(4) if r != gone]
    for number, rank in enumerate(ranks):
        if number == gone:
            rank.say(*(["kill"] if ending == "dead" else [f"expect done.{r}" for r in left]))
            continue
        rank.say(*["poll 0"] * (ending == "dead"), "revoke 0", f"shrink {gone} 0", "ask", *SUM, f"touch done.{number}")
        rank.say("destroy", "comm 0", "destroy")
        rank.inputs.append(given(number))
    run(ranks, scripted, tmp_path)
    assert ranks[gone].code == (-9 if ending == "dead" else 0)
    for number in left:
        rank = ranks[number]
        assert rank.code == 0, rank.printed + rank.logged
        assert f"rank {left.index(number)} of 3" in rank.printed and rank.output == total(left)
        assert codes(rank, "shrink") == codes(rank, "destroy") == []


def test_a_shrink_with_an_abort_ends_what_is_pending_also_on_the_rank_that_is_excluded(
    scripted: dict[str, Path], tmp_path: Path
) -> None:
    """It lives, has an operation in flight, and does not call."""
    ranks = fleet("nana")
    ranks[0].say("id")
    pending(ranks, 2)
    left = [0, 2, 3]
    for number, rank in enumerate(ranks):
        if number == 1:
            rank.say("poll 0", "wait", *[f"expect done.{r}" for r in left], "destroy")
            continue
        rank.say("shrink 1 1", "ask", *SUM, f"touch done.{number}", "destroy", "comm 0", "destroy")
        rank.inputs.append(given(number))
    run(ranks, scripted, tmp_path)
    assert states(ranks[1]) == ["6"] and ranks[1].code == 0, ranks[1].printed
    for number in left:
        assert ranks[number].code == 0, ranks[number].printed + ranks[number].logged
        assert f"rank {left.index(number)} of 3" in ranks[number].printed and ranks[number].output == total(left)


# ---- grow ----------------------------------------------------------------------------------------------------------------


def growing(
    members: list[Rank], newcomers: list[Rank], before: tuple[str, ...] = (), blocking: bool = True, root: int = 0
) -> None:
    """The members have a communicator, and the root makes the id. All make one sum over the new communicator."""
    size, word = len(members) + len(newcomers), [] if blocking else ["poll 7"]
    members[0].say("id")
    for number, rank in enumerate(members):
        rank.say(f"join {number} {len(members)}", *before, "use grown", *["grow_id"] * (number == root))
        rank.say(f"grow {size} {int(number == root)}{'' if blocking else ' 0'}", *word)
    for place, rank in enumerate(newcomers):
        rank.say("use grown", f"come {len(members) + place} {size}{'' if blocking else ' 0'}", *word)
    for number, rank in enumerate([*members, *newcomers]):
        rank.say("ask", *SUM, "destroy")
        rank.inputs.append(given(number))
        rank.environment["ISTHMUS_LOG"] = "info"


def check_grown(ranks: list[Rank], size: int) -> None:
    check(ranks)
    for number, rank in enumerate(ranks):
        assert f"rank {number} of {size} on" in rank.printed, rank.printed
        assert rank.output == summed(size), rank.printed
        line = next(line for line in rank.logged.splitlines() if f"ncclCommGrow, rank {number} of {size}: " in line)
        assert SPANS in line


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(("vendors", "root"), [("naan", 0), ("nan", 1), ("naa", 1)])
def test_a_communicator_gets_ranks_of_any_vendor(
    vendors: str, root: int, blocking: bool, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """The first two ranks are members. The id comes from either, and the newcomer is NVIDIA's or AMD's."""
    ranks = fleet(vendors)
    growing(ranks[:2], ranks[2:], blocking=blocking, root=root)
    for rank in ranks[:2]:
        rank.say("comm 0", "destroy")
    run(ranks, scripted, tmp_path)
    check_grown(ranks, len(ranks))


def test_the_old_communicator_goes_on_beside_the_new_one_and_grows_again(scripted: dict[str, Path], tmp_path: Path) -> None:
    ranks = fleet("naan")
    ranks[0].say("id")
    for number, rank in enumerate(ranks[:2]):
        rank.say(f"join {number} 2")
        for turn, name in enumerate(("first", "second")):
            rank.say("comm 0", f"use {name}", *["grow_id"] * (number == turn), f"grow 3 {int(number == turn)}")
        for comm in (1, 0, 2):
            rank.say(f"comm {comm}", *SUM, "destroy")
            rank.inputs.append(given(number))
    for rank, name in zip(ranks[2:], ("first", "second"), strict=True):
        rank.say(f"use {name}", "come 2 3", *SUM, "destroy")
        rank.inputs.append(given(2))
    run(ranks, scripted, tmp_path)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.output == (summed(3) + summed(2) + summed(3) if number < 2 else summed(3))


def test_one_thread_drives_an_old_rank_and_a_new_one_in_one_group(scripted: dict[str, Path], tmp_path: Path) -> None:
    """Rank 0 and the newcomer are devices of one process."""
    ranks = fleet("na")
    ranks[0].say("id", "join 0 2", "use grown", "grow_id", "group", "grow 3 1", "device 1", "come 2 3", "end")
    ranks[0].say("group", "device 0", "comm 1", SUM[0], "device 1", "comm 2", SUM[0], "end", "wait")
    ranks[0].say("comm 1", "destroy", "comm 2", "destroy", "comm 0", "destroy")
    ranks[1].say("join 1 2", "use grown", "grow 3 0", *SUM, "destroy", "comm 0", "destroy")
    ranks[0].inputs += [given(0), given(2)]
    ranks[1].inputs.append(given(1))
    run(ranks, scripted, tmp_path)
    check(ranks)
    assert ranks[0].output == summed(3) * 2 and ranks[1].output == summed(3)


def test_ranks_that_have_revoked_grow(scripted: dict[str, Path], tmp_path: Path) -> None:
    ranks = fleet("nan")
    growing(ranks[:2], ranks[2:], before=("revoke 0",))
    for rank in ranks[:2]:
        rank.say("comm 0", "destroy")
    run(ranks, scripted, tmp_path)
    check_grown(ranks, 3)


def test_the_place_of_a_rank_that_has_died_is_filled(scripted: dict[str, Path], tmp_path: Path) -> None:
    """By a shrink and then a grow. The newcomer is of another vendor than the rank that has died."""
    ranks = fleet("naan")
    ranks[0].say("id")
    for number, rank in enumerate(ranks[:3]):
        rank.say(f"join {number} 3")
        if number == 1:
            rank.say("expect ready.0", "expect ready.2", "kill")
            continue
        rank.say(f"touch ready.{number}", "poll 0", "shrink 1 1", "use grown", *["grow_id"] * (number == 0))
        rank.say(f"grow 3 {int(number == 0)}", "ask", *SUM, "destroy", "comm 1", "destroy", "comm 0", "destroy")
    ranks[3].say("use grown", "come 2 3", "ask", *SUM, "destroy")
    left = [ranks[0], ranks[2], ranks[3]]
    for number, rank in enumerate(left):
        rank.inputs.append(given(number))
    run(ranks, scripted, tmp_path)
    assert ranks[1].code == -9
    check_grown(left, 3)


def test_a_rank_of_hccls_comes_by_its_init_and_then_calls_that_it_lacks_are_refused(
    scripted: dict[str, Path], tmp_path: Path
) -> None:
    """HCCL has no call to grow: the others would wait for that rank. Without it they go on."""
    ranks = fleet("nah")
    ranks[0].say("id")
    for number, rank in enumerate(ranks[:2]):
        rank.say(f"join {number} 2", "use grown", *["grow_id"] * (number == 0), f"grow 3 {int(number == 0)}", *SUM)
        rank.say("grow 4 0", "comm 1", "split 0 0", "comm 1", "shrink 0 0", "comm 1", "shrink 2 0", *SUM, "touch done")
        rank.say("destroy", "comm 1", "destroy", "comm 0", "destroy")
        rank.inputs += [given(number)] * 2
    ranks[2].say("use grown", "join 2 3", *SUM, "expect done", "destroy")
    ranks[2].inputs.append(given(2))
    run(ranks, scripted, tmp_path)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.output == summed(3) + (summed(2) if number < 2 else b"")
    for number, rank in enumerate(ranks[:2]):
        assert codes(rank, "grow") == codes(rank, "split") == [5] and codes(rank, "shrink") == [4 if number == 0 else 5]
        refused = rank.printed.count("rank 2 is of a vendor whose interface has no such call")
        assert refused == 3 - (number == 0), rank.printed


def test_also_behind_an_init_that_does_not_block_calls_that_hccl_lacks_are_refused(
    scripted: dict[str, Path], tmp_path: Path
) -> None:
    ranks = fleet("nh")
    ranks[0].say("id", "init 0", "poll 7", "split 0 0", "comm 0", "grow 3 0", "comm 0", *SUM, "destroy")
    ranks[1].say("init", *SUM, "destroy")
    for number, rank in enumerate(ranks):
        rank.inputs.append(given(number))
    run(ranks, scripted, tmp_path)
    check(ranks)
    for rank in ranks:
        assert rank.output == summed(2)
    assert (
        codes(ranks[0], "split") == codes(ranks[0], "grow") == [5]
        and "rank 1 is of a vendor whose interface has no such call" in ranks[0].printed
    )


def test_who_does_not_come_is_named_and_the_members_go_on(scripted: dict[str, Path], tmp_path: Path) -> None:
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", "use grown", *["grow_id"] * (number == 0), f"grow 4 {int(number == 0)}")
        rank.say("comm 0", *SUM, "destroy")
        rank.inputs.append(given(number))
        rank.environment["ISTHMUS_TIMEOUT"] = str(patient(5))
    run(ranks, scripted, tmp_path)
    check(ranks)
    for rank in ranks:
        assert codes(rank, "grow") == [6] and "rank 2 and rank 3 of 4 did not arrive" in rank.printed
        assert rank.output == summed(2)


@pytest.mark.parametrize("call", ["grow 4 1", "shrink 2 0"])
def test_a_rank_that_does_not_call_is_named_and_an_abort_ends_the_wait(
    call: str, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """Rank 1 does not call, and the deadline passes; then rank 0 calls again, and a thread of it aborts the communicator."""
    ranks = fleet("nan")
    ranks[0].say("id", "init", "use grown", "grow_id", call, "comm 0", "abort_upon inside", "touch again", call)
    ranks[0].say("touch done")
    for rank in ranks[1:]:
        rank.say("init", "expect done", "abort")
    ranks[0].environment["ISTHMUS_TIMEOUT"] = str(patient(12))

    def let_go(job: list[subprocess.Popen[bytes]]) -> None:
        eventually((tmp_path / "again").exists, "rank 0 does not call again")
        eventually(lambda: asleep(job[0]), "rank 0 does not wait")
        (tmp_path / "inside").touch()

    run(ranks, scripted, tmp_path, meanwhile=let_go)
    check(ranks)
    assert codes(ranks[0], call.split()[0]) == [6, 6], ranks[0].printed
    assert "rank 1" in ranks[0].printed and "destroyed here meanwhile" in ranks[0].printed


def test_a_new_rank_with_an_old_ones_number_is_refused_with_all_others_and_the_old_ones_go_on(
    scripted: dict[str, Path], tmp_path: Path
) -> None:
    ranks = fleet("nan")
    ranks[0].say("id")
    for number, rank in enumerate(ranks[:2]):
        rank.say(f"join {number} 2", "use grown", *["grow_id"] * (number == 0), f"grow 3 {int(number == 0)}")
        rank.say("comm 0", *SUM, "destroy")
        rank.inputs.append(given(number))
    ranks[2].say("use grown", "come 1 3")
    run(ranks, scripted, tmp_path, spans=False)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert codes(rank, "grow") == [5] and "two processes have rank 1" in rank.printed, rank.printed
        assert rank.output == (summed(2) if number < 2 else b"")


def test_an_id_is_for_one_grow(scripted: dict[str, Path], tmp_path: Path) -> None:
    ranks = fleet("nan")
    growing(ranks[:2], ranks[2:])
    for number, rank in enumerate(ranks[:2]):
        rank.say("comm 0", f"grow 3 {int(number == 0)}", "comm 0", "bare all_reduce 0", "wait", "destroy")
    run(ranks, scripted, tmp_path)
    check_grown(ranks, 3)
    for rank in ranks[:2]:
        assert len(codes(rank, "grow")) == 1 and codes(rank, "grow")[0] in (2, 6), rank.printed
        assert codes(rank, "all_reduce") == []


def test_wrong_arguments_of_a_grow_are_refused_on_every_rank_alike(scripted: dict[str, Path], tmp_path: Path) -> None:
    """And the communicator goes on."""
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", "grow 2 0", "comm 0", "use id", "grow 3 1")
        rank.say("comm 0", "use grown", *["grow_id"] * (number == 0))
        rank.say("grow 3 0", "comm 0", "grow 3 1", "comm 0", f"grow {3 + number} {int(number == 0)}")
        rank.say("comm 0", *SUM, "destroy")
        rank.inputs.append(given(number))
    run(ranks, scripted, tmp_path)
    check(ranks)
    for rank in ranks:
        assert codes(rank, "grow") == [4, 4, 5, 5, 5], rank.printed
        for text in (
            "2 ranks: there must be more than the 2 that there are",
            "the id is not of ncclCommGetUniqueId",
            "none of the old ranks gives the id",
            "rank 0 and rank 1 both give an id",
            "rank 0 asks for 3 ranks, and rank 1 for 4",
        ):
            assert text in rank.printed, rank.printed
        assert rank.output == summed(2)


# ---- communicators of one vendor -----------------------------------------------------------------------------------------


def test_a_communicator_of_one_vendor_is_revoked_and_grows_by_its_library(scripted: dict[str, Path], tmp_path: Path) -> None:
    ranks = fleet("nnn")
    growing(ranks[:2], ranks[2:])
    for rank in ranks[:2]:
        rank.say("comm 0", "revoke 0", "poll 7", "bare all_reduce 0")
        rank.say("split 0 0", "bare all_reduce 0", "wait", "destroy")
    run(ranks, scripted, tmp_path)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert f"rank {number} of 3 on" in rank.printed and rank.output == summed(3)
        assert "ncclCommGrow" not in rank.logged
        assert codes(rank, "all_reduce") == [5] * (number < 2), rank.printed


def test_an_older_library_without_these_calls_says_so(scripted: dict[str, Path], tmp_path: Path) -> None:
    """The simulated RCCL is 2.22.3. Its communicator goes on."""
    ranks = fleet("aaa")
    ranks[0].say("id")
    for number, rank in enumerate(ranks[:2]):
        rank.say(f"join {number} 2", "use grown", *["grow_id"] * (number == 0), f"grow 3 {int(number == 0)}")
        rank.say("comm 0", "revoke 0", *SUM, "destroy")
        rank.inputs.append(given(number))
    ranks[2].say("use grown", "come 2 3")
    run(ranks, scripted, tmp_path)
    check(ranks)
    for number, rank in enumerate(ranks):
        calls = [("grow", "Grow"), ("revoke", "Revoke"), ("grow_id", "GetUniqueId")]
        for call, name in calls[: (3, 2, 1)[number]]:
            assert codes(rank, call) == [5], rank.printed
            assert f"ncclComm{name}: the " in rank.printed and "has no such function" in rank.printed
        assert rank.output == (summed(2) if number < 2 else b"")
