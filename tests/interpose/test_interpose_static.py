"""Programs with NCCL or RCCL linked in statically: no symbol tells of the library, and its texts do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import packages
from doors import DOORS, compile_c, run
from patience import patient
from test_interpose_run import PYTHON_PATH, isthmus, refusal

pytestmark = pytest.mark.computes

# What a library of the vendor's has among its constants. %s: how it says its version.
LIBRARY = """
#include <stdio.h>
static const char *const texts[] = {
  "NCCL_COMM_ID", "Bootstrap : no socket interface found", "unhandled system error (run with NCCL_DEBUG=INFO for details)",
  "NCCL_TOPO_FILE", "%s",
};
int ncclGetVersion(int *version);
int ncclGetVersion(int *version) {
  *version = 22703;
  return puts(texts[*version %% 5]) < 0;
}
"""
PROGRAM = "int ncclGetVersion(int *version);\nint main(void) { int n = 0; return ncclGetVersion(&n); }\n"
# What a program may say of NCCL that only uses it: the variables it sets, the errors it knows, the version it asks for.
MENTIONS = """
#include <stdio.h>
int main(int count, char **words) {
  const char *const texts[] = {
    "NCCL_COMM_ID", "NCCL_TOPO_FILE", "unhandled system error", "NCCL version ", "NCCL version %d", "libnccl.so.2", words[0],
  };
  return puts(texts[count]) < 0;
}
"""
NVIDIA, AMD = "NCCL version 2.27.3+cuda12.9", "RCCL version : 2.22.3-HEAD"


def archive(folder: Path, version: str = NVIDIA) -> list[str]:
    """How to link with a static library whose functions are hidden."""
    source, made = folder / "library.c", folder / "library.o"
    source.write_text(LIBRARY % version)
    compile_c("-c", "-fPIC", "-fvisibility=hidden", source, "-o", made)
    subprocess.run(["ar", "rcs", str(folder / "libnccl_static.a"), str(made)], check=True, timeout=patient(60))
    return [f"-L{folder}", "-lnccl_static"]


def with_it_inside(folder: Path, *options: str, version: str = NVIDIA) -> Path:
    source, program = folder / "program.c", folder / "program"
    source.write_text(PROGRAM)
    compile_c(*options, source, "-o", program, *archive(folder, version))
    return program


def library_with_it_inside(path: Path, folder: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    source = folder / "user.c"
    source.write_text(PROGRAM.replace("int main(void)", "int work(void);\nint work(void)"))
    compile_c("-shared", "-fPIC", source, "-o", path, *archive(folder))
    return path


def report_of(*command: str | Path, folder: Path | None = None) -> dict[str, Any]:
    path = f"{folder}:{PYTHON_PATH}" if folder else PYTHON_PATH
    ended = run(sys.executable, "-m", "isthmus", "doctor", "--json", "--program", *command, PYTHONPATH=path)
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def said_of(file: Path, name: str = "NCCL", soname: str = "libnccl.so.2") -> str:
    return (
        f"{file} has {name} linked in statically, where no front door can take its calls: they run without Isthmus; "
        f"link it with {soname} instead"
    )


def test_a_program_with_the_library_inside_is_refused_though_no_symbol_tells(tmp_path: Path) -> None:
    program = with_it_inside(tmp_path)
    assert refusal("--", program) == f"{said_of(program)}, or start it all the same: --vendor nccl"


def test_a_program_whose_symbols_and_sections_are_stripped_is_refused_too(tmp_path: Path) -> None:
    program = with_it_inside(tmp_path, "-s")
    data = bytearray(program.read_bytes())
    data[40:48], data[60:64] = bytes(8), bytes(4)  # where the sections are, and how many
    program.write_bytes(data)
    assert refusal("--", program).startswith(said_of(program))


def test_one_with_the_library_of_amd_inside_is_refused_by_its_name(tmp_path: Path) -> None:
    program = with_it_inside(tmp_path, version=AMD)
    assert refusal("--", program).startswith(said_of(program, "RCCL", "librccl.so.1"))


def test_a_program_whose_library_has_it_inside_is_refused(tmp_path: Path) -> None:
    library = library_with_it_inside(tmp_path / "libtrain.so", tmp_path)
    (tmp_path / "main.c").write_text("int work(void);\nint main(void) { return work(); }\n")
    program = tmp_path / "main"
    compile_c(tmp_path / "main.c", "-o", program, library, f"-Wl,-rpath,{tmp_path}")
    assert refusal("--", program).startswith(said_of(library))


def test_with_the_vendor_named_it_starts_and_a_line_says_that_its_calls_pass_by(tmp_path: Path) -> None:
    program = with_it_inside(tmp_path)
    ended = isthmus("--vendor", "nccl", "--", program)
    assert (ended.returncode, ended.stdout.count("\n")) == (0, 1) and said_of(program) in ended.stderr, ended.stderr


def test_a_package_with_it_inside_beside_one_that_is_linked_is_a_line_and_no_refusal(tmp_path: Path) -> None:
    """The program may be the other's."""
    packages.nvidia(tmp_path)
    packages.torch(tmp_path)
    inside = library_with_it_inside(tmp_path / "tensorflow" / "libtensorflow_cc.so.2", tmp_path)
    ended = isthmus("--", sys.executable, "-c", "import torch; print(torch.answered())", folder=tmp_path)
    assert ended.returncode == 0 and str(DOORS["nccl"].soname) in ended.stdout, ended.stderr
    assert said_of(inside) in ended.stderr


