"""Programs that say one thing in different calls meet: an exchange of blocks by a function, and by a group of messages.

Builds of PyTorch differ so. `all_to_all_single` is a group of sends and receives in a CUDA build, where the blocks are equal
only up to torch 2.10, and ncclAllToAll(v) in a ROCm build. Gather is ncclGather from torch 2.14 on. Builds against an NCCL
up to 2.13 leave messages without elements out, and newer ones make them.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from spanning import check, fleet, run

FLOAT, BYTE = 7, 1
TYPES: dict[int, np.dtype[np.generic]] = {FLOAT: np.dtype(np.float32), BYTE: np.dtype(np.uint8)}
FORMS = {"n": ("call", "group", "zeros"), "a": ("call", "group", "zeros"), "h": ("call", "group")}
LONG = 400_003  # elements: several chunks, and no whole number of them
Array = NDArray[np.generic]


def elements(call: str, source: int, target: int, root: int, count: int) -> int:
    if call == "uneven":
        return count * ((source + 2 * target) % 3)
    return count if call == "even" or (target if call == "gather" else source) == root else 0


def pairings(vendors: str, call: str) -> list[tuple[str, ...]]:
    """Every form that a rank's vendor has of the call, with every form of the others'."""
    absent = {("n", "uneven"), ("h", "gather")}  # those libraries have no such function
    return list(
        itertools.product(*([f for f in FORMS[v] if f != "call" or (v, call) not in absent] for v in vendors)),
    )


@pytest.mark.parametrize("call", ["even", "uneven", "gather", "scatter"])
@pytest.mark.parametrize("vendors", ["na", "an", "nan", "ah", "hn"])
def test_every_form_of_an_exchange_meets_every_other(vendors: str, call: str, scripted: dict[str, Path]) -> None:
    ranks, world = fleet(vendors), len(vendors)
    ranks[0].say("id")
    want: list[list[Array]] = [[] for _ in ranks]
    for rank in ranks:
        rank.say("init")
    for index, forms in enumerate(pairings(vendors, call)):
        for kind, count in ((FLOAT, 1001), (BYTE, 13), (FLOAT, 0), *([(FLOAT, LONG)] if index == 0 else [])):
            root = index % world
            sizes = [[elements(call, s, d, root, count) for d in range(world)] for s in range(world)]
            data = [
                [((np.arange(sizes[s][d]) + 5 * s + 3 * d + index) % 120).astype(TYPES[kind]) for d in range(world)]
                for s in range(world)
            ]
            for number, rank in enumerate(ranks):
                rank.say(f"build {forms[number]} {call} {kind} {count} {root} {index % 2}")
                rank.inputs.append(b"".join(x.tobytes() for x in data[number]))
                want[number] += [data[s][number] for s in range(world)]
        for rank in ranks:
            rank.say("wait")
    for rank in ranks:
        rank.say("destroy")
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        same = rank.output == b"".join(x.tobytes() for x in want[number])
        assert same and rank.printed == "", f"rank {number}: {rank.printed}"


def test_exchanges_of_a_group_meet_messages_that_are_called_alone(scripted: dict[str, Path]) -> None:
    """Rank 0 calls two exchanges in a group, and rank 1 makes the messages of both in one group."""
    ranks = fleet("na")
    ranks[0].say("id")
    for rank, forms in zip(ranks, (("call", "call"), ("group", "zeros")), strict=True):
        rank.say("init", "group", f"build {forms[0]} even {FLOAT} 7 0 0", f"build {forms[1]} scatter {FLOAT} 3 0 0")
        rank.say("end", "wait", "destroy")
    even = [[np.arange(7, dtype=np.float32) + 10 * s + 20 * d for d in range(2)] for s in range(2)]
    parts = [np.arange(3, dtype=np.float32) + 100 * d for d in range(2)]
    ranks[0].inputs += [np.concatenate(even[0]).tobytes(), np.concatenate(parts).tobytes()]
    ranks[1].inputs.append(np.concatenate(even[1]).tobytes())
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.output == b"".join(x.tobytes() for x in (even[0][number], even[1][number], parts[number]))


@pytest.mark.parametrize("vendors", ["na", "ah"])
def test_an_all_to_all_in_place_is_refused_with_a_reason(vendors: str, scripted: dict[str, Path]) -> None:
    """As messages it would overwrite blocks that are still to be sent. The communicator goes on."""
    ranks = fleet(vendors)
    ranks[0].say("id")
    for rank in ranks:
        rank.say("init", "all_to_all 7 0 4 0 1 0", "all_reduce 7 0 4 0 0 0", "wait", "destroy")
        rank.inputs += [bytes(32), np.ones(4, np.float32).tobytes()]
    run(ranks, scripted)
    for number, rank in enumerate(ranks):
        said = rank.printed + rank.logged
        assert rank.code == 0 and "in place: between vendors the two buffers must not be one" in said, said
        assert rank.output[-16:] == np.full(4, 2, np.float32).tobytes(), f"rank {number}"
