"""Everything for a machine with a GPU, a PyTorch that uses it and no package index: packed here, run there.

    python scripts/gpu_day.py pack                     # here: fills build/gpu-day, at most 60 MiB
    python3 gpu-day/gpu_day.py run --out DIR           # there: the kit is all that it takes
    python3 scripts/gpu_day.py run --rehearse          # here, on a simulated device: that every step runs

The kit holds the package for the Python and the PyTorch of that machine (--python, --torch), this program, the tests and the
benchmarks, the runtime's interface test with what notes its calls, and wheels that such a machine may lack. With --nccl also
a NCCL of another version than that PyTorch's, its code for one architecture alone. Nothing is installed there: all of it
lies in a folder that is gone at the end, a wheel counts only where its module is missing, and the other NCCL stands in
PyTorch's folder only while a part runs.

A part takes at most nine minutes: each of its steps has a time limit, and what no longer fits is said to be left out. `run`
alone makes all parts; `run PART` one. A rehearsal is no measurement: its limits are TEST_PATIENCE times as long.

check   the runtime's interface test; the matrix with the real driver and library
trace   each call of the interface test and what it returned, to hold the simulated driver against (scripts/vendor_trace.py)
torch   the torch backend on GPUs and CPUs in one group, FSDP2 too; unmodified DDP of backend="nccl", bare and behind a door
bench   bench/gpu.py: copies, collectives, buckets, 8 bytes, a matrix product beside a broadcast, against their limits
train   bench/ddp.py: the same DDP, timed

The last lines are a table of the steps; --out has a log of each, and what the steps have written. The exit status is 1 if a
step failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import lzma
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKED = (HERE / "tree.tar.xz").is_file()  # this program runs out of a kit
KIT = HERE if PACKED else HERE.parent / "build" / "gpu-day"
ROOT = HERE.parent  # of a checkout
MOST_BYTES = 60 << 20
PART_SECONDS = 540.0
TEST_SECONDS = 300.0  # of a test in a step, as pyproject.toml has it
NCCL = "nvidia-nccl-cu13==2.32.3"
TORCH = "2.11.0"
# What the tests need and a machine with PyTorch may not have; as requirements-dev.txt pins it, with what it needs itself.
LACKED = ("pytest", "pytest-timeout", "cloudpickle", "ml_dtypes")
THERE = ("numpy", "torch")  # not packed: PyTorch is there, and has NumPy with it
TREE = ("tests", "bench", "scripts", "examples", "pyproject.toml")  # what the steps read of the sources
LEAST_LEFT = 10.0  # seconds in which a step is begun
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
    shares: bool = False  # processes whose kernels wait for each other share a GPU


def patience(rehearse: bool) -> float:
    """tests/patience.py, which a step may not have: how much longer limits are than on an idle machine."""
    return max(1.0, float(os.environ.get("TEST_PATIENCE") or 1)) if rehearse else 1.0


Ended = tuple[str, str, float]  # the step, how it ended, its seconds


def python(*words: str) -> tuple[str, ...]:
    return (sys.executable, *words)


def parts(programs: Path, rehearse: bool, out: Path) -> dict[str, list[Step]]:
    """The steps of each part, which together have no more time than a part."""
    simulated = ("--rehearse", "nvidia") if rehearse else ()
    tests = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short")
    runtime = ("env", "TEST_RUNTIME=cuda", str(programs / "test_device"), "--gtest_filter=Runtimes*")
    library = str(programs / "libvendor_trace.so")
    traced = python("scripts/vendor_trace.py", "record", runtime[2], library, "--out", str(out / "trace_cuda.json"))
    topology = "nproc; lscpu | head -25; nvidia-smi topo -m; nvidia-smi -q | grep -A12 'PCI'"
    quick = ("--quick", "--rounds", "1", "--block", "0.01")
    sizes = ("--sizes", *map(str, (8, 4 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)), "--rounds", "3", "--block", "0.05")
    chosen = quick if rehearse else (*sizes, "--check")  # a step whose figures miss a target has failed
    one, two = ("--ranks", "gpu,cpu"), ("--ranks", "gpu,gpu")
    ddp = ("--rehearse",) if rehearse else ()
    return {
        "check": [
            Step("machine", 30, ("nvidia-smi",), rehearsed=False),
            Step("topology", 30, ("sh", "-c", topology), rehearsed=False),
            Step("versions", 60, python("-c", VERSIONS), rehearsed=False),
            Step("doctor", 30, python("-m", "isthmus", "doctor")),
            Step("runtime", 90, runtime),
            Step("matrix", 300, (*tests, "tests/gpu/test_gpu.py", "-k", "not benchmark and not ddp and not door")),
        ],
        "trace": [Step("trace", 300, traced)],
        "torch": [
            Step("torch", 200, (*tests, "tests/gpu/test_torch_gpu.py")),
            Step("ddp", 200, (*tests, "tests/gpu/test_gpu.py", "-k", "ddp or door"), shares=True),
            Step("quick", 140, python("bench/gpu.py", *simulated, *quick, "--out", str(out / "quick.json"))),
        ],
        "bench": [
            Step("gpu", 180, python("bench/gpu.py", *simulated, *chosen, "--out", str(out / "gpu.json"))),
            Step("one", 180, python("bench/gpu.py", *simulated, *chosen, *one, "--out", str(out / "gpu_one.json"))),
            Step("two", 180, python("bench/gpu.py", *simulated, *chosen, *two, "--out", str(out / "gpu_two.json"))),
        ],
        "train": [
            Step("ddp", 400, python("bench/ddp.py", *ddp, "--rounds", "3", "--out", str(out / "ddp.json")), shares=True)
        ],
    }


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


def pinned(names: tuple[str, ...]) -> list[str]:
    """As requirements-dev.txt has them."""
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements-dev.txt").read_text().splitlines()]
    return [line for line in lines if line.split("=")[0].strip() in names]


def pack_tree(kit: Path) -> None:
    """The sources that the steps read, as they are here."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *TREE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    with tarfile.open(kit / "tree.tar.xz", "w:xz") as archive:
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                archive.add(ROOT / name, name)
    shutil.copy(Path(__file__), kit / "gpu_day.py")


