"""What four versions of PyTorch call of NCCL (CUDA builds) and of RCCL (ROCm builds) for one operation of torch.distributed.

This is a record of PyTorch's published source: ProcessGroupNCCL.cpp, NCCLUtils.cpp and torch/csrc/cuda/nccl.cpp, and
reducer.cpp, distributed_c10d.py and FSDP2's _fsdp_collectives.py. Of a release whose files were not at hand, the
nearest ones before or after it were read. pytorch_rank.py plays it.

One row is what some versions and builds call for an operation. Its calls are words:

  ncclX                 the function of the library; its arguments follow from the operation
  each: ncclX, ncclY    those for every rank, one rank after the other
  root: ..., other: ... on the root alone, on all others
  ready                 ncclCommGetAsyncError until it is not ncclInProgress; so is waited for any call that gives that
  nonblocking: ready    the same where the configuration says so
  record E S, wait S E  the event E on the stream S; the stream S waits for it
  synchronize S         the host waits for the stream
  CALLS S               the calls of the operation itself, on the stream S
  EACH                  the messages of a batch, one after the other

Streams are `current`, that of the program, which is the null stream where the program names none, and `own`, which is the
process group's and does not wait for the null stream. The compiler decides between the builds: USE_ROCM, and the version of
nccl.h. The process asks `ncclGetVersion` when it makes its first group.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSIONS = ("2.5", "2.8", "2.11", "2.13")
CUDA, ROCM = "cuda", "rocm"
BUILDS = (CUDA, ROCM)
ALL, OLD, NEW = VERSIONS, VERSIONS[:1], VERSIONS[1:]

# The length of ncclConfig_t in the build's header, and the version that it names. A ROCm build has that of its RCCL.
CONFIG = {
    ("2.5", CUDA): (48, 22105),  # up to splitShare
    ("2.8", CUDA): (72, 22703),  # up to nvlsCTAs
    ("2.11", CUDA): (80, 22809),  # up to nvlinkCentricSched
    ("2.13", CUDA): (88, 22907),  # up to numRmaCtx
    ("2.5", ROCM): (48, 22005),
    ("2.8", ROCM): (48, 22105),
    ("2.11", ROCM): (72, 22703),
    ("2.13", ROCM): (72, 22707),
}
UNDEFINED = -(2**31)  # NCCL_CONFIG_UNDEF_INT
NO_COLOR = -1  # NCCL_SPLIT_NOCOLOR


def blocking(version: str, nonblocking: bool) -> int:
    """`blocking` of the configuration.

    2.5 sets it in NCCLComm::create, and only to 0. Newer versions set it in initNCCLComm, always. It is 0 where
    TORCH_NCCL_USE_COMM_NONBLOCKING is set. `device_id` alone does that in 2.6 and 2.7.0, which are not in this table.
    """
    if nonblocking:
        return 0
    return UNDEFINED if version in OLD else 1


def color(version: str, ranks: tuple[int, ...], call: str) -> int:
    """The color of a part. `new_group` has it from _process_group_color in all versions, and `split_group` in 2.5 and 2.8.

    2.11 and 2.13 have ProcessGroupNCCL::split, which takes the lowest rank. (2.9 takes a number of its own.)
    """
    return min(ranks) if call == "split_group" and version in ("2.11", "2.13") else abs(hash(ranks)) % 2**31


@dataclass(frozen=True)
class Row:
    operation: str
    versions: tuple[str, ...]
    builds: tuple[str, ...]
    calls: tuple[str, ...]
    source: str


GROUP_OF_MESSAGES = ("ncclCommCount", "ncclGroupStart", "each: ncclSend, ncclRecv", "ncclGroupEnd")
INIT = ("root: ncclGetUniqueId", "ncclCommInitRankConfig", "nonblocking: ready")
ASKED = ("ncclCommCount", "ncclCommUserRank", "ncclGroupStart")
END_OF_BATCH = ("EACH", "ncclGroupEnd", "record ended own", "wait current ended")
ON_OWN = ("record begun current", "wait own begun", "CALLS own", "record ended own")

RECORD = (
    # ---- what is around the calls of one operation -------------------------------------------------------------------
    # All operations of 2.5 are on the group's own stream. From 2.8 on those with async_op=False are on the program's.
    Row("sync", OLD, BUILDS, (*ON_OWN, "wait current ended"), "collective, syncStream, WorkNCCL::synchronizeStream"),
    Row("sync", NEW, BUILDS, ("CALLS current", "record ended current"), "collective, asyncOp false"),
    Row("async", ALL, BUILDS, ON_OWN, "collective, asyncOp true"),
    Row("async wait", ALL, BUILDS, ("wait current ended",), "WorkNCCL::synchronizeStream"),
    # ---- collectives -------------------------------------------------------------------------------------------------
    Row("all_reduce", ALL, BUILDS, ("ncclAllReduce",), "allreduce_impl: in place"),
    Row("broadcast", ALL, BUILDS, ("ncclBcast",), "broadcast: in place"),
    Row("all_gather", ALL, BUILDS, ("ncclAllGather",), "allgather, _allgather_base"),
    Row("reduce_scatter", ALL, BUILDS, ("ncclReduceScatter",), "_reduce_scatter_base"),
    Row(
        "reduce_scatter premul", ALL, BUILDS, ("ncclRedOpCreatePreMulSum", "ncclReduceScatter", "ncclRedOpDestroy"),
        "unpackPreMulSum, ~ncclRedOpRAII: FSDP2 with set_gradient_divide_factor",
    ),
    Row(
        "all_gather uneven", ALL, BUILDS, ("ncclGroupStart", "each: ncclBroadcast", "ncclGroupEnd"),
        "allgather of tensors that differ in size: startCoalescing, _broadcast_oop, endCoalescing",
    ),
    Row("barrier", ALL, BUILDS, ("ncclAllReduce",), "barrier: one float"),
    Row("barrier wait", ALL, BUILDS, ("synchronize current",), "WorkNCCL::synchronizeInternal, barrier"),
    # ---- exchanges ---------------------------------------------------------------------------------------------------
    Row("all_to_all even", ("2.5", "2.8"), (CUDA,), GROUP_OF_MESSAGES, "all2all_single_equal_split"),
    Row("all_to_all even", ("2.11", "2.13"), (CUDA,), ("ncclAlltoAll",), "all2all_single_equal_split: NCCL 2.28"),
    Row("all_to_all even", ALL, (ROCM,), ("ncclAllToAll",), "all2all_single_equal_split: USE_ROCM"),
    Row("all_to_all uneven", ALL, (CUDA,), GROUP_OF_MESSAGES, "all2all_single_unequal_split"),
    Row("all_to_all uneven", ALL, (ROCM,), ("ncclAllToAllv",), "all2all_single_unequal_split: USE_ROCM"),
    Row("all_to_all list", ALL, BUILDS, GROUP_OF_MESSAGES[1:], "all2all"),
    Row("gather", ALL, BUILDS, (*ASKED, "root: ncclRecv", "other: ncclSend", "ncclGroupEnd"), "nccl::gather"),
    Row("scatter", ALL, BUILDS, (*ASKED, "root: ncclSend", "other: ncclRecv", "ncclGroupEnd"), "nccl::scatter"),
    # ---- messages ----------------------------------------------------------------------------------------------------
    Row("batch", ALL, BUILDS, ("ncclGroupStart", *END_OF_BATCH), "batch_isend_irecv: startCoalescing, endCoalescing"),
    Row(  # The group is ended before the communicator is made, and begun again after it.
        "batch first", ALL, BUILDS, ("ncclGroupStart", "ncclGroupEnd", "init", "ncclGroupStart", *END_OF_BATCH),
        "getNCCLComm, initNCCLComm: [Group Start/End Note]",
    ),
    Row("message", OLD, BUILDS, ("record begun current", "wait own begun", "MESSAGE"), "pointToPoint"),
    Row(
        "message", NEW, BUILDS,
        ("record begun current", "wait own begun", "ncclGroupStart", "MESSAGE", "ncclGroupEnd"),
        "pointToPoint: each message is a group of its own",
    ),
    # ---- communicators -----------------------------------------------------------------------------------------------
    Row("init", ALL, BUILDS, INIT, "initNCCLComm, NCCLComm::create"),
    Row("split", OLD, BUILDS, ("ncclCommSplit",), "NCCLComm::split: ncclInProgress is an error"),
    Row("split", NEW, BUILDS, ("ncclCommSplit", "nonblocking: ready"), "NCCLComm::split"),
    Row("watch", ALL, BUILDS, ("ncclCommGetAsyncError",), "watchdog: checkForNCCLErrors, with cudaEventQuery of the works"),
    Row("destroy", OLD, BUILDS, ("ncclCommAbort",), "shutdown: abortCommsFromMap"),
    Row("destroy", NEW, BUILDS, ("ncclCommFinalize", "ready", "ncclCommDestroy"), "shutdown: finalize, waitReady, destroy"),
    Row("abort", OLD, BUILDS, ("ncclCommAbort",), "abort: abortCommsFromMap, by a thread of its own"),
    Row(
        "abort", NEW, BUILDS, ("ncclGroupStart", "ncclCommAbort", "ncclGroupEnd", "ncclGroupStart", "ncclGroupEnd"),
        "abortCommsFromMap of two maps, by a thread of its own, where the library is 2.22 or newer",
    ),
)  # fmt: skip


def rows(version: str, build: str, operation: str) -> list[Row]:
    return [r for r in RECORD if r.operation == operation and version in r.versions and build in r.builds]


def calls(version: str, build: str, operation: str) -> tuple[str, ...]:
    (row,) = rows(version, build, operation)
    return row.calls


def functions(version: str, build: str) -> set[str]:
    """All that this build calls of its library here."""
    found = {"ncclGetVersion", "ncclCommGetAsyncError", "ncclGetErrorString", "ncclGetLastError"}
    for row in RECORD:
        if version in row.versions and build in row.builds:
            words = " ".join(row.calls).replace(",", " ").split()
            found |= {word for word in words if word.startswith("nccl")}
            found |= {"ncclSend", "ncclRecv"} if "MESSAGE" in words else set()
    return found
