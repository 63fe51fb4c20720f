"""Everything for a machine with a GPU, a PyTorch that uses it and no package index: packed here, run there.

    python scripts/gpu_day.py pack                     # here: fills build/gpu-day, at most 60 MiB
    python3 gpu-day/gpu_day.py run --out DIR           # there: the kit is all that it takes
    python3 scripts/gpu_day.py run --rehearse          # here, on a simulated device: that every step runs

The kit holds the package for the Python and the PyTorch of that machine (--python, --torch), this program, the tests and the
benchmarks, the runtime's interface test with what notes its calls, and wheels that such a machine may lack. With --nccl also
a NCCL of another version than that PyTorch's, its code for one architecture alone. Nothing is installed there: all of it
lies in a folder that is gone at the end, a wheel counts only where its module is missing, and the other NCCL (`run --nccl`)
stands in PyTorch's folder only while this program runs. Where that cannot be, or a program before was killed, it says so.

A part takes at most nine minutes: each of its steps has a time limit, and what no longer fits is said to be left out. `run`
alone makes all parts; `run PART` one. A rehearsal is no measurement: its limits are TEST_PATIENCE times as long. Without
--rehearse nothing simulated takes the place of a GPU: a step that finds none has failed.

check   the runtime's interface test; the matrix with the real driver and library
trace   each call of the interface test and what it returned. Copied to bench/results, the suite holds the simulated driver
        against it (scripts/vendor_trace.py)
torch   the torch backend on GPUs and CPUs in one group, FSDP2 too; unmodified DDP of backend="nccl", bare and behind a door
bench   bench/gpu.py: copies, collectives, buckets, 8 bytes, a matrix product beside a broadcast, against their limits
train   bench/ddp.py: the same DDP, timed

The last lines are a table of the steps. --out has the table too, and results.tar.gz: a log of each step, and what the steps
have written. It is one archive because a machine that is lent may give few files back. The archive is made anew every ten
seconds and after each step, so a run that is killed leaves what it has. The exit status is 1 if a step failed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
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
import xml.etree.ElementTree
import zipfile
from collections.abc import Callable, Iterator
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
ENDS_SECONDS = 10.0  # in which a process that was killed has ended, unless a driver holds it
LEAST_LEFT = 10.0  # seconds in which a step is begun
ARCHIVE = "results.tar.gz"
KEPT_EVERY = 10.0  # seconds, while a step runs
VERSIONS = """
import platform, torch
x = torch.ones(4, device="cuda").sum().item()
print("python", platform.python_version(), *platform.libc_ver())
print("torch", torch.__version__, "nccl", torch.cuda.nccl.version(), torch.cuda.get_device_name(), x)
"""
SIMULATED = "rehearsal: simulated"  # what every program says that works on simulated devices
FATBIN = 0xBA55ED50  # begins a container of device code


@dataclass(frozen=True)
class Step:
    name: str
    seconds: float  # its time limit
    command: tuple[str, ...]
    rehearsed: bool = True  # has a meaning on a simulated device
    shares: bool = False  # processes whose kernels wait for each other share a GPU
    cases: str = ""  # a file in which pytest says what has become of its tests
    statuses: tuple[tuple[int, str], ...] = ()  # what some exit statuses mean


def patience(rehearse: bool) -> float:
    """tests/patience.py, which a step may not have: how much longer limits are than on an idle machine."""
    return max(1.0, float(os.environ.get("TEST_PATIENCE") or 1)) if rehearse else 1.0


Ended = tuple[str, str, float]  # the step, how it ended, its seconds


def python(*words: str) -> tuple[str, ...]:
    return (sys.executable, *words)


def parts(programs: Path, rehearse: bool, out: Path) -> dict[str, list[Step]]:
    """The steps of each part, which together have no more time than a part."""
    simulated = ("--rehearse", "nvidia") if rehearse else ()

    def tests(part: str, name: str, seconds: float, *words: str, shares: bool = False) -> Step:
        cases = str(out / f"{part}-{name}.xml")
        command = python("-m", "pytest", "-v", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={cases}", *words)
        return Step(name, seconds, command, shares=shares, cases=cases)

    runtime = ("env", "TEST_RUNTIME=cuda", str(programs / "test_device"), "--gtest_filter=Runtimes*")
    library = str(programs / "libvendor_trace.so")
    real = () if rehearse else ("--real",)
    traced = python("scripts/vendor_trace.py", "record", runtime[2], library, *real, "--out", str(out / "trace_cuda.json"))
    topology = "nproc; lscpu | head -25; nvidia-smi topo -m; nvidia-smi -q | grep -A12 'PCI'"
    quick = ("--quick", "--rounds", "1", "--block", "0.01")
    sizes = ("--sizes", *map(str, (8, 4 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)), "--rounds", "3", "--block", "0.05")
    chosen = quick if rehearse else (*sizes, "--check")  # a step whose figures miss a target has failed
    one, two = ("--ranks", "gpu,cpu"), ("--ranks", "gpu,gpu")
    ddp = ("--rehearse",) if rehearse else ()

    def bench(name: str, file: str, *words: str) -> Step:
        command = python("bench/gpu.py", *simulated, *chosen, *words, "--out", str(out / file))
        return Step(name, 180, command, statuses=((3, "a target was missed"),))

    limit = f"{120 * patience(rehearse):.0f}"
    train = python("bench/ddp.py", *ddp, "--rounds", "3", "--patience", limit, "--out", str(out / "ddp.json"))
    return {
        "check": [
            Step("machine", 30, ("nvidia-smi",), rehearsed=False),
            Step("topology", 30, ("sh", "-c", topology), rehearsed=False),
            Step("versions", 60, python("-c", VERSIONS), rehearsed=False),
            Step("doctor", 30, python("-m", "isthmus", "doctor")),
            Step("runtime", 90, runtime),
            tests("check", "matrix", 300, "tests/gpu/test_gpu.py", "-k", "not benchmark and not ddp and not door"),
        ],
        "trace": [Step("trace", 300, traced)],
        "torch": [
            tests("torch", "torch", 200, "tests/gpu/test_torch_gpu.py"),
            tests("torch", "ddp", 200, "tests/gpu/test_gpu.py", "-k", "ddp", shares=True),
            Step("quick", 140, python("bench/gpu.py", *simulated, *quick, "--out", str(out / "quick.json"))),
        ],
        "bench": [
            bench("gpu", "gpu.json"),
            bench("one", "gpu_one.json", *one),
            bench("two", "gpu_two.json", *two),
        ],
        "train": [Step("ddp", 400, train, shares=True)],
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
    subprocess.run([*pip, "install", "-q", "scikit-build-core>=0.11", "pybind11>=2.13", "ninja"], check=True)
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


def kept_of(theirs: Path) -> Path:
    return theirs.with_name("libnccl.so.2.kept")


def restore(theirs: Path | None) -> None:
    """Gives PyTorch its own NCCL back, which a program that was killed has left beside the kit's."""
    if theirs and kept_of(theirs).is_file():
        print("gpu_day: a run before was killed: PyTorch gets its own NCCL back", flush=True)
        kept_of(theirs).replace(theirs)


