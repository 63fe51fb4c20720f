"""The built library keeps its promises: nothing but its public interface is visible, and it needs nothing but the system."""

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

import isthmus
from patience import patient

ROOT = Path(__file__).resolve().parents[2]
MAJOR, MINOR, _ = isthmus.__version__.split(".")
ABI = f"0.{MINOR}" if MAJOR == "0" else MAJOR
LIBRARY = f"libisthmus.so.{ABI}"  # and libisthmus.so where there are links, or a line for the linker in their place
# The C and C++ run time of every Linux; on AArch64 the loader is named too.
SYSTEM = re.compile(r"^(libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|librt|ld-linux-[\w-]+)\.so\.\d+$")


def package() -> Path:
    spec = importlib.util.find_spec("isthmus")
    assert spec is not None and spec.origin is not None, "the package isthmus is not installed"
    return Path(spec.origin).parent


def dynamic(path: Path, tag: str) -> list[str]:
    """The values of one tag (needed, runpath, soname, ...) of a shared object's dynamic section."""
    with open(path, "rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        return [getattr(entry, tag) for entry in section.iter_tags() if hasattr(entry, tag)]


def exported(path: Path) -> set[str]:
    with open(path, "rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        return {
            symbol.name
            for symbol in table.iter_symbols()
            if symbol.name and symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL"
        }


def declared() -> set[str]:
    """The functions of the public header."""
    header = (package() / "include" / "isthmus" / "isthmus.h").read_text()
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    return set(re.findall(r"ISTHMUS_API[^;(]*?\b(isthmus_\w+)\s*\(", code))


def test_the_library_exports_exactly_the_functions_of_its_header() -> None:
    assert len(declared()) > 30
    assert exported(package() / LIBRARY) == declared()


def test_the_library_is_named_by_the_version_that_may_change_its_abi_and_is_one_file() -> None:
    assert dynamic(package() / LIBRARY, "soname") == [LIBRARY]
    elves = [path.name for path in package().glob("libisthmus.so*") if path.read_bytes()[:4] == b"\x7fELF"]
    assert elves == [LIBRARY], "two copies would be two libraries in one process"


def test_the_packaged_header_is_the_one_in_the_sources() -> None:
    ours = ROOT / "csrc" / "include" / "isthmus" / "isthmus.h"
    assert (package() / "include" / "isthmus" / "isthmus.h").read_bytes() == ours.read_bytes()


def test_the_library_needs_only_the_systems_run_time() -> None:
    needed = dynamic(package() / LIBRARY, "needed")
    assert "libc.so.6" in needed
    assert [name for name in needed if not SYSTEM.match(name)] == []


def test_the_library_asks_for_no_symbol_of_python_or_torch() -> None:
    with open(package() / LIBRARY, "rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        wanted = [s.name for s in symbols if s["st_shndx"] == "SHN_UNDEF"]
    assert [name for name in wanted if re.match(r"_?Py[A-Z_]|_ZN.?(2at|3c10|4c10d|5torch)", name)] == []


@pytest.mark.parametrize("pattern", ["_core*.so", "bin/isthmus-bench"])
def test_the_faces_find_the_library_inside_the_package(pattern: str) -> None:
    (path,) = package().glob(pattern)
    (places,) = dynamic(path, "runpath")  # the program's second one is that of an installation in lib/ and bin/
    assert re.fullmatch(r"\$ORIGIN" if path.parent == package() else r"\$ORIGIN/\.\.:\$ORIGIN/\.\./lib\w*", places)
    needed = dynamic(path, "needed")
    assert LIBRARY in needed
    assert [name for name in needed if name != LIBRARY and not SYSTEM.match(name)] == []


def test_the_torch_extension_finds_the_library_inside_the_package_and_torch_in_its_own() -> None:
    (path,) = package().glob("_torch*.so")
    # "$ORIGIN" first. Where torch lies at build time may follow nowhere: the wheel goes to other machines.
    assert dynamic(path, "runpath")[0].split(":")[0] == "$ORIGIN"
    assert all(part.startswith("$ORIGIN") for part in dynamic(path, "runpath")[0].split(":"))
    torch = re.compile(r"^lib(c10|torch(_cpu|_python)?)\.so$")
    needed = [name for name in dynamic(path, "needed") if not torch.match(name) and not SYSTEM.match(name)]
    assert needed == [LIBRARY]


def test_the_library_is_built_with_optimisation_and_without_an_executable_stack() -> None:
    with open(package() / LIBRARY, "rb") as file:
        stack = [s for s in ELFFile(file).iter_segments() if s["p_type"] == "PT_GNU_STACK"]
    assert stack and not stack[0]["p_flags"] & 1
    commands = json.loads((ROOT / "build" / "release" / "compile_commands.json").read_text())
    (words,) = [shlex.split(entry["command"]) for entry in commands if "/isthmus_api.dir/" in entry["command"]]
    assert [word for word in words if word.startswith("-O")][-1] == "-O3"  # the last one counts
    assert not [word for word in words if word.startswith("-fsanitize")]


PROGRAM = """
#include <isthmus/isthmus.h>
#include <stdio.h>
int main(void) { printf("%s\\n", isthmus_version()); return 0; }
"""


def config(*words: str) -> str:
    command = [sys.executable, "-c", "from isthmus.cli.config import main; raise SystemExit(main())", *words]
    return subprocess.run(command, text=True, capture_output=True, check=True, timeout=patient(60)).stdout.strip()


def test_a_c_program_is_built_with_what_isthmus_config_says(tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    words = ["cc", "-std=c99", "-Werror", "program.c", *config("--cflags", "--libs").split(), "-o", "program"]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=patient(60))
    ran = subprocess.run([tmp_path / "program"], text=True, capture_output=True, check=True, timeout=patient(60))
    assert ran.stdout.strip() == isthmus.__version__
    assert f"-I{isthmus.get_include()}" in words


def needed_by(program: Path) -> list[str]:
    return [name for name in dynamic(program, "needed") if "isthmus" in name]


def version_of(program: Path, **environment: str) -> str:
    ran = subprocess.run(
        [program], text=True, capture_output=True, check=True, timeout=patient(60), env={**os.environ, **environment}
    )
    return ran.stdout.strip()


@pytest.mark.parametrize("linker", ["bfd", "gold"])
def test_a_program_linked_with_listhmus_asks_for_the_major_version(tmp_path: Path, linker: str) -> None:
    if shutil.which(f"ld.{linker}") is None:
        pytest.skip(f"no ld.{linker}")
    (tmp_path / "program.c").write_text(PROGRAM)
    words = [f"-I{isthmus.get_include()}", f"-L{package()}", "-listhmus", f"-fuse-ld={linker}", "-o", "program"]
    subprocess.run(["cc", "program.c", *words], cwd=tmp_path, check=True, timeout=patient(60))
    assert needed_by(tmp_path / "program") == [LIBRARY]
    assert version_of(tmp_path / "program", LD_LIBRARY_PATH=str(package())) == isthmus.__version__


def cmake_program(folder: Path, prefix: str, asked: str = "0.1") -> subprocess.CompletedProcess[bytes]:
    """Configures a program that stands on find_package, and builds it."""
    (folder / "program.c").write_text(PROGRAM)
    (folder / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.20)\nproject(program C)\nfind_package(isthmus {asked} REQUIRED CONFIG)\n"
        "add_executable(program program.c)\ntarget_link_libraries(program PRIVATE isthmus::isthmus)\n"
    )
    configure = ["cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}"]
    ended = subprocess.run(configure, capture_output=True, timeout=patient(120))
    if ended.returncode == 0:
        ended = subprocess.run(["cmake", "--build", folder / "build"], capture_output=True, timeout=patient(120))
    return ended


def test_cmake_finds_the_package(tmp_path: Path) -> None:
    built = cmake_program(tmp_path, config("--cmakedir"))
    assert built.returncode == 0, built.stderr
    assert needed_by(tmp_path / "build" / "program") == [LIBRARY]
    assert version_of(tmp_path / "build" / "program") == isthmus.__version__


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (isthmus.__version__, True),
        (f"{MAJOR}.{MINOR}", True),
        (MAJOR, True),
        (str(int(MAJOR) + 1), False),
        (f"{MAJOR}.{int(MINOR) + 1}", False),
        pytest.param("0.0", False, marks=pytest.mark.skipif(MAJOR != "0", reason="a minor version changes nothing there")),
    ],
)
def test_cmake_takes_versions_of_the_same_abi_that_are_not_older_and_no_others(
    tmp_path: Path, asked: str, found: bool
) -> None:
    ended = cmake_program(tmp_path, config("--cmakedir"), asked)
    assert (ended.returncode == 0) is found, ended.stderr
    assert found or isthmus.__version__.encode() in ended.stderr


