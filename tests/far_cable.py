"""A long cable between two network namespaces: a rate, a delay each way and a queue, by two TUN devices and this process.

    python far_cable.py NAMESPACE0 NAMESPACE1 --delay-ms 10 --megabytes 125

far0 and far1, at its ends, have the addresses 10.213.9.1 and 10.213.9.2. The cable is there from the line that the process
prints until its stdin ends. Packets stay as the sender's kernel made them, segments of up to 64 KiB, so that one process
carries some hundred MB a second. What the queue has no room for is dropped, as on the Internet.
"""

from __future__ import annotations

import argparse
import collections
import fcntl
import os
import selectors
import struct
import subprocess
import sys
import time

# Of <linux/if_tun.h>.
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04

MOST_PACKET = 1 << 17
AT_ONCE = 64  # packets of one way before the other has its turn
SOON = 0.0002  # seconds for which it does not sleep


def tun(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return fd


class Way:
    """From one end to the other."""

    def __init__(self, source: int, sink: int, rate: float, delay: float, queue: float) -> None:
        self.source, self.sink, self.rate, self.delay, self.queue = source, sink, rate, delay, queue
        self.free = 0.0  # when the last byte that was taken has left
        self.under_way: collections.deque[tuple[float, bytes]] = collections.deque()

    def take(self) -> None:
        for _ in range(AT_ONCE):
            try:
                packet = os.read(self.source, MOST_PACKET)
            except BlockingIOError:
                return
            now = time.monotonic()
            if self.free - now > self.queue:
                continue
            self.free = max(self.free, now) + len(packet) / self.rate
            self.under_way.append((self.free + self.delay, packet))

    def give(self) -> float:
        """Delivers what is due. Seconds until the next one is."""
        while self.under_way:
            left = self.under_way[0][0] - time.monotonic()
            if left > 0:
                return left
            packet = self.under_way.popleft()[1]
            try:
                os.write(self.sink, packet)
            except OSError:  # the other end is down, or takes no more
                continue
        return 3600.0


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("namespaces", nargs=2)
    flags.add_argument("--delay-ms", type=float, default=10, help="each way")
    flags.add_argument("--megabytes", type=float, default=125, help="10^6 bytes a second, each way")
    flags.add_argument("--queue-ms", type=float, default=100)
    given = flags.parse_args()
    first = [f"f{os.getpid()}-{n}" for n in (0, 1)]  # where they are made others may make theirs
    ends = [tun(name) for name in first]
    for n, name in enumerate(given.namespaces):
        link = f"far{n}"
        for words in (
            ["link", "set", first[n], "netns", name, "name", link],
            ["-n", name, "address", "add", f"10.213.9.{n + 1}/24", "dev", link],
            ["-n", name, "link", "set", link, "mtu", "1500", "txqueuelen", "10000", "up"],
        ):
            subprocess.run(["ip", *words], check=True)
    shape = (given.megabytes * 1e6, given.delay_ms * 1e-3, given.queue_ms * 1e-3)
    ways = [Way(ends[0], ends[1], *shape), Way(ends[1], ends[0], *shape)]
    waits = selectors.DefaultSelector()
    for way in ways:
        waits.register(way.source, selectors.EVENT_READ, way)
    waits.register(sys.stdin, selectors.EVENT_READ)
    print("there", flush=True)
    while True:
        left = min(way.give() for way in ways)
        for key, _ in waits.select(left if left > SOON else 0):
            if key.data is None:
                return
            key.data.take()


if __name__ == "__main__":
    main()
