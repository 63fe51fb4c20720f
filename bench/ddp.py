"""PyTorch's own DDP of backend="nccl", bare and behind the front door of the interposer; writes bench/results/ddp.json.

    python bench/ddp.py                                  # one NVIDIA or AMD GPU, or several, and a PyTorch that uses them
    python bench/ddp.py --steps 12 --rounds 1 --out F    # few steps
    python bench/ddp.py --rehearse                       # on the CPU, all by gloo: shows that the program runs

Every contender is the same training, ddp_worker.py, on two ranks that torchrun starts:

gloo         backend="gloo" with the same tensors: the result to compare with, by another library
bare         backend="nccl"; nothing of Isthmus is in the process
one-island   isthmus run --interpose -- torchrun ...: the real library gets the communicator
two-islands  the same, with a label for each rank: Isthmus carries the communicator

In each round every contender runs once, and the order moves on by one from round to round.

- All contenders must learn the same bits, because a sum of two gradients has no order.
- The log must say of each rank's communicator what the contender is for. A run that went past the door would learn the same.
- With one GPU the two ranks share the GPU, each as an island of its own. As one island they share the GPU where NCCL is 2.30
  or newer. With an older NCCL, bare and one-island do not take part.

The file is written after each run of a contender. Until the last one has ended, the file says that it is incomplete.

A step is timed until the device has done the whole step. A step takes as long as on the slower rank. A run's figure is the
median of its steps, without the first few.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench")]

from circumstances import circumstances  # noqa: E402
from result_file import ResultFile  # noqa: E402

WORKER = Path(__file__).with_name("ddp_worker.py")
RANKS = 2  # of more, sums have an order, and libraries have their own
WARM_UP = 5  # steps that are not counted, if there are more
MULTI_RANK = (2, 30)  # NCCL's first version that serves two ranks on one GPU, if NCCL_MULTI_RANK_GPU_ENABLE is 1
HANDED, SPANS = "gets the communicator", "Isthmus carries the communicator"  # what a door says of one in the log
EXPECTED = {"gloo": None, "bare": None, "one-island": HANDED, "two-islands": SPANS}  # None: there is no door
SAID = re.compile(r"interpose: (nccl\w+, rank (\d+) of \d+: .*)")
OF_A_DOOR = ("LD_PRELOAD", "LD_AUDIT", "ISTHMUS_DISABLE", "ISTHMUS_INTERPOSE", "ISTHMUS_ISLAND")  # of whoever started this


def check_log(contender: str, log: str) -> list[str]:
    """What the doors said of the communicators, a line for each rank. SystemExit where the contender needs other words."""
    phrase = EXPECTED[contender]
    if phrase is None:
        if "interpose: " in log:
            raise SystemExit(f"ddp: {contender}: there was a front door\n{log[-4000:]}")
        return []
    said = sorted((int(match[2]), match[1]) for match in SAID.finditer(log) if HANDED in match[1] or SPANS in match[1])
    # A library that gets one because not all ranks came to the census has other words behind the phrase.
    good = all(f"{phrase} (" in text for _, text in said)
    if [rank for rank, _ in said] != list(range(RANKS)) or not good:
        texts = [text for _, text in said]
        raise SystemExit(f"ddp: {contender}: the log is to say once for each rank: {phrase}; it says {texts}\n{log[-4000:]}")
    return [text for _, text in said]


def command(contender: str, words: list[str], rehearse: bool) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    door = [sys.executable, "-m", "isthmus", "run", "--interpose", *(["--vendor", "nccl"] if rehearse else []), "--"]
    program = [str(WORKER), *words]
    if contender == "two-islands":
        labelled = 'ISTHMUS_ISLAND=island$RANK exec "$@"'
        program = ["--no-python", "sh", "-c", labelled, "sh", sys.executable, *program]
    return [*(door if EXPECTED[contender] else []), *torchrun, *program]


def train(contender: str, args: argparse.Namespace, shared: dict[str, str]) -> dict[str, Any]:
    """One run: how long a step took, what was learned, what the door said."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_A_DOOR}
    given = {"ISTHMUS_LOG": "info", "OMP_NUM_THREADS": "1", **shared}
    backend = "gloo" if contender == "gloo" or args.rehearse else "nccl"
    with tempfile.TemporaryDirectory(prefix="isthmus-ddp-") as folder:
        words = [folder, "--backend", backend, "--steps", str(args.steps), "--width", str(args.width)]
        words += ["--cpu"] if args.rehearse else []
        job = subprocess.Popen(
            command(contender, words, args.rehearse),
            env=kept | given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, log = job.communicate(timeout=args.patience)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"ddp: {contender} did not end within {args.patience:g} s") from None
        finally:
            if job.poll() is None:
                job.send_signal(signal.SIGTERM)  # torchrun ends its ranks
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.communicate(timeout=20)
            job.kill()
        if job.returncode != 0:
            raise SystemExit(f"ddp: {contender}: exit status {job.returncode}\n{out[-2000:]}{log[-4000:]}")
        found = [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    if found[0]["digest"] != found[1]["digest"]:
        raise SystemExit(f"ddp: {contender}: the ranks have learned different things")
    if ("'s front door (" in log) != (EXPECTED[contender] is not None):  # what `isthmus run` says
        raise SystemExit(f"ddp: {contender}: it was started behind the wrong door, or none\n{log[-4000:]}")
    said = [] if args.rehearse else check_log(contender, log)  # by gloo nothing comes to a door
    steps = [max(both) for both in zip(*(rank["seconds"] for rank in found), strict=True)]
    counted = steps[WARM_UP:] or steps
    return {"step": statistics.median(counted), "said": said, **{k: found[0][k] for k in ("digest", "gradient_bytes")}}


def nccl_version(torch: Any) -> tuple[int, ...]:
    """Of the library that torch has loaded; what it says itself of NCCL is the version that it was built with."""
    if getattr(torch.version, "hip", None):
        return tuple(torch.cuda.nccl.version())
    number = ctypes.c_int()
    if ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number)):
        raise SystemExit("ddp: NCCL does not say its version")
    return number.value // 10000, number.value // 100 % 100, number.value % 100