def test_the_doctor_shows_it_and_that_no_way_leads_to_the_door(tmp_path: Path) -> None:
    program = with_it_inside(tmp_path)
    report = report_of(program)
    (user,) = report["users"]
    assert (user["how"], user["library"], user["file"]) == ("hidden", "nccl", str(program))
    assert user["binds"] == str(program) and not any(user["ways"].values())
    assert report["choice"] is None and report["error"].startswith(said_of(program))
    ended = run(sys.executable, "-m", "isthmus", "doctor", "--program", program, PYTHONPATH=PYTHON_PATH)
    assert ended.returncode == 1 and "has NCCL linked in statically, and shows none of its functions" in ended.stdout


def test_a_static_program_is_shown_with_what_it_has_inside(tmp_path: Path) -> None:
    report = report_of(with_it_inside(tmp_path, "-static"))
    assert [user["how"] for user in report["users"]] == ["hidden"] and "linked statically" in report["error"]


def test_a_program_that_only_mentions_the_librarys_texts_has_nothing_inside(tmp_path: Path) -> None:
    (tmp_path / "mentions.c").write_text(MENTIONS)
    program = tmp_path / "mentions"
    compile_c(tmp_path / "mentions.c", "-o", program)
    assert report_of(program)["users"] == []


@pytest.mark.parametrize("functions", ["linked against it", "found at run time"])
def test_a_program_that_takes_the_functions_from_outside_has_nothing_inside(functions: str, tmp_path: Path) -> None:
    """It has all the texts, as a tool might that explains the library's output."""
    (tmp_path / "all.c").write_text(LIBRARY.replace("ncclGetVersion", "number") % NVIDIA + PROGRAM.replace("main", "part"))
    library = tmp_path / "liball.so"
    against = [DOORS["nccl"].real] if functions == "linked against it" else []
    compile_c("-shared", "-fPIC", tmp_path / "all.c", "-o", library, *against)
    (tmp_path / "main.c").write_text("int number(int *);\nint main(void) { int n = 0; return number(&n); }\n")
    program = tmp_path / "main"
    loose = "-Wl,--unresolved-symbols=ignore-all"
    compile_c(tmp_path / "main.c", "-o", program, library, loose, f"-Wl,-rpath,{tmp_path}")
    assert "hidden" not in [user["how"] for user in report_of(program)["users"]]