def test_pkg_config_says_the_same_as_isthmus_config() -> None:
    folder = Path(config("--pkgconfigdir"))
    lines = (folder / "isthmus.pc").read_text().splitlines()
    assert f"Version: {isthmus.__version__}" in lines
    said = [
        line.partition(": ")[2].replace("${prefix}", str(folder.parent)) for line in lines if line[:4] in ("Cfla", "Libs")
    ]
    assert said == [config("--cflags"), config("--libs")]


def test_the_description_of_the_package_leads_nowhere_that_an_index_lacks() -> None:
    described = importlib.metadata.metadata("isthmus")
    text = described.get_payload()
    assert isinstance(text, str) and text.startswith("# Isthmus")
    relative = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert relative == []
    classifiers = described.get_all("Classifier") or []
    assert {"Typing :: Typed", "Development Status :: 4 - Beta", "Operating System :: POSIX :: Linux"} <= set(classifiers)
    assert f"Programming Language :: Python :: {sys.version_info[0]}.{sys.version_info[1]}" in classifiers
    assert described["License-Expression"] == "Apache-2.0"


def test_the_package_has_the_documentation() -> None:
    folder = Path(config("--docs"))
    pages = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".svg")]
    ours = {path.relative_to(ROOT / "docs"): path.read_bytes() for path in pages}
    theirs = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert theirs == ours and Path("explain/plans.md") in ours


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `cmake --install` puts somewhere, from the build that the package was made in; and moved from there."""
    first, moved = tmp_path_factory.mktemp("first") / "usr", tmp_path_factory.mktemp("moved") / "opt"
    words = ["cmake", "--install", ROOT / "build" / "release", "--prefix", first]
    subprocess.run(words, check=True, capture_output=True, timeout=patient(120))
    first.rename(moved)
    return moved


def libraries(prefix: Path) -> Path:
    (folder,) = prefix.glob("lib*")  # lib64 on some systems
    return folder


def test_cmake_install_lays_out_a_prefix_and_nothing_of_python(prefix: Path) -> None:
    files = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}
    lib = libraries(prefix).name
    assert {"bin/isthmus-bench", "include/isthmus/isthmus.h", f"{lib}/libisthmus.so", f"{lib}/{LIBRARY}"} < files
    assert {f"{lib}/pkgconfig/isthmus.pc", f"{lib}/cmake/isthmus/isthmus-config.cmake", "share/doc/isthmus/LICENSE"} < files
    assert {f"{lib}/isthmus/libnccl.so.2", f"{lib}/isthmus/libisthmus_bridge.so"} < files
    assert not [name for name in files if name.startswith("isthmus/") or "_core" in name or name.endswith(".py")]
    assert (libraries(prefix) / "libisthmus.so").readlink() == Path(LIBRARY)
    ctypes.CDLL(str(libraries(prefix) / "isthmus" / "libisthmus_bridge.so"))  # finds the library in the folder above
    said = subprocess.run([prefix / "bin" / "isthmus-bench", "--version"], text=True, capture_output=True, check=True)
    assert said.stdout.strip() == f"isthmus-bench {isthmus.__version__}"


def test_cmake_finds_a_prefix(prefix: Path, tmp_path: Path) -> None:
    built = cmake_program(tmp_path, str(prefix))
    assert built.returncode == 0, built.stderr
    assert needed_by(tmp_path / "build" / "program") == [LIBRARY]
    assert version_of(tmp_path / "build" / "program") == isthmus.__version__


def test_pkg_config_finds_a_prefix(prefix: Path, tmp_path: Path) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config")
    (tmp_path / "program.c").write_text(PROGRAM)
    environment = {**os.environ, "PKG_CONFIG_PATH": str(libraries(prefix) / "pkgconfig")}
    words = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "isthmus"], env=environment, text=True, capture_output=True, check=True
    ).stdout.split()
    subprocess.run(["cc", "program.c", *words, "-o", "program"], cwd=tmp_path, check=True, timeout=patient(60))
    assert version_of(tmp_path / "program", LD_LIBRARY_PATH=str(libraries(prefix))) == isthmus.__version__
