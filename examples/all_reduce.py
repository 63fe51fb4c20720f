"""Sums an array over all ranks, blocking and in the background.

    isthmus launch --ranks 4 --islands a:2,b:2 --bridge tcp -- python examples/all_reduce.py

torchrun, mpirun and srun start it as well.
"""

import numpy as np

import isthmus

with isthmus.init() as comm:
    x = np.full(1_000_000, comm.rank + 1, np.float32)
    comm.all_reduce(x)  # in place
    assert (x == comm.size * (comm.size + 1) / 2).all()

    gradients = [np.full(250_000, comm.rank, np.float32) for _ in range(4)]
    works = [comm.all_reduce(g, "avg", async_op=True) for g in gradients]
    for work in works:  # compute here while the averages travel
        work.wait()

    if comm.rank == 0:
        print(f"{comm.size} ranks: the sum is {x[0]:g}, the average {gradients[0][0]:g}")
        print(comm.explain("all_reduce", nbytes=x.nbytes, dtype=x.dtype))
