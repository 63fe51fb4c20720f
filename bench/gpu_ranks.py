"""The ranks of bench/gpu.py: threads of one process, each with its place with every contender."""

from __future__ import annotations

import contextlib
import datetime
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

CONTENDERS = ("isthmus", "gloo", "relay")
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "send_recv")
PATIENCE_S = 120.0  # how long a call may take
Call = Callable[[], object]


class Device:
    """The calls of torch's accelerator that this program needs, for any accelerator."""

    def __init__(self, vendor: str) -> None:
        import torch

        self.torch = torch
        if vendor:
            from isthmus import rehearsal_torch

            rehearsal_torch.register()
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if found is None:
            raise SystemExit("gpu: torch finds no GPU here; --rehearse nvidia runs the same on a simulated one")
        self.kind = found.type
        self.device = torch.device(self.kind, 0)
        self.simulated = self.kind == "rehearsal"
        module = getattr(torch, self.kind)
        self.name = module.get_device_name(0)
        self.module = module
        hip = getattr(torch.version, "hip", None)
        self.isthmus = {"nvidia": "cuda:0", "amd": "hip:0", "ascend": "acl:0"}[vendor or ("amd" if hip else "nvidia")]

    def stream(self) -> Any:
        return self.torch.Stream(device=self.device)

    @staticmethod
    def handle(stream: Any) -> int:
        return int(stream.cuda_stream if hasattr(stream, "cuda_stream") else stream.native_handle)

    def on(self, stream: Any) -> Any:
        return self.module.stream(stream)


class View:
    """A tensor of the device as Isthmus takes arrays: by `__cuda_array_interface__`, whatever device torch calls it."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": "<f4",
            "data": (tensor.data_ptr(), False),
            "version": 3,
            "strides": None,
        }


class Rank:
    """One rank: its tensors, its stream, its place with each contender."""

    def __init__(self, number: int, kinds: list[str], device: Device, unique_id: bytes, store: Any) -> None:
        import torch.distributed as dist

        import isthmus

        self.number, self.size, self.kind, self.device = number, len(kinds), kinds[number], device
        self.torch, self.dist = device.torch, dist
        self.on_gpu = self.kind == "gpu"
        self.stream = device.stream() if self.on_gpu else None
        self.comm = isthmus.init(
            number,
            self.size,
            unique_id=unique_id,
            island=f"{self.kind}{number}",
            timeout=PATIENCE_S,
            settings={"DEVICE": device.isthmus if self.on_gpu else "host"},
        )
        patience = datetime.timedelta(seconds=PATIENCE_S)
        prefixed = dist.PrefixStore("gloo", store)
        self.gloo_group = dist.ProcessGroupGloo(prefixed, number, self.size, timeout=patience)

    def here(self) -> Any:
        return self.device.on(self.stream) if self.on_gpu else contextlib.nullcontext()

    def tensor(self, count: int, value: float) -> Any:
        with self.here():
            place = self.device.device if self.on_gpu else "cpu"
            return self.torch.full((count,), value, dtype=self.torch.float32, device=place)

    def finish(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()

    # ---- the contenders ----------------------------------------------------------------------------------------------

    def call(self, contender: str, collective: str, x: Any, out: Any, **stream: Any) -> Call:
        """On the rank's stream, or of Isthmus' calls on another one or none (`stream`)."""
        if contender == "isthmus":
            return self._isthmus(collective, x, out, stream.get("stream", self.stream))
        return getattr(self, f"_{contender}")(collective, x, out)

    def _isthmus(self, collective: str, x: Any, out: Any, on: Any) -> Call:
        comm = self.comm
        stream = None if on is None else self.device.handle(on)
        a, b = (View(x), View(out)) if self.on_gpu else (x.numpy(), out.numpy())
        following, before = (self.number + 1) % self.size, (self.number - 1) % self.size

        # As calls of NCCL and of torch: the host goes on at once, and the stream has the order. A rank on the CPU has no
        # stream, so its call ends with the operation.
        more = {"stream": stream, "async_op": self.on_gpu}

        def send_recv() -> object:
            import isthmus

            with isthmus.group(async_op=self.on_gpu) as both:
                comm.send(a, following, stream=stream)
                comm.recv(b, before, stream=stream)
            return both.work if self.on_gpu else None

        table: dict[str, Call] = {
            "all_reduce": lambda: comm.all_reduce(a, "sum", a, **more),
            "broadcast": lambda: comm.broadcast(a, 0, **more),
            "all_gather": lambda: comm.all_gather(a, b, **more),
            "reduce_scatter": lambda: comm.reduce_scatter(a, "sum", b, **more),
            "send_recv": send_recv,
        }
        return table[collective]

    def _gloo_calls(self, collective: str, x: Any, out: Any) -> Call:
        group, dist = self.gloo_group, self.dist
        following, before = (self.number + 1) % self.size, (self.number - 1) % self.size

        def all_reduce() -> None:
            options = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.SUM
            group.allreduce([x], options).wait()

        def broadcast() -> None:
            options = dist.BroadcastOptions()
            options.rootRank, options.rootTensor = 0, 0
            group.broadcast([x], options).wait()

        def send_recv() -> None:
            sent, received = group.send([x], following, 0), group.recv([out], before, 0)
            sent.wait()
            received.wait()

        def reduce_scatter() -> None:  # gloo has none: what it offers in its place
            all_reduce()
            out.copy_(x.view(self.size, -1)[self.number])

        pieces = [list(out.chunk(self.size))] if collective == "all_gather" else []
        table: dict[str, Call] = {
            "all_reduce": all_reduce,
            "broadcast": broadcast,
            "all_gather": lambda: group.allgather(pieces, [x]).wait(),
            "reduce_scatter": reduce_scatter,
            "send_recv": send_recv,
        }
        return table[collective]

    def _gloo(self, collective: str, x: Any, out: Any) -> Call:
        call = self._gloo_calls(collective, x, out)

        def on_stream() -> None:
            with self.here():
                call()

        return on_stream

    def _relay(self, collective: str, x: Any, out: Any) -> Call:
        if not self.on_gpu:
            return self._gloo_calls(collective, x, out)
        wide = out.numel()

        def relayed() -> None:
            with self.here():
                there = x.cpu()
                result = there if collective in ("all_reduce", "broadcast") else self.torch.empty(wide)
                self._gloo_calls(collective, there, result)()
                (out if result is not there else x).copy_(result)

        return relayed

    def close(self) -> None:
        self.comm.destroy()


def _raise_if_failed(made: object) -> None:
    """Of a call of Isthmus', whose failure the stream does not tell."""
    import isthmus

    if isinstance(made, isthmus.Work):
        made.wait()


