"""How the backend's name becomes known, and what is said where it cannot be."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import isthmus
import isthmus.torch
from patience import patient


def python(code: str, *paths: Path | str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new interpreter, with `paths` before all others."""
    path = os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": path} | env,
        capture_output=True,
        text=True,
        timeout=patient(120),
    )


def package_with(folder: Path, **modules: str) -> Path:
    """A copy of the installed package, by links, in which the named modules are replaced."""
    package = folder / "isthmus"
    package.mkdir()
    for module in modules:
        (package / f"{module}.py").write_text(textwrap.dedent(modules[module]))
    for place in isthmus.__path__:
        for file in Path(place).iterdir():
            name = file.name.split(".")[0]
            if name not in modules and not (package / file.name).exists() and file.name != "__pycache__":
                (package / file.name).symlink_to(file)
    return folder


def test_the_import_registers_the_name_for_every_kind_of_device() -> None:
    assert "isthmus" in dist.Backend.backend_list
    assert dist.Backend.backend_capability["isthmus"] == ["cpu", "cuda", "xpu", "privateuseone"]


def test_registration_takes_no_device_from_another_backend() -> None:
    assert "isthmus" not in dist.Backend.default_device_backend_map.values()
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"


def test_registering_twice_changes_nothing() -> None:
    from _isthmus_autoload import register

    before = list(dist.Backend.backend_list)
    register()
    assert dist.Backend.backend_list == before


def test_the_package_declares_both_entry_points_of_torch() -> None:
    for group in ("torch.backends", "torch.distributed.backends"):
        points = [p for p in importlib.metadata.entry_points(group=group) if p.name == "isthmus"]
        assert len(points) == 1, group
        assert callable(points[0].load())


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a program of its own saw, that imports torch, makes a group, and then imports isthmus."""
    store = tmp_path_factory.mktemp("rendezvous") / "store"
    said = python(f"""
        import json, sys, torch, torch.distributed as dist
        saw = {{"names": dist.Backend.backend_list, "loaded": [name for name in sys.modules if name.startswith("isthmus")]}}
        dist.init_process_group("isthmus", init_method="file://{store}", rank=0, world_size=1)
        x = torch.ones(3)
        dist.all_reduce(x)
        dist.destroy_process_group()
        saw["sum"] = x.tolist()
        import isthmus, isthmus.torch
        saw["libraries"] = sorted({{line.split()[-1] for line in open("/proc/self/maps") if "libisthmus" in line}})
        print(json.dumps(saw))
        """)
    assert said.returncode == 0, said.stderr
    saw: dict[str, Any] = json.loads(said.stdout)
    return saw


def test_import_torch_alone_makes_the_name_known_and_loads_nothing_of_isthmus(program: dict[str, Any]) -> None:
    assert "isthmus" in program["names"] and not program["loaded"]


def test_a_group_can_be_made_without_an_import_of_isthmus(program: dict[str, Any]) -> None:
    assert program["sum"] == [1.0, 1.0, 1.0]


def test_both_faces_share_one_library(program: dict[str, Any]) -> None:
    assert len(program["libraries"]) == 1, program["libraries"]


def test_a_broken_isthmus_does_not_break_import_torch(tmp_path: Path) -> None:
    (tmp_path / "isthmus").mkdir()
    (tmp_path / "isthmus" / "__init__.py").write_text("raise RuntimeError('broken')")
    said = python("import torch; print(torch.ones(2).sum().item())", tmp_path)
    assert said.returncode == 0 and said.stdout.strip() == "2.0", said.stderr


def test_another_torch_minor_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = package_with(tmp_path, _torch_build='TORCH_VERSION = "2.9.1+cpu"')
    said = python("import isthmus.torch", path)
    assert said.returncode != 0
    assert "ImportError" in said.stderr and "built against PyTorch 2.9.1" in said.stderr
    assert torch.__version__ in said.stderr and "pip install" in said.stderr


def test_a_build_without_torch_says_how_to_rebuild(tmp_path: Path) -> None:
    path = package_with(tmp_path, _torch_build="raise ImportError(__name__)")
    said = python("import isthmus.torch", path)
    assert "built without its torch backend" in said.stderr and "pip install --force-reinstall" in said.stderr


def test_without_torch_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')")
    said = python("import isthmus; print('core works'); import isthmus.torch", tmp_path)
    assert said.stdout.strip() == "core works", said.stderr
    assert "pip install torch" in said.stderr


def test_helpers_say_what_is_missing() -> None:
    with pytest.raises(ValueError, match="init_process_group"):
        isthmus.torch.topology()


def test_one_extension_serves_every_vendor() -> None:
    """It asks for nothing of CUDA, ROCm or CANN, so the same file works with every build of its PyTorch."""
    from elftools.elf.elffile import ELFFile

    (extension,) = [file for place in isthmus.__path__ for file in Path(place).glob("_torch.*.so")]
    with open(extension, "rb") as file:
        elf = ELFFile(file)
        tags = elf.get_section_by_name(".dynamic").iter_tags()
        needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
        undefined = [s.name for s in elf.get_section_by_name(".dynsym").iter_symbols() if s["st_shndx"] == "SHN_UNDEF"]
    library = next(path.name for path in Path(isthmus.__file__).parent.glob("libisthmus.so.*"))
    torchs = {"libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so"}
    systems = {"libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6"}
    assert {name for name in needed if not name.startswith("ld-linux")} <= torchs | systems | {library}, needed
    assert len(undefined) > 100
    vendors = re.compile(r"cuda|nccl|rccl|hccl|^_?hip[A-Z]|[34]hip\d|acl(rt|Init)|^cu[A-Z]|c10_npu", re.IGNORECASE)
    assert not [name for name in undefined if vendors.search(name)]
