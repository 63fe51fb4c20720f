"""One rank that trains as a build of PyTorch does, on a simulated device: it plays pytorch_calls.py.

pytorch_rank.py RANK RANKS FOLDER FLOW. Results are compared with NumPy. Prints what was done, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from on_device import hand_out, handed, work_on_the_device
from patience import SOON
from pytorch_group import (
    BUILD,
    EAGER,
    FOLDER,
    RANK,
    RANKS,
    VERSION,
    Group,
    Tensor,
    device,
    event,
    hold,
    library,
    right,
    stream,
)

SUM, AVG, REMOTE = 0, 4, 6
TYPES = {"float32": 7, "bfloat16": 9, "int64": 4, "uint8": 1}
BUCKETS = (3, 1001, 70_001)
SPLITS = {"even": [[5] * RANKS] * RANKS, "none": [[0] * RANKS] * RANKS}
SPLITS["uneven"] = [[7 * ((s + 2 * d) % 3) for d in range(RANKS)] for s in range(RANKS)]  # some are 0
Array = NDArray[Any]
done: list[str] = []


def of(rank: int, count: int, more: int = 0) -> Array:
    """Values of which sums are exact in all types."""
    return np.asarray((np.arange(count) + 3 * rank + more) % 11, np.float64)


def long(count: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(count)


def call(group: Group, name: str, *words: Any) -> None:
    group.checked(getattr(library, name)(*words), name)


# ---- operations --------------------------------------------------------------------------------------------------------


def all_reduce(
    group: Group, tensor: Tensor, op: int = SUM, asynchronous: bool = False, operation: str = "all_reduce"
) -> Callable[[], None]:
    def word(name: str, _: int, on: int) -> None:
        count, kind = long(tensor.values.size), TYPES[tensor.kind]
        call(group, name, tensor.place, tensor.place, count, kind, op, group.comm, ctypes.c_void_p(on))

    return group.operate(operation, word, asynchronous)


def broadcast(group: Group, tensor: Tensor, root: int = 0, asynchronous: bool = False) -> Callable[[], None]:
    def word(name: str, _: int, on: int) -> None:
        count, kind = long(tensor.values.size), TYPES[tensor.kind]
        call(group, name, tensor.place, count, kind, root, group.comm, ctypes.c_void_p(on))

    return group.operate("broadcast", word, asynchronous)


def all_gather(group: Group, own: Tensor, whole: Tensor) -> None:
    def word(name: str, _: int, on: int) -> None:
        count, kind = long(own.values.size), TYPES[own.kind]
        call(group, name, own.place, whole.place, count, kind, group.comm, ctypes.c_void_p(on))

    group.operate("all_gather", word)


def all_gather_uneven(group: Group, own: Tensor, outs: Sequence[Tensor]) -> None:
    def word(name: str, root: int, on: int) -> None:
        source = own if root == group.rank else outs[root]
        count, kind = long(source.values.size), TYPES[own.kind]
        call(group, name, source.place, outs[root].place, count, kind, root, group.comm, ctypes.c_void_p(on))

    group.operate("all_gather uneven", word)


def reduce_scatter(group: Group, whole: Tensor, own: Tensor, factor: float | None = None) -> None:
    op = ctypes.c_int(AVG)

    def word(name: str, _: int, on: int) -> None:
        count, kind = long(own.values.size), TYPES[own.kind]
        if name == "ncclRedOpCreatePreMulSum":
            scalar = ctypes.c_float(factor or 0)
            call(group, name, ctypes.byref(op), ctypes.byref(scalar), kind, 1, group.comm)  # of the host, at once
        elif name == "ncclRedOpDestroy":
            call(group, name, op, group.comm)
        else:
            call(group, name, whole.place, own.place, count, kind, op, group.comm, ctypes.c_void_p(on))

    group.operate("reduce_scatter" if factor is None else "reduce_scatter premul", word)


def messages(group: Group, out: Tensor, into: Tensor, sent: Sequence[int], got: Sequence[int]) -> Callable[..., None]:
    """Words of an exchange: the elements for each rank, and from each, lie one after the other."""
    begins, ends = np.cumsum([0, *sent]), np.cumsum([0, *got])
    numbers = ctypes.c_int()

    def word(name: str, peer: int, on: int) -> None:
        kind, where = TYPES[out.kind], ctypes.c_void_p(on)
        if name in ("ncclCommCount", "ncclCommUserRank"):
            call(group, name, group.comm, ctypes.byref(numbers))
            assert numbers.value == (group.size if name == "ncclCommCount" else group.rank)
        elif name == "ncclSend":
            call(group, name, out.at(int(begins[peer])), long(sent[peer]), kind, peer, group.comm, where)
        elif name == "ncclRecv":
            call(group, name, into.at(int(ends[peer])), long(got[peer]), kind, peer, group.comm, where)
        elif name == "ncclAllToAllv":
            four = [(ctypes.c_size_t * group.size)(*map(int, numbers)) for numbers in (sent, begins[:-1], got, ends[:-1])]
            call(group, name, out.place, *four[:2], into.place, *four[2:], kind, group.comm, where)
        else:
            call(group, name, out.place, into.place, long(sent[0]), kind, group.comm, where)

    return word


def all_to_all(group: Group, splits: str, operation: str, kind: str, asynchronous: bool) -> None:
    counts, me = SPLITS[splits], group.rank
    sent, got = counts[me], [counts[s][me] for s in range(group.size)]
    out = Tensor(np.concatenate([of(me, n, d) for d, n in enumerate(sent)]), kind)
    into = Tensor(np.zeros(sum(got)), kind)
    wait = group.operate(operation, messages(group, out, into, sent, got), asynchronous)
    wait()
    into.is_now(np.concatenate([of(s, n, me) for s, n in enumerate(got)]), f"{operation}, {splits}")


def gather_and_scatter(group: Group) -> None:
    group.root, count = group.size - 1, 9
    at_root = group.rank == group.root
    for operation in ("gather", "scatter"):
        many = [n * (operation == "gather") * at_root for n in [count] * group.size]
        one = [0] * group.root + [count]  # that of the root is what others give or get
        sent = one if operation == "gather" else [count * at_root] * group.size
        got = many if operation == "gather" else one
        out, into = (Tensor(of(group.rank, max(sum(n), 1))) for n in (sent, got))
        inner = messages(group, out, into, sent, got)

        def word(name: str, _: int, on: int, inner: Callable[..., None] = inner) -> None:
            for peer in range(group.root) if at_root and name in ("ncclSend", "ncclRecv") else (group.root,):
                inner(name, peer, on)

        group.operate(operation, word)
        if at_root and operation == "gather":
            into.is_now(np.concatenate([of(s, count) for s in range(group.root)]), operation)
        elif operation == "scatter" and not at_root:
            into.is_now(of(group.root, count * group.size)[count * group.rank :][:count], operation)
    group.root = 0


def batch(group: Group) -> None:
    """batch_isend_irecv of a ring both ways, of a message to itself, and of one without elements."""
    first = not group.comm.value
    to, back, me = (group.rank + 1) % group.size, (group.rank - 1) % group.size, group.rank
    plan = [("ncclSend", to, 77), ("ncclRecv", back, 77), ("ncclRecv", to, 13), ("ncclSend", back, 13)]
    plan += [("ncclSend", me, 5), ("ncclRecv", me, 5), ("ncclSend", to, 0), ("ncclRecv", back, 0)]
    tensors = [Tensor(of(me, n, n) if name == "ncclSend" else np.zeros(n)) for name, _, n in plan]

    def message(name: str, peer: int, count: int, tensor: Tensor) -> None:
        def one(_: str, __: int, ___: int) -> None:
            call(group, name, tensor.place, long(count), 7, peer, group.comm, ctypes.c_void_p(group.own))

        group.play("message", one)

    def word(name: str, _: int, __: int) -> None:
        assert name == "EACH", name
        for line, tensor in zip(plan, tensors, strict=True):
            message(*line, tensor)

    group.play("batch first" if first else "batch", word)
    for (name, peer, count), tensor in zip(plan, tensors, strict=True):
        if name == "ncclRecv":
            tensor.is_now(of(peer, count, count), f"{count} elements from {peer}")


def barrier(group: Group) -> None:
    all_reduce(group, Tensor(np.zeros(1)), operation="barrier")
    group.play("barrier wait", lambda *_: None)


# ---- what training does ------------------------------------------------------------------------------------------------


def backward(group: Group, step: int) -> None:
    """Nothing that the host gives to the streams is done before it has given all of it, so their order makes it right."""
    gradients, waits = [Tensor(of(group.rank, count, step), written=False) for count in BUCKETS], []
    release = hold(0)
    for one in gradients:  # each as soon as backward has it
        one.write()
        waits.append(all_reduce(group, one, asynchronous=True))
    for one, wait in zip(gradients, waits, strict=True):  # Reducer::finalize_backward, and the optimizer
        wait()
        one.keep()
    release()
    for one, count in zip(gradients, BUCKETS, strict=True):
        one.kept(sum(of(r, count, step) for r in range(group.size)), "gradients")


def ddp(group: Group) -> None:
    """DistributedDataParallel: its constructor, and two steps."""
    sizes = Tensor(np.zeros(group.size), "int64")
    all_gather(group, Tensor(np.array([6]), "int64"), sizes)  # verify_params_across_processes
    sizes.is_now(np.full(group.size, 6), "the number of parameters")
    shapes = Tensor(np.arange(12) * (group.rank == 0), "int64")
    broadcast(group, shapes)
    shapes.is_now(np.arange(12), "the parameters' shapes")
    parameters = [Tensor(of(group.rank, n)) for n in BUCKETS]
    for wait in [broadcast(group, one, 0, True) for one in parameters]:  # _broadcast_coalesced
        wait()
    for one, count in zip(parameters, BUCKETS, strict=True):
        one.is_now(of(0, count), "parameters")
    for step in range(2):
        backward(group, step)
    barrier(group)


def fsdp2(group: Group) -> None:
    """fully_shard: parameters are gathered on a stream of their own while gradients are scattered on another one."""
    copies, gathers, scatters = stream(-1), stream(-1), stream(-1)
    marks = {name: event() for name in ("copied", "gathered", "backward", "scattered")}

    def follow(later: int, name: str, earlier: int) -> None:
        device("record", marks[name], ctypes.c_void_p(earlier))
        device("wait", ctypes.c_void_p(later), marks[name], 0)

    for layer, count in enumerate((64, 4097)):
        own = Tensor(of(group.rank, count), "bfloat16", written=False)
        whole = Tensor(np.zeros(count * group.size), "bfloat16")
        gradient = Tensor(of(group.rank, count * group.size) * group.size, written=False)
        shard = Tensor(np.zeros(count))
        release = hold(copies)  # and so all streams that follow it
        own.write(copies)
        follow(gathers, "copied", copies)
        group.current = gathers
        all_gather(group, own, whole)
        group.current = 0
        follow(0, "gathered", gathers)
        whole.keep()
        gradient.write()
        follow(scatters, "backward", 0)
        group.current = scatters
        reduce_scatter(group, gradient, shard, 0.5 if layer else None)
        group.current = 0
        follow(0, "scattered", scatters)
        shard.keep()
        release()
        whole.kept(np.concatenate([of(r, count) for r in range(group.size)]), f"parameters of layer {layer}")
        total = sum(of(r, count * group.size) for r in range(group.size))[count * group.rank :][:count]
        shard.kept(total * (0.5 * group.size if layer else 1), f"gradients of layer {layer}")


def exchanges(group: Group) -> None:
    for splits, operation in (
        ("even", "all_to_all even"), ("none", "all_to_all even"), ("uneven", "all_to_all uneven"),
        ("none", "all_to_all uneven"), ("uneven", "all_to_all list"),
    ):  # fmt: skip
        for kind in ("float32", "uint8"):
            all_to_all(group, splits, operation, kind, kind == "uint8")
    counts = [5 * r + 2 for r in range(group.size)]
    outs = [Tensor(np.zeros(n)) for n in counts]
    all_gather_uneven(group, Tensor(of(group.rank, counts[group.rank])), outs)
    for r, out in enumerate(outs):
        out.is_now(of(r, counts[r]), "all_gather of tensors that differ in size")
    gather_and_scatter(group)


def parts(whole: Group) -> list[Group]:
    """new_group, which splits the whole where `device_id` was given, and split_group where $SPLIT says so."""
    made = []
    for ranks in (tuple(range(RANKS - 1)), (RANKS - 2, RANKS - 1)):
        for way in ("new_group", "split_group") if EAGER and "SPLIT" in os.environ else ("new_group",):
            name = f"{way}-{'-'.join(map(str, ranks))}"
            if RANK in ranks:
                made.append(Group(name, ranks, whole if EAGER else None, way))
            elif EAGER:
                whole.no_color()
    for part in made:
        total = Tensor(of(RANK, 33))
        all_reduce(part, total)
        total.is_now(sum(of(r, 33) for r in part.ranks), part.name)
    done.extend(part.name for part in made)
    return made


# ---- flows -------------------------------------------------------------------------------------------------------------


def training() -> None:
    """Everything, in one process."""
    whole = Group("whole", tuple(range(RANKS)))
    for step in (batch, ddp, fsdp2, exchanges, batch):
        step(whole)
        done.append(step.__name__)
    made = parts(whole)
    barrier(whole)
    for group in [*reversed(made), whole]:  # destroy_process_group: the newest first
        group.destroy()


def interrupted() -> None:
    """Rank 0 aborts with an operation in flight, for which the last rank has not come. All others see it and abort. Then
    they begin anew."""
    group = Group("first", tuple(range(RANKS)))
    barrier(group)
    if RANK == RANKS - 1:
        handed(FOLDER / "aborted")
        all_reduce_fails(group)
    else:
        all_reduce(group, Tensor(of(RANK, 5000)), asynchronous=True)
        hand_out(FOLDER / f"begun-{RANK}", b"")
    if RANK == 0:
        for other in range(1, RANKS - 1):  # whose calls would be refused behind the abort
            handed(FOLDER / f"begun-{other}")
        group.abort()
        hand_out(FOLDER / "aborted", b"")
    else:
        if RANK < RANKS - 1:
            sees_the_abort(group)
        group.abort()
    device("synchronize", ctypes.c_void_p(group.own))  # nothing stays behind on the stream
    again = Group("second", tuple(range(RANKS)))
    total = Tensor(of(RANK, 5000))
    all_reduce(again, total)
    total.is_now(sum(of(r, 5000) for r in range(RANKS)), "after the abort")
    again.destroy()
    done.append("again")


def all_reduce_fails(group: Group) -> None:
    """The call or, behind it, the watchdog tells of it."""
    try:
        all_reduce(group, Tensor(of(RANK, 5000)), asynchronous=True)
    except AssertionError as error:
        assert f"gave {REMOTE}" in str(error), error
        return
    sees_the_abort(group)


def sees_the_abort(group: Group) -> None:
    assert group.watchdog.error.wait(SOON), "the watchdog saw nothing"
    assert group.watchdog.seen == REMOTE, group.watchdog.seen


def apart() -> None:
    """How many ranks a split_group of all of them has."""
    whole, count = Group("whole", tuple(range(RANKS))), ctypes.c_int()
    part = Group("part", tuple(range(RANKS)), whole, "split_group")
    right(library.ncclCommCount(part.comm, ctypes.byref(count)), "ncclCommCount")
    done.append(str(count.value))
    part.destroy()
    whole.destroy()


work_on_the_device()
version = ctypes.c_int()
right(library.ncclGetVersion(ctypes.byref(version)), "ncclGetVersion")
assert version.value >= 22200, "abortCommsFromMap makes no group before an older library"
{flow.__name__: flow for flow in (training, interrupted, apart)}[sys.argv[4]]()
print(json.dumps({"build": [VERSION, BUILD], "done": done}))
