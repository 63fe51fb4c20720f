"""Imported by processes that ranks with torch are forked from (zygotes.py, torch_ranks.py), and by no other."""

from __future__ import annotations

import ctypes
import gc

import torch._dynamo  # DistributedDataParallel loads it
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.optim
import torch.distributed.pipelining
import torch.distributed.tensor.parallel  # noqa: F401

import isthmus.rehearsal_torch
import isthmus.torch  # noqa: F401

# Ranks need not look through all of this, and copy its pages, whenever they collect garbage.
gc.collect()
gc.freeze()
# The ends of what is loaded by now take longer than most tests. What a rank loads itself, a vendor's library, ends before.
_libc = ctypes.CDLL(None)
_libc.on_exit(_libc._exit, None)