class Team:
    """The ranks' threads, which all do the same thing at the same time."""

    def __init__(self, kinds: list[str], device: Device) -> None:
        import torch.distributed as dist

        import isthmus

        self.kinds, self.device = kinds, device
        self.meeting = threading.Barrier(len(kinds))
        unique_id, store = isthmus.unique_id(), dist.HashStore()
        self.ranks: list[Rank] = [None] * len(kinds)  # type: ignore[list-item]

        def make(number: int) -> None:
            self.ranks[number] = Rank(number, kinds, device, unique_id, store)

        self.together(make)

    def together(self, work: Callable[[int], None]) -> None:
        """work(rank) on a thread for each rank; the first exception of any is raised here."""
        errors: list[BaseException] = []

        def one(number: int) -> None:
            try:
                work(number)
            except BaseException as error:
                if not isinstance(error, threading.BrokenBarrierError):
                    errors.insert(0, error)
                errors.append(error)
                self.meeting.abort()

        threads = [threading.Thread(target=one, args=(n,), name=f"rank {n}", daemon=True) for n in range(len(self.kinds))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(8 * PATIENCE_S)
            if thread.is_alive():
                raise SystemExit(f"gpu: {thread.name} did not end within {8 * PATIENCE_S:.0f} s")
        if errors:
            self.meeting.reset()
            raise errors[0]

    def seconds(self, calls: list[Call], times: int) -> float:
        """Of one call, from the moment that all ranks begin until the last one's stream has ended."""
        begins, ends = [0.0] * len(calls), [0.0] * len(calls)

        def work(number: int) -> None:
            rank, call = self.ranks[number], calls[number]
            rank.finish()
            self.meeting.wait()
            begins[number] = time.perf_counter()
            for _ in range(times):
                last = call()
            rank.finish()
            ends[number] = time.perf_counter()
            _raise_if_failed(last)

        self.together(work)
        return (max(ends) - min(begins)) / times

    def one_at_a_time(self, calls: list[Call], times: int) -> float:
        """Seconds of one call until its result is there, before which no other begins: the median of the calls, each on its
        slowest rank."""
        took = [[0.0] * times for _ in calls]

        def work(number: int) -> None:
            rank, call = self.ranks[number], calls[number]
            rank.finish()
            self.meeting.wait()
            for i in range(times):
                begin = time.perf_counter()
                last = call()
                rank.finish()
                took[number][i] = time.perf_counter() - begin
            _raise_if_failed(last)

        self.together(work)
        return statistics.median(max(of_ranks) for of_ranks in zip(*took, strict=True))

    def close(self) -> None:
        self.together(lambda number: self.ranks[number].close())


def without(device: Device) -> dict[str, str]:
    """Contenders that refuse this device's tensors, and their words: asked in a group of one, where nobody is waited for."""
    import torch.distributed as dist

    alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timeout=datetime.timedelta(seconds=PATIENCE_S))
    try:
        alone.allreduce([device.torch.ones(2, device=device.device)], dist.AllreduceOptions()).wait()
    except Exception as error:
        return {"gloo": str(error).splitlines()[0][:200]}
    return {}
