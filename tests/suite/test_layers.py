"""A wrong include is found: by the layering check, and by the compiler, which sees only the floors that a floor names."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_layers  # noqa: E402

BUILD = ROOT / "build" / "release"
FACES = (*check_layers.FACES, check_layers.BESIDE)  # what stands on isthmus.h, and what stands beside the house


@pytest.mark.parametrize(
    ("floor", "text"),
    [
        ("base", '#include "plan/plan.hpp"\n'),
        ("plan", '#include "net/wire.hpp"\n'),
        ("reduce", '#include "topology/topology.hpp"\n'),
        ("link", '#include "engine/operation.hpp"\n'),
        ("engine", "#include <isthmus/isthmus.h>\n"),
        ("torch", '#include "engine/operation.hpp"\n'),
        ("comm", "#include <cuda.h>\n"),
        ("observe", '#include "torch/backend.hpp"\n'),
        ("rehearsal", '#include "torch/backend.hpp"\n'),
        ("interpose", '#include "ccl/nccl_abi.hpp"\n'),
        ("interpose", "#include <nccl.h>\n"),
        # Of base/ only the locks may be included anywhere.
        *((face, f'#include "base/{header}.hpp"\n') for face in FACES for header in ("error", "own_thread", "doorbell")),
    ],
)
def test_a_wrong_include_is_a_breach(floor: str, text: str) -> None:
    assert len(check_layers.check_includes("x.cpp", floor, text)) == 1


@pytest.mark.parametrize(
    ("floor", "text"),
    [
        ("plan", '#include "base/dtype.hpp"\n#include "topology/topology.hpp"\n#include <vector>\n'),
        ("comm", '#include "net/wire.hpp"\n'),
        ("api", "#include <isthmus/isthmus.h>\n"),
        ("python", '#include "array.hpp"\n#include <isthmus/isthmus.h>\n'),
        ("interpose", '#include "abi.hpp"\n#include <dlfcn.h>\n#include <isthmus/isthmus.h>\n'),
        ("rehearsal", '#include "core/skin.hpp"\n#include "nccl/nccl_abi.hpp"\n'),
        ("rehearsal", '#include "core/machine.hpp"\n#include <torch/library.h>\n'),
        *((face, f'#include "{header}"\n') for face in FACES for header in check_layers.ANYWHERE),
    ],
)
def test_a_right_include_is_none(floor: str, text: str) -> None:
    assert check_layers.check_includes("x.cpp", floor, text) == []


@pytest.mark.parametrize("header", check_layers.ANYWHERE)
def test_a_header_for_any_code_includes_the_standard_library_alone(header: str) -> None:
    right = '#include <mutex>\n#include "base/spin_lock.hpp"\n'
    assert check_layers.check_includes(f"csrc/{header}", "base", right) == []
    for wrong in ('"base/error.hpp"', "<isthmus/isthmus.h>", "<fmt/format.h>"):
        assert len(check_layers.check_includes(f"csrc/{header}", "base", f"#include {wrong}\n")) == 1


def test_the_build_shows_faces_the_headers_for_any_code() -> None:
    shown = {file.name: file.resolve() for file in (BUILD / "floors" / "anywhere" / "base").iterdir()}
    assert shown == {Path(header).name: ROOT / "csrc" / header for header in check_layers.ANYWHERE}


def test_a_vendors_name_belongs_to_the_adapters() -> None:
    assert len(check_layers.check_names("x.cpp", "engine", "auto s = cudaStreamCreate();\nncclComm_t c;\n")) == 2
    assert check_layers.check_names("x.cpp", "ccl", "ncclComm_t c;\n") == []
    assert check_layers.check_names("x.cpp", "engine", "// as ncclComm_t does\nint cudagraph;\n") == []


def test_a_dependency_that_points_up_is_a_breach() -> None:
    assert len(check_layers.check_cmake("plan", "isthmus_floor(plan SOURCES a.cpp DEPENDS base engine)")) == 1
    assert check_layers.check_cmake("plan", "isthmus_floor(plan SOURCES a.cpp DEPENDS base topology)") == []


def syntax(target: str, tmp_path: Path, include: str) -> bool:
    """Does a new file of `target` with that include compile, with the flags of the target's other files?"""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    # Of the floor's own target: the kernels of reduce are compiled beside it, and see no floor but their own.
    command = next(c for c in commands if f"/{target}.dir/" in c["command"])
    source = tmp_path / "probe.cpp"
    source.write_text(f'#include "{include}"\n')
    words = [word for word in shlex.split(command["command"]) if "ccache" not in word]
    flags = [word for word in words[1 : words.index("-o")]] + ["-fsyntax-only", str(source)]
    return subprocess.run([words[0], *flags], cwd=command["directory"], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("target", "right", "wrong"),
    [
        ("isthmus_base", "base/error.hpp", "topology/topology.hpp"),
        ("isthmus_plan", "topology/topology.hpp", "net/wire.hpp"),
        ("isthmus_reduce", "base/dtype.hpp", "plan/plan.hpp"),
        ("isthmus_comm", "engine/operation.hpp", "isthmus/isthmus.h"),
        ("interpose_bridge", "base/lock.hpp", "base/error.hpp"),
        ("_core", "base/lock.hpp", "base/error.hpp"),
        ("_torch", "base/lock.hpp", "base/error.hpp"),
        ("rehearsal", "base/lock.hpp", "base/error.hpp"),
        ("rehearsal_nvidia_libcuda_so_1", "base/lock.hpp", "isthmus/isthmus.h"),
        ("_torch_device", "base/lock.hpp", "base/error.hpp"),
    ],
)
def test_the_compiler_finds_only_what_a_target_may_include(target: str, right: str, wrong: str, tmp_path: Path) -> None:
    assert syntax(target, tmp_path, right)
    assert not syntax(target, tmp_path, wrong)
