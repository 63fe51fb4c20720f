"""One rank of test_far.py: rank 0 sends a broadcast and ends at once; the others say whether all of it came."""

from __future__ import annotations

import json
import sys

import numpy as np

import isthmus

with isthmus.init() as comm:
    block = np.arange(int(sys.argv[1]), dtype=np.int32) * (1 if comm.rank == 0 else 0)
    comm.broadcast(block, root=0)
print(json.dumps({"right": bool((block == np.arange(block.size)).all())}), flush=True)
