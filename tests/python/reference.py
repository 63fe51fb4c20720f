"""The collectives in NumPy, by the rule of isthmus.h.

Contributions are reduced island by island, in an island rank by rank, in float32 for the narrower floats, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

DTYPES: dict[str, np.dtype[np.generic]] = {
    name: np.dtype(name)
    for name in "int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool float16 float32 float64 complex64 complex128".split()
}
DTYPES["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
DTYPES["float8_e4m3fn"] = np.dtype(ml_dtypes.float8_e4m3fn)
DTYPES["float8_e5m2"] = np.dtype(ml_dtypes.float8_e5m2)

OPS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum")
NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
FLOATS = (*NARROW, "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = tuple(name for name in DTYPES if "int" in name)

# The quiet NaN that results carry, as an unsigned integer of the type's width.
CANONICAL_NAN = {
    "float16": 0x7E00,
    "bfloat16": 0x7FC0,
    "float32": 0x7FC00000,
    "float64": 0x7FF8000000000000,
    "float8_e4m3fn": 0x7F,
    "float8_e5m2": 0x7E,
}


def combines(dtype: str, op: str) -> bool:
    """Whether the combination has a meaning: the rule in isthmus.h."""
    if op in ("sum", "prod"):
        return True
    if op == "avg":
        return dtype != "bool"
    if op in ("min", "max"):
        return dtype not in COMPLEX
    if op == "premul_sum":
        return dtype in FLOATS or dtype in INTEGERS
    return dtype in INTEGERS or dtype == "bool"


def bits(array: Array) -> NDArray[np.uint8]:
    """The bytes, for comparisons that see every bit."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def sample(dtype: str, count: int, seed: int) -> Array:
    """Contributions with what makes arithmetic hard: wrap-around, NaN, infinities, zeros of both signs, subnormals."""
    random = np.random.default_rng(seed)
    kind = DTYPES[dtype]
    if dtype == "bool":
        return random.choice(np.array([0, 0, 1, 2, 255], np.uint8), count).view(np.bool_)
    if dtype in INTEGERS:
        return random.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind)
    if dtype in COMPLEX:
        part = "float32" if dtype == "complex64" else "float64"
        return np.ascontiguousarray(sample(part, 2 * count, seed)).view(kind)
    values = random.standard_normal(count) * 2.0 ** random.integers(-6, 5, count)
    array = values.astype(kind)
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 6e-8, 448.0, 65504.0, 3.3e38]
    if count >= 8:  # rarely, so that most elements stay ordinary
        places = random.integers(0, count, max(1, count // 16))
        with np.errstate(all="ignore"):
            array[places] = np.array(random.choice(special, len(places))).astype(kind)
    return array


def reduce(
    contributions: Sequence[Array], dtype: str, op: str, groups: Sequence[Sequence[int]], scales: Sequence[float]
) -> Array:
    """The result that every rank must have, bit for bit."""
    with np.errstate(all="ignore"):
        world = len(contributions)
        inputs = list(contributions)
        if op == "premul_sum":
            inputs = [_scaled(x, dtype, scale) for x, scale in zip(inputs, scales, strict=True)]
        if dtype == "bool":
            return _reduce_bool(inputs, op)
        if dtype in COMPLEX:
            return _reduce_complex(inputs, dtype, op, groups)
        accumulator = np.dtype(np.float32) if dtype in NARROW else DTYPES[dtype]
        wide = [x.astype(accumulator) for x in inputs]
        total = _reduce(wide, op, groups)
        if op == "avg":
            total = _divide(total, world)
        return canonical(total.astype(DTYPES[dtype]), dtype)


def canonical(array: Array, dtype: str) -> Array:
    """NaN as results carry it."""
    if dtype in COMPLEX:
        part = "float32" if dtype == "complex64" else "float64"
        return canonical(array.view(part), part).view(DTYPES[dtype])
    if dtype not in CANONICAL_NAN:
        return array
    raw = array.view(f"u{array.dtype.itemsize}").copy()
    raw[np.isnan(array)] = CANONICAL_NAN[dtype]
    return raw.view(DTYPES[dtype])


def _scaled(x: Array, dtype: str, scale: float) -> Array:
    if dtype in NARROW:
        return (x.astype(np.float32) * np.float32(scale)).astype(DTYPES[dtype])
    return x * DTYPES[dtype].type(scale)  # whole, for integers


def _reduce(wide: Sequence[Array], op: str, groups: Sequence[Sequence[int]]) -> Array:
    partial = []
    for group in groups:
        value = wide[group[0]]
        for rank in group[1:]:
            value = _combine(value, wide[rank], op)
        partial.append(value)
    total = partial[0]
    for value in partial[1:]:
        total = _combine(total, value, op)
    return total


def _combine(a: Array, b: Array, op: str) -> Array:
    if op in ("sum", "avg", "premul_sum"):
        return a + b
    if op == "prod":
        return a * b
    if op == "band":
        return a & b
    if op == "bor":
        return a | b
    if op == "bxor":
        return a ^ b
    result = np.minimum(a, b) if op == "min" else np.maximum(a, b)
    if a.dtype.kind == "f":  # of two zeros the negative one is the smaller
        both = (a == 0) & (b == 0)
        negative = np.signbit(a) | np.signbit(b) if op == "min" else np.signbit(a) & np.signbit(b)
        result = np.where(both, np.where(negative, -0.0, 0.0).astype(a.dtype), result)
    return result


def _divide(total: Array, world: int) -> Array:
    if total.dtype.kind == "f":
        return total / total.dtype.type(world)
    divisor = total.dtype.type(world)
    quotient = total // divisor
    if total.dtype.kind == "i":  # toward zero
        quotient = quotient + ((total % divisor != 0) & (total < 0)).astype(total.dtype)
    return quotient.astype(total.dtype)


def _reduce_bool(inputs: Sequence[Array], op: str) -> Array:
    truth = [x.view(np.uint8) != 0 for x in inputs]
    result = truth[0]
    for other in truth[1:]:
        if op in ("sum", "max", "bor"):
            result = result | other
        elif op in ("prod", "min", "band"):
            result = result & other
        else:
            result = result ^ other
    return result


def _reduce_complex(inputs: Sequence[Array], dtype: str, op: str, groups: Sequence[Sequence[int]]) -> Array:
    part = np.dtype(np.float32 if dtype == "complex64" else np.float64)

    def multiply(a: Array, b: Array) -> Array:  # real arithmetic, one rounding each: NumPy's own may fuse
        ar, ai, br, bi = a[0::2], a[1::2], b[0::2], b[1::2]
        out = np.empty_like(a)
        out[0::2] = ar * br - ai * bi
        out[1::2] = ar * bi + ai * br
        return out

    parts = [x.view(part) for x in inputs]
    partial = []
    for group in groups:
        value = parts[group[0]]
        for rank in group[1:]:
            value = multiply(value, parts[rank]) if op == "prod" else value + parts[rank]
        partial.append(value)
    total = partial[0]
    for value in partial[1:]:
        total = multiply(total, value) if op == "prod" else total + value
    if op == "avg":
        total = total / part.type(len(inputs))
    return canonical(np.ascontiguousarray(total).view(DTYPES[dtype]), dtype)


def groups_of(labels: Sequence[str | None]) -> list[list[int]]:
    """Islands in order of their lowest rank, ranks in order."""
    groups: dict[str | None, list[int]] = {}
    for rank, label in enumerate(labels):
        groups.setdefault(label, []).append(rank)
    return list(groups.values())
