"""Memory of a simulated device of NVIDIA's or AMD's, and what ranks hand to each other, for programs by ctypes."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from patience import SOON

AMD = os.environ["VENDOR"] == "rccl"
runtime = ctypes.CDLL("libamdhip64.so.6" if AMD else "libcuda.so.1")


def sound(code: int, what: str) -> None:
    assert code == 0, f"{what} gave {code}"


def on_device(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    place, nbytes = ctypes.c_void_p(), ctypes.c_size_t(array.nbytes)
    source = ctypes.c_void_p(array.ctypes.data)
    if AMD:
        sound(runtime.hipMalloc(ctypes.byref(place), nbytes), "hipMalloc")
        sound(runtime.hipMemcpy(place, source, nbytes, 1), "hipMemcpy")
    else:
        sound(runtime.cuMemAlloc_v2(ctypes.byref(place), nbytes), "cuMemAlloc")
        sound(runtime.cuMemcpyHtoD_v2(place, source, nbytes), "cuMemcpyHtoD")
        sound(runtime.cuStreamSynchronize(None), "cuStreamSynchronize")  # the driver comes back before the device has it
    return place


def fetched(place: int | None, nbytes: int) -> bytes:
    """What is there when the null stream is done."""
    got = np.zeros(nbytes, np.uint8)
    to, size, here = ctypes.c_void_p(got.ctypes.data), ctypes.c_size_t(nbytes), ctypes.c_void_p(place)
    if AMD:
        sound(runtime.hipStreamSynchronize(None), "hipStreamSynchronize")
        sound(runtime.hipMemcpy(to, here, size, 2), "hipMemcpy")
    else:
        sound(runtime.cuStreamSynchronize(None), "cuStreamSynchronize")
        sound(runtime.cuMemcpyDtoH_v2(to, here, size), "cuMemcpyDtoH")
    return got.tobytes()


def work_on_the_device() -> None:
    if AMD:
        sound(runtime.hipInit(0), "hipInit")
        sound(runtime.hipSetDevice(0), "hipSetDevice")
        return
    context = ctypes.c_void_p()
    sound(runtime.cuInit(0), "cuInit")
    sound(runtime.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    sound(runtime.cuCtxSetCurrent(context), "cuCtxSetCurrent")


def hand_out(file: Path, text: bytes) -> None:
    part = file.with_suffix(".part")
    part.write_bytes(text)
    part.rename(file)


def handed(file: Path) -> bytes:
    until = time.monotonic() + SOON
    while not file.exists():
        assert time.monotonic() < until, f"nobody wrote {file}"
        time.sleep(0.002)
    return file.read_bytes()
