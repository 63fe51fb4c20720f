"""pyhccl, a client of HCCL that knows nothing of Isthmus, drives the simulated library, bare and through the front door.

Two ranks, each a process.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from devices import DeviceArray, run_fleet, vendor
from isthmus import rehearse

pytest.importorskip("pyhccl", reason="pyhccl has no wheel for this Python")


def start(folder: str) -> tuple[Any, int, int, int]:
    """The client, a communicator of both ranks, a stream, and this rank."""
    import pyhccl

    device = vendor()
    rank = int(os.environ["ISTHMUS_RANK"])
    shared, whole = Path(folder) / "root", Path(folder) / "whole"
    if rank == 0:
        code, root = pyhccl.HcclGetRootInfo()
        assert code == 0
        shared.write_bytes(root.internal)
        shared.rename(whole)
    while not whole.exists():
        time.sleep(0.01)
    root = pyhccl.HcclRootInfo()
    root.internal = whole.read_bytes()
    code, comm = pyhccl.HcclCommInitRootInfo(2, root, rank)
    assert code == 0, pyhccl.HcclGetErrorString(code)
    assert pyhccl.HcclGetRankSize(comm) == (0, 2) and pyhccl.HcclGetRankId(comm) == (0, rank)
    return pyhccl, comm, device.stream(), rank


def collectives(folder: str) -> list[list[float]]:
    h, comm, stream, rank = start(folder)
    given = np.arange(6, dtype=np.float32) + 10 * rank
    source, target = DeviceArray.of(given), DeviceArray.of(np.zeros(12, np.float32))
    a, b = source.address, target.address
    kind, plus = h.HCCL_DATA_TYPE_FP32, h.HCCL_REDUCE_SUM
    results = []

    def done(code: int, count: int) -> None:
        assert code == 0, h.HcclGetErrorString(code)
        vendor().synchronize(stream)
        results.append(target.part(0, count).get().tolist())

    done(h.HcclAllReduce(a, b, 6, kind, plus, comm, stream), 6)
    done(h.HcclReduce(a, b, 6, kind, h.HCCL_REDUCE_MAX, 1, comm, stream), 6 * rank)
    done(h.HcclAllGather(a, b, 6, kind, comm, stream), 12)
    done(h.HcclReduceScatter(a, b, 3, kind, plus, comm, stream), 3)
    done(h.HcclAlltoAll(a, 3, kind, b, 3, kind, comm, stream), 6)
    done(h.HcclAllGatherV(a, 1 + rank, b, [1, 2], [0, 1], kind, comm, stream), 3)
    done(h.HcclScatter(a, b, 3, kind, 0, comm, stream), 3)
    done(h.HcclBroadcast(b, 3, kind, 1, comm, stream), 3)
    assert h.HcclBarrier(comm, stream) == 0
    assert h.HcclAllReduce(a, b, 6, h.HCCL_DATA_TYPE_UINT8, plus, comm, stream) == h.HCCL_E_NOT_SUPPORT
    vendor().synchronize(stream)
    assert h.HcclCommDestroy(comm) == 0
    vendor().end_stream(stream)
    return results


def messages(folder: str) -> list[int]:
    h, comm, stream, rank = start(folder)
    source, target = DeviceArray.of(np.arange(5) + rank), DeviceArray.of(np.zeros(5, np.int64))
    items = []
    for what, array in ((h.HCCL_SEND, source), (h.HCCL_RECV, target)):
        item = h.HcclSendRecvItem()
        item.sendRecvType, item.buf, item.count = what, array.address, 5
        item.dataType, item.remoteRank = h.HCCL_DATA_TYPE_INT64, 1 - rank
        items.append(item)
    assert h.HcclBatchSendRecv(items, comm, stream) == 0
    # The same again, one after the other: each call is done when the other rank has made its own.
    first, second = (source, target) if rank == 0 else (target, source)
    for array in (first, second):
        call = h.HcclSend if array is source else h.HcclRecv
        assert call(array.address, 5, h.HCCL_DATA_TYPE_INT64, 1 - rank, comm, stream) == 0
    vendor().synchronize(stream)
    assert h.HcclGetCommAsyncError(comm) == (0, 0)
    assert h.HcclCommDestroy(comm) == 0
    return [int(number) for number in target.get()]


@pytest.fixture(params=["bare", "door"])
def libraries(request: pytest.FixtureRequest) -> dict[str, str]:
    """What leads pyhccl to the simulated library: its path, or the front door's."""
    real = rehearse.folder().resolve() / "ascend" / "libhccl.so"
    door = Path(isthmus.__file__).parent / "interpose" / "libhccl.so"
    if request.param == "bare":
        return {"PYHCCL_LIBRARY": str(real)}
    return {"PYHCCL_LIBRARY": str(door), "ISTHMUS_REAL_HCCL": str(real)}


def run(body: Any, tmp_path: Path, libraries: dict[str, str]) -> list[Any]:
    return run_fleet("ascend:2", body, str(tmp_path), init=False, env=libraries)


def test_collectives(tmp_path: Path, libraries: dict[str, str]) -> None:
    first, second = run(collectives, tmp_path, libraries)
    low, high = [0.0, 1, 2, 3, 4, 5], [10.0, 11, 12, 13, 14, 15]
    sums = [low[i] + high[i] for i in range(6)]
    assert first == [sums, [], low + high, sums[:3], low[:3] + high[:3], [0, 10, 11], low[:3], low[3:]]
    assert second == [sums, high, low + high, sums[3:], low[3:] + high[3:], [0, 10, 11], low[3:], low[3:]]


def test_messages(tmp_path: Path, libraries: dict[str, str]) -> None:
    assert run(messages, tmp_path, libraries) == [[1, 2, 3, 4, 5], [0, 1, 2, 3, 4]]
