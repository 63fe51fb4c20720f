"""Hosts of a rehearsal on one machine: one network namespace for each island. A bridge joins the namespaces.

Both directions of each interface are held to the island's rate. No namespace has a name, so none can be left behind:

1. A namespace lives as long as a process is in it. One child process, the holder, is in each.
2. A holder ends when its input ends, and so when this process ends, in whatever way.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from ._errors import Error

__all__ = ["INTERFACE", "Hosts"]

INTERFACE = "eth0"  # in every namespace
_MTU = 9000  # bytes, as between racks: with 1500 the headers would take 5 % of a rate
_TOOLS = ("ip", "tc", "unshare", "nsenter")  # of iproute2 and util-linux
_PATIENCE_S = 20.0
# The bucket of the token bucket filter: how many bytes may pass at once. The bucket must hold the largest packet that the
# kernel hands down whole (64 KiB), and the bytes that pass while the kernel's timer is late.
_BURST_BYTES = 256 << 10
_BURST_S = 0.002
_QUEUE_S = 0.1  # how much may wait for its turn, as time at the rate; more is dropped, as by a switch


class Hosts:
    """Makes one host for each island, and joins the hosts. Needs root.

    `rates` are MB/s (10^6 bytes a second), each way, by island. close(), or the end of a `with` block, ends the hosts.
    The constructor raises Error where the kernel or the tools cannot make such hosts.
    """

    def __init__(self, rates: Mapping[str, float]) -> None:
        self._tools = _find_tools()
        self._holders: list[subprocess.Popen[bytes]] = []
        self._places: dict[str, tuple[int, str]] = {}  # the holder's process id, the address
        try:
            hub = self._hold()
            for number, island in enumerate(rates, 1):
                self._places[island] = (self._hold(), f"10.213.{number >> 8}.{number & 255}")
            self._join(hub, rates)
        except BaseException:
            self.close()
            raise

    def address(self, island: str) -> str:
        return self._places[island][1]

    def before(self, island: str) -> list[str]:
        """The words that make a command run on the island's host, written before the command."""
        return [self._tools["nsenter"], f"--net=/proc/{self._places[island][0]}/ns/net", "--"]

    def close(self) -> None:
        for holder in self._holders:
            with suppress(OSError):
                if holder.stdin:
                    holder.stdin.close()
        for holder in self._holders:
            try:
                holder.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                holder.kill()
                holder.wait()
            for stream in (holder.stdout, holder.stderr):
                if stream:
                    stream.close()
        self._holders.clear()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_unused: object) -> None:
        self.close()

    def _hold(self) -> int:
        """Starts a process in a network namespace of its own, and returns the process id.

        The process ends when its input ends. The process has a session of its own, so Ctrl-C does not reach it.
        """
        holder = subprocess.Popen(
            [self._tools["unshare"], "--net", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._holders.append(holder)
        assert holder.stdout and holder.stderr
        if not holder.stdout.readline():
            reason = holder.stderr.read().decode(errors="replace").strip()
            raise Error(f"rehearsal: bridge rates need network namespaces, which are not to be had here: {reason}")
        return holder.pid

    def _join(self, hub: int, rates: Mapping[str, float]) -> None:
        cables = ["link add bridge0 type bridge", "link set bridge0 addrgenmode none", "link set bridge0 up"]
        shapes = []
        for number, (island, (process, _)) in enumerate(self._places.items()):
            port = f"port{number}"
            cables += [
                f"link add {port} mtu {_MTU} type veth peer name {INTERFACE} mtu {_MTU} netns {process}",
                f"link set {port} addrgenmode none",
                f"link set {port} master bridge0",
                f"link set {port} up",
            ]
            shapes.append(f"qdisc add dev {port} root {_shape(rates[island])}")  # what the island receives
        self._batch("ip", hub, cables)
        self._batch("tc", hub, shapes)
        for island, (process, address) in self._places.items():
            self._batch("tc", process, [f"qdisc add dev {INTERFACE} root {_shape(rates[island])}"])  # what it sends
            up = [f"link set {INTERFACE} addrgenmode none", "link set lo up", f"link set {INTERFACE} up"]
            # There is no default route: a name that a program looks up fails at once. With a route the program would wait
            # for an answer.
            self._batch("ip", process, [*up, f"address add {address}/16 dev {INTERFACE}"])

    def _batch(self, tool: str, process: int, lines: list[str]) -> None:
        """Runs lines of `ip` or `tc` in the network namespace of `process`. Raises Error with what the tool said."""
        command = [self._tools["nsenter"], f"--net=/proc/{process}/ns/net", "--", self._tools[tool], "-batch", "-"]
        try:
            done = subprocess.run(
                command, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=_PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise Error(f"rehearsal: bridge rates: `{tool}` did not end within {_PATIENCE_S:g} s") from None
        if done.returncode != 0:
            reason = " ".join(done.stderr.split())
            raise Error(f"rehearsal: bridge rates: `{tool}` cannot make them here: {reason}")


def _shape(rate: float) -> str:
    """The words for `tc qdisc add` that hold an interface to `rate` MB/s."""
    wanted = round(rate * 1e6)
    burst = max(_BURST_BYTES, int(wanted * _BURST_S))
    return f"tbf rate {wanted * 8}bit burst {burst} limit {max(1 << 20, int(wanted * _QUEUE_S)) + burst}"


def _find_tools() -> dict[str, str]:
    if os.geteuid() != 0:
        raise Error("rehearsal: bridge rates need root, for network namespaces; run it as root, or leave bridge_mbps out")
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    found = {tool: shutil.which(tool, path=path) for tool in _TOOLS}
    missing = [tool for tool, at in found.items() if at is None]
    if missing:
        raise Error(f"rehearsal: bridge rates need `{'` and `'.join(missing)}` (iproute2 and util-linux); not found")
    return {tool: at for tool, at in found.items() if at}
