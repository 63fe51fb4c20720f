"""Distributed data parallel: every rank has the whole model and a part of the data; gradients are averaged.

    torchrun --standalone --nproc-per-node 2 examples/ddp.py

The one line that is about Isthmus is the name of the backend.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("isthmus")
rank = dist.get_rank()
torch.manual_seed(0)  # the same model on every rank
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

data = torch.Generator().manual_seed(rank)  # other data on every rank
losses = []
for _ in range(30):
    x = torch.randn(64, 16, generator=data)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()  # the averages travel while the rest of the gradients is computed
    optimizer.step()
    losses.append(loss.item())

# Every rank must have the same parameters, bit for bit.
mine = torch.cat([p.detach().flatten() for p in model.parameters()])
theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
dist.all_gather(theirs, mine)
assert all(torch.equal(mine, other) for other in theirs)
assert losses[-1] < losses[0] / 2
if rank == 0:
    print(f"{dist.get_world_size()} ranks: the loss fell, and all ranks hold identical bits")
dist.destroy_process_group()
