"""What the front doors export and need: the table, and nothing that happens by itself."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from doors import DOORS, HERE, ROOT, SOURCES, Door, said
from interpose_entries import TableError, read_row, read_table

pytestmark = pytest.mark.computes

ROWS = {door.table: read_table(door.rows) for door in DOORS.values()}


def symbols(path: Path) -> tuple[set[str], set[str]]:
    """The names that a library defines for others, and those that it asks for."""
    with open(path, "rb") as file:
        found = [s for s in ELFFile(file).get_section_by_name(".dynsym").iter_symbols() if s.name]
        wanted = {s.name for s in found if s["st_shndx"] == "SHN_UNDEF"}
        return {s.name for s in found} - wanted, wanted


def dynamic(path: Path) -> dict[str, list[str]]:
    with open(path, "rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        found: dict[str, list[str]] = {}
        for entry in section.iter_tags():
            tag = entry.entry.d_tag
            value = entry.needed if tag == "DT_NEEDED" else entry.soname if tag == "DT_SONAME" else ""
            found.setdefault(tag, []).append(value)
        return found


def test_the_exports_are_the_tables(door: Door) -> None:
    exported, _ = symbols(door.path)
    assert exported == {name for row in ROWS[door.table] if row.is_in(door.library) for name in row.names}


def test_nothing_that_a_client_of_hccl_calls_is_missing() -> None:
    """pyhccl's names are those of the functions it looks up; some are inline in Huawei's headers, and so in it."""
    pyhccl = pytest.importorskip("pyhccl", reason="pyhccl has no wheel for this Python")
    inline = {
        "HcclChannelDescInit",
        "HcclCommConfigInit",
        "HcclKernelLaunchCfgInit",
        "HcclOpDescInit",
        "HcclTeamCreateDescInit",
    }
    called = {name for name in dir(pyhccl) if name.startswith("Hccl") and inspect.isroutine(getattr(pyhccl, name))}
    assert len(called) > 100 and inline < called
    assert called - inline <= symbols(DOORS["hccl"].path)[0]


def test_the_simulated_libraries_have_no_name_that_the_doors_lack(door: Door) -> None:
    real, _ = symbols(door.real)
    names = {name for name in real if re.match(r"p?nccl[A-Z]|H(ccl|com)[A-Z]", name)}
    assert len(names) > 25 and names <= symbols(door.path)[0]


def test_nothing_happens_when_a_door_is_loaded(door: Door) -> None:
    """No constructor, no destructor, nothing needed but the C library: children of a program inherit LD_PRELOAD."""
    found = dynamic(door.path)
    assert found["DT_SONAME"] == [door.soname]
    assert set(found["DT_NEEDED"]) <= {"libc.so.6", "libdl.so.2"} and "libc.so.6" in found["DT_NEEDED"]
    by_itself = {"DT_INIT", "DT_FINI", "DT_INIT_ARRAY", "DT_FINI_ARRAY", "DT_PREINIT_ARRAY"}
    assert not by_itself & set(found)
    assert not {"DT_RPATH", "DT_RUNPATH", "DT_TEXTREL"} & set(found)


def test_the_bridge_is_a_program_of_isthmus_and_exports_how_to_open_it() -> None:
    bridge = DOORS["nccl"].path.parent / "libisthmus_bridge.so"
    assert symbols(bridge)[0] == {"isthmus_bridge_nccl", "isthmus_bridge_hccl"}
    assert {name for name in symbols(bridge)[1] if name.startswith(("nccl", "cu", "hip", "Hccl", "acl"))} == set()
    assert [name for name in dynamic(bridge)["DT_NEEDED"] if name.startswith("libisthmus.so.")]


def test_the_doors_ask_for_nothing_of_cpp(door: Door) -> None:
    _, wanted = symbols(door.path)
    assert "dlopen" in wanted
    assert [name for name in wanted if name.startswith(("_Z", "__gxx", "_Unwind")) or name in ("dlmopen", "dlvsym")] == []


def test_a_door_needs_little_of_the_memory_that_threads_keep_for_libraries(door: Door) -> None:
    """The loader has some hundred bytes of it for all libraries that a program opens late, and refuses what finds none."""
    with door.path.open("rb") as file:
        (block,) = (s for s in ELFFile(file).iter_segments() if s.header.p_type == "PT_TLS")
        assert block.header.p_memsz <= 64


def test_the_real_library_is_never_the_next_nor_in_a_namespace_of_its_own_nor_asked_by_its_twins() -> None:
    """Neither by the doors nor by the bridge. The hook alone asks for the next dlopen, which is the C library's."""
    sources = {path.relative_to(SOURCES).as_posix(): path.read_text() for path in SOURCES.rglob("*.[ch]pp")}
    assert {"search.cpp", "entry.hpp", "ways/door.cpp", "bridge/face_nccl.cpp", "bridge/face_hccl.hpp"} <= set(sources)
    words = re.compile(r"RTLD_NEXT|\bdlmopen\b|\bpnccl\w*")
    assert {name for name, text in sources.items() if words.search(text)} == {"ways/dlopen.cpp"}
    assert symbols(DOORS["nccl"].path.parent / "libisthmus_bridge.so")[1].isdisjoint({"dlmopen", "dlvsym"})


