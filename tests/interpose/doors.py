"""The front doors that were built and the simulated vendors behind them, and how tests start programs and make them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from kept import kept, version
from patience import patient

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# A build of a sanitizer, where one is named: then programs are linked against the doors, since its runtime must come first.
SANITIZER = os.environ.get("INTERPOSE_SANITIZER", "")
BUILD = Path(os.environ.get("INTERPOSE_BUILD", ROOT / "build" / "release"))
SOURCES = ROOT / "csrc" / "interpose"
sys.path.append(str(ROOT / "scripts"))

preloaded = pytest.mark.skipif(bool(SANITIZER), reason="a door that is preloaded, and a sanitizer's runtime must come first")

# A number that a library gives of itself, as Python that has it as `library`. That of NCCL and RCCL is their version.
NCCL_NUMBER = "n = ctypes.c_int(-1)\nassert library.ncclGetVersion(ctypes.byref(n)) == 0\nnumber = n.value\n"
HCCL_NUMBER = "number = library.HcclGetCommConfigCapability()\n"


@dataclass(frozen=True)
class Door:
    """One of the libraries, and what stands for the vendor behind it."""

    library: str  # as the generator calls it
    soname: str
    setting: str
    simulated: Path  # a folder with the vendor's libraries
    runtime: str  # of the vendor's device
    table: str
    parts: tuple[str, ...]  # its sources beside those that all have
    number: str
    gives: int  # what the simulated library gives for it
    text_of_success: str  # the function, of which 0 asks for it
    call: str  # a function that gives a code
    why: str  # how a program asks what was wrong where there is no library: the function, and with what
    own: str  # by which a library made for a test says who answers its own call
    absent: int  # what a call gives then
    early: int  # and while the library is being opened

    @property
    def name(self) -> str:
        return self.library.upper()

    @property
    def asks(self) -> str:
        """The function that gives the number."""
        return "HcclGetCommConfigCapability" if self.library == "hccl" else "ncclGetVersion"

    @property
    def fakes(self) -> int:
        """What a library made for a test gives for it."""
        return 7 if self.library == "hccl" else 21903

    @property
    def plugin(self) -> list[str | Path]:
        """The source of a library that asks for it, and its macros."""
        return [*(["-DASCEND"] if self.library == "hccl" else []), HERE / "plugin.c"]

    def says(self, number: int) -> str:
        """How opener.c has it: NCCL's function gives a code, and writes the number."""
        return f"gives {number}, -1" if self.library == "hccl" else f"gives 0, {number}"

    @property
    def path(self) -> Path:
        return BUILD / "interpose" / self.soname

    @property
    def real(self) -> Path:
        return self.simulated / self.soname

    @property
    def rows(self) -> Path:
        return SOURCES / self.table

    @property
    def sources(self) -> list[Path]:
        return [
            SOURCES / f"{name}.cpp"
            for name in ("real", "search", "neighbours", "reasons", "text_buffer", "bridge", self.library, *self.parts)
        ]


def nccl_like(library: str, soname: str, vendor: str, runtime: str, version: int) -> Door:
    parts = ("errors", "version", "group")
    setting, simulated, text = f"ISTHMUS_REAL_{library.upper()}", BUILD / "rehearsal" / vendor, "ncclGetErrorString"
    called = ("ncclCommAbort", "ncclGetLastError", "ncclCommGetUniqueId", 2, 3)
    return Door(library, soname, setting, simulated, runtime, "nccl.symbols", parts, NCCL_NUMBER, version, text, *called)


DOORS = {
    "nccl": nccl_like("nccl", "libnccl.so.2", "nvidia", "libcuda.so.1", 22903),
    "rccl": nccl_like("rccl", "librccl.so.1", "amd", "libamdhip64.so.6", 22203),
    "hccl": Door(
        library="hccl",
        soname="libhccl.so",
        setting="ISTHMUS_REAL_HCCL",
        simulated=BUILD / "rehearsal" / "ascend",
        runtime="libascendcl.so",
        table="hccl.symbols",
        parts=("jump",),
        number=HCCL_NUMBER,
        gives=12,
        text_of_success="HcclGetErrorString",
        call="HcclCommDestroy",
        why="HcclGetErrorString=6",
        own="HcclGetCommName",
        absent=6,
        early=4,
    ),
}


