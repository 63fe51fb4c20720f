"""Islands train one model on real data: handwritten digits, distributed data parallel, over torch.distributed.

    isthmus rehearse --fleet nvidia:2,amd:1,cpu:1 -- python examples/train_digits.py --device auto        (or: make demo)
    torchrun --standalone --nproc-per-node 4 examples/train_digits.py --islands 2

With `--device auto` each rank computes on the device of its process, real or rehearsed. A rank without a device computes on
the CPU. All ranks are one group. A rank whose tensors are not on the device that Isthmus works on ends the program.

With `--islands 2` the first half of the ranks is the island "east" and the rest is "west". TCP joins the two, as if they
were two sites. The digits are those inside scikit-learn: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib.util
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns that it cannot time devices that it does not know

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import isthmus.torch

EPOCHS = 8
BATCH = 32
ENOUGH = 0.95  # of the held-out digits


def say(*words: object) -> None:
    """Prints on rank 0."""
    if dist.get_rank() == 0:
        print(*words, flush=True)


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training and held-out images (8 by 8, 0 to 1) and labels, the same split on every rank."""
    found = importlib.util.find_spec("sklearn")  # whose file is read: to import it takes each rank a second
    if found is None or found.origin is None:
        raise SystemExit("the digits lie inside scikit-learn: pip install scikit-learn")
    digits = np.loadtxt(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", np.float32, delimiter=",")
    digits = np.random.default_rng(0).permutation(digits)
    images, labels = torch.from_numpy(digits[:, :64] / 16.0).reshape(-1, 8, 8), torch.from_numpy(digits[:, 64]).long()
    held_out = len(digits) // 4
    return images[held_out:], labels[held_out:], images[:held_out], labels[:held_out]


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """The accuracy on the whole held-out set. Each rank tests its share."""
    rank, world = dist.get_rank(), dist.get_world_size()
    with torch.no_grad():
        right = (model(x[rank::world]).argmax(1) == y[rank::world]).sum()
    dist.all_reduce(right)
    return right.item() / len(y)


def device_of(choice: str) -> torch.device:
    """Where this rank computes."""
    if choice == "cpu" or os.environ.get("ISTHMUS_DEVICE") == "host":
        return torch.device("cpu")
    if os.environ.get("REHEARSAL_FLEET") and os.environ.get("ISTHMUS_DEVICE", "host") != "host":
        from isthmus import rehearsal_torch  # a simulated device: the memory is the simulated vendor's, the CPU computes

        return torch.device(rehearsal_torch.register())
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")) % torch.accelerator.device_count())
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def expect_at(place: str, what: str, *tensors: torch.Tensor) -> None:
    """Ends the program where only one is the CPU: the tensors' place, or `place`, the one that Isthmus works on."""
    for tensor in tensors:
        if (tensor.device.type == "cpu") != (place == "host"):
            raise SystemExit(f"rank {dist.get_rank()} works on {place}, and its {what} are on {tensor.device}")


def train(model: DistributedDataParallel, digits: tuple[torch.Tensor, ...], place: str) -> float:
    """Trains, and says how it goes; the held-out accuracy at the end."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y, test_x, test_y = digits
    steps = len(x) // (BATCH * world)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, epochs=EPOCHS, steps_per_epoch=steps)
    begin = time.monotonic()
    reached = 0.0
    for epoch in range(EPOCHS):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        total = torch.zeros((), device=x.device)
        for step in range(steps):
            mine = order[(step * world + rank) * BATCH : (step * world + rank + 1) * BATCH].to(x.device)
            batch, labels = x[mine], y[mine]
            expect_at(place, "batches", batch, labels)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
        dist.all_reduce(total, dist.ReduceOp.AVG)
        reached = accuracy(model.module, test_x, test_y)
        bar = "#" * round(40 * (epoch + 1) / EPOCHS)
        told = f"loss {total.item() / steps:.4f}  held out {reached:6.2%}  {time.monotonic() - begin:5.1f} s"
        say(f"  epoch {epoch + 1:2d}  [{bar:<40}]  {told}")
    return reached


def bits_agree(model: nn.Module) -> bool:
    """Whether every rank holds the same parameters, bit for bit. Says what they are, and where."""
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().cpu().numpy().tobytes())
    mine = (digest.hexdigest(), ", ".join(sorted({str(p.device) for p in model.parameters()})))
    everyone = [mine] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    for rank, (bits, where) in enumerate(everyone):
        say(f"  rank {rank}: parameters {bits[:32]} on {where}")
    return len({bits for bits, _ in everyone}) == 1


def show_topology() -> None:
    topology = isthmus.torch.topology()
    for rank in topology["ranks"]:
        name = f" ({rank['device_name']})" if rank["device_name"] else ""
        say(f"  rank {rank['rank']}: {rank['device']}{name}{', ' + rank['ccl'] if rank['ccl'] else ''}")
    for group in topology["groups"]:
        inside = f", {group['ccl']} inside" if group["ccl"] and len(group["ranks"]) > 1 else ""
        ranks = f"rank{'s' if len(group['ranks']) > 1 else ''} {', '.join(map(str, group['ranks']))}"
        say(f"  island{' ' + group['island'] if group['island'] else ''}: {ranks}{inside}")
    for link in topology["links"]:
        if link["to"] != dist.get_rank():
            say(f"  rank {link['from']} to rank {link['to']}: {link['kind']}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Trains a small network on handwritten digits.")
    parser.add_argument("--device", choices=["cpu", "auto"], default="cpu", help="where a rank computes")
    parser.add_argument("--islands", type=int, choices=[1, 2], default=1, help="2: two sites, with TCP between them")
    options = parser.parse_args()
    if options.islands == 2:
        first = int(os.environ["RANK"]) < int(os.environ["WORLD_SIZE"]) // 2
        os.environ.update(ISTHMUS_ISLAND="east" if first else "west", ISTHMUS_BRIDGE="tcp")
    torch.set_num_threads(1)
    device = device_of(options.device)
    dist.init_process_group("isthmus")

    # Isthmus says on which device it works for this rank. Tensors of the CPU would work there too, and the device would
    # stand idle.
    place = isthmus.torch.topology()["ranks"][dist.get_rank()]["device"] if options.device == "auto" else "host"
    digits = tuple(part.to(device) for part in data())
    torch.manual_seed(0)
    layers = network().to(device)
    expect_at(place, "parameters", *layers.parameters())
    model = DistributedDataParallel(layers)
    gc.freeze()  # what is loaded by now stays: a rank need not look through it again, and ends sooner
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    world = dist.get_world_size()
    say(f"Training on {len(digits[0])} digits with {world} ranks; {gradients / 1e6:.2f} MB of gradients a step")
    reached = train(model, digits, place)

    say("\nThe topology")
    show_topology()
    say("\nThe plan that carried the gradients (rank 0's part)")
    say(isthmus.torch.explain("all_reduce", nbytes=gradients, dtype=torch.float32)["text"].rstrip())
    say("\nThe result")
    agree = bits_agree(model.module)
    say(f"  held-out accuracy {reached:.2%} ({'enough' if reached >= ENOUGH else f'less than {ENOUGH:.0%}'})")
    say(f"  {'all ranks hold identical bits' if agree else 'THE RANKS DIFFER'}")
    dist.destroy_process_group()
    return 0 if agree and reached >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
