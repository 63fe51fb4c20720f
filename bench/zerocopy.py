"""Whether MSG_ZEROCOPY pays between two machines: rate, the sender's processor time, and what the kernel copied.

    python bench/zerocopy.py --receive 4242                  # on one machine, which serves one run and ends
    python bench/zerocopy.py --to THE_OTHER_MACHINE:4242     # on the other
    python bench/zerocopy.py                                 # both here, over loopback: the kernel copies everything

Isthmus sends by plain writes: the kernel copies what is sent into its own pages, at the rate of memory. With MSG_ZEROCOPY
the network card reads the program's pages. Before that the kernel pins them, and afterwards it says so by a message for
each send. What has no card on its way, or a card that cannot gather, is copied all the same, later, and the message says
that (`copied`).

Pieces of one size are sent from one buffer. Plain rounds and rounds with MSG_ZEROCOPY take turns. A round of the second
kind ends when the kernel has let go of all its pieces, as a sender may not write there before. The figures are medians of
the rounds. Writes bench/results/zerocopy.json.
"""

from __future__ import annotations

import argparse
import errno
import json
import multiprocessing
import select
import socket
import statistics
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from circumstances import circumstances

ROOT = Path(__file__).resolve().parent.parent
SO_ZEROCOPY, MSG_ZEROCOPY, MSG_ERRQUEUE = 60, 0x4000000, 0x2000  # Linux; Python has no names for the first two
EXTENDED_ERROR = struct.Struct("=IBBBxII")  # error, origin, type, code; the first and the last send that it is about
ORIGIN_ZEROCOPY, COPIED = 5, 1
PATIENCE_S = 60.0
MOST_WAITING = 64  # sends that the kernel has not let go of
BUFFER = 64 << 20


@dataclass
class Round:
    seconds: float
    processor_seconds: float  # of the sender's thread
    sends: int = 0
    copied: int = 0  # of these, by the kernel all the same


def receive(port: int, address: str, ready: Any = None) -> None:
    """Serves one sender: reads and forgets, and confirms every round by a byte."""
    with socket.create_server((address, port)) as server:
        if ready is not None:
            ready.send(server.getsockname()[1])
        connection, _ = server.accept()
        with connection:
            room = memoryview(bytearray(1 << 20))
            while header := connection.recv(8, socket.MSG_WAITALL):
                left = int.from_bytes(header, "little")
                while left > 0:
                    got = connection.recv_into(room[: min(left, len(room))])
                    if got == 0:
                        return
                    left -= got
                connection.sendall(b"\0")


