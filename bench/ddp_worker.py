"""A training by DistributedDataParallel, as anybody writes it: one rank of it. It has never heard of Isthmus.

    torchrun --standalone --nproc-per-node 2 bench/ddp_worker.py FOLDER

Leaves in FOLDER/rankN.json how long its steps took, and a digest of the parameters at the end.
"""

import argparse
import gc
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()

    rank = int(os.environ["RANK"])
    device = torch.device("cpu")
    if not args.cpu:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(args.backend)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, args.width),
        torch.nn.ReLU(),
        torch.nn.Linear(args.width, args.width),
        torch.nn.ReLU(),
        torch.nn.Linear(args.width, 10),
    ).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    seconds = []
    for _ in range(args.steps):
        x, y = torch.randn(32, 64, generator=generator).to(device), torch.randn(32, 10, generator=generator).to(device)
        if not args.cpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        optimizer.zero_grad()
        (ddp(x) - y).square().mean().backward()
        optimizer.step()
        if not args.cpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
    dist.barrier()
    dist.destroy_process_group()
    digest = hashlib.sha256(parameters.numpy().tobytes()).hexdigest()
    found = {"seconds": seconds, "digest": digest, "gradient_bytes": parameters.numel() * parameters.element_size()}
    (args.folder / f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
    # The groups end here, while Python is whole: a thread of gloo's that holds a tensor when the interpreter ends aborts.
    gc.collect()
