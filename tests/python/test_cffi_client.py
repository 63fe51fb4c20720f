"""The C interface from another language: cffi reads isthmus.h's own declarations and opens the library; no compiler."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import cffi
import pytest

import isthmus

PACKAGE = Path(isthmus.__file__).resolve().parent


def header() -> Path:
    """Of the installed package, else of the sources."""
    places = [PACKAGE / "include", Path(__file__).resolve().parents[2] / "csrc" / "include"]
    return next(path for path in (place / "isthmus" / "isthmus.h" for place in places) if path.exists())


def library() -> str:
    """The one that Python's own face has loaded."""
    maps = Path("/proc/self/maps").read_text()
    return next(line.split()[-1] for line in maps.splitlines() if "/libisthmus.so." in line)


def declarations(text: str) -> str:
    """The header as cffi's parser takes it: without comments, the preprocessor's lines and the export macro."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"^#\s*ifdef __cplusplus\n.*?^#\s*endif\n", "", text, flags=re.DOTALL | re.MULTILINE)
    constants = re.findall(r"^#define (ISTHMUS_\w+) \(?(-?\d+)\)?\s*$", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE).replace("ISTHMUS_API", "")
    return text + "\n".join(f"#define {name} {value}" for name, value in constants)


def test_the_library_has_every_function_that_the_header_declares() -> None:
    ffi = cffi.FFI()
    text = declarations(header().read_text())
    ffi.cdef(text)
    lib = ffi.dlopen(library())
    names = sorted(set(re.findall(r"\b(isthmus_\w+)\s*\(", text)))
    assert len(names) == header().read_text().count("ISTHMUS_API ") - 1  # all but the macro itself
    for name in names:
        assert getattr(lib, name), name
    assert ffi.string(lib.isthmus_version()).decode() == isthmus.__version__
    assert lib.ISTHMUS_ANY_SOURCE == -1
    assert lib.isthmus_dtype_size(lib.ISTHMUS_COMPLEX128) == 16


RANK = """
import sys
sys.path.insert(0, sys.argv[1])
from test_cffi_client import rank_main
rank_main(int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5])
"""


def rank_main(rank: int, address: str, path: str, bridge: str) -> None:
    ffi = cffi.FFI()
    ffi.cdef(declarations(header().read_text()))
    lib = ffi.dlopen(path)

    def check(result: int) -> None:
        if result != lib.ISTHMUS_OK:
            name, text = lib.isthmus_result_name(result), lib.isthmus_last_error()
            raise RuntimeError(f"{ffi.string(name).decode()}: {ffi.string(text).decode()}")

    where, island, link = (ffi.new("char[]", text.encode()) for text in (address, "ab"[rank], bridge))
    options = ffi.new("isthmus_options *", {"size": ffi.sizeof("isthmus_options"), "rank": rank, "world_size": 2})
    options.address, options.timeout, options.bridge = where, 60, link
    if bridge == "tcp":
        options.island = island
    handle = ffi.new("isthmus_comm_t *")
    check(lib.isthmus_init(options, handle))
    comm = handle[0]
    count = 5000
    x = ffi.new("double[]", [rank * 1000 + i for i in range(count)])
    y = ffi.new("double[]", count)
    check(lib.isthmus_all_reduce(comm, x, y, count, lib.ISTHMUS_FLOAT64, lib.ISTHMUS_SUM, ffi.NULL, ffi.NULL))
    assert list(y) == [1000 + 2 * i for i in range(count)]

    work, finished = ffi.new("isthmus_work_t *"), []

    @ffi.callback("void(void *, isthmus_result, const char *)")
    def done(_context: object, result: int, _text: object) -> None:
        finished.append(result)

    source = ffi.new("int *")
    check(lib.isthmus_recv(comm, y, count, lib.ISTHMUS_FLOAT64, lib.ISTHMUS_ANY_SOURCE, 3, source, ffi.NULL, work))
    check(lib.isthmus_work_on_done(work[0], done, ffi.NULL))
    check(lib.isthmus_send(comm, x, count, lib.ISTHMUS_FLOAT64, 1 - rank, 3, ffi.NULL, ffi.NULL))
    check(lib.isthmus_work_wait(work[0], 60.0))
    assert lib.isthmus_work_source(work[0]) == 1 - rank and list(y)[7] == (1 - rank) * 1000 + 7
    lib.isthmus_work_release(work[0])
    check(lib.isthmus_barrier(comm, ffi.NULL, ffi.NULL))
    assert finished == [lib.ISTHMUS_OK]

    bad = lib.isthmus_all_reduce(comm, x, y, count, lib.ISTHMUS_FLOAT64, lib.ISTHMUS_BAND, ffi.NULL, ffi.NULL)
    assert bad == lib.ISTHMUS_ERR_UNSUPPORTED and b"float64" in ffi.string(lib.isthmus_last_error())
    json = ffi.new("char **")
    check(lib.isthmus_comm_topology(comm, json))
    assert b"islands" in ffi.string(json[0])
    lib.isthmus_free(json[0])
    check(lib.isthmus_comm_destroy(comm))


@pytest.mark.parametrize("bridge", ["auto", "tcp"])
def test_two_ranks_of_a_cffi_client(bridge: str) -> None:
    from isthmus import launch

    address = f"127.0.0.1:{launch.free_port()}"
    folder = str(Path(__file__).resolve().parent)
    commands = [[sys.executable, "-c", RANK, folder, str(rank), address, library(), bridge] for rank in range(2)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for command in commands]
    try:
        for rank in ranks:
            text = rank.communicate(timeout=120)[0]
            assert rank.returncode == 0, text
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()


ENDING = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
import cffi
from test_cffi_client import declarations, header

ffi = cffi.FFI()
ffi.cdef(declarations(header().read_text()))
lib = ffi.dlopen(sys.argv[2])
handle, work = ffi.new("isthmus_comm_t *"), ffi.new("isthmus_work_t *")
options = ffi.new("isthmus_options *", {"size": ffi.sizeof("isthmus_options"), "rank": 0, "world_size": 1})
assert lib.isthmus_init(options, handle) == lib.ISTHMUS_OK
byte = ffi.new("char[1]")

@ffi.callback("void(void *, isthmus_result, const char *)")
def done(_context, _result, _text):
    pass

# The end of the interpreter would free the code that a late thread is about to call.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(done))
source, none = ffi.new("int *"), ffi.NULL
assert lib.isthmus_recv(handle[0], byte, 1, lib.ISTHMUS_UINT8, 0, 3, source, none, work) == lib.ISTHMUS_OK
assert lib.isthmus_work_on_done(work[0], done, none) == lib.ISTHMUS_OK
assert lib.isthmus_send(handle[0], byte, 1, lib.ISTHMUS_UINT8, 0, 3, none, none) == lib.ISTHMUS_OK
raise SystemExit(7)
"""


def test_an_interpreter_that_ends_while_a_callback_waits_for_it_ends_with_its_own_status() -> None:
    folder = str(Path(__file__).resolve().parent)
    for _ in range(5):
        command = [sys.executable, "-c", ENDING, folder, library()]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 7, ended.stderr