@contextlib.contextmanager
def other_nccl(theirs: Path | None) -> Iterator[str]:
    """The kit's NCCL in the place of PyTorch's, which finds it there and nowhere else; and back again. Says how it went: ok,
    or why PyTorch has its own."""
    packed = KIT / "libnccl.so.2.xz"
    if theirs is None or not packed.is_file():
        yield "the kit has no NCCL (pack --nccl)" if theirs else "PyTorch's NCCL was not found"
        return
    kept, new = kept_of(theirs), theirs.with_name("libnccl.so.2.new")
    try:
        said = "ok"
        try:
            new.write_bytes(lzma.decompress(packed.read_bytes()))
            os.link(theirs, kept)  # at once: what is kept is never a part of it
            new.replace(theirs)
            asked = subprocess.run(python("-c", VERSIONS), capture_output=True, text=True, check=False, timeout=120)
            if asked.returncode != 0:
                print(f"gpu_day: PyTorch does not take the kit's NCCL\n{asked.stderr[-1000:]}", flush=True)
                said = "PyTorch does not take the kit's, and has its own"
        except (OSError, lzma.LZMAError, subprocess.SubprocessError) as error:
            said = f"PyTorch has its own: {error}"
        if said != "ok" and kept.is_file():
            kept.replace(theirs)
        yield said
    finally:
        new.unlink(missing_ok=True)
        if kept.is_file():
            kept.replace(theirs)


@contextlib.contextmanager
def service(step: Step, rehearse: bool) -> Iterator[dict[str, str]]:
    """NVIDIA's multi-process service for a step that shares a GPU, where there is one; the variables that lead to it.

    Without the service the processes take turns, and kernels that wait for each other wait for turns.
    """
    control = None if rehearse or not step.shares else shutil.which("nvidia-cuda-mps-control")
    if control is None:
        if step.shares and not rehearse:
            print("gpu_day: no nvidia-cuda-mps-control here: the processes take turns on the GPU", flush=True)
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="isthmus-mps-", ignore_cleanup_errors=True) as made:
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


