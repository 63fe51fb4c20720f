"""One process of test_torchft.py: torchft's lighthouse, or a replica of a small training under torchft's Manager.

    torchft_replica.py lighthouse HEARTBEAT_SECONDS
    torchft_replica.py replica NUMBER LIGHTHOUSE_ADDRESS SECONDS

Each says what it has done in lines of JSON. The lighthouse ends when its standard input does; the replicas all together, in
the step in which the input of one of them does. A replica that reads a line stands still in its next step until it reads
another.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import sys
import time
from datetime import timedelta
from typing import Any

PAUSE = 0.02  # seconds between steps: the other processes of the test have work, too


def told() -> bytes | None:
    """What has come on standard input by now: None for nothing, empty for its end."""
    return os.read(0, 100) if select.select([0], [], [], 0)[0] else None


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def lighthouse(heartbeat: float) -> None:
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="0.0.0.0:0",
        min_replicas=2,
        join_timeout_ms=int(heartbeat * 1000),
        quorum_tick_ms=20,
        heartbeat_timeout_ms=int(heartbeat * 1000),
    )
    say(address=server.address())
    sys.stdin.read()
    server.shutdown()


def replica(number: str, address: str, seconds: float) -> None:
    import torch
    from torch.distributed import TCPStore
    from torchft.manager import Manager

    from isthmus.torchft import ProcessGroupIsthmus

    torch.set_num_threads(1)
    torch.manual_seed(0)
    weights = {"w": torch.randn(1000)}
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupIsthmus(timeout=timedelta(seconds=seconds)),
        min_replica_size=2,
        load_state_dict=lambda state: weights["w"].copy_(state["w"]),
        state_dict=lambda: dict(weights),
        timeout=timedelta(seconds=20 * seconds),
        quorum_timeout=timedelta(seconds=20 * seconds),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address,
        replica_id=f"replica_{number}",
        hostname="127.0.0.1",
    )
    end = False
    while not end:
        manager.start_quorum()
        manager.wait_quorum()
        word = told()
        if word:
            say(stands=True, committed=False)
            os.read(0, 100)
        ends = torch.tensor([float(word == b"")])
        gradient = torch.cat([weights["w"] * 0.1 + float(number) + manager.current_step(), ends])
        manager.allreduce(gradient).wait()
        committed = manager.should_commit()
        if committed:
            weights["w"] -= 0.1 * gradient[:-1]
            end = bool(gradient[-1] > 0)  # somebody is told to end
        error = manager.errored()
        say(
            step=manager.current_step(),
            participants=manager.num_participants(),
            committed=committed,
            error="" if error is None else str(error.original_exception),
            digest=hashlib.blake2b(weights["w"].numpy().tobytes(), digest_size=16).hexdigest(),
        )
        time.sleep(PAUSE)
    manager.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "lighthouse":
        lighthouse(float(sys.argv[2]))
    else:
        replica(sys.argv[2], sys.argv[3], float(sys.argv[4]))
