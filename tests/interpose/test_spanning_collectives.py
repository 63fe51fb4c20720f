"""Communicators that span simulated NVIDIA and AMD ranks, used by C programs that know their vendor's library alone.

Every collective, type and reduction against NumPy; the contributions are such that every order of adding gives the same.
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from spanning import FLOATS, check, fleet, given, run, summed

Array = NDArray[np.generic]

# In the order of the vendors' numbers.
NAMES = "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64".split()
TYPES = [np.dtype(n) for n in NAMES] + [
    np.dtype(getattr(ml_dtypes, n)) for n in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
]
OPS = ["sum", "prod", "max", "min", "avg"]
# Of AMD's devices some take the bytes of 8-bit floats for other numbers, and these do not.
SAME_FLOAT8 = {"REHEARSAL_GFX": "950"}
INT64, FLOAT, BFLOAT16 = 4, 7, 9
HOST, DEVICE = 1, 0
COUNT = 1001


def contribution(rank: int, count: int, dtype: np.dtype[np.generic]) -> Array:
    """Small numbers of both signs; of integers now and then one with the highest bit, in one rank of eight at a time.

    So no average wraps, and sums and products of up to eight ranks are exact in every type.
    """
    at = np.arange(count)
    small = 2 ** ((at // 3 + rank) % 2)
    signed = np.where((at + 2 * rank) % 3 == 0, -small, small)
    if dtype.kind not in "iu":
        return signed.astype(np.float32).astype(dtype)
    high = np.iinfo(dtype).min + 40 if dtype.kind == "i" else np.iinfo(dtype).max // 2 + 40
    return np.where((at + rank) % 8 == 0, dtype.type(high), (signed if dtype.kind == "i" else small).astype(dtype))


def folded(inputs: list[Array], op: str) -> Array:
    """Integers wrap, and their average is cut towards zero."""
    dtype = inputs[0].dtype
    if dtype.kind in "iu":
        whole = np.stack(inputs)
        if op in ("max", "min"):
            return whole.max(0) if op == "max" else whole.min(0)
        added = whole.prod(0, dtype=dtype) if op == "prod" else whole.sum(0, dtype=dtype)
        return (np.sign(added) * (np.abs(added) // len(inputs))).astype(dtype) if op == "avg" else added
    exact = np.stack([x.astype(np.float64) for x in inputs])
    if op == "avg":
        total = exact.sum(0)
        wide = np.float64 if dtype == np.float64 else np.float32
        return (total.astype(wide) / wide(len(inputs))).astype(dtype)
    fold = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}[op]
    return fold(exact, 0).astype(dtype)


class Job:
    """Operations of a communicator of all ranks, and what they must give."""

    def __init__(self, vendors: str) -> None:
        self.ranks = fleet(vendors)
        self.expected: list[list[Array]] = [[] for _ in self.ranks]
        self.since = 0
        self.ranks[0].say("id")
        self.all("init")

    def all(self, *lines: str) -> None:
        for rank in self.ranks:
            rank.say(*lines)

    def operation(
        self, call: str, kind: int, op: int, inputs: list[Array], outputs: list[Array], root: int = 0, place: int = 0
    ) -> None:
        count = inputs[0].size // (len(inputs) if call in ("reduce_scatter", "all_to_all", "scatter") else 1)
        for number, rank in enumerate(self.ranks):
            rank.say(f"{call} {kind} {op} {count} {root} {place} {number % 2}")
            rank.inputs.append(inputs[number].tobytes())
            self.expected[number].append(outputs[number])
        self.since += 1
        if self.since == 40:  # so many wait for the device at once
            self.all("wait")
            self.since = 0

    def end(self, programs: dict[str, Path]) -> None:
        self.all("wait", "finalize", "destroy")
        run(self.ranks, programs)
        check(self.ranks)
        for number, rank in enumerate(self.ranks):
            at = 0
            for index, want in enumerate(self.expected[number]):
                got = rank.output[at : at + want.nbytes]
                at += want.nbytes
                line = [line for line in rank.lines if len(line.split()) == 7][index]
                same = got == want.tobytes()
                assert same, f"rank {number}, {line}: {np.frombuffer(got, want.dtype)[:4]}, not {want[:4]}"
            assert at == len(rank.output)


def reduces(job: Job, ops: list[str]) -> None:
    world = len(job.ranks)
    for kind, dtype in enumerate(TYPES):
        mine = [contribution(r, COUNT, dtype) for r in range(world)]
        none = np.zeros(COUNT, dtype)
        for op, name in enumerate(ops):
            for place, root in ((0, (kind + op) % world), (1, (kind + op + 1) % world)):
                want = [mine[r] if place else none for r in range(world)]
                want[root] = folded(mine, name)
                job.operation("reduce", kind, op, mine, want, root=root, place=place)


@pytest.mark.computes
@pytest.mark.parametrize(("vendors", "islands"), [("na", ""), ("anaan", ""), ("nnn", "xyx")])
def test_every_reduction_of_every_type(vendors: str, islands: str, scripted: dict[str, Path]) -> None:
    job, world = Job(vendors), len(vendors)
    for number, rank in enumerate(job.ranks):
        rank.environment |= SAME_FLOAT8 | ({"ISTHMUS_ISLAND": islands[number]} if islands else {})
    for kind, dtype in enumerate(TYPES):
        mine = [contribution(r, COUNT, dtype) for r in range(world)]
        for op, name in enumerate(OPS):
            want = folded(mine, name)
            for place in (0, 1):
                job.operation("all_reduce", kind, op, mine, [want] * world, place=place)
            wide = [contribution(r, world * 257, dtype) for r in range(world)]
            pieces = np.split(folded(wide, name), world)
            job.operation("reduce_scatter", kind, op, wide, list(pieces), place=op % 2)
    job.end(scripted)


def test_types_that_the_vendors_read_differently_are_not_added(scripted: dict[str, Path]) -> None:
    ranks = fleet("na")
    ranks[0].say("id")
    ranks[1].environment["REHEARSAL_GFX"] = "942"
    for rank in ranks:
        rank.say("init", "all_reduce 10 0 16 0 0 0", "all_reduce 7 0 4 0 0 0", "wait", "destroy")
        rank.inputs += [bytes(16), contribution(0, 4, np.dtype(np.float32)).tobytes()]
    run(ranks, scripted)
    for number, rank in enumerate(ranks):
        assert rank.code == 0 and "all_reduce: 5, " in rank.printed and "(fnuz)" in rank.printed, f"rank {number}: {rank}"
        same = rank.output[16:] == folded([contribution(0, 4, np.dtype(np.float32))] * 2, "sum").tobytes()
        assert same, "it goes on"


@pytest.mark.computes
@pytest.mark.parametrize("vendors", ["na", "anaan"])
def test_reduce_broadcast_and_all_gather_of_every_type(vendors: str, scripted: dict[str, Path]) -> None:
    job, world = Job(vendors), len(vendors)
    for kind, dtype in enumerate(TYPES):
        mine = [contribution(r, COUNT, dtype) for r in range(world)]
        for root in range(world):
            every = [mine[root]] * world
            job.operation("broadcast", kind, 0, mine, list(every), root=root)
            job.operation("bcast", kind, 0, mine, list(every), root=root, place=1)
        for place in (0, 1):
            job.operation("all_gather", kind, 0, mine, [np.concatenate(mine)] * world, place=place)
    job.end(scripted)


@pytest.mark.parametrize("vendors", ["na", "anaan"])
def test_the_calls_that_newer_libraries_have(vendors: str, scripted: dict[str, Path]) -> None:
    """The simulated libraries are too old to have them, which does not matter between vendors."""
    job, world = Job(vendors), len(vendors)
    for kind, dtype in enumerate(TYPES):
        wide = [contribution(r, world * 99, dtype) for r in range(world)]
        cut = [np.split(x, world) for x in wide]
        job.operation("all_to_all", kind, 0, wide, [np.concatenate([cut[s][r] for s in range(world)]) for r in range(world)])
        for root in (0, world - 1):
            job.operation("scatter", kind, 0, wide, list(cut[root]), root=root)
            none = np.zeros(world * wide[0].size, dtype)
            job.operation(
                "gather", kind, 0, wide, [np.concatenate(wide) if r == root else none for r in range(world)], root=root
            )
    job.end(scripted)


@pytest.mark.parametrize("vendors", ["nan", "anaan"])
def test_reduce_gives_the_root_alone(vendors: str, scripted: dict[str, Path]) -> None:
    """Of every type and reduction; in place the others keep what they have."""
    job = Job(vendors)
    for rank in job.ranks:
        rank.environment |= SAME_FLOAT8
    reduces(job, OPS)
    job.end(scripted)


def long_messages(vendors: str, op: str) -> Job:
    """Of several chunks each, and none a whole number of them; the reduction is that of the 16-bit floats."""
    job, world = Job(vendors), len(vendors)
    mine = [contribution(r, 700_001, TYPES[FLOAT]) for r in range(world)]
    job.operation("all_reduce", FLOAT, 0, mine, [folded(mine, "sum")] * world)
    job.operation("all_gather", FLOAT, 0, mine, [np.concatenate(mine)] * world)
    job.operation("broadcast", FLOAT, 0, mine, [mine[3]] * world, root=3)
    short = [contribution(r, 1_300_003, TYPES[BFLOAT16]) for r in range(world)]
    job.operation("all_reduce", BFLOAT16, OPS.index(op), short, [folded(short, op)] * world, place=1)
    wide = [contribution(r, world * 170_001, TYPES[INT64]) for r in range(world)]
    pieces = np.split(folded(wide, "prod"), world)
    job.operation("reduce_scatter", INT64, OPS.index("prod"), wide, list(pieces))
    return job


@pytest.mark.computes
def test_long_messages(scripted: dict[str, Path]) -> None:
    long_messages("nana", "avg").end(scripted)


def summed_with(factors: list[float], inputs: list[Array]) -> Array:
    exact = [x.astype(np.float64) * factor for x, factor in zip(inputs, factors, strict=True)]
    return np.sum(exact, 0).astype(np.float32).astype(inputs[0].dtype)


@pytest.mark.parametrize("residence", [HOST, DEVICE])
def test_sums_with_a_factor_of_each_rank(residence: int, scripted: dict[str, Path]) -> None:
    """By every call that sums, alone and in a group. As NCCL has it, the reduction may be destroyed once the calls have been
    made, so also before their group ends.
    """
    ranks, factors, kinds, piece, root = fleet("nan"), [0.5, 2.0, 4.0], [6, 7, 8, 9, 10, 11], 257, 1
    wanted: list[list[Array]] = [[] for _ in ranks]
    ranks[0].say("id")
    for rank in ranks:
        rank.environment |= SAME_FLOAT8
        rank.say("init")
    for kind in kinds:
        dtype = TYPES[kind]
        mine = [contribution(r, COUNT, dtype) for r in range(3)]
        wide = [contribution(r, 3 * piece, dtype) for r in range(3)]
        total, pieces, none = summed_with(factors, mine), np.split(summed_with(factors, wide), 3), np.zeros(COUNT, dtype)
        calls = [f"all_reduce {kind} -1 {COUNT} 0 0 0", f"reduce {kind} -1 {COUNT} {root} 0 0"]
        calls.append(f"reduce_scatter {kind} -1 {piece} 0 0 0")
        for number, rank in enumerate(ranks):
            make, factor = f"scale {kind} {residence}", np.array([factors[number]]).astype(dtype)
            rank.say(make, *calls, "unscale", make, "group", *calls, "unscale", "end")
            rank.inputs += [x.tobytes() for x in (factor, mine[number], mine[number], wide[number])] * 2
            wanted[number] += [total, total if number == root else none, pieces[number]] * 2
    for rank in ranks:
        rank.say("wait", "unscale", "destroy")
    run(ranks, scripted)
    for number, rank in enumerate(ranks):
        assert rank.code == 0, rank.printed + rank.logged
        last = len(OPS) + 2 * len(kinds) - 1
        assert rank.printed.count("\n") == 1 and f"ncclRedOpDestroy: reduction {last} is none" in rank.printed, rank.printed
        at = 0
        for index, want in enumerate(wanted[number]):
            got = rank.output[at : at + want.nbytes]
            at += want.nbytes
            call = f"{'group' if index % 6 > 2 else 'alone'}, {('all_reduce', 'reduce', 'reduce_scatter')[index % 3]}"
            same = got == want.tobytes()
            assert same, f"rank {number}, {call} of {want.dtype}: {np.frombuffer(got, want.dtype)[:4]}, not {want[:4]}"
        assert at == len(rank.output)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("vendors", ["na", "an"])
def test_a_factor_on_the_device_is_what_the_stream_has_left_there(
    vendors: str, together: bool, scripted: dict[str, Path]
) -> None:
    """A copy that the stream holds writes it: where it is to be is 0 when the reduction is made and when the call is. The
    stream is held up for a while, and the call, or the end of the group, waits for it.
    """
    ranks = fleet(vendors)
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", "all_reduce 7 0 5 0 0 0", "wait")  # first calls may wait for the device
        rank.say("hold 0", f"later 200 called.{number}", f"scale {FLOAT} {DEVICE} 0")
        rank.say(*(["group"] if together else []), f"all_reduce {FLOAT} -1 5 0 0 0", "unscale")
        rank.say(*(["end"] if together else []), f"touch called.{number}", "wait", "destroy")
        rank.inputs += [given(number), np.float32(number + 3).tobytes(), given(number)]
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.printed == f"called.{number} is not there\n", rank.printed
        assert rank.output == summed(2) + (FLOATS * (1 * 3 + 2 * 4)).tobytes()


@pytest.mark.computes
@pytest.mark.parametrize("residence", [0, 1])
def test_sums_of_integers_with_a_factor_of_each_rank_wrap(residence: int, scripted: dict[str, Path]) -> None:
    """As the vendors' libraries multiply: numbers of the type, of which one fits into no float."""
    ranks, kinds = fleet("nan"), range(6)
    factors = [3, 2**63 + 2**31 + 2**15 + 2**7 - 3, 0]
    ranks[0].say("id")
    wanted = b""
    for kind in kinds:
        mine = [contribution(r, COUNT, TYPES[kind]) for r in range(3)]
        of_type = [np.array([f], np.uint64).astype(TYPES[kind]) for f in factors]
        wanted += (mine[0] * of_type[0] + mine[1] * of_type[1]).tobytes()
        for rank, factor, data in zip(ranks, of_type, mine, strict=True):
            rank.inputs += [factor.tobytes(), data.tobytes()]
    for rank in ranks:
        rank.say("init", *[f"scale {k} {residence}\nall_reduce {k} -1 {COUNT} 0 0 0" for k in kinds], "wait", "destroy")
    run(ranks, scripted)
    check(ranks)
    same = [rank.output == wanted for rank in ranks]
    assert all(same)


