"""One rank of state.py: argv has the rounds, the bytes of an all_reduce, and those of the state. Rank 0 says a line each."""

from __future__ import annotations

import json
import sys
import threading
import time

import numpy as np

import isthmus
from isthmus.elastic import State
from isthmus.elastic._sync import Sync

SETTLED, TIMED = 10, 60  # operations without a state in a round: before the first one that is timed, and timed


class Operations:
    """all_reduces, which are held to be right. The first element says how many ranks have not done with the state."""

    def __init__(self, comm: isthmus.Comm, size: int) -> None:
        self.comm, self.data = comm, np.empty(size // 4, np.float32)

    def one(self, working: bool) -> tuple[float, bool]:
        """How long it took, and whether a rank still works."""
        self.data.fill(self.comm.rank + 1)
        self.data[0] = working
        begin = time.monotonic()
        self.comm.all_reduce(self.data)
        took = time.monotonic() - begin
        assert (self.data[1:] == sum(range(1, self.comm.size + 1))).all()
        return took, bool(self.data[0])


def main() -> None:
    rounds, size, bytes_of_state = map(int, sys.argv[1:])
    comm = isthmus.init()
    aside = comm.split(0)
    assert aside is not None
    operations = Operations(comm, size)
    for number in range(rounds):
        for _ in range(SETTLED):
            operations.one(False)
        alone = [operations.one(False)[0] for _ in range(TIMED)]
        wanted = np.random.default_rng(number).integers(0, 256, bytes_of_state, np.uint8)
        state = State({"weights": wanted.copy() if comm.rank == 0 else np.zeros_like(wanted)})
        if comm.rank == 0:
            state.finish()  # the state that has finished most steps is everybody's
        took = 0.0

        def travel(state: State = state) -> None:
            nonlocal took
            begin = time.monotonic()
            Sync(aside, state, comm.rank, comm.size).run()
            took = time.monotonic() - begin

        thread = threading.Thread(target=travel)
        thread.start()
        beside, working = [], True
        while working:
            seconds, working = operations.one(thread.is_alive())
            beside.append(seconds)
        thread.join()
        assert (state["weights"] == wanted).all()
        if comm.rank == 0:
            print(json.dumps({"alone": alone, "beside": beside[:-1], "state": took}), flush=True)
    aside.destroy()
    comm.destroy()


if __name__ == "__main__":
    main()
