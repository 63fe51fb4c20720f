"""Two hosts for tests: network namespaces with one cable between them, which a test can cut. Needs root and `ip` (iproute2).

To Isthmus these are two hosts, since a host's identity is its boot and its network namespace: nothing is shared but TCP.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from patience import SOON

ADDRESSES = {"IPv4": "10.213.7.{}", "IPv6": "fd5a:213:7::{}"}
RANK = Path(__file__).with_name("net") / "host_rank.py"
FAR_CABLE = Path(__file__).with_name("far_cable.py")
Process = subprocess.Popen[str]


def missing(what: str) -> NoReturn:
    """Skips a test for want of that. Where CI is set it fails, so that a green run there has tried all."""
    if os.environ.get("CI"):
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=SOON)


class Hosts:
    def __init__(self) -> None:
        self.names = [f"isthmus-{os.getpid()}-{n}" for n in (0, 1)]

    def build(self, nowhere: bool, default_route: bool) -> None:
        for n, name in enumerate(self.names):
            ip("netns", "add", name)
            if nowhere:
                ip("-n", name, "link", "add", "nowhere0", "type", "veth", "peer", "name", "nowhere1")
                ip("-n", name, "address", "add", f"10.213.6.{n + 1}/24", "dev", "nowhere0")
                for link in ("nowhere0", "nowhere1"):
                    ip("-n", name, "link", "set", link, "up")
                if default_route:
                    ip("-n", name, "route", "add", "default", "via", "10.213.6.254", "dev", "nowhere0")
        ip("link", "add", "cable0", "netns", self.names[0], "type", "veth", "peer", "name", "cable1", "netns", self.names[1])
        for n, name in enumerate(self.names):
            ip("-n", name, "address", "add", ADDRESSES["IPv4"].format(n + 1) + "/24", "dev", f"cable{n}")
            ip("-n", name, "address", "add", ADDRESSES["IPv6"].format(n + 1) + "/64", "dev", f"cable{n}", "nodad")
            for link in ("lo", f"cable{n}"):
                ip("-n", name, "link", "set", link, "up")

    def fence(self, *ports: str) -> None:
        """From now on TCP passes between the hosts where either end is one of these ports ("29500", "29600-29631")."""
        try:
            for name in self.names:
                for family in ("-4", "-6"):
                    for one in ports:
                        for end in ("dport", "sport"):
                            ip(
                                "-n",
                                name,
                                family,
                                "rule",
                                "add",
                                "pref",
                                "100",
                                "ipproto",
                                "tcp",
                                end,
                                one,
                                "lookup",
                                "main",
                            )
                    everywhere = ADDRESSES["IPv4"].format(0) + "/24" if family == "-4" else "fd5a:213:7::/64"
                    ip("-n", name, family, "rule", "add", "pref", "200", "to", everywhere, "ipproto", "tcp", "prohibit")
        except subprocess.CalledProcessError as error:
            missing(f"this kernel has no rules of routing by port: {' '.join(error.stderr.split())}")

    def cut(self) -> None:
        ip("-n", self.names[0], "link", "set", "cable0", "down")

    def add_second_cable(self) -> None:
        """second0 and second1, with addresses of a network of their own."""
        a, b = self.names
        ip("link", "add", "second0", "netns", a, "type", "veth", "peer", "name", "second1", "netns", b)
        for n, name in enumerate(self.names):
            ip("-n", name, "address", "add", f"10.213.8.{n + 1}/24", "dev", f"second{n}")
        self.set_second_cable("up")

    def set_second_cable(self, state: str) -> None:
        for n, name in enumerate(self.names):
            ip("-n", name, "link", "set", f"second{n}", state)

    def silence(self, cable: str, ends: Sequence[int] = (0, 1)) -> None:
        """What these hosts send by "cable" or "second" reaches nobody from now on, and no host is told: each sends to a
        stranger's address of hardware.
        """
        self._neighbours(cable, ends, "replace", "lladdr", "02:00:00:00:0b:ad", "nud", "permanent")

    def restore(self, cable: str, ends: Sequence[int] = (0, 1)) -> None:
        self._neighbours(cable, ends, "del")

    def _neighbours(self, cable: str, ends: Sequence[int], verb: str, *words: str) -> None:
        network = {"cable": ADDRESSES["IPv4"], "second": "10.213.8.{}"}[cable]
        for n in ends:
            ip("-n", self.names[n], "neighbour", verb, network.format(2 - n), *words, "dev", f"{cable}{n}")

    def probes(self, host: int) -> bool:
        """Whether that host's kernel probes the other host, for a TCP connection on which nothing is under way."""
        words = ["ip", "netns", "exec", self.names[host], "ss", "-tnoH"]
        said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=SOON).stdout
        return "timer:(keepalive," in said

    def sent(self, cable: str) -> int:
        """Bytes that both ends of "cable" or "second" have sent."""
        total = 0
        for n, name in enumerate(self.names):
            words = ["ip", "-n", name, "-s", "-j", "link", "show", f"{cable}{n}"]
            said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=SOON).stdout
            total += json.loads(said)[0]["stats64"]["tx"]["bytes"]
        return total

    def set_receive_memory(self, host: int, most: int) -> None:
        """Bytes that the kernel of that host keeps, at most, of what comes on a TCP connection and is not read."""
        command = f"echo 4096 {most} {most} > /proc/sys/net/ipv4/tcp_rmem"
        ip("netns", "exec", self.names[host], "sh", "-c", command)

    def shape(self, cable: str, megabytes: float, at_once: int = 256 << 10, queue: int = 1 << 20) -> None:
        """Each end of "cable" or "second" sends no more than so many 10^6 bytes a second from now on, but for a first burst
        of `at_once` bytes. What waits is lost beyond `queue` bytes.
        """
        rate = round(megabytes * 8e6)
        for n, name in enumerate(self.names):
            words = ["qdisc", "replace", "dev", f"{cable}{n}", "root", "handle", "1:", "tbf", "rate", f"{rate}bit"]
            words += ["burst", str(at_once), "limit", str(queue + at_once)]
            subprocess.run(["tc", "-n", name, *words], check=True, capture_output=True, text=True, timeout=SOON)

    @contextmanager
    def far_cable(self, delay_ms: float, megabytes: float, queue_ms: float = 100) -> Iterator[None]:
        """far0 and far1, the ends of one more cable, of so many 10^6 bytes a second and so long a delay each way."""
        words = [sys.executable, str(FAR_CABLE), *self.names, "--delay-ms", str(delay_ms), "--megabytes", str(megabytes)]
        words += ["--queue-ms", str(queue_ms)]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as cable:
            try:
                assert cable.stdout is not None
                if not cable.stdout.readline():
                    missing(f"this kernel or container has no TUN devices: {cable.communicate()[1][-500:]}")
                yield
            finally:
                cable.communicate(timeout=SOON)

    def remove(self) -> None:
        for name in self.names:
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)

    def start(self, family: str, *arguments: str, settings: dict[str, str] | None = None) -> list[Process]:
        """Rank n on host n; they meet at rank 0's address of that family."""
        return self.start_on((0, 1), [settings or {}] * 2, *arguments, family=family)

    def start_on(
        self,
        places: Sequence[int],
        settings: Sequence[Mapping[str, str]],
        *arguments: str,
        family: str = "IPv4",
        program: Path = RANK,
    ) -> list[Process]:
        """Rank n on host places[n], the first on host 0, with settings[n] in its environment."""
        host = ADDRESSES[family].format(1)
        address = f"[{host}]:29511" if family == "IPv6" else f"{host}:29511"
        common = {"ISTHMUS_WORLD_SIZE": str(len(places)), "ISTHMUS_ADDRESS": address}
        ranks = []
        for n, (place, own) in enumerate(zip(places, settings, strict=True)):
            command = ["ip", "netns", "exec", self.names[place], sys.executable, str(program), *arguments]
            given = {**os.environ, "ISTHMUS_RANK": str(n), **common, **own}
            pipe = subprocess.PIPE
            ranks.append(subprocess.Popen(command, env=given, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return ranks


@contextmanager
def two_hosts(nowhere: bool = False, default_route: bool = False) -> Iterator[Hosts]:
    """With `nowhere` each host's first interface is up, has an address, and leads to nobody; so does its default route then,
    where that is asked for.
    """
    if os.geteuid() != 0 or not shutil.which("ip"):
        missing("network namespaces need root and iproute2's `ip`")
    made = Hosts()
    try:
        made.build(nowhere, default_route)
    except subprocess.CalledProcessError as error:
        made.remove()
        missing(f"this kernel or container allows no network namespaces: {' '.join(error.stderr.split())}")
    try:
        yield made
    finally:
        made.remove()


def line(rank: Process) -> Any:
    """The next line of a rank, which is JSON."""
    assert rank.stdout is not None
    said = rank.stdout.readline()
    while "|CCL_" in said:  # oneCCL tells its own settings there
        said = rank.stdout.readline()
    if not said:
        _, error = rank.communicate(timeout=SOON)
        raise AssertionError(f"the rank ended with {rank.returncode}: {error[-3000:]}")
    return json.loads(said)


def end(ranks: list[Process]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
        rank.communicate(timeout=SOON)
