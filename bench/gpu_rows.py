"""The rows of bench/gpu.py: what is timed, in which turns."""

from __future__ import annotations

import threading
import time
from typing import Any

from gpu_judgement import SMALL
from gpu_limits import Limits
from gpu_ranks import CONTENDERS, PATIENCE_S, Call, Rank, Team


def lengths(collective: str, nbytes: int, ranks: int) -> tuple[int, int]:
    """Elements of what a rank gives and of what it gets, where nbytes are those of the larger."""
    count = max(1, nbytes // 4)
    part = max(1, count // ranks)
    return {"all_gather": (part, part * ranks), "reduce_scatter": (part * ranks, part)}.get(collective, (count, count))


def check(team: Team, contender: str, collective: str, nbytes: int) -> None:
    """Once a row and contender, on known numbers: small integers, so that every sum is exact."""
    ranks = len(team.kinds)
    count, wide = lengths(collective, nbytes, ranks)

    def work(number: int) -> None:
        rank = team.ranks[number]
        x = rank.tensor(count, float(number + 1))
        out = rank.tensor(wide, -1.0)
        rank.finish()
        team.meeting.wait()
        rank.call(contender, collective, x, out)()
        rank.finish()
        x, out = x.cpu(), out.cpu()
        before = (number - 1) % ranks + 1
        good = {
            "all_reduce": lambda: bool((x == ranks * (ranks + 1) / 2).all()),
            "broadcast": lambda: bool((x == 1).all()),
            "all_gather": lambda: all(bool((part == r + 1).all()) for r, part in enumerate(out.chunk(ranks))),
            "reduce_scatter": lambda: bool((out == ranks * (ranks + 1) / 2).all()),
            "send_recv": lambda: bool((out == before).all()),
        }[collective]()
        if not good:
            raise SystemExit(f"gpu: {contender}, {collective} of {count * 4} bytes: wrong numbers on rank {number}")

    team.together(work)


def turns(contenders: list[str], number: int) -> list[str]:
    """The order of one round: it moves on by one from round to round. The limits stand right beside Isthmus, by turns before
    and behind it."""
    order = [contenders[(i + number) % len(contenders)] for i in range(len(contenders))]
    order.insert(order.index("isthmus") + number % 2, "limits")
    return order


def time_row(
    team: Team, collective: str, nbytes: int, rounds: int, block: float, absent: dict[str, str], limits: Limits | None
) -> dict[str, Any]:
    count, wide = lengths(collective, nbytes, len(team.kinds))
    contenders = [name for name in CONTENDERS if name not in absent]
    if collective == "send_recv" and "gloo" in contenders:
        contenders.remove("gloo")  # which takes device memory for the host's there, and ends the process
    tensors: list[tuple[Any, Any]] = []
    for rank in team.ranks:
        tensors.append((rank.tensor(count, 0.0), rank.tensor(wide, 0.0)))
    calls: dict[str, list[Call]] = {}
    times: dict[str, int] = {}
    for name in contenders:
        check(team, name, collective, nbytes)
        calls[name] = [rank.call(name, collective, *pair) for rank, pair in zip(team.ranks, tensors, strict=True)]
        once = min(team.seconds(calls[name], 1) for _ in range(2))
        times[name] = max(1, min(1000, int(block / max(once, 1e-9))))
    row: dict[str, Any] = {
        "collective": collective,
        "asked": nbytes,
        "bytes": 4 * max(count, wide),
        "ranks": ",".join(team.kinds),
        "calls": times,
        "seconds": {name: [] for name in contenders},
    }
    single = collective == "all_reduce" and nbytes <= SMALL
    if single:
        row["one_at_a_time"] = {name: [] for name in contenders}
    for number in range(rounds):
        for name in turns(contenders, number):
            if name != "limits":
                row["seconds"][name].append(team.seconds(calls[name], times[name]))
                if single:
                    row["one_at_a_time"][name].append(team.one_at_a_time(calls[name], times[name]))
            elif limits:
                for limit, rate in limits.rates(collective).items():
                    row.setdefault("limits", {}).setdefault(limit, []).append(rate)
    return row


def buckets(team: Team, number: int, nbytes: int, rounds: int) -> dict[str, Any]:
    """Seconds of all_reduces behind each other, and of one of all their bytes.

    No stream of the program's is behind a bucket, as in a training: torch's stream waits for a bucket when the program does.
    """
    import isthmus

    small = [[rank.tensor(nbytes // 4, 0.0) for _ in range(number)] for rank in team.ranks]
    large = [rank.tensor(number * nbytes // 4, 0.0) for rank in team.ranks]

    def behind_each_other(rank: Rank, tensors: list[Any]) -> Call:
        calls = [rank.call("isthmus", "all_reduce", x, x, stream=None) for x in tensors]

        def all_of_them() -> object:
            works = [call() for call in calls]
            for work in works:
                if isinstance(work, isthmus.Work):
                    work.wait()
            return None

        return all_of_them

    separate = [behind_each_other(rank, tensors) for rank, tensors in zip(team.ranks, small, strict=True)]
    whole = [rank.call("isthmus", "all_reduce", x, x) for rank, x in zip(team.ranks, large, strict=True)]
    found: dict[str, Any] = {"number": number, "bytes": nbytes, "separate": [], "whole": []}
    for number_of_round in range(rounds + 1):
        both = [("separate", separate), ("whole", whole)]
        for name, calls in both if number_of_round % 2 == 0 else reversed(both):
            found[name].append(team.seconds(calls, 1))
    return {**found, "separate": found["separate"][1:], "whole": found["whole"][1:]}


class Broadcasts:
    """Calls of all ranks, one behind the other, for as long as the block lasts; the first has begun when the block begins.
    An error of one is raised at the block's end."""

    def __init__(self, team: Team, calls: list[Call]) -> None:
        self.team, self.calls, self.number = team, calls, 0
        self._over, self._flags, self._go_on = threading.Event(), threading.Barrier(len(calls)), True
        self._error: BaseException | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._together, daemon=True)

    def _work(self, number: int) -> None:
        import isthmus

        try:
            while True:
                if number == 0:
                    self._go_on = not self._over.is_set()
                self._flags.wait()  # all ranks make the same number of calls
                if not self._go_on:
                    return
                self._begun.set()
                made = self.calls[number]()
                self.team.ranks[number].finish()
                if isinstance(made, isthmus.Work):
                    made.wait()  # raises if it has failed, which the stream does not tell
                if number == 0:
                    self.number += 1
                self._flags.wait()
        except BaseException:
            self._flags.abort()
            raise

    def _together(self) -> None:
        try:
            self.team.together(self._work)
        except BaseException as error:
            self._error = error
        self._begun.set()

    def __enter__(self) -> Broadcasts:
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, kind: object, *_unused: object) -> None:
        self._over.set()
        self._thread.join(2 * PATIENCE_S)  # a call that hangs ends with an error of its own, which names the rank
        if kind is not None:
            return
        if self._thread.is_alive():
            raise SystemExit(f"gpu: the broadcasts beside the products did not end within {2 * PATIENCE_S:.0f} s")
        if self._error:
            raise self._error


def beside_products(team: Team, nbytes: int, rounds: int, size: int) -> dict[str, Any]:
    """Seconds of a matrix product on GPU rank 0's device, alone and with broadcasts of Isthmus' beside it."""
    torch, device = team.device.torch, team.device
    if device.simulated:
        a = b = torch.ones(size, size, device=device.device)
    else:  # random: a GPU that multiplies ones takes less power, and so a higher clock
        a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device.device) for _ in range(2))
    product = device.stream()
    tensors = [rank.tensor(nbytes // 4, 1.0) for rank in team.ranks]
    calls = [rank.call("isthmus", "broadcast", x, x) for rank, x in zip(team.ranks, tensors, strict=True)]
    team.seconds(calls, 1)

    def products(times: int) -> float:
        product.synchronize()
        begin = time.perf_counter()
        with device.on(product):
            for _ in range(times):
                torch.mm(a, b)
        product.synchronize()
        return (time.perf_counter() - begin) / times

    products(2)
    times = max(2, int(0.3 / max(products(2), 1e-6)))
    alone: list[float] = []
    beside: list[float] = []
    broadcasts: list[int] = []
    for number in range(rounds):
        if number % 2 == 0:
            alone.append(products(times))
        with Broadcasts(team, calls) as made:
            beside.append(products(times))
        broadcasts.append(made.number)
        if number % 2:
            alone.append(products(times))
    return {"bytes": nbytes, "matrix": size, "alone": alone, "beside": beside, "broadcasts": broadcasts}
