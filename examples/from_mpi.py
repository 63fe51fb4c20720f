"""Isthmus inside an MPI program: MPI carries the rendezvous, Isthmus the data.

mpirun -n 2 python examples/from_mpi.py
"""

import numpy as np
from mpi4py import MPI

import isthmus

with isthmus.from_mpi(MPI.COMM_WORLD) as comm:
    gathered = comm.all_gather(np.array([comm.rank, MPI.COMM_WORLD.Get_rank()]))
    assert (gathered[:, 0] == gathered[:, 1]).all()
    if comm.rank == 0:
        print(f"{comm.size} ranks, numbered as MPI numbers them")
