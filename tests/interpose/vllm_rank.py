"""One rank that calls NCCL or RCCL by vLLM's own wrapper, as that is in vLLM's wheels, on a simulated device.

vllm_rank.py RANK RANKS FOLDER WRAPPERS VERSIONS, as pynccl.py: WRAPPERS is the folder of scripts/vllm_wrappers.py, and each
version makes a communicator of its own. Of vLLM the wrapper is there, and newer ones' module that says which file it opens;
what else the two import is not under test and stands in here.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import logging
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import ReduceOp

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from every_type import packed  # noqa: E402
from on_device import AMD, fetched, hand_out, handed, on_device, work_on_the_device  # noqa: E402
from vllm_wrappers import FINDER, WRAPPER  # noqa: E402

RANK, RANKS, FOLDER, WRAPPERS = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
COUNT = 500
TYPES = {name: getattr(torch, name) for name in "int8 uint8 int32 int64 float16 float32 float64 bfloat16".split()}
NULL = ctypes.c_void_p()


class Platform:
    def is_rocm(self) -> bool:
        return AMD

    def fp8_dtype(self) -> torch.dtype:
        return torch.float8_e4m3fn


def stand_in(name: str, **has: Any) -> None:
    module = types.ModuleType(name)
    module.__path__ = []
    vars(module).update(has)
    sys.modules[name] = module


def load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Logger(logging.Logger):
    debug_once, info_once, warning_once = logging.Logger.debug, logging.Logger.info, logging.Logger.warning


told = os.environ["VLLM_NCCL_SO_PATH"]
for name, has in {
    "vllm": {},
    "vllm.envs": {"VLLM_NCCL_SO_PATH": told, "VLLM_USE_NCCL_SYMM_MEM": True},
    "vllm.logger": {"init_logger": Logger},
    "vllm.platforms": {"current_platform": Platform()},
    "vllm.utils": {"find_nccl_library": lambda: told},
}.items():
    stand_in(name, **has)
sys.modules["vllm"].envs = sys.modules["vllm.envs"]  # type: ignore[attr-defined]


def operations(wrapper: Any, nccl: Any, comm: Any) -> tuple[list[str], list[str]]:
    """All that a version has, with all its types and reductions, as PyNcclCommunicator calls it: what was wrong, and what
    was done. Values are few and small, so that sums and products of them are exact in all types."""
    wrong, done, last = [], set(), RANKS - 1
    to, back = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    for name, dtype in TYPES.items():
        values = np.stack([(np.arange(COUNT) + r) % 3 + 1 for r in range(RANKS)])
        own, kind = packed(values[RANK], name), wrapper.ncclDataTypeEnum.from_torch(dtype)
        a, b = on_device(own), on_device(np.zeros_like(own))
        many, whole = on_device(np.zeros((RANKS, COUNT), own.dtype)), on_device(np.stack([own] * RANKS))

        def at(place: Any, first: int, size: int = own.itemsize) -> ctypes.c_void_p:
            return ctypes.c_void_p(place.value + first * size)

        def expect(what: str, place: Any, right: Any, name: str = name, size: int = own.itemsize) -> None:
            done.add(what)
            if fetched(place.value, right.size * size) != packed(right, name).tobytes():
                wrong.append(f"{what} of {name}")

        folded = {
            ReduceOp.SUM: values.sum(0), ReduceOp.PRODUCT: values.prod(0), ReduceOp.MAX: values.max(0),
            ReduceOp.MIN: values.min(0),
        }  # fmt: skip
        for op, right in folded.items():
            number = wrapper.ncclRedOpTypeEnum.from_torch(op)
            nccl.ncclAllReduce(a, b, COUNT, kind, number, comm, NULL)
            expect(f"all_reduce by {op.name}", b, right)
            if hasattr(nccl, "ncclReduceScatter"):
                nccl.ncclReduceScatter(whole, b, COUNT, kind, number, comm, NULL)
                expect(f"reduce_scatter by {op.name}", b, right)
            if hasattr(nccl, "ncclReduce"):
                nccl.ncclReduce(a, b, COUNT, kind, number, last, comm, NULL)
                if RANK == last:
                    expect(f"reduce by {op.name}", b, right)
        if hasattr(nccl, "ncclBroadcast"):
            # The root's own memory is both, and the others have nothing to send.
            nccl.ncclBroadcast(a if RANK == last else NULL, a if RANK == last else b, COUNT, kind, last, comm, NULL)
            expect("broadcast", a if RANK == last else b, values[last])
            got = a if RANK == last else b
            nccl.ncclAllReduce(got, b, COUNT, kind, wrapper.ncclRedOpTypeEnum.from_torch(ReduceOp.AVG), comm, NULL)
            expect("all_reduce by AVG", b, values[last])
        if hasattr(nccl, "ncclAllGather"):
            nccl.ncclAllGather(a, many, COUNT, kind, comm, NULL)
            expect("all_gather", many, values)
        if not hasattr(nccl, "ncclGroupStart"):
            if RANK == 0:
                nccl.ncclSend(a, COUNT, kind, last, comm, NULL)
            if RANK == last:
                nccl.ncclRecv(b, COUNT, kind, 0, comm, NULL)
                expect("send and recv", b, values[0])
            continue
        nccl.ncclGroupStart()
        nccl.ncclSend(a, COUNT, kind, to, comm, NULL)
        nccl.ncclRecv(b, COUNT, kind, back, comm, NULL)
        nccl.ncclGroupEnd()
        expect("send and recv", b, values[back])
        # Parts of different sizes, of which the first is empty, are groups of operations with a root each.
        sizes = [100 * r for r in range(RANKS)]
        begins = [sum(sizes[:r]) for r in range(RANKS)]
        if hasattr(nccl, "ncclReduce"):
            nccl.ncclGroupStart()
            for root, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
                nccl.ncclReduce(at(a, begin), b, size, kind, 0, root, comm, NULL)
            nccl.ncclGroupEnd()
            expect("reduce_scatterv", b, values.sum(0)[begins[RANK] : begins[RANK] + sizes[RANK]])
        nccl.ncclGroupStart()
        for root, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
            nccl.ncclBroadcast(a, at(many, begin), size, kind, root, comm, NULL)
        nccl.ncclGroupEnd()
        expect("all_gatherv", many, np.concatenate([values[r][: sizes[r]] for r in range(RANKS)]))
    return wrong, sorted(done)


def answer(nccl: Any, name: str, *given: Any) -> Any:
    """What a version gives or raises for a call, or that it has no such function."""
    if not hasattr(nccl, name):
        return "not known"
    try:
        got = getattr(nccl, name)(*given)
    except RuntimeError as error:
        return str(error)
    return got.value if isinstance(got, ctypes.c_void_p) else got


def everything(version: str) -> dict[str, Any]:
    finder = WRAPPERS / version / FINDER
    if finder.is_file():
        load("vllm.utils.nccl", finder)
    wrapper = load(f"pynccl_wrapper of {version}", WRAPPERS / version / WRAPPER)
    nccl, data = wrapper.NCCLLibrary(), on_device(np.zeros(4096, np.float32))
    if RANK == 0:
        hand_out(FOLDER / f"id-{version}", bytes(nccl.ncclGetUniqueId().internal))
    unique_id = wrapper.ncclUniqueId.from_buffer_copy(handed(FOLDER / f"id-{version}"))
    comm = nccl.ncclCommInitRank(RANKS, unique_id, RANK)
    found: dict[str, Any] = {"version": nccl.ncclGetVersion()}
    found["wrong"], found["done"] = operations(wrapper, nccl, comm)
    found["a type that is none"] = answer(nccl, "ncclAllReduce", data, data, 3, 77, 0, comm, NULL)
    found["window"] = answer(nccl, "ncclCommWindowRegister", comm, data, 4096, 1)
    found["window given back"] = answer(nccl, "ncclCommWindowDeregister", comm, NULL)
    found["suspend"] = answer(nccl, "ncclCommSuspend", comm, 1)
    if "ncclCommQueryProperties" in nccl._funcs:
        asked = wrapper.ncclCommProperties(ctypes.sizeof(wrapper.ncclCommProperties), 0xCAFEBEEF)
        library = nccl.ncclGetRawVersion()
        asked.version = min(library, getattr(wrapper, "NCCL_COMM_PROPERTIES_LAYOUT_VERSION", library))
        code = nccl._funcs["ncclCommQueryProperties"](comm, ctypes.byref(asked))
        found["properties"] = [code, asked.rank, asked.nRanks, asked.deviceApiSupport, asked.multimemSupport, asked.ginType]
    nccl.ncclCommDestroy(comm)
    return found


work_on_the_device()
print(json.dumps({version: everything(version) for version in sys.argv[5].split()}))