def who_takes_part(torch: Any) -> tuple[dict[str, str], dict[str, str]]:
    """The contenders that cannot, and why; and the variables with which two ranks share a GPU."""
    if torch.cuda.device_count() >= RANKS:
        return {}, {}
    if getattr(torch.version, "hip", None) is None and nccl_version(torch) >= MULTI_RANK:
        return {}, {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
    why = "there is one GPU, and its library serves one rank on it (NCCL from 2.30 on can serve two)"
    return dict.fromkeys(("bare", "one-island"), why), {}


def show(result: dict[str, Any]) -> None:
    for name, why in result["absent"].items():
        print(f"{name} did not take part: {why}")
    for name, seconds in result["seconds"].items():
        if result["simulated"]:  # its times say nothing
            print(f"rehearsal: {name}: both ranks have learned {result['parameters'][:16]}")
            continue
        least, median, most = (1e6 * of(seconds) for of in (min, statistics.median, max))
        bare = result["seconds"].get("bare", [])
        ratios = [a / b for a, b in zip(seconds, bare, strict=True)] if bare else []
        beside = f", {statistics.median(ratios):.3f} of bare" if ratios else ""
        print(f"{name:12s} us a step: {median:.1f} [{least:.1f} {most:.1f}]{beside}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--contenders", nargs="+", choices=list(EXPECTED), default=list(EXPECTED))
    parser.add_argument("--steps", type=int, default=200, help="of each run (default %(default)s)")
    parser.add_argument("--width", type=int, default=2048, help="of the hidden layers (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=600, help="seconds that a run may take (default %(default)s)")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, by gloo, few steps")
    parser.add_argument("--out", type=Path, help="the JSON file (default bench/results/ddp.json; none for a rehearsal)")
    args = parser.parse_args()
    import torch

    if args.rehearse:
        args.steps, args.width, args.rounds = min(args.steps, 12), min(args.width, 64), 1
    elif not torch.cuda.is_available():
        raise SystemExit("ddp: torch finds no GPU here; --rehearse runs the same on the CPU")
    absent, shared = ({}, {}) if args.rehearse else who_takes_part(torch)
    taking_part = [name for name in args.contenders if name not in absent]
    result: dict[str, Any] = {
        "simulated": args.rehearse,
        "complete": False,
        "device": "CPU" if args.rehearse else f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}",
        **circumstances(),
        "versions": {"torch": torch.__version__, "isthmus": __import__("isthmus").__version__},
        "ranks": RANKS,
        "steps": args.steps,
        "variables": shared,
        "absent": {name: why for name, why in absent.items() if name in args.contenders},
        "seconds": {name: [] for name in taking_part},
        "said": {},
    }
    if not args.rehearse:
        result["versions"]["nccl"] = ".".join(map(str, nccl_version(torch)))
    file = ResultFile(args.out or (None if args.rehearse else ROOT / "bench" / "results" / "ddp.json"), result)
    digests: dict[str, str] = {}
    for number in range(args.rounds):
        for i in range(len(taking_part)):
            name = taking_part[(i + number) % len(taking_part)]
            run = train(name, args, shared)
            result["seconds"][name].append(run["step"])
            result["said"][name] = run["said"]
            result["gradient_bytes"] = run["gradient_bytes"]
            digests.setdefault(run["digest"], name)
            file.write()
    if len(digests) > 1:
        raise SystemExit(f"ddp: they have learned different things, {' and '.join(digests.values())} for example")
    result["parameters"] = "".join(digests)
    file.write(complete=True)
    show(result)
    if file.path:
        print(f"{'rehearsal: ' if args.rehearse else ''}written: {file.path}")


if __name__ == "__main__":
    main()
