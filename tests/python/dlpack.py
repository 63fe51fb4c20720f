"""A producer of DLPack capsules over memory at an address, by ctypes; it counts what it lends and what comes back."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CPU, CUDA, CUDA_PINNED, ROCM, EXTENSION, CUDA_MANAGED = 1, 2, 3, 10, 12, 13
READ_ONLY, COPIED = 1, 2
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMED = {"bfloat16": (4, 16), "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8)}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]

wrong: list[str] = []
_lent: dict[int, tuple[Any, ...]] = {}  # by the address of the struct: all that it points to, and whom to tell


@_function
def _delete(managed: int) -> None:
    entry = _lent.pop(managed, None)
    if entry is None:
        wrong.append(f"the deleter of {managed:#x} was called again")
    else:
        entry[-1].deleted += 1


@_function
def _end_of_capsule(capsule: int) -> None:
    """As the protocol has it: a capsule that nobody has taken ends what it holds."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if _api.PyCapsule_IsValid(capsule, name):
            _delete(_api.PyCapsule_GetPointer(capsule, name))


class Log:
    """What was asked of a producer; outlives it."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.lent = self.deleted = 0


class Producer:
    """An array of a library that speaks nothing but DLPack.

    `memory` is kept as long as a capsule is. `before(stream)` is called where the producer is asked for an order of streams.
    """

    device_type, number = CPU, 0
    versioned = True  # gives what is asked for with max_version
    streams = True  # knows the argument stream
    flags = 0
    lanes = 1
    byte_offset = 0
    strides: tuple[int, ...] | None = None  # elements

    def __init__(self, memory: Any, address: int, shape: tuple[int, ...], dtype: Any) -> None:
        self.memory, self.address, self.shape, self.dtype = memory, address, shape, np.dtype(dtype)
        self.log = Log()

    def before(self, stream: Any) -> None:
        pass

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_type, self.number

    def __dlpack__(self, **options: Any) -> Any:
        self.log.asked.append(options)
        known = {"stream"} if self.streams else set()
        if self.versioned:
            known |= {"max_version", "dl_device", "copy"}
        if set(options) - known:
            raise TypeError(f"__dlpack__() got an unexpected keyword argument {(set(options) - known).pop()!r}")
        self.before(options.get("stream"))
        return self.capsule(options.get("max_version", (0, 0))[0] >= 1)

    def capsule(self, versioned: bool = True) -> Any:
        managed: Any = _Versioned() if versioned else _Managed()
        dimensions = len(self.shape)
        shape = (ctypes.c_int64 * max(dimensions, 1))(*self.shape)
        strides = (ctypes.c_int64 * max(dimensions, 1))(*self.strides) if self.strides else None
        code, bits = _NAMED.get(self.dtype.name) or (_CODES[self.dtype.kind], 8 * self.dtype.itemsize)
        tensor = managed.tensor
        tensor.data = self.address - self.byte_offset or None
        tensor.device_type, tensor.device_id = self.device_type, self.number
        tensor.ndim, tensor.code, tensor.bits, tensor.lanes = dimensions, code, bits, self.lanes
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        if strides:
            tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
        tensor.byte_offset = self.byte_offset
        if versioned:
            managed.major, managed.minor, managed.flags = 1, 0, self.flags
        managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
        at = ctypes.addressof(managed)
        _lent[at] = (managed, shape, strides, self.memory, self.log)
        self.log.lent += 1
        name = b"dltensor_versioned" if versioned else b"dltensor"
        return _api.PyCapsule_New(at, name, ctypes.cast(_end_of_capsule, ctypes.c_void_p))