def pack_built(options: argparse.Namespace, folder: Path) -> None:
    """The package and the programs, built for that machine's Python and PyTorch, and the wheels that it may lack."""
    kit = options.kit
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
        shutil.copy(wheel, kit)
    subprocess.run(["cmake", "-DISTHMUS_TESTS=ON", build], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "--target", "test_device", "vendor_trace"], check=True)
    pack_programs(build, kit)
    subprocess.run([*pip, "download", "-q", "--only-binary", ":all:", "-d", folder / "lacked", *pinned(LACKED)], check=True)
    (kit / "wheels").mkdir()
    for wheel in (folder / "lacked").glob("*.whl"):
        if wheel.name.split("-")[0] not in THERE:
            shutil.copy(wheel, kit / "wheels")
    if options.nccl:
        import wheels

        (found,) = wheels.download(folder, [NCCL]).values()
        with zipfile.ZipFile(found) as archive:
            library = archive.read("nvidia/nccl/lib/libnccl.so.2")
        (kit / "libnccl.so.2.xz").write_bytes(lzma.compress(one_architecture(library, options.architecture)))


def pack_programs(build: Path, kit: Path) -> None:
    for name in ("test_device", "libvendor_trace.so"):
        (program,) = (p for p in build.rglob(name) if p.is_file())
        subprocess.run(["strip", "-o", kit / name, program], check=True)


def pack_this_machines(build: Path, kit: Path) -> None:
    """The package of this Python, and the programs of a build that is here: a kit for this machine, without an index."""
    found = importlib.util.find_spec("isthmus")
    if found is None or found.origin is None:
        raise SystemExit(f"gpu_day: {sys.executable} has no package isthmus")
    package = Path(found.origin).parent
    with zipfile.ZipFile(kit / "isthmus-here.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in package.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, Path("isthmus") / file.relative_to(package))
    pack_programs(build, kit)
    (kit / "wheels").mkdir()


def pack(options: argparse.Namespace) -> None:
    kit = options.kit
    shutil.rmtree(kit, ignore_errors=True)
    kit.mkdir(parents=True)
    pack_tree(kit)
    with tempfile.TemporaryDirectory(prefix="isthmus-gpu-day-") as made:
        if options.here:
            pack_this_machines(Path(options.here).resolve(), kit)
        else:
            pack_built(options, Path(made))
    files = [file for file in sorted(kit.rglob("*")) if file.is_file()]
    for file in files:
        print(f"{file.stat().st_size / 2**20:7.1f} MiB  {file.relative_to(kit)}")
    check_size(sum(file.stat().st_size for file in files), kit)


def check_size(total: int, kit: Path) -> None:
    print(f"{total / 2**20:7.1f} MiB  in all, of {MOST_BYTES >> 20}: {kit}")
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


@contextlib.contextmanager
def service(step: Step, rehearse: bool) -> Iterator[dict[str, str]]:
    """NVIDIA's multi-process service for a step that shares a GPU, where there is one; the variables that lead to it.

    Without the service the processes take turns, and kernels that wait for each other wait for turns.
    """
    control = None if rehearse or not step.shares else shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="isthmus-mps-") as made:
        found = {"CUDA_MPS_PIPE_DIRECTORY": made, "CUDA_MPS_LOG_DIRECTORY": made}
        try:
            subprocess.run([control, "-d"], env={**os.environ, **found}, check=True, timeout=30, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"gpu_day: no multi-process service: {error}", flush=True)
            found = {}
        try:
            yield found
        finally:
            if found:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run([control], env={**os.environ, **found}, input=b"quit\n", check=False, timeout=30)


