"""Fully sharded data parallel (FSDP2): each rank has a part of every parameter, and gathers a whole one only for its use.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2.py

FSDP2 gathers parameters (all_gather) and sums gradients (reduce_scatter) over the backend of the default group.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("isthmus")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
whole = sum(p.numel() for p in model.parameters())
mesh = init_device_mesh("cpu", (world,))
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

data = torch.Generator().manual_seed(rank)
losses = []
for _ in range(30):
    x = torch.randn(64, 16, generator=data)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

mine = sum(p.to_local().numel() for p in model.parameters())
assert losses[-1] < losses[0] / 2 and (world == 1 or mine < whole)
counts = torch.tensor([mine])
dist.all_reduce(counts)
assert counts.item() == whole
if rank == 0:
    print(f"{world} ranks: the loss fell; rank 0 keeps {mine} of {whole} parameters")
dist.destroy_process_group()
