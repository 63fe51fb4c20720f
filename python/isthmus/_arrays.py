"""New arrays of the caller's kind (NumPy or torch), for calls without `out`. The C++ module calls these functions.

`like` is the caller's `x`. The new array has the dtype of `like` and, for torch, its device. Its elements are not set.
"""

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
    """For all_gather and gather: shape (world_size, *x.shape)."""
    return _empty(like, (world_size, *_shape(like)))


def block(like: Any, world_size: int) -> Any:
    """For reduce_scatter and scatter: the shape of one rank's block of x.

    1. x of shape (world_size, *rest), with a `rest`: the block has the shape `rest`.
    2. x whose first dimension is another multiple of world_size: the first dimension is divided by world_size.
    3. Any other x: the block has one dimension, with 1/world_size of the elements.
    """
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
    """For all_to_all: the shape of x. The second argument is not used: the C++ module gives one to each function here."""
    return _empty(like, _shape(like))


def flat(like: Any, elements: int) -> Any:
    """For collectives with counts: one dimension of `elements` elements."""
    return _empty(like, (elements,))


def _shape(like: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in getattr(like, "shape", ()))