def test_a_program_that_never_calls_gets_nothing_opened(door: Door) -> None:
    """A door in a program that has no use for it, where the real library could be found."""
    environment = {"LD_PRELOAD": door.path, "LD_LIBRARY_PATH": door.simulated, "ISTHMUS_LOG": "trace"}
    maps = said("cat", "/proc/self/maps", **environment)
    loaded = {Path(line.split(maxsplit=5)[5]).name for line in maps.splitlines() if ".so" in line}
    assert door.soname in loaded
    assert {name for name in loaded if not re.match(r"(libc|libdl|ld-linux[\w-]*)\.so", name)} == {door.soname}
    assert str(door.real) not in maps


def test_the_package_has_the_doors(door: Door) -> None:
    spec = importlib.util.find_spec("isthmus")
    assert spec is not None and spec.origin is not None
    packaged = Path(spec.origin).parent / "interpose" / door.soname
    assert symbols(packaged)[0] == symbols(door.path)[0]
    assert set(dynamic(packaged)["DT_NEEDED"]) <= {"libc.so.6", "libdl.so.2"}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("both 2.3.5 p forward", "fewer than five"),
        ("mpi 2.3.5 p forward Result f()", "mpi is none of"),
        ("both new p forward Result f()", "no version"),
        ("both 2.3.5 q forward Result f()", "neither p"),
        ("both 2.3.5 p guess Result f()", "guess is none of"),
        ("hccl - - jump Result f()", "no name"),
        ("hccl - p jump f", "no twin"),
        ("both 2.3.5 p forward Result f", "no signature"),
        ("both 2.3.5 p forward Result f(int,,int)", "empty"),
        ("both 2.3.5 p refuse Result f(int)", "no communicator"),
        ("both 2.29.2 p come Result f(int)", "no communicator"),
    ],
)
def test_a_wrong_row_is_refused(line: str, complaint: str) -> None:
    with pytest.raises(TableError, match=complaint):
        read_row(line)


@pytest.mark.parametrize("table", ROWS)
def test_no_call_takes_a_communicator_of_ours_to_the_real_library(table: str) -> None:
    """Of what takes a communicator nothing is simply forwarded."""
    takers = [row for row in ROWS[table] if row.communicator is not None]
    assert len(takers) > 60
    assert [row.name for row in takers if row.policy in ("forward", "jump")] == []


def test_of_hccls_functions_189_may_take_one_there_for_nobody_says_what_they_take() -> None:
    """docs/reference/interpose.md says so. No header for programs has one; NCCL and RCCL have none of the kind."""
    jumps = {row.name for row in ROWS["hccl.symbols"] if row.policy == "jump"}
    assert len(jumps) == 189 and not any(row.parameters for row in ROWS["hccl.symbols"] if row.name in jumps)
    assert [row.name for row in ROWS["nccl.symbols"] if row.policy == "jump"] == []
    headers = set((HERE / "names" / "hccl-headers.txt").read_text().split("\n"))
    assert len(headers) > 100 and not jumps & headers
    assert f"{len(jumps)} functions" in (ROOT / "docs" / "reference" / "interpose.md").read_text()


def test_a_name_may_be_there_once(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_text("both 2.3.5 p forward Result f(int)\nnccl 2.3.5 - forward Result pf(int)\n")
    with pytest.raises(SystemExit, match="2: pf is there already"):
        read_table(path)
