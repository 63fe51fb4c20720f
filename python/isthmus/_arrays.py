"""New arrays of the caller's kind, where an operation's `out` was left out. Called by the C++ module."""

from __future__ import annotations

import sys
from typing import Any

from ._errors import UnsupportedError


def _empty(like: Any, shape: tuple[int, ...]) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    import numpy

    if isinstance(like, numpy.ndarray):
        return numpy.empty(shape, dtype=like.dtype)
    raise UnsupportedError(f"out= is needed: x is a {type(like).__name__}, and new arrays are made for NumPy and torch only")


def stacked(like: Any, world_size: int) -> Any:
    """For all_gather and gather: (world_size, *shape)."""
    return _empty(like, (world_size, *_shape(like)))


def block(like: Any, world_size: int) -> Any:
    """For reduce_scatter and scatter: (world_size, *rest) loses its first dimension; any other first one is divided."""
    shape = _shape(like)
    if len(shape) > 1 and shape[0] == world_size:
        return _empty(like, shape[1:])
    if shape and shape[0] % world_size == 0:
        return _empty(like, (shape[0] // world_size, *shape[1:]))
    size = 1
    for extent in shape:
        size *= extent
    return _empty(like, (size // world_size,))


def same(like: Any, _unused: int) -> Any:
    """For all_to_all: the shape of x."""
    return _empty(like, _shape(like))


def flat(like: Any, elements: int) -> Any:
    """For collectives with counts: one dimension."""
    return _empty(like, (elements,))


def _shape(like: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in getattr(like, "shape", ()))
