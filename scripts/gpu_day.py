"""Everything for a machine with a GPU, a PyTorch that uses it and no package index: packed here, run there.

    python scripts/gpu_day.py pack                     # here: fills build/gpu-day, at most 60 MiB
    python3 scripts/gpu_day.py run check --out DIR     # there, in a copy of this tree with build/gpu-day in it
    python3 scripts/gpu_day.py run check --rehearse    # here, on a simulated device: that every step runs

The kit holds the package for the Python and the PyTorch of that machine (--python, --torch), the runtime's interface test,
and with --nccl a NCCL of another version than that PyTorch's, its code for one architecture alone. Nothing is installed
there: the package lies in a folder of its own, and the other NCCL stands in PyTorch's folder only while a part runs.

A part takes at most nine minutes: each of its steps has a time limit, and what no longer fits is said to be left out. The
last lines are a table of the steps; --out has a log of each. The exit status is 1 if a step failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import wheels

ROOT = Path(__file__).resolve().parent.parent
KIT = ROOT / "build" / "gpu-day"
MOST_BYTES = 60 << 20
PART_SECONDS = 540.0
NCCL = "nvidia-nccl-cu13==2.32.3"
TORCH = "2.11.0"
VERSIONS = """
import platform, torch
x = torch.ones(4, device="cuda").sum().item()
print("python", platform.python_version(), *platform.libc_ver())
print("torch", torch.__version__, "nccl", torch.cuda.nccl.version(), torch.cuda.get_device_name(), x)
"""
FATBIN = 0xBA55ED50  # begins a container of device code


@dataclass(frozen=True)
class Step:
    name: str
    seconds: float  # its time limit
    command: tuple[str, ...]
    rehearsed: bool = True  # has a meaning on a simulated device


def python(*words: str) -> tuple[str, ...]:
    return (sys.executable, *words)


def parts(rehearse: bool, out: Path) -> dict[str, list[Step]]:
    simulated = ("--rehearse", "nvidia") if rehearse else ()
    runtime = "cuda"
    tests = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short")
    words = ("--quick", "--rounds", "1", "--block", "0.01")
    check = [
        Step("machine", 30, ("nvidia-smi",), rehearsed=False),
        Step(
            "topology",
            30,
            ("sh", "-c", "nproc; lscpu | head -25; nvidia-smi topo -m; nvidia-smi -q | grep -A12 'PCI'"),
            False,
        ),
        Step("versions", 60, python("-c", VERSIONS), rehearsed=False),
        Step("doctor", 30, python("-m", "isthmus", "doctor")),
        Step("runtime", 90, ("env", f"TEST_RUNTIME={runtime}", str(KIT / "test_device"), "--gtest_filter=Runtimes*")),
        Step("matrix", 240, (*tests, "tests/gpu", "-k", "not benchmark and not ddp and not torch")),
        Step("torch", 120, (*tests, "tests/gpu/test_torch_gpu.py")),
        Step("quick", 90, python("bench/gpu.py", *simulated, *words, "--out", str(out / "quick.json"))),
        Step("ddp", 120, (*tests, "tests/gpu", "-k", "ddp")),
    ]
    sizes = ("--sizes", *map(str, (8, 4 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)), "--rounds", "3", "--block", "0.05")
    chosen = words if rehearse else sizes
    bench = [
        Step("gpu", 170, python("bench/gpu.py", *simulated, *chosen, "--out", str(out / "gpu.json"))),
        Step(
            "one",
            150,
            (
                "env",
                "CUDA_DEVICE_MAX_CONNECTIONS=8",
                *python("bench/gpu.py", *simulated, *chosen, "--ranks", "gpu,cpu", "--out", str(out / "one.json")),
            ),
        ),
        Step(
            "ddp",
            200,
            python("bench/ddp.py", *(["--rehearse"] if rehearse else []), "--rounds", "3", "--out", str(out / "ddp.json")),
        ),
    ]
    return {"check": check, "bench": bench}


# ---- here ------------------------------------------------------------------------------------------------------------


def one_architecture(library: bytes, architecture: int) -> bytes:
    """The library with the device code for all other architectures zeroed, so that it packs small.

    Device code lies in containers of entries, in sections named for it: NVIDIA's cuobjdump prints the same fields. An entry
    is PTX (kind 1) or machine code (kind 2) for the architecture in its header.
    """
    data, position, kept = bytearray(library), 0, 0
    begins = struct.pack("<IHH", FATBIN, 1, 16)
    while (position := data.find(begins, position)) >= 0:
        (size,) = struct.unpack_from("<Q", data, position + 8)
        entry, end = position + 16, position + 16 + size
        if end > len(data):
            raise SystemExit(f"gpu_day: a container of device code at {position} is longer than its file")
        while entry + 64 <= end:
            kind, _, header, payload = struct.unpack_from("<HHIQ", data, entry)
            (made_for,) = struct.unpack_from("<I", data, entry + 28)
            if kind == 2 and made_for == architecture:
                kept += 1
            else:
                data[entry + header : entry + header + payload] = bytes(payload)
            entry += header + payload
        position = end
    if not kept:
        raise SystemExit(f"gpu_day: that NCCL has no machine code for architecture {architecture}")
    return bytes(data)


def pack(options: argparse.Namespace) -> None:
    shutil.rmtree(KIT, ignore_errors=True)
    KIT.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="isthmus-gpu-day-") as made:
        folder = Path(made)
        # A Python and a torch of that machine's versions, for their headers: this torch is never imported.
        there = ROOT / "build" / "gpu-day-python"
        subprocess.run([options.python, "-m", "venv", there], check=True)
        pip = [there / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-q", "--no-deps", f"torch=={options.torch}"], check=True)
        subprocess.run([*pip, "install", "-q", "scikit-build-core>=0.10", "pybind11>=2.13", "ninja"], check=True)
        build = ROOT / "build" / "gpu-day-build"
        words = ["-w", folder, "--no-build-isolation", "--no-deps", f"-Cbuild-dir={build}", "-Cinstall.strip=true"]
        subprocess.run([*pip, "wheel", "-q", *words, "."], cwd=ROOT, check=True)
        for wheel in folder.glob("isthmus-*.whl"):
            shutil.copy(wheel, KIT)
        subprocess.run(["cmake", "-DISTHMUS_TESTS=ON", build], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", build, "--target", "test_device"], check=True)
        (program,) = (p for p in build.rglob("test_device") if p.is_file())
        subprocess.run(["strip", "-o", KIT / "test_device", program], check=True)
        if options.nccl:
            (found,) = wheels.download(folder, [NCCL]).values()
            with zipfile.ZipFile(found) as archive:
                library = archive.read("nvidia/nccl/lib/libnccl.so.2")
            (KIT / "libnccl.so.2.xz").write_bytes(lzma.compress(one_architecture(library, options.architecture)))
    total = sum(file.stat().st_size for file in KIT.iterdir())
    for file in sorted(KIT.iterdir()):
        print(f"{file.stat().st_size / 2**20:7.1f} MiB  {file.relative_to(ROOT)}")
    if total > MOST_BYTES:
        raise SystemExit(f"gpu_day: {total / 2**20:.1f} MiB; the kit is to have at most {MOST_BYTES >> 20}")


# ---- there -----------------------------------------------------------------------------------------------------------


def nccl_of_torch() -> Path | None:
    found = subprocess.run(
        python("-c", "import nvidia.nccl as n; print(list(n.__path__)[0])"), capture_output=True, text=True, check=False
    )
    path = Path(found.stdout.strip()) / "lib" / "libnccl.so.2"
    return path if found.returncode == 0 and path.is_file() else None


@contextlib.contextmanager
def other_nccl(theirs: Path | None) -> Iterator[None]:
    """The kit's NCCL in the place of PyTorch's, which finds it there and nowhere else; and back again."""
    packed = KIT / "libnccl.so.2.xz"
    if theirs is None or not packed.is_file():
        yield
        return
    kept = theirs.with_name("libnccl.so.2.kept")
    theirs.rename(kept)
    try:
        theirs.write_bytes(lzma.decompress(packed.read_bytes()))
        asked = subprocess.run(python("-c", VERSIONS), capture_output=True, text=True, check=False, timeout=120)
        if asked.returncode != 0:
            print(f"gpu_day: PyTorch does not take the kit's NCCL; with its own:\n{asked.stderr[-1000:]}", flush=True)
            kept.replace(theirs)
        yield
    finally:
        if kept.is_file():
            kept.replace(theirs)


def run_step(step: Step, log: Path, seconds: float, env: dict[str, str]) -> tuple[str, float]:
    """How it ended: ok, failed with its status, or over its time. All processes of the step end with it."""
    begin = time.monotonic()
    with log.open("wb") as file:
        job = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = job.wait(seconds)
            said = "ok" if status == 0 else f"failed, exit status {status}"
        except subprocess.TimeoutExpired:
            said = f"over its {seconds:.0f} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    return said, time.monotonic() - begin


def run(options: argparse.Namespace) -> int:
    end = time.monotonic() + options.seconds
    out = Path(options.out or tempfile.mkdtemp(prefix="isthmus-gpu-day-")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    env = dict(os.environ)
    table: list[tuple[str, str, float]] = []
    with tempfile.TemporaryDirectory(prefix="isthmus-site-") as site, contextlib.ExitStack() as stack:
        if not options.rehearse:
            for wheel in KIT.glob("isthmus-*.whl"):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(site)
            for program in Path(site).glob("isthmus/bin/*"):
                program.chmod(0o755)
            theirs = nccl_of_torch()
            stack.enter_context(other_nccl(theirs if options.nccl else None))
            env["PYTHONPATH"] = os.pathsep.join([site, *filter(None, [env.get("PYTHONPATH")])])
            if theirs:  # for ranks without torch, which the loader tells nothing of torch's folders
                env["LD_LIBRARY_PATH"] = os.pathsep.join([str(theirs.parent), *filter(None, [env.get("LD_LIBRARY_PATH")])])
        (KIT / "test_device").chmod(0o755)
        for step in parts(options.rehearse, out)[options.part]:
            if options.rehearse and not step.rehearsed or options.steps and step.name not in options.steps:
                continue
            left = end - time.monotonic()
            if left < 10:
                table.append((step.name, "left out: no time", 0.0))
                continue
            said, took = run_step(step, out / f"{options.part}-{step.name}.txt", min(step.seconds, left), env)
            table.append((step.name, said, took))
            print(f"--- {step.name}: {said}, {took:.1f} s", flush=True)
            if said != "ok" or options.verbose:
                print(
                    (out / f"{options.part}-{step.name}.txt").read_text(errors="replace")[-options.verbose or -3000 :],
                    flush=True,
                )
    (out / f"{options.part}.json").write_text(json.dumps(table, indent=1) + "\n")
    where = "rehearsal: " if options.rehearse else ""
    for name, said, took in table:
        print(f"{where}{options.part} {name:10s} {took:6.1f} s  {said}")
    print(f"{where}logs: {out}")
    return 0 if all(said == "ok" for _, said, _ in table) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="fills build/gpu-day")
    packing.add_argument(
        "--python", default="python3.12", help="an interpreter of that machine's version (default %(default)s)"
    )
    packing.add_argument("--torch", default=TORCH, help="that machine's PyTorch (default %(default)s)")
    packing.add_argument("--nccl", action="store_true", help=f"also {NCCL}, which serves two ranks on one GPU")
    packing.add_argument(
        "--architecture", type=int, default=90, help="of that machine's GPU, for --nccl (default %(default)s)"
    )
    running = commands.add_parser("run", help="runs one part of the kit")
    running.add_argument("part", choices=list(parts(False, KIT)))
    running.add_argument("--steps", nargs="+", default=[], help="only these")
    running.add_argument("--out", help="a folder for logs and tables (default: a new one)")
    running.add_argument("--seconds", type=float, default=PART_SECONDS, help="of the whole part (default %(default).0f)")
    running.add_argument("--nccl", action="store_true", help="with the kit's NCCL instead of PyTorch's")
    running.add_argument("--verbose", type=int, default=0, metavar="N", help="prints the last N characters of each log")
    running.add_argument("--rehearse", action="store_true", help="on a simulated device, with the package of this Python")
    options = parser.parse_args()
    if options.command == "pack":
        pack(options)
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