def run(*command: str | Path, seconds: float = 120, **environment: str | Path) -> subprocess.CompletedProcess[str]:
    """A program with these variables, and none of Isthmus, the loader, a vendor or a rehearsal besides. What takes `seconds`
    hangs."""
    alien = ("ISTHMUS_", "LD_", "REHEARSAL_", "NCCL_", "HCCL_", "ASCEND_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(alien)}
    given = {name: str(value) for name, value in environment.items()}
    words = [str(word) for word in command]
    return subprocess.run(words, env=kept | given, text=True, capture_output=True, timeout=patient(seconds), check=False)


def said(*command: str | Path, **environment: str | Path) -> str:
    """What a program printed that ended well and said nothing to stderr."""
    ended = run(*command, **environment)
    assert (ended.returncode, ended.stderr) == (0, ""), f"exit status {ended.returncode}: {ended.stdout}{ended.stderr}"
    return ended.stdout


@cache
def soname(library: Path) -> str:
    """What is linked against it looks for: its own name, or the path by which the linker was given it."""
    with open(library, "rb") as file:
        for section in ELFFile(file).iter_sections():
            for tag in section.iter_tags("DT_SONAME") if isinstance(section, DynamicSection) else ():
                return str(tag.soname)
    return str(library)


@cache
def shared_sources() -> bytes:
    """All that a source of this folder may include."""
    return b"".join(path.read_bytes() for path in sorted(HERE.glob("*.[ch]")))


def known(source: Path) -> bool:
    """What it includes is known: it, and sources of this folder alone."""
    if source.parent == HERE:
        return True
    names = re.findall(r'^ *# *include "(.*)"', source.read_text(), re.MULTILINE)
    return source.suffix == ".c" and all((HERE / name).exists() and not (source.parent / name).exists() for name in names)


def compile_c(*words: str | Path, compiler: str = "cc") -> None:
    """What was made of the same sources before is taken, if it is known what they include."""
    command = [compiler, "-Wall", "-Wextra", "-Werror", *map(str, words)]
    place = command.index("-o") + 1
    to = Path(command[place])

    def make(path: Path) -> None:
        command[place] = str(path)
        ended = subprocess.run(command, text=True, capture_output=True, timeout=patient(120), check=False)
        assert ended.returncode == 0, f"{' '.join(command)}: {ended.stderr}"

    files = [Path(word) for word in command[1:place] + command[place + 1 :] if not word.startswith("-")]
    sources = [file for file in files if file.suffix in (".c", ".h", ".cpp")]
    if "/" in compiler or not all(map(known, sources)):
        return make(to)
    # Of a library a program takes its name and what it has; of a source's place nothing.
    named = {str(file): (file.suffix if file in sources else soname(file), file.read_bytes()) for file in files}
    parts: list[str | bytes] = [version(compiler), shared_sources()]
    for number, word in enumerate(command):
        parts += named.get(word, (word if number != place else "",))
    if any(tempfile.gettempdir() in part for part in parts if isinstance(part, str)):  # the next run has other places
        return make(to)
    made = kept("compiled", parts, lambda folder: make(folder / "it"))
    to.unlink(missing_ok=True)
    shutil.copy(made / "it", to)


def client(door: Door, source: str = "client") -> list[str | Path]:
    """The source of a program for the vendor's library, and its macros."""
    amd = ["-DAMD"] if door.library == "rccl" else []
    return [*amd, HERE / f"{source}{'_hccl' if door.library == 'hccl' else ''}.c"]


def linked(door: Door) -> list[str | Path]:
    """What that is linked with."""
    return [
        door.path if SANITIZER else door.real,
        door.simulated / door.runtime,
        "-Wl,--allow-shlib-undefined",
        "-pthread",
        "-ldl",
    ]
