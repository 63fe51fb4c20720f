"""What the collectives take as arrays, and what they say to what they do not take."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dlpack
import isthmus
import reference as ref
from ranks import run_threads

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def comm() -> Iterator[isthmus.Comm]:
    """A communicator of one rank: its sum leaves every array as it is."""
    with isthmus.init(0, 1, unique_id=isthmus.unique_id()) as alone:
        yield alone


def summed(make: Any) -> list[Any]:
    """all_reduce of what `make(rank)` gives, on two ranks; the arrays by rank."""

    def body(comm: isthmus.Comm) -> Any:
        x = make(comm.rank)
        assert comm.all_reduce(x) is x
        return x

    return run_threads(2, body)


@pytest.mark.parametrize("dtype", list(ref.DTYPES))
def test_numpy_arrays_of_every_dtype_are_reduced_in_place(dtype: str) -> None:
    for result in summed(lambda rank: np.array([rank, 1, 1], ref.DTYPES[dtype])):
        expected = [1, 1, 1] if dtype == "bool" else [1, 2, 2]
        assert result.astype(np.complex128).tolist() == expected


@pytest.mark.parametrize("dtype", list(ref.DTYPES))
def test_torch_tensors_of_every_dtype_are_reduced_in_place(dtype: str) -> None:
    kind = getattr(torch, dtype)
    for result in summed(lambda rank: torch.tensor([rank, 1, 1]).to(kind)):
        expected = [1, 1, 1] if dtype == "bool" else [1, 2, 2]
        assert result.to(torch.complex128).tolist() == expected


class DLPackOnly:
    """An array of a library that speaks nothing but DLPack. `versioned` as of DLPack 1."""

    def __init__(self, data: Any, versioned: bool = True) -> None:
        self.data, self.versioned = data, versioned

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.versioned:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.parametrize("versioned", [True, False], ids=["DLPack 1", "DLPack 0"])
def test_dlpack_arrays_are_reduced_in_place(versioned: bool) -> None:
    for result in summed(lambda rank: DLPackOnly(np.array([rank, 1.5], np.float32), versioned)):
        assert result.data.tolist() == [1.0, 3.0]


def test_a_dlpack_capsule_is_reduced_in_place_and_stays_unused() -> None:
    def body(comm: isthmus.Comm) -> list[float]:
        x = np.array([comm.rank, 1.5], np.float32)
        capsule = x.__dlpack__()
        comm.all_reduce(capsule)
        comm.all_reduce(capsule)
        return list(x)

    assert run_threads(2, body) == [[2.0, 6.0]] * 2


@pytest.mark.parametrize("versioned", [True, False], ids=["DLPack 1", "DLPack 0"])
def test_what_dlpack_lends_goes_back_once(comm: isthmus.Comm, versioned: bool) -> None:
    def lent(host: Any, **what: Any) -> dlpack.Producer:
        x = dlpack.Producer(host, host.ctypes.data, host.shape, host.dtype)
        for name, value in {"versioned": versioned, **what}.items():
            setattr(x, name, value)
        return x

    def back(*arrays: dlpack.Producer) -> bool:
        return not dlpack.wrong and all(x.log.lent == x.log.deleted == len(x.log.asked) - (not versioned) for x in arrays)

    numbers = np.array([1.5, 2.5])
    x, out = lent(numbers, byte_offset=48), lent(np.zeros(2), device_type=dlpack.CUDA_PINNED)
    assert comm.all_reduce(x, out=out) is out and back(x, out)
    assert out.memory.tolist() == [1.5, 2.5]
    assert not any("stream" in asked for asked in (*x.log.asked, *out.log.asked))
    x = lent(numbers)
    work = comm.all_reduce(x, async_op=True)
    assert work.wait() is x and back(x)
    nothing = lent(np.zeros((0, 4)), strides=(1, 9), address=0, byte_offset=0)
    assert comm.all_reduce(nothing) is nothing and back(nothing)
    for x, out in ((lent(numbers, lanes=2), None), (lent(numbers), lent(np.zeros(3))), (lent(numbers, strides=(2,)), None)):
        with pytest.raises(isthmus.Error):
            comm.all_reduce(x, out=out)
        assert back(x, *([out] if out else []))
    if versioned:
        copy = lent(numbers, flags=dlpack.COPIED)
        with pytest.raises(isthmus.ArgumentError, match=r"x \(Producer\) gave a copy of itself"):
            comm.all_reduce(copy)
        comm.all_reduce(copy, out=np.zeros(2))
        assert back(copy)


def test_dlpack_carries_the_dtypes_that_the_buffer_protocol_has_no_letter_for() -> None:
    for result in summed(lambda rank: DLPackOnly(torch.tensor([rank, 1.5], dtype=torch.bfloat16))):
        assert result.data.tolist() == [1.0, 3.0]


def test_the_buffer_protocol_is_enough() -> None:
    for result in summed(lambda rank: array.array("d", [rank, 2.0])):
        assert list(result) == [1.0, 4.0]
    for result in summed(lambda rank: bytearray([rank, 3])):
        assert list(result) == [1, 6]
    for result in summed(lambda rank: (ctypes.c_int16 * 2)(rank, -4)):
        assert list(result) == [1, -8]
    for result in summed(lambda rank: memoryview(array.array("q", [rank, 5]))):
        assert list(result) == [1, 10]


def test_arrays_of_no_dimension_and_of_no_element_are_arrays(comm: isthmus.Comm) -> None:
    assert comm.all_reduce(np.array(3.0)) == 3.0
    assert comm.all_reduce(np.empty((0, 4), np.int32)).size == 0


@pytest.mark.parametrize("broken", [np.ones((4, 4))[:, :2], np.ones((4, 4)).T[1:], np.ones(8)[::-1]])
def test_a_non_contiguous_array_is_refused_by_name_with_the_remedy(comm: isthmus.Comm, broken: Any) -> None:
    with pytest.raises(isthmus.ArgumentError, match=r"all_reduce: x is not contiguous .*numpy\.ascontiguousarray\(x\)"):
        comm.all_reduce(broken)
    with pytest.raises(ValueError, match=r"all_reduce: out is not contiguous .*numpy\.ascontiguousarray\(out\)"):
        comm.all_reduce(np.ones(broken.shape), out=broken)


def test_a_non_contiguous_tensor_is_refused_with_the_remedy(comm: isthmus.Comm) -> None:
    with pytest.raises(isthmus.ArgumentError, match=r"x is not contiguous .*x\.contiguous\(\)"):
        comm.all_reduce(torch.ones(4, 4).t()[1:])
    with pytest.raises(isthmus.ArgumentError, match=r"resolve_conj"):
        comm.all_reduce(torch.ones(4, dtype=torch.complex64).conj())


def test_a_non_contiguous_dlpack_array_or_buffer_is_refused(comm: isthmus.Comm) -> None:
    with pytest.raises(isthmus.ArgumentError, match="x is not contiguous"):
        comm.all_reduce(DLPackOnly(np.ones((4, 4))[:, 1]))
    with pytest.raises(isthmus.ArgumentError, match="x is not contiguous"):
        comm.all_reduce(memoryview(bytearray(8))[::2])


def test_a_read_only_array_may_be_read_but_not_written(comm: isthmus.Comm) -> None:
    x = np.ones(3)
    x.flags.writeable = False
    with pytest.raises(isthmus.ArgumentError, match="x is read-only"):
        comm.all_reduce(x)
    with pytest.raises(isthmus.ArgumentError, match="out is read-only"):
        comm.all_reduce(np.ones(3), out=x)
    with pytest.raises(isthmus.ArgumentError, match="x is read-only"):
        comm.all_reduce(b"abc")
    with pytest.raises(isthmus.ArgumentError, match="x is read-only"):
        comm.all_reduce(DLPackOnly(x))
    assert comm.all_reduce(x, out=np.zeros(3)).tolist() == [1, 1, 1]


class OnDevice:
    """A CuPy-like array."""

    device = "<CUDA Device 3>"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (4,), "typestr": "<f4", "data": (0x7F0000000000, False), "version": 3}


def test_device_memory_is_recognised_and_the_error_names_the_device(comm: isthmus.Comm) -> None:
    with pytest.raises(isthmus.UnsupportedError, match=r"\(OnDevice\) lies in the memory of a device"):
        comm.all_reduce(OnDevice())
    with pytest.raises(isthmus.UnsupportedError, match=r"tensor on meta, which DLPack has no name for; pass x.cpu\(\)"):
        comm.all_reduce(torch.ones(2, device="meta"))
    here = "and this rank works on host memory: set ISTHMUS_DEVICE before init, or copy it to the host first"
    for kind, name in ((2, "cuda"), (10, "rocm"), (12, "extension device"), (13, "cuda managed"), (14, "oneapi")):
        x = dlpack.Producer(None, 4096, (2,), np.float32)
        x.device_type, x.number = kind, 1
        with pytest.raises(TypeError, match=rf"x \(Producer\) lies on {name}:1, {here}"):
            comm.all_reduce(x)
        assert not x.log.asked
        for versioned in (True, False):
            with pytest.raises(isthmus.UnsupportedError, match=rf"x \(PyCapsule\) lies on {name}:1, {here}"):
                capsule = x.capsule(versioned)
                comm.all_reduce(capsule)
            del capsule
        assert x.log.deleted == x.log.lent == 2 and not dlpack.wrong


@pytest.mark.parametrize(
    "alien",
    [
        np.array(["a"]),
        np.ones(2, ">f4"),
        np.ones(2, np.longdouble),
        np.array([None]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, "i4,f4"),
    ],
    ids=["text", "swapped bytes", "long double", "objects", "dates", "records"],
)
def test_a_foreign_dtype_is_refused_by_name(comm: isthmus.Comm, alien: Any) -> None:
    with pytest.raises(isthmus.UnsupportedError, match="all_reduce: x has dtype"):
        comm.all_reduce(alien)


def test_foreign_tensors_are_refused(comm: isthmus.Comm) -> None:
    with pytest.raises(isthmus.UnsupportedError, match="float8_e4m3fnuz"):
        comm.all_reduce(torch.zeros(2, dtype=torch.float8_e4m3fnuz))
    with pytest.raises(isthmus.UnsupportedError, match=r"layout torch.sparse_coo.*to_dense"):
        comm.all_reduce(torch.ones(3).to_sparse())


@pytest.mark.parametrize("thing", ["text", 3, 2.5, None, [1.0, 2.0], {"a": 1}, object()])
def test_what_is_no_array_is_a_type_error(comm: isthmus.Comm, thing: Any) -> None:
    with pytest.raises(TypeError, match="x must be an array"):
        comm.all_reduce(thing)


def test_x_and_out_must_agree(comm: isthmus.Comm) -> None:
    x = np.ones(4, np.float32)
    with pytest.raises(isthmus.ArgumentError, match="x is float32 and out is float64"):
        comm.all_reduce(x, out=np.ones(4))
    with pytest.raises(isthmus.ArgumentError, match="out has 5 elements; it needs 4"):
        comm.all_reduce(x, out=np.ones(5, np.float32))
    with pytest.raises(isthmus.ArgumentError, match="x and out share memory"):
        both = np.ones(6, np.float32)
        comm.all_reduce(both[:4], out=both[2:])


def test_out_may_be_of_another_kind_than_x(comm: isthmus.Comm) -> None:
    out = torch.zeros(2, dtype=torch.float64)
    assert comm.all_reduce(np.array([1.0, 2.0]), out=out) is out
    assert out.tolist() == [1.0, 2.0]


def test_new_results_are_of_the_kind_of_x(comm: isthmus.Comm) -> None:
    gathered = comm.all_gather(torch.ones(2, 3, dtype=torch.bfloat16))
    assert gathered.dtype == torch.bfloat16 and gathered.shape == (1, 2, 3)
    also = comm.all_gather(np.ones((2, 3), ref.DTYPES["float8_e5m2"]))
    assert also.dtype == ref.DTYPES["float8_e5m2"] and also.shape == (1, 2, 3)
    with pytest.raises(isthmus.UnsupportedError, match="out= is needed"):
        comm.all_gather(array.array("f", [1.0]))
