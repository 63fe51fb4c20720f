"""What a process says last reaches the other hosts, also where it has to be sent twice and they are still talking."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hosts import end, line, two_hosts
from patience import SOON

RANK = Path(__file__).with_name("last_rank.py")


# Heartbeats reach the host of a process that has ended. Its kernel answers that nobody has that connection any more, and
# forgets what it had to send once more: the leave of the rank, the last of its data, or what it has raised.
@pytest.mark.parametrize(("does", "count"), [("send", 7), ("send", 10_001), ("raise", 7), ("interrupt", 7)])
def test_what_a_rank_has_sent_last_comes_also_where_its_packets_were_lost(does: str, count: int) -> None:
    with two_hosts() as hosts:
        ranks = hosts.start_on((0, 1), [{}] * 2, str(count), does, program=RANK)
        try:
            assert line(ranks[0]) == "ready"
            hosts.silence("cable", ends=[0])
            assert ranks[0].stdin is not None
            ranks[0].stdin.write("go\n")
            ranks[0].stdin.flush()
            if does == "send":
                assert line(ranks[0])["right"]
            with pytest.raises(subprocess.TimeoutExpired):
                ranks[0].wait(0.3)
            hosts.restore("cable", ends=[0])
            if does == "send":
                assert line(ranks[1])["right"]
                assert [rank.wait() for rank in ranks] == [0, 0]
            else:
                what = "ValueError" if does == "raise" else "KeyboardInterrupt"
                assert f"raised {what}: no more of this" in ranks[1].communicate(timeout=SOON)[1]
        finally:
            end(ranks)