def descendants() -> set[int]:
    """The processes that this one has started, and those that they have, as far as somebody between them lives."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ends just now
            words = stat.read_bytes().rpartition(b")")[2].split()
            parents[int(stat.parent.name)] = int(words[1])
    found, new = set[int](), {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in new and pid not in found}:
        found |= new
    return found


@contextlib.contextmanager
def ends_all() -> Iterator[None]:
    """Whatever is started inside ends with it, in whatever session it is: torchrun gives each rank one of its own.

    Meanwhile the kernel makes this process the parent of what has lost its own.
    """
    set_subreaper, get_subreaper = 36, 37  # of prctl()
    libc, was = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(get_subreaper, ctypes.byref(was), 0, 0, 0)
    before = descendants()
    libc.prctl(set_subreaper, 1, 0, 0, 0)
    try:
        yield
    finally:
        until = time.monotonic() + ENDS_SECONDS
        while (left := descendants() - before) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):  # its parent has yet to end
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.01)
        if left:
            print(f"gpu_day: processes that do not end: {sorted(left)}", flush=True)
        libc.prctl(set_subreaper, was.value, 0, 0, 0)


def counts(cases: Path) -> str:
    """What has become of a step's tests, as pytest has written it; empty: it has written nothing."""
    try:
        suite = xml.etree.ElementTree.parse(cases).getroot().find("testsuite")
    except (OSError, xml.etree.ElementTree.ParseError):
        return ""
    if suite is None:
        return ""
    number = {name: int(suite.get(name) or 0) for name in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    return f", {number['tests'] - failed - number['skipped']} passed, {failed} failed, {number['skipped']} skipped"


def wait(job: subprocess.Popen[bytes], until: float, meanwhile: Callable[[], None]) -> int:
    """Its exit status. TimeoutExpired where it goes on."""
    while True:
        try:
            return job.wait(max(0.0, min(KEPT_EVERY, until - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= until:
                raise
            meanwhile()


def run_step(
    step: Step, cwd: Path, log: Path, seconds: float, env: dict[str, str], meanwhile: Callable[[], None] = lambda: None
) -> tuple[str, float]:
    """How it ended: ok, failed with its status, or over its time. All processes of the step end with it."""
    begin = time.monotonic()
    if step.cases:
        Path(step.cases).unlink(missing_ok=True)  # of a run before
    with log.open("wb") as file, ends_all():
        try:
            job = subprocess.Popen(
                step.command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return f"failed: it cannot be started: {error}", time.monotonic() - begin
        try:
            status = wait(job, begin + seconds, meanwhile)
            said = "ok" if status == 0 else f"failed, {dict(step.statuses).get(status, f'exit status {status}')}"
        except subprocess.TimeoutExpired:
            said = f"over its {seconds:.0f} s"
            job.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it
                job.wait(ENDS_SECONDS)
    return said + (counts(Path(step.cases)) if step.cases else ""), time.monotonic() - begin


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
def unpacked(options: argparse.Namespace) -> Iterator[tuple[Path, dict[str, str], str]]:
    """The tree that the steps run in, their environment, and how it went with the kit's NCCL, if that was asked for. A
    rehearsal in a checkout takes this Python's package."""
    nccl = ""
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
            env["TEST_GPU_REAL"] = "1"
            theirs = nccl_of_torch()
            restore(theirs)
            if options.nccl:
                nccl = stack.enter_context(other_nccl(theirs))
            if theirs:  # for ranks without torch, which the loader tells nothing of torch's folders
                env["LD_LIBRARY_PATH"] = os.pathsep.join([str(theirs.parent), *filter(None, [env.get("LD_LIBRARY_PATH")])])
        yield tree, env, nccl


def programs_of(options: argparse.Namespace) -> Path:
    """Where test_device and libvendor_trace.so are: in the kit, or in the build of a checkout that rehearses."""
    if PACKED or not options.rehearse:
        for name in ("test_device", "libvendor_trace.so"):
            (KIT / name).chmod(0o755)
        return KIT
    return ROOT / "build" / "release" / "tests" / "cpp"


class Results:
    """The folder that the steps write in. Of it one archive is kept."""

    def __init__(self, folder: Path, archive: Path, go_on: bool) -> None:
        self.folder, self.archive = folder, archive
        if go_on and archive.is_file():
            with contextlib.suppress(OSError, EOFError, tarfile.TarError), tarfile.open(archive) as before:
                before.extractall(folder)

    def keep(self) -> None:
        """As it is now; a file that changes meanwhile leaves the archive as it was before."""
        new = self.archive.with_name("results.new")
        with contextlib.suppress(OSError):
            with tarfile.open(new, "w:gz", compresslevel=1) as made:
                for file in sorted(self.folder.iterdir()):
                    made.add(file, file.name)
            new.replace(self.archive)
        new.unlink(missing_ok=True)


def run_part(part: str, options: argparse.Namespace, tree: Path, results: Results, env: dict[str, str]) -> Iterator[Ended]:
    """Of each step, when it has ended: its name, how it ended, its seconds."""
    patient, where = patience(options.rehearse), "rehearsal: " if options.rehearse else ""
    end = time.monotonic() + (options.seconds or PART_SECONDS * patient)
    for step in parts(programs_of(options), options.rehearse, results.folder)[part]:
        if options.rehearse and not step.rehearsed or options.steps and step.name not in options.steps:
            continue
        left = end - time.monotonic()
        if left < LEAST_LEFT:
            yield step.name, "left out: no time", 0.0
            continue
        # A test that hangs is named before its step is killed.
        limit = {"PYTEST_TIMEOUT": f"{min(TEST_SECONDS, step.seconds * 0.6) * patient:.0f}"}
        log = results.folder / f"{part}-{step.name}.txt"
        try:
            with service(step, options.rehearse) as more:
                all_of_it = {**env, **limit, **more}
                said, took = run_step(step, tree, log, min(step.seconds * patient, left), all_of_it, results.keep)
        finally:
            results.keep()
        if not options.rehearse and SIMULATED in log.read_text(errors="replace"):
            said = f"failed: a simulated device took part, {said}"
        print(f"--- {where}{part} {step.name}: {said}, {took:.1f} s", flush=True)
        if not is_good(said) or options.verbose:
            print(log.read_text(errors="replace")[-options.verbose or -3000 :], flush=True)
        yield step.name, said, took


def is_good(said: str) -> bool:
    return said.split(",")[0] == "ok" and ", 0 passed" not in said


def run(options: argparse.Namespace) -> int:
    out = Path(options.out or tempfile.mkdtemp(prefix="isthmus-gpu-day-")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    chosen = options.part or list(parts(KIT, options.rehearse, out))
    table = Table(out, options.rehearse)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="isthmus-gpu-day-results-") as folder,
            unpacked(options) as (tree, env, nccl),
        ):
            results = Results(Path(folder), out / ARCHIVE, go_on=bool(table.old))
            if nccl:
                table.note("kit", "nccl", nccl, 0.0)
            for part in chosen:
                for one in run_part(part, options, tree, results, env):
                    table.note(part, *one)
    finally:
        table.show()
    return 0 if table.new and all(is_good(said) for _, _, said, _ in table.new) else 1


class Table:
    """The steps of this run, and before them those that runs before have left in the folder."""

    def __init__(self, out: Path, rehearse: bool) -> None:
        self.out, self.rehearse = out, rehearse
        self.new: list[tuple[str, str, str, float]] = []
        self.old: list[tuple[str, str, str, float]] = []
        with contextlib.suppress(OSError, ValueError):
            before = json.loads((out / "table.json").read_text())
            if before["rehearsal"] is rehearse:
                self.old = [tuple(row) for row in before["steps"]]

    def lines(self) -> list[str]:
        where = "rehearsal: " if self.rehearse else ""
        return [f"{where}{part:6s} {name:10s} {took:6.1f} s  {said}" for part, name, said, took in [*self.old, *self.new]]

    def note(self, part: str, name: str, said: str, took: float) -> None:
        """Writes it at once: what comes later may take the rest."""
        self.new.append((part, name, said, took))
        self.old = [row for row in self.old if row[:2] != (part, name)]
        (self.out / "table.txt").write_text("".join(f"{line}\n" for line in self.lines()))
        table = {"rehearsal": self.rehearse, "steps": [*self.old, *self.new]}
        (self.out / "table.json").write_text(json.dumps(table, indent=1) + "\n")

    def show(self) -> None:
        where = "rehearsal: " if self.rehearse else ""
        if not self.new:
            print(f"{where}no step was run: none of the parts has one of that name")
        print("\n".join([*self.lines(), f"{where}logs: {self.out / ARCHIVE}"]), flush=True)


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
    running.add_argument("--out", help="a folder for the table and the archive (default: a new one)")
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
    steps = {step.name for part in parts(KIT, False, KIT).values() for step in part}
    if unknown := set(options.steps) - steps:
        parser.error(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(sorted(steps))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was changed is changed back
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
