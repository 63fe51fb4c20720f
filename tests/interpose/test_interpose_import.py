"""`import isthmus.interpose`, in programs with packages as the vendors' wheels are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import packages
from doors import DOORS, Door, run, said
from isthmus._doors import DOORS as PACKAGED
from test_interpose_real import none_installed  # noqa: F401

pytestmark = pytest.mark.computes

PYTHON_PATH = [str(Path(next(iter(PACKAGED.values())).path).parents[2])]


@pytest.fixture(params=sorted(DOORS))
def door(request: pytest.FixtureRequest) -> Door:
    """Which one a test is about."""
    return DOORS[request.param]


def program(text: str, folder: Path | None = None, **environment: str | Path) -> tuple[str, str]:
    """What a Python program printed, and the last line that it said to stderr. The folder's packages are seen first."""
    path = ":".join([*([str(folder)] if folder else []), *PYTHON_PATH])
    ended = run(sys.executable, "-c", text, PYTHONPATH=path, **environment)
    said_last = ended.stderr.strip().splitlines()[-1:] if ended.returncode else [ended.stderr.strip()]
    return ended.stdout.strip(), "".join(said_last)


def test_torch_that_is_imported_later_is_behind_the_door(tmp_path: Path) -> None:
    """Its RPATH leads to the real library, which it loads by its path, too; so the door finds it."""
    real = packages.nvidia(tmp_path)
    packages.torch(tmp_path)
    assert program("import torch; print(torch.answered())", tmp_path) == (f"22703 {real}", "")
    door = PACKAGED["nccl"].path
    told = program("import isthmus.interpose, torch; print(isthmus.interpose.door); print(torch.answered())", tmp_path)
    assert told == (f"{door}\n22703 {door}", "")


def test_torch_for_amd_whose_library_has_another_name_is_behind_the_door(tmp_path: Path) -> None:
    """It needs `librccl.so`, which is not the door's SONAME, so its own file is loaded too, though that has this SONAME. The
    door's functions are everybody's, and come first.
    """
    packages.torch_for_amd(tmp_path)
    door = PACKAGED["rccl"].path
    told = program("import isthmus.interpose, torch; print(torch.answered())", tmp_path)
    assert told == (f"22203 {door}", "")


def test_torch_for_ascend_is_behind_the_door(tmp_path: Path) -> None:
    packages.torch_npu(tmp_path)
    door, toolkit = DOORS["hccl"], {"LD_LIBRARY_PATH": DOORS["hccl"].simulated}
    bare = "import torch_npu; print(torch_npu.answered())"
    assert program(bare, tmp_path, **toolkit) == (f"{door.gives} {door.real}", "")
    told = program(f"import isthmus.interpose; {bare}", tmp_path, **toolkit)
    assert told == (f"{door.gives} {PACKAGED['hccl'].path}", "")
    _, error = program("import torch_npu, isthmus.interpose", tmp_path, **toolkit)
    assert f"{door.real}, which keeps its calls; import isthmus.interpose before" in error


@pytest.mark.parametrize("package", ["cupy", "jax_plugins.xla_cuda13"])
def test_cupy_and_jax_are_behind_the_door(package: str, tmp_path: Path) -> None:
    packages.nvidia(tmp_path)
    path = packages.cupy(tmp_path) if package == "cupy" else packages.jax(tmp_path)
    text = (
        f"import isthmus.interpose, ctypes, {package}\n"
        f"library = ctypes.CDLL({str(path)!r})\n"
        "library.whose.restype = ctypes.c_char_p\n"
        "print(library.number(), library.whose().decode())\n"
    )
    assert program(text, tmp_path) == (f"22703 {PACKAGED['nccl'].path}", "")


def test_the_librarys_folder_first_does_not_serve_packages_that_load_it_by_its_path(tmp_path: Path) -> None:
    real = packages.nvidia(tmp_path)
    path = packages.cupy(tmp_path)
    text = (
        f"import cupy, ctypes; l = ctypes.CDLL({str(path)!r}); l.whose.restype = ctypes.c_char_p; print(l.whose().decode())"
    )
    assert program(text, tmp_path, LD_LIBRARY_PATH=PACKAGED["nccl"].path.parent) == (str(real), "")


def test_after_torch_it_says_that_it_is_too_late(tmp_path: Path) -> None:
    real = packages.nvidia(tmp_path)
    packages.torch(tmp_path)
    _, error = program("import torch, isthmus.interpose", tmp_path)
    assert error == (
        f"isthmus.Error: isthmus.interpose: torch has been imported, and with it {real}, which keeps its calls; "
        "import isthmus.interpose before"
    ).replace("isthmus.Error", "isthmus._errors.Error")


