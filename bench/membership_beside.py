"""How long a job of four processes stands still when one is killed, and when one comes: Isthmus, and torchft over Gloo.

    .venv/bin/python bench/membership.py --beside   # runs this; torchft lies in build/torchft (scripts/torchft_packages.py)

Both run the same loop on the host: an all_reduce of 4 KiB, again and again. One clock (CLOCK_MONOTONIC) serves all.

loss      from SIGKILL until the last of the three others has ended its first operation of three
newcomer  from the call by which a process that has imported everything begins to join (isthmus.join, torchft's Manager)
          until the last of the four has ended its first operation of four. No state is passed on in either.

torchft's lighthouse takes a replica for lost when it has missed its heartbeats for a time: `torchft` has torchft's own five
seconds, `torchft 500 ms` half a second, which is five of the manager's heartbeats.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TORCHFT = ROOT / "build" / "torchft"
WORLD, COUNT, PATIENCE = 4, 1024, 120.0
HEARTBEAT_MS = {"torchft": 5000, "torchft 500 ms": 500}
CONTENDERS = ("isthmus", *HEARTBEAT_MS)


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


# ---- the processes ---------------------------------------------------------------------------------------------------


def isthmus_worker(address: str, rank: int) -> None:
    import numpy as np

    import isthmus

    ticket = ""
    if rank >= 0:
        comm = isthmus.init(rank, WORLD, address, timeout=PATIENCE)
    else:
        say(here=True)
        text = sys.stdin.readline().strip()
        say(begins=time.monotonic())
        comm = isthmus.join(text, timeout=PATIENCE)
    size = 0
    while True:
        try:
            x = np.ones(COUNT, np.float32)
            comm.all_reduce(x)
            if int(x[0]) != size:
                size = int(x[0])
                say(size=size, at=time.monotonic())
                if comm.rank == 0 and size < WORLD:
                    ticket = comm.ticket()
                    say(ticket=ticket)
            here = np.zeros(128, np.uint8)
            if ticket and comm.joiners(ticket):
                here[: len(ticket)] = np.frombuffer(ticket.encode(), np.uint8)
            comm.all_reduce(here, "max")
            if here[0]:
                old, comm = comm, comm.grow(here.tobytes().rstrip(b"\0").decode())
                old.destroy()
                ticket = ""
        except (isthmus.PeerLostError, isthmus.AbortedError):
            old, comm = comm, comm.shrink()
            old.destroy()


def lighthouse(heartbeat_ms: int) -> None:
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=2,
        join_timeout_ms=heartbeat_ms,
        quorum_tick_ms=10,
        heartbeat_timeout_ms=heartbeat_ms,
    )
    say(address=server.address())
    sys.stdin.read()


def torchft_worker(address: str, rank: int) -> None:
    import torch
    from torch.distributed import TCPStore
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    if rank < 0:
        say(here=True)
        sys.stdin.readline()
        say(begins=time.monotonic())
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=PATIENCE)),
        min_replica_size=2,
        load_state_dict=lambda state: None,
        state_dict=lambda: {},
        use_async_quorum=False,
        init_sync=False,
        timeout=timedelta(seconds=PATIENCE),
        quorum_timeout=timedelta(seconds=PATIENCE),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address,
        replica_id=f"replica_{rank}_{os.getpid()}",
        hostname="127.0.0.1",
    )
    size = 0
    while True:
        manager.start_quorum()
        manager.allreduce(torch.ones(COUNT)).wait()
        now = manager.num_participants()
        if manager.should_commit() and now != size:
            size = now
            say(size=size, at=time.monotonic())


# ---- the conductor ---------------------------------------------------------------------------------------------------


class Process:
    def __init__(self, *words: str) -> None:
        path = os.pathsep.join([str(TORCHFT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.child = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *words],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "RUST_LOG": "error"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.lines: Queue[dict[str, Any]] = Queue()
        Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.startswith("{"):
                self.lines.put(json.loads(line))

    def until(self, key: str, value: Any = None) -> Any:
        """What it says next under that key, or from where it has that value on."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                told = self.lines.get(timeout=1)
            except Empty:
                if self.child.poll() is not None:
                    break
                continue
            if key in told and (value is None or told[key] == value):
                return told if value is not None else told[key]
        raise SystemExit(f"membership: {self.child.args} has not said {key} {value}: {self.child.poll()}")

    def tell(self, word: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{word}\n")
        self.child.stdin.flush()

    def close(self) -> None:
        self.child.kill()
        self.child.wait()


def play(contender: str, chance: random.Random) -> tuple[float, float]:
    """One job: (loss, newcomer) in seconds."""
    from isthmus import launch

    all_of_them: list[Process] = []

    def start(*words: str) -> Process:
        all_of_them.append(Process(*words))
        return all_of_them[-1]

    try:
        kind = contender.split()[0]
        if kind == "isthmus":
            address = f"127.0.0.1:{launch.free_port()}"
        else:
            address = start("lighthouse", str(HEARTBEAT_MS[contender])).until("address")
        ranks = [start(kind, address, str(rank)) for rank in range(WORLD)]
        spare = start(kind, address, "-1")
        spare.until("here")
        for one in ranks:
            one.until("size", WORLD)
        time.sleep(chance.uniform(0.2, 0.4))
        victim = ranks.pop(chance.randrange(WORLD))
        since = time.monotonic()
        victim.child.send_signal(signal.SIGKILL)
        loss = max(one.until("size", WORLD - 1)["at"] for one in ranks) - since
        ticket = ""
        if kind == "isthmus":
            waiting = list(ranks)
            while not ticket:
                for one in waiting:
                    if not one.lines.empty():
                        ticket = one.until("ticket")
                        break
                else:
                    select.select([], [], [], 0.001)
        time.sleep(chance.uniform(0.2, 0.4))
        spare.tell(ticket)
        begins = spare.until("begins")
        came = max(one.until("size", WORLD)["at"] for one in [*ranks, spare]) - begins
        return loss, came
    finally:
        for one in all_of_them:
            one.close()


def measure(rounds: int, seed: int) -> dict[str, Any]:
    """`rounds` jobs of each contender."""
    chance = random.Random(seed)
    found: dict[str, list[float]] = {}
    before = os.getloadavg()
    contenders = [one for one in CONTENDERS if one == "isthmus" or TORCHFT.is_dir()]
    for number in range(rounds):  # in turn, so that what else the machine does meets all alike
        for one in contenders:
            loss, came = play(one, chance)
            found.setdefault(f"loss, {one}", []).append(loss)
            found.setdefault(f"newcomer, {one}", []).append(came)
            print(f"round {number}: {one:16} loss {loss * 1e3:9.1f} ms   newcomer {came * 1e3:9.1f} ms", flush=True)
    figures = {}
    for name, values in found.items():
        low, high = min(values), max(values)
        figures[name] = {
            "times": len(values),
            "median_ms": round(statistics.median(values) * 1e3, 1),
            "least_ms": round(low * 1e3, 1),
            "most_ms": round(high * 1e3, 1),
        }
    load = [round(value, 1) for value in (before[0], os.getloadavg()[0])]
    return {"processes": WORLD, "bytes": COUNT * 4, "load_before_and_after": load, "figures": figures}


if __name__ == "__main__":
    if sys.argv[1] == "lighthouse":
        lighthouse(int(sys.argv[2]))
    elif sys.argv[1] == "isthmus":
        isthmus_worker(sys.argv[2], int(sys.argv[3]))
    else:
        torchft_worker(sys.argv[2], int(sys.argv[3]))
