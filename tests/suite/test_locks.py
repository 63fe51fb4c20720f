"""What a lock guards and is used without it is found, by clang; csrc/ itself is the subject of the stage "locks"."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_locks  # noqa: E402

SOUND = """
#include "base/lock.hpp"
namespace isthmus {
namespace {
class Counter {
 public:
  void add() {
    const Lock lock(mutex_);
    grow();
  }
  bool try_add() {
    if (!mutex_.try_lock()) return false;
    const Lock lock(mutex_, kLocked);
    grow();
    return true;
  }
  void await() {
    Lock lock(mutex_);
    changed_.wait(lock, [this]() ISTHMUS_REQUIRES(mutex_) { return value_ > 0; });
    const Unlocked outside(mutex_);
  }
  int read() const {
    const Lock lock(mutex_);
    return value_;
  }

 private:
  void grow() ISTHMUS_REQUIRES(mutex_) { ++value_; }
  mutable Mutex mutex_;
  Condition changed_;
  int value_ ISTHMUS_GUARDED_BY(mutex_) = 0;
};
}  // namespace
}  // namespace isthmus
"""
READS = SOUND.replace("    const Lock lock(mutex_);\n    return", "    return")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with the locks of csrc/base, and no source."""
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "base").mkdir()
    for header in (ROOT / "csrc" / "base").glob("*.hpp"):
        shutil.copy(header, tmp_path / "csrc" / "base")
    return tmp_path


def test_a_value_that_is_read_without_its_lock_is_found(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "csrc" / "base" / "reads.cpp").write_text(READS)
    assert check_locks.main(root) == 1
    fault, last = capsys.readouterr().out.splitlines()
    line = READS[: READS.index("return value_;")].count("\n") + 1
    assert fault.startswith(f"csrc/base/reads.cpp:{line}:") and "requires holding mutex 'mutex_'" in fault
    assert last == "locks: 1 files, 1 faults"


@pytest.mark.parametrize(
    ("sound", "wrong", "said"),
    [
        ("    const Lock lock(mutex_);\n    grow();\n  }\n  bool", "    grow();\n  }\n  bool", "calling function 'grow'"),
        ("    const Lock lock(mutex_, kLocked);\n", "", "is not held on every path"),
        ("    const Lock lock(mutex_, kLocked);\n", "    const Lock lock(mutex_);\n", "that is already held"),
        ("[this]() ISTHMUS_REQUIRES(mutex_) {", "[this] {", "reading variable 'value_'"),
        ("    const Unlocked outside(mutex_);\n", "    const Unlocked outside(mutex_);\n    grow();\n", "'grow'"),
        ("    Lock lock(mutex_);\n    changed_.wait", "    const Unlocked lock(mutex_);\n    changed_.wait", "error"),
    ],
)
def test_a_lock_that_is_used_wrongly_is_found(root: Path, sound: str, wrong: str, said: str) -> None:
    assert sound in SOUND
    source = root / "csrc" / "base" / "wrong.cpp"
    source.write_text(SOUND.replace(sound, wrong, 1))
    assert any(said in fault for fault in check_locks.check(root, [source]))


def test_sources_whose_names_collide_have_no_fault(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (root / "csrc" / "base" / f"{name}.cpp").write_text(SOUND)
    assert check_locks.main(root) == 0
    assert capsys.readouterr().out == "locks: 2 files, 0 faults\n"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sources clang was asked for, a number a call."""
    asked: list[int] = []
    said = check_locks.said

    def counted(root: Path, sources: list[Path], *more: str) -> list[str]:
        asked.append(len(sources))
        return said(root, sources, *more)

    monkeypatch.setattr(check_locks, "said", counted)
    return asked


def test_what_was_sound_is_not_read_again_until_it_or_one_of_its_headers_changes(root: Path, calls: list[int]) -> None:
    base = root / "csrc" / "base"
    (base / "counter.hpp").write_text(SOUND)
    source = base / "sound.cpp"
    source.write_text('#include "base/counter.hpp"\n')
    for _ in range(2):
        assert check_locks.main(root) == 0
    assert calls == [1]
    (base / "counter.hpp").write_text(READS)
    for _ in range(2):  # and what has a fault is read each time
        assert check_locks.main(root) == 1
    (base / "counter.hpp").write_text(SOUND)
    source.write_text(SOUND)
    before = len(calls)
    assert check_locks.main(root) == 0 and len(calls) == before + 1


def test_sources_whose_names_collide_are_not_read_again_either(root: Path, calls: list[int]) -> None:
    for name in ("a", "b"):
        (root / "csrc" / "base" / f"{name}.cpp").write_text(SOUND)
    for _ in range(2):
        assert check_locks.main(root) == 0
    assert calls == [2, 1, 1]


def test_a_tree_without_sources_is_a_fault(root: Path) -> None:
    assert check_locks.main(root) == 1


def test_every_floor_and_face_that_has_sources_is_looked_at() -> None:
    found = {path for group in check_locks.groups(ROOT) for path in group}
    assert found == {*(ROOT / "csrc").rglob("*.cpp"), *(ROOT / "bench").glob("*.cpp")}
    for folder in {path.parent.relative_to(ROOT).as_posix() for path in found}:
        assert check_locks.package(folder) is not None, f"{folder} needs a package that this Python does not have"


def test_a_face_sees_the_locks_and_its_own_headers(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    face = root / "csrc" / "rehearsal"
    (face / "core").mkdir(parents=True)
    (face / "core" / "counter.hpp").write_text(SOUND)
    (face / "core" / "sound.cpp").write_text('#include "core/counter.hpp"\n')
    assert check_locks.main(root) == 0
    (face / "core" / "reads.cpp").write_text(READS)
    assert check_locks.main(root) == 1
    assert "csrc/rehearsal/core/reads.cpp" in capsys.readouterr().out


def test_a_folder_whose_package_is_not_here_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "csrc" / "base" / "sound.cpp").write_text(SOUND)
    (root / "csrc" / "torch").mkdir()
    (root / "csrc" / "torch" / "face.cpp").write_text("#include <torch/library.h>\n")
    monkeypatch.setitem(check_locks.PACKAGES, "csrc/torch", ("a_package_of_nobody", ("include",)))
    assert check_locks.main(root) == 0
    last = "locks: 1 files, 0 faults; NOT LOOKED AT: csrc/torch (this Python has no a_package_of_nobody)\n"
    assert capsys.readouterr().out == last