def run_step(step: Step, cwd: Path, log: Path, seconds: float, env: dict[str, str]) -> tuple[str, float]:
    """How it ended: ok, failed with its status, or over its time. All processes of the step end with it."""
    begin = time.monotonic()
    with log.open("wb") as file:
        job = subprocess.Popen(
            step.command,
            cwd=cwd,
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


def unpack_package(site: Path) -> None:
    """What the kit has of packages, each where its module is missing; Isthmus in any case."""
    for wheel in KIT.glob("isthmus-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    for program in site.glob("isthmus/bin/*"):
        program.chmod(0o755)
    for wheel in sorted((KIT / "wheels").glob("*.whl")):
        if importlib.util.find_spec(wheel.name.split("-")[0].lower()) is None:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)


@contextlib.contextmanager
def unpacked(options: argparse.Namespace) -> Iterator[tuple[Path, dict[str, str]]]:
    """The tree that the steps run in, and their environment. A rehearsal in a checkout takes this Python's package."""
    env = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="isthmus-gpu-day-") as made, contextlib.ExitStack() as stack:
        tree, site = ROOT, Path(made) / "site"
        if PACKED:
            tree = Path(made) / "tree"
            with tarfile.open(KIT / "tree.tar.xz") as archive:
                archive.extractall(tree)
        if PACKED or not options.rehearse:
            unpack_package(site)
            env["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [env.get("PYTHONPATH")])])
        if not options.rehearse:
            theirs = nccl_of_torch()
            stack.enter_context(other_nccl(theirs if options.nccl else None))
            if theirs:  # for ranks without torch, which the loader tells nothing of torch's folders
                env["LD_LIBRARY_PATH"] = os.pathsep.join([str(theirs.parent), *filter(None, [env.get("LD_LIBRARY_PATH")])])
        yield tree, env


def programs_of(options: argparse.Namespace) -> Path:
    """Where test_device and libvendor_trace.so are: in the kit, or in the build of a checkout that rehearses."""
    if PACKED or not options.rehearse:
        for name in ("test_device", "libvendor_trace.so"):
            (KIT / name).chmod(0o755)
        return KIT
    return ROOT / "build" / "release" / "tests" / "cpp"


def run_part(part: str, options: argparse.Namespace, tree: Path, out: Path, env: dict[str, str]) -> list[Ended]:
    """A line for each step: its name, how it ended, its seconds."""
    patient = patience(options.rehearse)
    end = time.monotonic() + (options.seconds or PART_SECONDS * patient)
    limit = {"PYTEST_TIMEOUT": f"{TEST_SECONDS * patient:.0f}"}
    table: list[Ended] = []
    for step in parts(programs_of(options), options.rehearse, out)[part]:
        if options.rehearse and not step.rehearsed or options.steps and step.name not in options.steps:
            continue
        left = end - time.monotonic()
        if left < LEAST_LEFT:
            table.append((step.name, "left out: no time", 0.0))
            continue
        log = out / f"{part}-{step.name}.txt"
        with service(step, options.rehearse) as more:
            said, took = run_step(step, tree, log, min(step.seconds * patient, left), {**env, **limit, **more})
        table.append((step.name, said, took))
        print(f"--- {part} {step.name}: {said}, {took:.1f} s", flush=True)
        if said != "ok" or options.verbose:
            print(log.read_text(errors="replace")[-options.verbose or -3000 :], flush=True)
    (out / f"{part}.json").write_text(json.dumps(table, indent=1) + "\n")
    return table


def run(options: argparse.Namespace) -> int:
    out = Path(options.out or tempfile.mkdtemp(prefix="isthmus-gpu-day-")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    chosen = options.part or list(parts(KIT, options.rehearse, out))
    with unpacked(options) as (tree, env):
        found = {part: run_part(part, options, tree, out, env) for part in chosen}
    where = "rehearsal: " if options.rehearse else ""
    ended = [(part, *one) for part, table in found.items() for one in table]
    lines = [f"{where}{part:6s} {name:10s} {took:6.1f} s  {said}" for part, name, said, took in ended]
    (out / "table.txt").write_text("".join(f"{line}\n" for line in lines))
    print("\n".join([*lines, f"{where}logs: {out}"]))
    return 0 if all(said == "ok" for _, _, said, _ in ended) else 1


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
    packing.add_argument("--here", metavar="BUILD", help="for this machine: its package, the programs of that build")
    packing.add_argument("--kit", type=Path, default=KIT, help="the folder to fill (default %(default)s)")
    running = commands.add_parser("run", help="runs all parts of the kit, or some")
    running.add_argument("part", nargs="*", help=f"of {' '.join(parts(KIT, False, KIT))}")
    running.add_argument("--steps", nargs="+", default=[], help="only these")
    running.add_argument("--out", help="a folder for logs and tables (default: a new one)")
    running.add_argument("--seconds", type=float, help=f"of a whole part (default {PART_SECONDS:.0f})")
    running.add_argument("--nccl", action="store_true", help="with the kit's NCCL instead of PyTorch's")
    running.add_argument("--verbose", type=int, default=0, metavar="N", help="prints the last N characters of each log")
    running.add_argument("--rehearse", action="store_true", help="on a simulated device")
    options = parser.parse_args()
    if options.command == "pack":
        pack(options)
        return 0
    if unknown := set(options.part) - set(parts(KIT, False, KIT)):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
