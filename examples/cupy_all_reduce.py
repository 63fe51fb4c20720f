"""Sums an array of CuPy over all ranks, on the stream on which CuPy computes.

    torchrun --nproc-per-node 2 examples/cupy_all_reduce.py

Each rank works on the GPU of its local rank. Where there is no CuPy, or no GPU, the program says so and ends well.
"""

import os
import sys

try:
    import cupy

    devices = cupy.cuda.runtime.getDeviceCount()
except Exception as error:  # no CuPy, no driver, no device: each has an exception of its own
    print(f"skipped: CuPy finds no GPU here ({type(error).__name__}: {error})")
    sys.exit(0)

import isthmus

number = int(os.environ.get("LOCAL_RANK", "0")) % devices
cupy.cuda.Device(number).use()
with isthmus.init(settings={"DEVICE": f"cuda:{number}"}) as comm:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.full(1_000_000, comm.rank + 1, cupy.float32)
        # The sum begins behind the fill. Later work on the stream runs behind the sum. The host waits for neither.
        comm.all_reduce(x, stream=stream.ptr)
        total = float((x / comm.size).mean())
    assert total == (comm.size + 1) / 2
    if comm.rank == 0:
        print(f"{comm.size} ranks: the average is {total:g}")
