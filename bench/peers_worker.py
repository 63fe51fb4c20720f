"""One rank of the comparison. `peers.py` starts it under mpirun; every rank holds all contenders and times them in turn.

In each round every contender runs one block of the same work on the same buffers, behind a barrier. The order moves on by
one from round to round. So other work of the machine meets all contenders alike. No contender has a thread that polls while
another contender is timed: Open MPI progresses inside its calls, and Gloo's and Isthmus' threads sleep.

From 64 KiB up every rank writes its message anew before each call, as a program does. Without the writing, a library that
reads the sender's memory itself (Open MPI, by process_vm_readv) would find the message in the reader's cache from the call
before, and nothing would go from core to core. After the writing the ranks meet in a barrier. Only the call is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np
from mpi4py import MPI

Call = Callable[[], object]
Calls = dict[str, tuple[Call, list[np.ndarray]]]  # of each contender: the call, and where its result stands, in order
LIMIT_BYTES = 64 << 20  # the size at which the memory rate is measured along, and the footprint of that measurement
KERNELS = ("add", "copy", "add_streaming")  # of isthmus-bench --limit
WRITTEN_FROM = 64 << 10  # messages from here on are written anew before every call


class Buffers:
    """Arrays of one row: `block` is a rank's share, `whole` all ranks' shares, `parts` these shares in separate arrays, as
    in lists of tensors. The arrays with `_out` receive."""

    def __init__(self, collective: str, nbytes: int, world: int) -> None:
        total = nbytes // 4
        lists = collective.endswith("_list") or collective in ("gather", "scatter")
        shared = lists or collective in ("all_gather", "reduce_scatter", "all_to_all")
        self.count = max(1, total // world) if shared else max(1, total)  # of a block, or of the whole message
        self.total = self.count * world if shared else self.count
        self.block = np.ones(self.count, np.float32)
        self.whole = np.ones(self.total, np.float32)
        self.block_out = np.zeros(self.count, np.float32)
        self.whole_out = np.zeros(self.total, np.float32)
        self.parts = [np.ones(self.count, np.float32) for _ in range(world if lists else 0)]
        self.parts_out = [np.zeros(self.count, np.float32) for _ in range(world if lists else 0)]

    def sent_by(self, collective: str, rank: int) -> list[np.ndarray]:
        """What the rank gives to others, where it is large."""
        if self.total * 4 < WRITTEN_FROM or (collective in ("broadcast", "scatter") and rank != 0):
            return []
        if collective in ("scatter", "reduce_scatter_list", "all_to_all_list"):
            return self.parts
        return [self.block] if collective in ("all_gather", "all_gather_list", "gather") else [self.whole]


class Rank:
    def __init__(self, contenders: tuple[str, ...], block_seconds: float, rounds: int, limit_program: str) -> None:
        self.mpi = MPI.COMM_WORLD
        self.rank, self.world = self.mpi.Get_rank(), self.mpi.Get_size()
        self.contenders, self.block_seconds, self.rounds = contenders, block_seconds, rounds
        self.limit_program = limit_program
        self.versions = {"openmpi": MPI.Get_library_version().split(",")[0], "numpy": np.__version__}
        self.isthmus: Any = None
        self.groups: dict[str, Any] = {}
        if "isthmus" in contenders:
            import isthmus

            self.isthmus = isthmus.from_mpi(self.mpi)
            self.versions["isthmus"] = isthmus.__version__
        if any(name.startswith("torch") for name in contenders):
            self.start_torch()
        self.pin()

    def start_torch(self) -> None:
        warnings.filterwarnings("ignore", category=FutureWarning)
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        torch.set_num_threads(1)
        self.versions["torch"] = torch.__version__
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        port = 0
        if self.rank == 0:
            self.store = dist.TCPStore("127.0.0.1", 0, self.world, True, wait_for_workers=False)
            port = self.store.port
        port = self.mpi.bcast(port)
        if self.rank != 0:
            self.store = dist.TCPStore("127.0.0.1", port, self.world, False)
        dist.init_process_group("gloo", store=self.store, rank=self.rank, world_size=self.world)
        self.groups["torch_gloo"] = dist.group.WORLD
        if "torch_isthmus" in self.contenders:
            import isthmus.torch  # noqa: F401  (registers the backend)

            self.groups["torch_isthmus"] = dist.new_group(backend="isthmus")
        if "torch_itself" in self.contenders:
            from torch.testing._internal.distributed import fake_pg  # noqa: F401  (registers the backend)

            self.groups["torch_itself"] = dist.new_group(backend="fake")

    def pin(self) -> None:
        """One core for the calling thread of each rank, as mpirun binds by default: two polling ranks on one core would
        measure the scheduler. Threads that contenders have started by now (the first calls start them) stay free to move."""
        b = Buffers("all_reduce", 8, self.world)
        for call, _ in self.all_calls("all_reduce", b).values():
            call()
        self.cores = sorted(os.sched_getaffinity(0))
        self.own_core = {self.cores[self.rank % len(self.cores)]}
        os.sched_setaffinity(0, self.own_core)

    # ---- the work, as each contender's user writes it -------------------------------------------------------------------

    def numpy_calls(self, collective: str, b: Buffers) -> Calls:
        mpi, own, f32 = self.mpi, self.isthmus, MPI.FLOAT
        peer, first = self.rank ^ 1, self.rank % 2 == 0

        def mpi_ping_pong() -> None:
            if first:
                mpi.Send([b.whole, f32], peer)
                mpi.Recv([b.whole_out, f32], peer)
            else:
                mpi.Recv([b.whole_out, f32], peer)
                mpi.Send([b.whole, f32], peer)

        def own_ping_pong() -> None:
            if first:
                own.send(b.whole, peer)
                own.recv(b.whole_out, peer)
            else:
                own.recv(b.whole_out, peer)
                own.send(b.whole, peer)

        table: dict[str, tuple[Call, Call, np.ndarray]] = {
            "all_reduce": (
                lambda: own.all_reduce(b.whole, out=b.whole_out),
                lambda: mpi.Allreduce([b.whole, f32], [b.whole_out, f32]),
                b.whole_out,
            ),
            "all_gather": (
                lambda: own.all_gather(b.block, b.whole_out),
                lambda: mpi.Allgather([b.block, f32], [b.whole_out, f32]),
                b.whole_out,
            ),
            "reduce_scatter": (
                lambda: own.reduce_scatter(b.whole, out=b.block_out),
                lambda: mpi.Reduce_scatter_block([b.whole, f32], [b.block_out, f32]),
                b.block_out,
            ),
            "broadcast": (lambda: own.broadcast(b.whole), lambda: mpi.Bcast([b.whole, f32]), b.whole),
            "all_to_all": (
                lambda: own.all_to_all(b.whole, b.whole_out),
                lambda: mpi.Alltoall([b.whole, f32], [b.whole_out, f32]),
                b.whole_out,
            ),
            "send_recv": (own_ping_pong, mpi_ping_pong, b.whole_out),
        }
        if collective not in table:
            return {}  # compared through torch alone
        own_call, mpi_call, result = table[collective]
        calls: Calls = {"isthmus": (own_call, [result]), "openmpi": (mpi_call, [result])}
        return {name: value for name, value in calls.items() if name in self.contenders}

    def torch_call(self, collective: str, b: Buffers, group: Any) -> tuple[Call, list[np.ndarray]]:
        dist = self.dist
        block, whole = self.torch.from_numpy(b.block), self.torch.from_numpy(b.whole)
        block_out, whole_out = self.torch.from_numpy(b.block_out), self.torch.from_numpy(b.whole_out)
        parts, parts_out = [*map(self.torch.from_numpy, b.parts)], [*map(self.torch.from_numpy, b.parts_out)]
        of_root = parts if self.rank == 0 else None
        to_root = parts_out if self.rank == 0 else None
        peer, first = self.rank ^ 1, self.rank % 2 == 0

        def ping_pong() -> None:
            if first:
                dist.send(whole, peer, group=group)
                dist.recv(whole_out, peer, group=group)
            else:
                dist.recv(whole_out, peer, group=group)
                dist.send(whole, peer, group=group)

        table: dict[str, tuple[Call, list[np.ndarray]]] = {
            "all_reduce": (lambda: dist.all_reduce(whole, group=group), [b.whole]),
            "all_gather": (lambda: dist.all_gather_into_tensor(whole_out, block, group=group), [b.whole_out]),
            "reduce_scatter": (lambda: dist.reduce_scatter_tensor(block_out, whole, group=group), [b.block_out]),
            "broadcast": (lambda: dist.broadcast(whole, 0, group=group), [b.whole]),
            "all_to_all": (lambda: dist.all_to_all_single(whole_out, whole, group=group), [b.whole_out]),
            "send_recv": (ping_pong, [b.whole_out]),
            "reduce": (lambda: dist.reduce(whole, 0, group=group), [b.whole]),
            "gather": (lambda: dist.gather(block, to_root, 0, group=group), b.parts_out),
            "scatter": (lambda: dist.scatter(block_out, of_root, 0, group=group), [b.block_out]),
            "all_gather_list": (lambda: dist.all_gather(parts_out, block, group=group), b.parts_out),
            "reduce_scatter_list": (lambda: dist.reduce_scatter(block_out, parts, group=group), [b.block_out]),
            "all_to_all_list": (lambda: dist.all_to_all(parts_out, parts, group=group), b.parts_out),
            "barrier": (lambda: dist.barrier(group=group), []),
        }
        return table[collective]

    def all_calls(self, collective: str, b: Buffers) -> Calls:
        calls = self.numpy_calls(collective, b)
        for name, group in self.groups.items():
            # A backend whose calls do nothing: what is left is the price of a call through torch.distributed.
            idle = name == "torch_itself" and (b.total > 2 * self.world or collective == "send_recv")
            if name in self.contenders and not idle:
                calls[name] = self.torch_call(collective, b, group)
        return calls

    # ---- checking and timing ---------------------------------------------------------------------------------------------

    def check(self, name: str, collective: str, b: Buffers, call: Call, result: list[np.ndarray]) -> None:
        """Runs the call once on known data: small integers, so that every sum is exact."""
        if collective == "barrier" or name == "torch_itself":
            call()  # moves no data
            return

        def data(rank: int, count: int) -> np.ndarray:
            return ((np.arange(count) * 7 + rank * 3) % 11).astype(np.float32)

        ranks, n = range(self.world), b.count
        b.block[:] = data(self.rank, n)
        b.whole[:] = data(self.rank, b.total)
        b.block_out[:], b.whole_out[:] = -1, -1
        for i, (part, part_out) in enumerate(zip(b.parts, b.parts_out, strict=True)):
            part[:], part_out[:] = b.whole[i * n : (i + 1) * n], -1
        call()
        total = np.sum([data(r, b.total) for r in ranks], axis=0, dtype=np.float32)
        own = slice(self.rank * n, (self.rank + 1) * n)
        if self.rank != 0 and collective in ("reduce", "gather"):
            result = []  # only the root has one
        want = {
            "all_reduce": lambda: total,
            "reduce": lambda: total,
            "all_gather": lambda: np.concatenate([data(r, n) for r in ranks]),
            "reduce_scatter": lambda: total[own],
            "broadcast": lambda: data(0, b.total),
            "all_to_all": lambda: np.concatenate([data(r, b.total)[own] for r in ranks]),
            "send_recv": lambda: data(self.rank ^ 1, b.total),
            "gather": lambda: np.concatenate([data(r, n) for r in ranks]),
            "scatter": lambda: data(0, b.total)[own],
        }[collective.removesuffix("_list")]()
        wrong = self.mpi.allreduce(int((np.concatenate(result) != want).sum()) if result else 0)
        if wrong:
            raise SystemExit(f"peers: {name} {collective} of {b.total * 4} bytes: {wrong} wrong elements")
        b.whole[:] = 0  # sums in place stay finite

    def meet(self) -> None:
        """A barrier that leaves the processor to others: a rank that is done must not poll while another still works."""
        request = self.mpi.Ibarrier()
        while not request.Test():
            time.sleep(50e-6)

    def block(self, call: Call, iterations: int, sent: list[np.ndarray] | None = None) -> float:
        """Seconds of one call on the slowest rank. Before each `sent` is written and the ranks meet; neither counts."""
        self.meet()
        barrier, clock = self.mpi.Barrier, time.perf_counter
        barrier()
        if sent is None:
            start = clock()
            for _ in repeat(None, iterations):
                call()
            spent = clock() - start
        else:
            spent = 0.0
            for _ in repeat(None, iterations):
                for array in sent:
                    array.fill(1)
                barrier()
                start = clock()
                call()
                spent += clock() - start
        self.meet()
        return float(self.mpi.allreduce(spent, MPI.MAX)) / iterations

    def iterations(self, call: Call) -> int:
        """As many as fit a block, the same on all ranks."""
        count, spent = 1, 0.0
        while True:
            spent = self.block(call, count)
            if count * spent > self.block_seconds / 8 or count >= 100_000:
                return max(3, min(100_000, int(self.block_seconds / max(spent, 1e-9))))
            count *= 4

    def least_times(self, nbytes: int) -> tuple[float, float, float]:
        """Seconds that an all_reduce needs at least for memory: every input is read once and every output written once, at
        the best rate of the kernels of `isthmus-bench --limit`, which runs on as many ranks now, while those of this job
        sleep. Seconds that the message takes from core to core, both ways at once; nanoseconds of one cache line's way."""
        times = (0.0, 0.0, 0.0)
        if self.rank == 0:
            os.sched_setaffinity(0, set(self.cores))  # the program's processes inherit it
            command = [self.limit_program, "--limit", "--ranks", str(self.world), "-e", str(LIMIT_BYTES)]
            figures = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            os.sched_setaffinity(0, self.own_core)
            memory = 2 * self.world * nbytes / max(figures[kernel] for kernel in KERNELS)
            times = (memory, nbytes / figures["handover_per_rank"], figures["latency_ns"])
        self.meet()
        memory, handover, latency = self.mpi.bcast(times)
        return memory, handover, latency

    def row(self, collective: str, nbytes: int) -> dict[str, Any]:
        b = Buffers(collective, nbytes, self.world)
        row = {"collective": collective, "bytes": 0 if collective == "barrier" else b.total * 4, "ranks": self.world}
        calls = self.all_calls(collective, b)
        for name, (call, result) in calls.items():
            self.check(name, collective, b, call, result)
        work = {name: call for name, (call, _) in calls.items()}
        iterations = {name: self.iterations(call) for name, call in work.items()}
        halves = 2 if collective == "send_recv" else 1  # a ping-pong is two messages
        names = list(work)
        if self.limit_program and collective == "all_reduce" and nbytes == LIMIT_BYTES:
            names.append("memory_limit")
        sent = b.sent_by(collective, self.rank) if int(row["bytes"]) >= WRITTEN_FROM else None
        times: dict[str, list[float]] = {name: [] for name in names}
        beside: dict[str, list[float]] = {}
        for number in range(self.rounds):
            for i in range(len(names)):
                name = names[(i + number) % len(names)]
                if name == "memory_limit":
                    memory, handover, latency = self.least_times(nbytes)
                    times[name].append(memory)
                    beside.setdefault("handover_seconds", []).append(handover)
                    beside.setdefault("latency_ns", []).append(latency)
                else:
                    times[name].append(self.block(work[name], iterations[name], sent) / halves)
        return {**row, "iterations": iterations, "seconds": times, **beside}

    def close(self) -> None:
        if self.isthmus is not None:
            self.isthmus.destroy()
        if self.groups:
            self.dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="one rank of bench/peers.py; run that")
    parser.add_argument("--contenders", required=True)
    parser.add_argument("--collectives", required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--block", type=float, required=True)
    parser.add_argument("--limit-program", default="", help="isthmus-bench, for the memory limit of the largest all_reduce")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    rank = Rank(tuple(args.contenders.split(",")), args.block, args.rounds, args.limit_program)
    sizes = tuple(map(int, args.sizes.split(",")))
    rows = []
    for collective in args.collectives.split(","):
        for size in sizes if collective != "barrier" else (0,):
            rows.append(rank.row(collective, size))
            if rank.rank == 0:
                median = {name: round(float(np.median(t)) * 1e6, 2) for name, t in rows[-1]["seconds"].items()}
                line = f"# {rank.world} ranks {collective:19s} {rows[-1]['bytes']:>9d} B  us: {median}"
                print(line, file=sys.stderr, flush=True)
    if rank.rank == 0:
        with open(args.out, "w") as file:
            json.dump({"versions": rank.versions, "rows": rows}, file)
    rank.close()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        import traceback

        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
