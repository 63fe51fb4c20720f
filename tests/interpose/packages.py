"""Folders of Python packages as the vendors' wheels have them, with libraries made for one test in their places."""

from __future__ import annotations

from pathlib import Path

from doors import DOORS, HERE, compile_c

# As PyTorch's: it loads the library by its path first, and then what is linked against it, which has an RPATH.
TORCH = """
import ctypes, pathlib
here = pathlib.Path(__file__).parent
real = here.parent / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
if real.exists(): ctypes.CDLL(str(real))
cuda = ctypes.CDLL(str(next((here / "lib").glob("libtorch_*.so"))))
cuda.whose.restype = ctypes.c_char_p
def answered(): return f"{cuda.number()} {cuda.whose().decode()}"
"""
# As CuPy's and JAX': the library is loaded by its path. CuPy's extension is linked, without a folder; JAX' plug-in
# opens it by its name.
BY_PATH = """
import ctypes, pathlib
real = pathlib.Path(__file__).parents[DEPTH] / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
if real.exists(): ctypes.CDLL(str(real))
"""


def nvidia(folder: Path, version: int = 22703) -> Path:
    """The wheel of NCCL."""
    path = folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    path.parent.mkdir(parents=True)
    _library(path, "libnccl.so.2", f"-DVERSION={version}")
    return path


def torch(folder: Path) -> Path:
    """PyTorch for CUDA. NCCL's wheel is beside it."""
    path = folder / "torch" / "lib" / "libtorch_cuda.so"
    path.parent.mkdir(parents=True)
    rpath = ["-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib"]
    _user(path, folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2", *rpath)
    (folder / "torch" / "__init__.py").write_text(TORCH)
    return path


def torch_for_amd(folder: Path) -> Path:
    """PyTorch for ROCm. Its build takes the number from the file's name and from what its libraries need of it, and not from
    the SONAME: the file is librccl.so, is needed as librccl.so, and says of itself that it is librccl.so.1.
    """
    path = folder / "torch" / "lib" / "libtorch_hip.so"
    path.parent.mkdir(parents=True)
    rpath = ("-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN")
    real = path.with_name("librccl.so")
    # The linker writes down the SONAME of what it is given, so it is given one of the other name.
    _library(real, "librccl.so", "-DVERSION=22203")
    _user(path, real, *rpath)
    _library(real, "librccl.so.1", "-DVERSION=22203")
    (folder / "torch" / "__init__.py").write_text(TORCH)
    return path


def torch_npu(folder: Path) -> Path:
    """PyTorch for Ascend: the toolkit's library is found by LD_LIBRARY_PATH alone, and nothing loads it by its path."""
    path = folder / "torch_npu" / "lib" / "libtorch_npu.so"
    path.parent.mkdir(parents=True)
    door = DOORS["hccl"]
    compile_c("-shared", "-fPIC", *door.plugin, "-o", path, door.real, "-Wl,--allow-shlib-undefined")
    (folder / "torch_npu" / "__init__.py").write_text(TORCH)
    return path


def torch_with_nccl_inside(folder: Path) -> Path:
    path = folder / "torch" / "lib" / "libtorch_cuda.so"
    path.parent.mkdir(parents=True)
    source = folder / "inside.c"
    names = ("AllReduce", "AllGather", "Broadcast", "Send", "Recv", "GroupStart", "GroupEnd", "CommDestroy", "GetVersion")
    source.write_text("".join(f"int nccl{name}(void);\nint nccl{name}(void) {{ return 0; }}\n" for name in names))
    compile_c("-shared", "-fPIC", source, "-o", path)
    return path


def cupy(folder: Path) -> Path:
    path = folder / "cupy_backends" / "cuda" / "libs" / "nccl.so"
    path.parent.mkdir(parents=True)
    _user(path, folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    (folder / "cupy").mkdir()
    (folder / "cupy" / "__init__.py").write_text(BY_PATH.replace("DEPTH", "1"))
    return path


def jax(folder: Path, asks_for: str = "") -> Path:
    """A plug-in that opens the library, by its name if no other text is given, and takes its functions from there."""
    path = folder / "jax_plugins" / "xla_cuda13" / "xla_cuda_plugin.so"
    path.parent.mkdir(parents=True)
    macros = [f'-DASKS_FOR="{asks_for}"'] if asks_for else []
    rpath = ["-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib"]
    compile_c("-shared", "-fPIC", *macros, HERE / "by_name.c", "-o", path, *rpath, "-ldl")
    (folder / "jax_plugins" / "xla_cuda13" / "__init__.py").write_text(BY_PATH.replace("DEPTH", "2"))
    return path


def vllm(folder: Path) -> None:
    path = folder / "vllm" / "distributed" / "device_communicators" / "pynccl_wrapper.py"
    path.parent.mkdir(parents=True)
    path.write_text("")


def _library(path: Path, soname: str, *macros: str) -> None:
    compile_c(*macros, "-shared", "-fPIC", f"-Wl,-soname,{soname}", HERE / "fake.c", "-o", path, "-ldl")


def _user(path: Path, library: Path, *words: str) -> None:
    against = library if library.exists() else DOORS["nccl"].real
    compile_c("-shared", "-fPIC", HERE / "plugin.c", "-o", path, against, "-Wl,--allow-shlib-undefined", *words)
