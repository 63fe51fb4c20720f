"""Ranks that were started without Isthmus, beside ranks behind the doors. Their libraries take them to the library's own
listener, and the others hear of it. Every wait of these jobs is so long that nothing else ends it.
"""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest

from doors import preloaded
from spanning import SPANS, Rank, check, eventually, fleet, run, says, summed, sums

pytestmark = preloaded
NEVER = {"ISTHMUS_CENSUS": "100000", "ISTHMUS_TIMEOUT": "100000"}
ADVICE = "start all hosts with `isthmus run`, or set ISTHMUS_DISABLE=1 for all ranks"
ELSEWHERE = re.compile(
    r"(rank \d(?: and rank \d)*) of (\d) did not come to where the communicator's ranks meet \(.*\), and (\d) connections? "
    r"came to the listener that the vendor's library has for the id \((.*)\), as from ranks that run without Isthmus: "
)


def job(vendors: str, without: tuple[int, ...], *after: str) -> list[Rank]:
    """An all_reduce of ranks of which these run without Isthmus. Rank 0, which runs with it, makes the id."""
    ranks = fleet(vendors)
    sums(ranks, "init", *after)
    for number, rank in enumerate(ranks):
        rank.environment |= NEVER
        if number in without:
            rank.environment["ISTHMUS_DISABLE"] = "1"
    return ranks


def named(text: str) -> set[tuple[str, str, str]]:
    """The ranks that are missing, of how many, and how many connections came."""
    assert not ELSEWHERE.search(text) or ADVICE in text
    return {(ranks, world, connections) for ranks, world, connections, _ in ELSEWHERE.findall(text)}


@pytest.mark.parametrize("vendors", ["nann", "anaa"])
def test_ranks_without_isthmus_end_a_job_of_several_vendors_by_name(vendors: str, scripted: dict[str, Path]) -> None:
    ranks = job(vendors, (2, 3), "ask")
    run(ranks, scripted, spans=False)
    for rank in ranks[:2]:
        assert re.search(r" init: 6, .*\nnone\n", rank.printed), rank
        assert named(rank.printed) == {("rank 2 and rank 3", "4", "2")}, rank.printed
        assert summed(4) not in rank.output
    # These are with their library, whose root ends with the process that made the id.
    assert all(re.search(r" init: 2, ", rank.printed) for rank in ranks[2:]), ranks


def test_ranks_without_isthmus_end_a_job_of_several_labels_by_name(scripted: dict[str, Path]) -> None:
    ranks = job("nnnn", (2, 3), "ask")
    for rank, label in zip(ranks, "abab", strict=True):
        rank.environment["ISTHMUS_ISLAND"] = label
    run(ranks, scripted, spans=False)
    for rank in ranks[:2]:
        assert named(rank.printed) == {("rank 2 and rank 3", "4", "2")}, rank.printed


@pytest.mark.parametrize("vendors", ["nnnn", "aaaa"])
@pytest.mark.parametrize("without", [(2, 3), (1,)])
def test_in_a_job_of_one_vendor_the_others_go_to_the_library_at_once_and_name_them(
    vendors: str, without: tuple[int, ...], scripted: dict[str, Path]
) -> None:
    ranks = job(vendors, without)
    run(ranks, scripted)
    check(ranks)
    missing = {"rank 2 and rank 3" if len(without) == 2 else "rank 1"}
    for number, rank in enumerate(ranks):
        assert rank.output == summed(4)
        if number in without:
            assert rank.logged == ""
            continue
        assert "taken for ranks without Isthmus" in rank.logged
        assert named(rank.logged) == {(of, "4", str(len(without))) for of in missing}, rank.logged


def test_the_listener_of_an_id_may_be_of_ipv6(scripted: dict[str, Path]) -> None:
    ranks = job("nnn", (2,))
    for rank in ranks:
        rank.environment["NCCL_SOCKET_FAMILY"] = "AF_INET6"
    run(ranks, scripted)
    check(ranks)
    for rank in ranks[:2]:
        (at,) = {listener for *_, listener in ELSEWHERE.findall(rank.logged)}
        assert at.startswith("[::1]:") and named(rank.logged) == {("rank 2", "3", "1")}, rank.logged


@pytest.mark.parametrize("vendors", ["nna", "nnn"])
def test_ranks_that_are_slow_are_waited_for_where_nobody_went_elsewhere(
    vendors: str, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """The listener hears of ranks of one vendor too, but when all have met."""
    ranks = job(vendors, ())
    ranks[2].lines.insert(0, "expect last")

    def let_go(_: list[subprocess.Popen[bytes]]) -> None:
        eventually(says(tmp_path, 0, "did not come within"), "rank 0 says nothing of its wait")
        (tmp_path / "last").touch()

    run(ranks, scripted, tmp_path, meanwhile=let_go)
    check(ranks)
    for rank in ranks:
        assert rank.output == summed(3) and not named(rank.logged)
        assert (SPANS in rank.logged) == ("a" in vendors)


def test_ranks_that_all_run_without_isthmus_use_an_id_of_a_process_that_runs_with_it(
    scripted: dict[str, Path], tmp_path: Path
) -> None:
    """Nobody waits, so nobody is told of anything."""
    ranks = fleet("nnn")
    for number, rank in enumerate(ranks[:2]):
        rank.say(f"join {number} 2", "all_reduce 7 0 5 0 0 0", "wait", f"touch done.{number}", "destroy")
        rank.inputs.append(summed(1))
        rank.environment["ISTHMUS_DISABLE"] = "1"
    ranks[2].say("id", "expect done.0", "expect done.1")
    run(ranks, scripted, tmp_path)
    check(ranks)
    assert all(rank.logged == "" for rank in ranks) and ranks[0].output == ranks[1].output




def test_who_looks_for_open_ports_does_not_end_a_job_of_ranks_that_come(scripted: dict[str, Path], tmp_path: Path) -> None:
    """One came, and two are missing: they may be late."""
    ranks = job("nna", ())
    for rank in ranks[1:]:
        rank.lines.insert(0, "expect last")

    def let_go(_: list[subprocess.Popen[bytes]]) -> None:
        eventually((tmp_path / "id").exists, "rank 0 has not begun")
        made = (tmp_path / "id").read_bytes()
        socket.create_connection((socket.inet_ntoa(made[12:16]), int.from_bytes(made[10:12], "big"))).close()
        eventually(says(tmp_path, 0, "did not come within"), "rank 0 says nothing of its wait")
        (tmp_path / "last").touch()

    run(ranks, scripted, tmp_path, meanwhile=let_go)
    check(ranks)
    assert all(rank.output == summed(3) and not named(rank.logged) for rank in ranks)
