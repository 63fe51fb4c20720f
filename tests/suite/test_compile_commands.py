"""compile_commands.json for editors: each source by itself, though several are compiled at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import compile_commands


def test_each_source_has_the_command_of_the_file_that_includes_it(tmp_path: Path) -> None:
    together = tmp_path / "Unity" / "unity_0_cxx.cxx"
    together.parent.mkdir()
    together.write_text('/* generated */\n\n#include "/src/a.cpp"\n#include "/src/b.cpp"\n')
    entries = [
        {"directory": str(tmp_path), "file": str(together), "command": f"c++ -O2 -o x.o -c {together}"},
        {"directory": str(tmp_path), "file": "/src/c.cpp", "command": "c++ -o c.o -c /src/c.cpp"},
    ]
    (tmp_path / "compile_commands.json").write_text(json.dumps(entries))
    assert compile_commands.write(tmp_path, tmp_path / "out.json")
    made = {entry["file"]: entry["command"] for entry in json.loads((tmp_path / "out.json").read_text())}
    assert made == {
        "/src/a.cpp": "c++ -O2 -o x.o -c /src/a.cpp",
        "/src/b.cpp": "c++ -O2 -o x.o -c /src/b.cpp",
        "/src/c.cpp": "c++ -o c.o -c /src/c.cpp",
    }


def test_without_a_build_nothing_is_written(tmp_path: Path) -> None:
    assert not compile_commands.write(tmp_path, tmp_path / "out.json") and not (tmp_path / "out.json").exists()
