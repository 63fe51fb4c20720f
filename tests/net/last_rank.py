"""One rank that takes part in a broadcast; rank 0, which sends it, ends at once; the others say whether all of it came.

With a second argument rank 0 says that it is ready, and sends and ends when it is told to by a line; or it raises an
exception, or what Ctrl-C raises, where that is the argument.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import isthmus

with isthmus.init() as comm:
    block = np.arange(int(sys.argv[1]), dtype=np.int32) * (1 if comm.rank == 0 else 0)
    if comm.rank == 0 and len(sys.argv) > 2:
        print(json.dumps("ready"), flush=True)
        sys.stdin.readline()
        if sys.argv[2] == "raise":
            raise ValueError("no more of this")
        if sys.argv[2] == "interrupt":
            raise KeyboardInterrupt("no more of this")
    comm.broadcast(block, root=0)
    print(json.dumps({"right": bool((block == np.arange(block.size)).all())}), flush=True)
