"""One rank of test_far.py: an all_reduce behind messages that nobody receives before it has ended."""

from __future__ import annotations

import json
import sys

import numpy as np

import isthmus

messages, nbytes, count = map(int, sys.argv[1:])
with isthmus.init() as comm:
    other = 1 - comm.rank
    sends = [comm.send(np.full(nbytes, i % 251, np.uint8), other, tag=1, async_op=True) for i in range(messages)]
    x = np.full(count, comm.rank + 1.0, np.float32)
    comm.all_reduce(x)
    right = bool((x == 3).all())
    there = np.zeros(nbytes, np.uint8)
    for i in range(messages):
        comm.recv(there, other, tag=1)
        right = right and bool((there == i % 251).all())
    for one in sends:
        one.wait()
    print(json.dumps({"far": comm.topology()["far"], "right": right}), flush=True)
