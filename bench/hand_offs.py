"""How long a chain of hand-offs takes between two processes, with nothing else in it.

    python bench/hand_offs.py --rounds 200            # a line of JSON: the seconds of each round, and of single hand-offs

An all_reduce of 8 bytes between two ranks that work on devices goes from hand to hand, five times one after the other:

    the caller gives the device its copies               the queue is asleep until somebody wakes it
    the device says that the bytes are on the host       the rank looks again and again, then naps: nobody wakes it
    the other rank says that its bytes are there too     the rank looks again and again, then sleeps until it is woken
    the rank opens the gate                              the queue looks at it for a moment, then naps
    the device says that the result is in its memory     the rank looks again and again, then naps

Here two processes pass a counter to and fro as often, and wait for the counter in these ways. Neither Isthmus nor a
simulated device takes part. Python's own steps are in the time: about a microsecond for each hand-off.

Beside the chain stand the kernel's two ways to wake another process that sleeps, a futex and an eventfd, of the same run:
the seconds of one hand-off, which is half of a way there and back.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import platform
import signal
import statistics
import sys
import time
import traceback

# Who waits at each hand-off, and how: see wait().
HAND_OFFS = ("asleep", "device", "rank", "gate", "device")
WOKEN = ("asleep", "rank")  # the others wait for words that devices write and read, which wake nobody
LOOKS_NS = 100_000  # how long a rank looks before it sleeps: ISTHMUS_SPIN_US
LOOKS = 200  # how often a queue looks at a gate before the queue naps
NAP_S = 30e-6  # the first nap of a rank and of a queue; naps grow only where a wait is long
PAUSE_S = 200e-6  # the pause before a round, so that the queue is asleep
SLEEP_NS, PATIENCE_NS = 100_000_000, 20_000_000_000
FUTEX = {"x86_64": 202, "aarch64": 98}  # the number of the system call
FUTEX_WAIT, FUTEX_WAKE = 0, 1
PR_SET_TIMERSLACK = 29


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Counter:
    """A number that two processes share. The number only rises, and only one process at a time may raise the number."""

    def __init__(self) -> None:
        self.number = FUTEX[platform.machine()]
        self.syscall = ctypes.CDLL(None).syscall
        self.syscall.restype = ctypes.c_long
        self.syscall.argtypes = [
            *(ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32),
        ]
        self.word = ctypes.c_uint32.from_buffer(mmap.mmap(-1, mmap.PAGESIZE))
        self.address = ctypes.addressof(self.word)
        self.nap = ctypes.byref(Timespec(0, SLEEP_NS))

    def give(self, value: int, how: str) -> None:
        self.word.value = value
        if how in WOKEN:
            self.syscall(self.number, self.address, FUTEX_WAKE, 1, None, None, 0)

    def wait(self, value: int, how: str) -> None:
        """Until the counter is at `value`. The kernel looks at the word once more before it lets anybody sleep."""
        begin, looks = time.monotonic_ns(), 0
        while (seen := self.word.value) < value:
            waited = time.monotonic_ns() - begin
            if waited > PATIENCE_NS:
                raise TimeoutError(f"the other process did not raise the counter from {seen} to {value}")
            looks += 1
            if how == "asleep" or (how == "rank" and waited > LOOKS_NS):
                self.syscall(self.number, self.address, FUTEX_WAIT, seen, self.nap, None, 0)
            elif (how == "gate" and looks > LOOKS) or (how == "device" and waited > LOOKS_NS):
                time.sleep(NAP_S)


def rounds_of(counter: Counter, ends: ctypes.Array[ctypes.c_int64], side: int) -> list[float]:
    """One process's part. Side 0 begins each round and returns their seconds; side 1 is where the last hand-off leads."""
    seconds = []
    for number in range(len(ends)):
        base = number * (len(HAND_OFFS) + 1)
        if side == 0:
            time.sleep(PAUSE_S)
        begin = time.monotonic_ns()
        for i, how in enumerate(HAND_OFFS):
            if i % 2 == side:
                counter.give(base + i + 1, how)
            else:
                counter.wait(base + i + 1, how)
        back = base + len(HAND_OFFS) + 1  # one more hand-off, which is not timed: each round begins at the same side
        if side == 1:
            ends[number] = time.monotonic_ns()  # one clock serves both
            counter.give(back, "asleep")
        else:
            counter.wait(back, "asleep")
            seconds.append((ends[number] - begin) * 1e-9)
    return seconds


def by_eventfd(rounds: int) -> list[float]:
    """Seconds of each single hand-off, where both processes sleep in read()."""
    there, back = os.eventfd(0), os.eventfd(0)
    other = os.fork()
    if other == 0:
        for _ in range(rounds):
            os.eventfd_read(there)
            os.eventfd_write(back, 1)
        os._exit(0)
    seconds = []
    for _ in range(rounds):
        begin = time.monotonic_ns()
        os.eventfd_write(there, 1)
        os.eventfd_read(back)
        seconds.append((time.monotonic_ns() - begin) / 2e9)
    os.waitpid(other, 0)
    os.close(there)
    os.close(back)
    return seconds


def by_futex(rounds: int) -> list[float]:
    counter = Counter()
    other = os.fork()
    if other == 0:
        for number in range(rounds):
            counter.wait(2 * number + 1, "asleep")
            counter.give(2 * number + 2, "asleep")
        os._exit(0)
    seconds = []
    for number in range(rounds):
        begin = time.monotonic_ns()
        counter.give(2 * number + 1, "asleep")
        counter.wait(2 * number + 2, "asleep")
        seconds.append((time.monotonic_ns() - begin) / 2e9)
    os.waitpid(other, 0)
    return seconds


def measure(rounds: int) -> list[float]:
    """Seconds of each round. Starts the other process itself."""
    counter = Counter()
    ends = (ctypes.c_int64 * rounds).from_buffer(mmap.mmap(-1, 8 * rounds))
    # The kernel's timer slack would make a nap 50 us longer. A rehearsal's queues have no slack either. The other process
    # inherits the setting.
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1000))
    other = os.fork()
    if other == 0:
        try:
            rounds_of(counter, ends, 1)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    try:
        return rounds_of(counter, ends, 0)
    finally:
        os.kill(other, signal.SIGKILL)  # it has nothing to do any more
        os.waitpid(other, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    if not 1 <= args.rounds <= 100_000:
        parser.error("--rounds must be from 1 to 100000")
    if platform.machine() not in FUTEX:
        print(f"hand_offs: no number of the futex call is known for {platform.machine()}", file=sys.stderr)
        return 2
    chain = measure(args.rounds)
    single = {"futex": statistics.median(by_futex(args.rounds)), "eventfd": statistics.median(by_eventfd(args.rounds))}
    print(json.dumps({"hand_offs": HAND_OFFS, "seconds": chain, "single_p50_seconds": single}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