def test_nothing_of_it_is_a_success(scripted: dict[str, Path]) -> None:
    """A count of zero, in a group and out of it, with memory and with NULL, and the operations around it."""
    calls = "all_reduce reduce broadcast bcast all_gather reduce_scatter all_to_all gather scatter".split()
    ranks = fleet("na")
    ranks[0].say("id")
    mine = [contribution(r, 5, np.dtype(np.float32)) for r in range(2)]
    for number, rank in enumerate(ranks):
        peer = 1 - number
        rank.say("init")
        for place in (0, 2):
            nothing = [f"{call} 7 0 0 0 {place} 0" for call in calls]
            messages = [f"{call} 7 0 0 {peer} {place} 0" for call in ("send", "recv")]
            rank.say(*nothing, *messages[:: 1 if number == 0 else -1], "group", *nothing, *messages, "end")
        rank.say("all_reduce 7 0 5 0 0 0", "wait", "destroy")
        rank.inputs.append(mine[number].tobytes())
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        same = rank.output == folded(mine, "sum").tobytes()
        assert rank.printed == "" and same


def test_messages_between_vendors(scripted: dict[str, Path]) -> None:
    """Both ways at once in a group, in any order, and one after the other outside of it."""
    ranks = fleet("nan")
    ranks[0].say("id")
    data = {(s, d): contribution(s * 3 + d, 100 * (s + 1) + d, np.dtype(np.float32)) for s in range(3) for d in range(3)}
    for number, rank in enumerate(ranks):
        rank.say("init", "group")
        peers = [p for p in range(3) if p != number]
        for peer in reversed(peers):
            rank.say(f"recv 7 0 {data[peer, number].size} {peer} 0 0")
        for peer in peers:
            rank.say(f"send 7 0 {data[number, peer].size} {peer} 0 1")
            rank.inputs.append(data[number, peer].tobytes())
        rank.say("end", "wait")
    # One way, outside of a group; the receiver calls the bytes by another type.
    ranks[0].say("send 7 0 500 1 0 0")
    ranks[0].inputs.append(contribution(9, 500, np.dtype(np.float32)).tobytes())
    ranks[1].say("recv 0 0 2000 0 0 0")
    for rank in ranks:
        rank.say("wait", "destroy")
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        peers = [p for p in range(3) if p != number]
        want = b"".join(data[peer, number].tobytes() for peer in reversed(peers))
        if number == 1:
            want += contribution(9, 500, np.dtype(np.float32)).tobytes()
        same = rank.output == want
        assert same


def test_labels_make_islands_of_one_vendor(scripted: dict[str, Path]) -> None:
    job = Job("nnn")
    for number, rank in enumerate(job.ranks):
        rank.environment["ISTHMUS_ISLAND"] = "xyx"[number]
        rank.environment["ISTHMUS_LOG"] = "info"
    mine = [contribution(r, COUNT, np.dtype(np.float32)) for r in range(3)]
    job.operation("all_reduce", FLOAT, 0, mine, [folded(mine, "sum")] * 3)
    job.end(scripted)
    logged = job.ranks[0].logged
    assert "Isthmus carries the communicator (ranks 0 and 2: nccl 2.29.3, island x; rank 1: nccl 2.29.3, island y)" in logged
