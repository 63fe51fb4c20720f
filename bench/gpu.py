"""Isthmus on a real GPU against the GPU's own copies, ProcessGroupGloo and a relay; writes bench/results/gpu.json.

    python bench/gpu.py                              # one NVIDIA or AMD GPU and a PyTorch that uses it; some minutes
    python bench/gpu.py --check                      # the same, and fails where a target is missed
    python bench/gpu.py --quick                      # fewer sizes
    python bench/gpu.py --judge FILE --check         # only the table and the targets of a file, whole or incomplete
    python bench/gpu.py --rehearse nvidia --quick    # the same on a simulated device: shows that the program runs

Ranks are threads of one process: processes that share a GPU would take turns on it. "gpu,gpu,cpu" is two ranks on device 0
and one rank on host memory. The two ranks are islands of their own, because libraries serve no two ranks on one GPU. In each
round every contender makes the same calls on the same tensors. The order moves on by one from round to round:

isthmus  device tensors, on each rank's own stream
gloo     torch's ProcessGroupGloo with the same tensors, where Gloo takes tensors of this device; Gloo sends no such tensors
relay    the code that people write by hand today: t.cpu(), Gloo on the host, t.copy_(...)

Calls are made behind each other, as many as fill --block seconds. A time is that of all of them over their number: from the
barrier before the first one until the last rank's stream has come to the end of the last one. An all_reduce of 8 bytes is
also timed one call at a time: the next call begins when the result of the one before is there. A call takes as long as on
its slowest rank, and a round's figure is the median of its calls. The target is for that figure.

The limits are measured in each round of a row, right before or behind Isthmus' turn: copies between the device and pinned
memory (out, in, and both at once); what all threads that reduce for these ranks reduce at once (`isthmus tune`); and what
the host's memory moves. All GPU ranks use one GPU. So a moved byte goes out once, and goes in once for each rank that
receives it. An all_reduce of G GPU ranks takes G copies out and G copies in. What only moves is compared with the copies,
and with what memory moves of ranks on the CPU. A ratio is of two figures of one round. The ratios' median is judged.

With --check the exit status is 3 where a target is missed, or where what it is for was not measured.

The file is written after each row. Until the run has come to its end, the file says that it is incomplete.

The device has as many hardware queues as the driver gives every program. --connections N asks for another number.

The last row times matrix products on the GPU, with a broadcast beside them and without.

gpu_ranks.py has the ranks, gpu_rows.py the rows, gpu_limits.py the limits, gpu_judgement.py the targets and the table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench")]

from circumstances import circumstances  # noqa: E402
from gpu_judgement import LIMIT_FROM, NOT_ASKED, judge, not_measured, show, show_row  # noqa: E402
from gpu_limits import Limits  # noqa: E402
from gpu_ranks import COLLECTIVES, CONTENDERS, Device, Team, without  # noqa: E402
from gpu_rows import beside_products, buckets, time_row  # noqa: E402
from result_file import ResultFile  # noqa: E402

SIZES = (8, 4 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30)
QUICK_SIZES = (8, 64 << 10, 1 << 20)
MISSED = 3  # exit status
BUCKETS, BUCKET_BYTES = 10, 25_000_000  # of a training step, behind each other, beside one call of all of them
CONNECTIONS = ("CUDA_DEVICE_MAX_CONNECTIONS", "GPU_MAX_HW_QUEUES")  # each driver's word for the number of hardware queues
GEMM_BYTES = 256 << 20  # the size of the broadcast beside the matrix products


def rehearse_here(vendor: str) -> None:
    """Starts this program again with the simulated libraries of that vendor before its eyes."""
    from isthmus import rehearse

    if os.environ.get(rehearse.FLEET):
        return
    libraries = [str(rehearse.folder().resolve() / vendor), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    print(rehearse.banner(f"{vendor}:1"), file=sys.stderr, flush=True)
    # All ranks' streams are on one device, with several operations in flight: none is to stand behind another rank's.
    given = {"REHEARSAL_DEVICES": "1", "REHEARSAL_QUIET": "1", "REHEARSAL_QUEUES": "32", rehearse.FLEET: f"{vendor}:1"}
    os.environ.update(given, LD_LIBRARY_PATH=os.pathsep.join(libraries))
    os.execv(sys.executable, [sys.executable, *sys.argv])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="gpu,gpu,cpu", help="what each rank works on (default %(default)s)")
    parser.add_argument("--rehearse", metavar="VENDOR", default="", help="a simulated device: nvidia, amd or ascend")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="who takes part beside isthmus"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", help="in bytes, instead of 8 B to 1 GiB")
    parser.add_argument("--block", type=float, default=0.2, help="seconds of one contender's turn (default %(default)s)")
    parser.add_argument("--connections", type=int, help="hardware queues of the device (default: the driver's own number)")
    parser.add_argument("--check", action="store_true", help=f"exit status {MISSED} where a target is missed")
    parser.add_argument("--judge", metavar="FILE", type=Path, help="measures nothing: what a file of this program says")
    parser.add_argument("--out", type=Path, help="the JSON file (default bench/results/gpu.json; none for a rehearsal)")
    return parser.parse_args()


def measure(args: argparse.Namespace, kinds: list[str], device: Device) -> tuple[dict[str, Any], Path | None]:
    small = args.quick or device.simulated
    sizes = args.sizes or (QUICK_SIZES if small else SIZES)
    limit_from = QUICK_SIZES[-1] if device.simulated else LIMIT_FROM
    gemm_bytes, matrix = (1 << 20, 128) if device.simulated else (GEMM_BYTES, 8192)
    absent = {name: NOT_ASKED for name in CONTENDERS if name not in ("isthmus", *args.contenders)}
    result: dict[str, Any] = {
        "simulated": device.simulated,
        "complete": False,
        "device": device.name,
        **circumstances(),
        "versions": {"torch": device.torch.__version__, "isthmus": __import__("isthmus").__version__},
        "ranks": kinds,
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith("ISTHMUS_")},
        "connections": {name: os.environ[name] for name in CONNECTIONS if name in os.environ},
        "absent": absent | without(device),
        "planned": [(collective, nbytes) for collective in COLLECTIVES for nbytes in sizes],
        "rows": [],
    }
    file = ResultFile(args.out or (None if device.simulated else ROOT / "bench" / "results" / "gpu.json"), result)
    team = Team(kinds, device)
    limits = Limits(device, kinds) if max(sizes) >= limit_from else None
    result["reducers"] = limits.reducers if limits else 0
    for collective, nbytes in result["planned"]:
        beside = limits if nbytes >= limit_from else None
        result["rows"].append(time_row(team, collective, nbytes, args.rounds, args.block, result["absent"], beside))
        file.write()
        if not device.simulated:
            show_row(result["rows"][-1])
    if limits:
        limits.close()
    result["buckets"] = buckets(team, BUCKETS, (1 << 16) if device.simulated else BUCKET_BYTES, args.rounds)
    file.write()
    result["products"] = beside_products(team, gemm_bytes, args.rounds, matrix)
    team.close()
    if not device.simulated:
        result["verdicts"] = judge(result)
    file.write(complete=True)
    return result, file.path


def main() -> None:
    args = arguments()
    if args.judge:
        result, written = json.loads(args.judge.read_text()), None
        if "planned" not in result:
            raise SystemExit(f"gpu: {args.judge} is not a file of this version of the program")
    else:
        kinds = args.ranks.split(",")
        if len(kinds) < 2 or "gpu" not in kinds or set(kinds) - {"gpu", "cpu"}:
            raise SystemExit(f"gpu: --ranks {args.ranks} must be two or more of gpu and cpu, one of them gpu")
        if args.connections:
            os.environ.update(dict.fromkeys(CONNECTIONS, str(args.connections)))
        if args.rehearse:
            rehearse_here(args.rehearse)
        result, written = measure(args, kinds, Device(args.rehearse))
    verdicts = [] if result["simulated"] else judge(result)
    show(result, verdicts)
    if written:
        print(f"{'rehearsal: ' if result['simulated'] else ''}written: {written}")
    missed = [v["what"] for v in verdicts if v["good"] is False]
    if not result["simulated"] or args.judge:
        missed += [f"not measured: {what}" for what in not_measured(result)]
    if args.check and missed:
        print("\n".join(f"gpu: missed: {what}" for what in missed), file=sys.stderr)
        raise SystemExit(MISSED)


if __name__ == "__main__":
    main()
