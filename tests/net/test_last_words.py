"""What a process says last reaches the other hosts, also where it has to be sent twice and they are still talking."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from hosts import end, line, two_hosts

RANK = Path(__file__).with_name("last_rank.py")


# Heartbeats reach the host of a process that has ended. Its kernel answers that nobody has that connection any more, and
# forgets what it had to send once more: the leave of the rank, and the last of its data.
@pytest.mark.parametrize("count", [7, 10_001])
def test_what_a_rank_has_sent_last_comes_also_where_its_packets_were_lost(count: int) -> None:
    with two_hosts() as hosts:
        ranks = hosts.start_on((0, 1), [{}] * 2, str(count), "told", program=RANK)
        try:
            assert line(ranks[0]) == "ready"
            hosts.silence("cable", ends=[0])
            assert ranks[0].stdin is not None
            ranks[0].stdin.write("go\n")
            ranks[0].stdin.flush()
            assert line(ranks[0])["right"]
            with suppress(subprocess.TimeoutExpired):
                ranks[0].wait(0.3)  # a process that did not wait would have ended
            hosts.restore("cable", ends=[0])
            assert line(ranks[1])["right"]
            assert [rank.wait() for rank in ranks] == [0, 0]
        finally:
            end(ranks)