def test_after_the_vendors_library_it_says_that_it_is_too_late(door: Door) -> None:
    text = f"import ctypes; ctypes.CDLL({str(door.real)!r}); import isthmus.interpose"
    _, error = program(text, ISTHMUS_INTERPOSE=door.library)
    assert f"{door.library.upper()} is loaded already: {door.real}, which keeps its calls" in error


def test_twice_is_once_and_behind_a_preloaded_door_it_has_nothing_to_do(door: Door) -> None:
    path = PACKAGED[door.library].path
    text = (
        "import isthmus.interpose, importlib\n"
        "first = isthmus.interpose.door\n"
        "importlib.reload(isthmus.interpose)\n"
        "print(first == isthmus.interpose.door, first)\n"
        "print(len({l.split()[-1] for l in open('/proc/self/maps') if 'ccl.so' in l}))\n"
    )
    for preloaded in ({}, {"LD_PRELOAD": path}):
        assert program(text, ISTHMUS_INTERPOSE=door.library, **preloaded) == (f"True {path}\n1", "")


def test_another_vendors_door_is_refused(door: Door) -> None:
    other = PACKAGED["rccl" if door.library == "nccl" else "nccl"].path
    _, error = program("import isthmus.interpose", ISTHMUS_INTERPOSE=door.library, LD_PRELOAD=other)
    assert f"{other} is loaded, and {door.library.upper()}'s front door is asked for: one a process" in error


def test_switched_off_it_does_nothing(door: Door, tmp_path: Path) -> None:
    real = packages.nvidia(tmp_path)
    packages.torch(tmp_path)
    text = "import isthmus.interpose, torch; print(isthmus.interpose.door, torch.answered())"
    assert program(text, tmp_path, ISTHMUS_DISABLE="1") == (f"None 22703 {real}", "")


@pytest.mark.usefixtures("none_installed")
def test_by_what_is_installed(door: Door) -> None:
    """The loader's folders; with two vendors' libraries there it asks which."""
    text = "import isthmus.interpose; print(isthmus.interpose.door)"
    assert program(text, LD_LIBRARY_PATH=door.simulated) == (str(PACKAGED[door.library].path), "")
    both = f"{DOORS['nccl'].simulated}:{DOORS['rccl'].simulated}"
    _, error = program(text, LD_LIBRARY_PATH=both)
    assert "more than one vendor's library is installed (NCCL in " in error and "ISTHMUS_INTERPOSE" in error
    told = program(text, LD_LIBRARY_PATH=both, ISTHMUS_INTERPOSE=door.library)
    assert told == (str(PACKAGED[door.library].path), "")


@pytest.mark.usefixtures("none_installed")
def test_where_there_is_nothing_it_says_so() -> None:
    _, error = program("import isthmus.interpose")
    assert "nothing here uses a vendor's library, and none of libnccl.so.2, " in error


def test_packages_of_two_vendors_are_asked_about(tmp_path: Path) -> None:
    packages.nvidia(tmp_path)
    packages.torch_for_amd(tmp_path)
    packages.cupy(tmp_path)
    _, error = program("import isthmus.interpose", tmp_path)
    assert "torch uses librccl.so.1, cupy uses libnccl.so.2" in error and "ISTHMUS_INTERPOSE" in error


def test_a_library_that_is_part_of_torch_has_no_door(tmp_path: Path) -> None:
    path = packages.torch_with_nccl_inside(tmp_path)
    _, error = program("import isthmus.interpose", tmp_path)
    assert error.endswith(f"{path} has NCCL inside; no front door can stand before it")


def test_a_wrong_setting_is_named() -> None:
    _, error = program("import isthmus.interpose", ISTHMUS_INTERPOSE="nvidia")
    assert "ISTHMUS_INTERPOSE=nvidia" in error and "nccl" in error


def test_it_needs_neither_numpy_nor_torch() -> None:
    text = "import sys\nfor n in ('numpy', 'torch', 'rich'): sys.modules[n] = None\nimport isthmus.interpose\nprint('yes')"
    assert program(text, ISTHMUS_INTERPOSE="nccl") == ("yes", "")


def test_a_child_imports_it_for_itself(tmp_path: Path, fake: Callable[..., Path]) -> None:
    """No variable is left behind."""
    text = "import isthmus.interpose, subprocess; print(subprocess.run(['env'], capture_output=True, text=True).stdout)"
    told, _ = program(text, ISTHMUS_INTERPOSE="nccl")
    assert "LD_PRELOAD" not in told and "LD_AUDIT" not in told
    assert said("true") == ""
