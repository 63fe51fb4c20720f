"""Isthmus: collectives over ranks of several islands.

>>> import isthmus
>>> comm = isthmus.init()        # under torchrun, mpirun, srun or `isthmus launch`
>>> comm.all_reduce(x)           # NumPy, torch, and whatever has DLPack or the buffer protocol

Importing this package needs no device, no NumPy and no torch.
"""

from __future__ import annotations

import atexit as _atexit
import importlib as _importlib
import typing as _typing
from types import ModuleType as _ModuleType

if _typing.TYPE_CHECKING:
    from . import elastic as elastic
    from . import launch as launch
    from . import rehearse as rehearse
    from . import torch as torch
    from . import torchft as torchft

from . import _core, _ending
from ._comm import Comm, Explanation, context_stats, from_mpi, group, init, join, settings, unique_id
from ._core import ANY_SOURCE, Work
from ._errors import (
    AbortedError,
    ArgumentError,
    AuthError,
    ConfigError,
    DeviceError,
    Error,
    ForkedError,
    InternalError,
    InterruptedError,
    MismatchError,
    PeerLostError,
    ResourceError,
    SystemError,
    TimeoutError,
    UnsupportedError,
)
from ._package import get_include

__version__ = _core.version()

__all__ = [
    "ANY_SOURCE",
    "AbortedError",
    "ArgumentError",
    "AuthError",
    "Comm",
    "ConfigError",
    "DeviceError",
    "Error",
    "Explanation",
    "ForkedError",
    "InternalError",
    "InterruptedError",
    "MismatchError",
    "PeerLostError",
    "ResourceError",
    "SystemError",
    "TimeoutError",
    "UnsupportedError",
    "Work",
    "context_stats",
    "from_mpi",
    "get_include",
    "group",
    "init",
    "join",
    "settings",
    "unique_id",
]

if not _typing.TYPE_CHECKING:  # a type checker knows no other name for it, and would take every name for a module's

    def __getattr__(name: str) -> _ModuleType:
        """The public modules, each imported when a program first names it."""
        if name not in ("elastic", "launch", "rehearse", "torch", "torchft"):
            raise AttributeError(f"module 'isthmus' has no attribute {name!r}")
        return _importlib.import_module(f"{__name__}.{name}")


# Both run while the interpreter still runs. Later, threads cannot be joined in order. destroy_all() gives the pending
# operations of each communicator 2 s at most.
_atexit.register(_ending.join_threads)  # runs after destroy_all(): atexit calls the last one registered first
_atexit.register(_core.destroy_all, 2.0)
_ending.install()
