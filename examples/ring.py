"""Passes a token around all ranks, then everybody exchanges with everybody in one group, in any order.

isthmus launch --ranks 3 -- python examples/ring.py
"""

import numpy as np

import isthmus

with isthmus.init() as comm:
    following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    token = np.zeros(1, np.int64)
    if comm.rank == 0:
        comm.send(token, following)
    comm.recv(token, before)
    if comm.rank != 0:
        token += 1
        comm.send(token, following)
    else:
        print(f"the token passed {token[0] + 1} ranks")

    received = np.zeros((comm.size, 2), np.int64)
    with isthmus.group():
        for peer in range(comm.size):
            comm.send(np.array([comm.rank, peer]), peer)
            comm.recv(received[peer], peer)
    assert received.tolist() == [[peer, comm.rank] for peer in range(comm.size)]