class Sender:
    """One connection, which never blocks: the kernel's messages about what was sent come between the sends."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        connection.setblocking(False)
        self.poll = select.poll()

    def wait(self, events: int) -> None:
        """Until one of these is there, or the kernel has a message, which poll() tells in any case."""
        self.poll.register(self.connection, events)
        if not self.poll.poll(PATIENCE_S * 1000):
            raise TimeoutError(f"nothing has moved for {PATIENCE_S:g} s")

    def let_go(self) -> tuple[int, int]:
        """Of how many sends the kernel says now that it has let go, and how many of these it had copied."""
        done = copied = 0
        while True:
            try:
                _, messages, _, _ = self.connection.recvmsg(0, 512, MSG_ERRQUEUE)
            except BlockingIOError:
                return done, copied
            for _, _, data in messages:
                _, origin, _, code, first, last = EXTENDED_ERROR.unpack_from(data)
                if origin == ORIGIN_ZEROCOPY:
                    done += last - first + 1
                    copied += last - first + 1 if code & COPIED else 0

    def send(self, part: memoryview, zerocopy: bool, waiting: int) -> int | None:
        """Bytes; None: there is no room now. `waiting`: sends that the kernel has not let go of."""
        try:
            return self.connection.send(part, MSG_ZEROCOPY if zerocopy else 0)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            if waiting:
                return None
            words = f"the kernel takes no send of {len(part)} bytes with MSG_ZEROCOPY: it may pin no more memory"
            raise SystemExit(f"{words} (ulimit -l, net.core.optmem_max); try a smaller --piece") from None

    def exactly(self, nbytes: int) -> bytes:
        while True:
            self.wait(select.POLLIN)
            self.let_go()
            try:
                got = self.connection.recv(nbytes)
            except BlockingIOError:
                continue
            if not got:
                raise ConnectionError("the receiver has ended")
            return got

    def one_round(self, buffer: memoryview, piece: int, nbytes: int, zerocopy: bool) -> Round:
        self.connection.send(nbytes.to_bytes(8, "little"))  # nothing is under way, so there is room
        sends = done = copied = at = 0
        began, busy = time.monotonic(), time.thread_time()
        left = nbytes
        while left > 0 or done < sends:
            sent = None
            if left > 0 and sends - done < MOST_WAITING:
                at = at if at + piece <= len(buffer) else 0
                sent = self.send(buffer[at : at + min(piece, left)], zerocopy, sends - done)
            if sent is not None:
                sends += zerocopy
                left -= sent
                at += piece
                continue
            some, theirs = self.let_go() if zerocopy else (0, 0)
            done, copied = done + some, copied + theirs
            if some == 0:
                self.wait(select.POLLOUT if left > 0 and sends - done < MOST_WAITING else 0)
        self.exactly(1)
        return Round(time.monotonic() - began, time.thread_time() - busy, sends, copied)


def measure(connection: socket.socket, piece: int, nbytes: int, rounds: int) -> dict[str, list[Round]]:
    sender = Sender(connection)
    buffer = memoryview(bytearray(BUFFER))
    buffer[:] = b"\1" * BUFFER  # its pages are there
    found: dict[str, list[Round]] = {"plain": [], "zerocopy": []}
    for number in range(2 * rounds + 2):
        name = ("plain", "zerocopy")[number % 2]
        one = sender.one_round(buffer, piece, nbytes, name == "zerocopy")
        if number >= 2:  # the first two warm the connection up
            found[name].append(one)
    return found


def table(found: dict[str, list[Round]], nbytes: int) -> dict[str, Any]:
    rows = {}
    for name, rounds in found.items():
        rates = [nbytes / one.seconds / 1e9 for one in rounds]
        costs = [one.processor_seconds / nbytes * 1e9 for one in rounds]
        sends = sum(one.sends for one in rounds)
        rows[name] = {
            "gbps": [min(rates), statistics.median(rates), max(rates)],
            "processor_seconds_per_gb": [min(costs), statistics.median(costs), max(costs)],
            "copied": sum(one.copied for one in rounds) / sends if sends else None,
        }
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--receive", type=int, metavar="PORT")
    parser.add_argument("--to", metavar="HOST:PORT")
    parser.add_argument("--mib", type=int, default=1024, help="of a round")
    parser.add_argument("--piece", type=int, default=1024, help="KiB of a send; Isthmus' frames have up to 1024")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "zerocopy.json")
    args = parser.parse_args()
    if args.receive is not None:
        receive(args.receive, "0.0.0.0")
        return 0
    made = circumstances()
    child = None
    if args.to:
        host, _, port = args.to.rpartition(":")
        where = f"to {host}"
    else:
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.Process(target=receive, args=(0, "127.0.0.1", theirs), daemon=True)
        child.start()
        theirs.close()
        if not ours.poll(PATIENCE_S):
            raise TimeoutError("the receiving process has not begun")
        host, port, where = "127.0.0.1", str(ours.recv()), "over loopback, where the kernel copies everything"
    nbytes = args.mib << 20
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        rows = table(measure(connection, args.piece << 10, nbytes, args.rounds), nbytes)
    if child:
        child.join(PATIENCE_S)
    print(f"{args.mib} MiB in sends of {args.piece} KiB, {where}; medians of {args.rounds} rounds, by turns")
    for name, row in rows.items():
        cost = row["processor_seconds_per_gb"][1]
        said = "" if row["copied"] is None else f", {row['copied']:.0%} of the sends copied by the kernel"
        print(f"{name:9} {row['gbps'][1]:6.2f} GB/s, {cost:.3f} s of a processor for a GB{said}")
    result = {**made, "where": where, "bytes": nbytes, "piece": args.piece << 10, "rounds": args.rounds, "rows": rows}
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
