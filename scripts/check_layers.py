#!/usr/bin/env python3
"""Who may include whom (docs/architecture.md), and where a vendor may be named.

The build enforces the order of the floors too: each sees only the floors it names (isthmus_floor). This check covers what
the build cannot: that the names in CMake are the allowed ones, that faces use the public header and the locks alone,
that vendors' names stay in the adapters. Prints one line a breach; exit status 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A floor, and the floors right below it; what those may include, it may include.
BELOW = {
    "base": (),
    "reduce": ("base",),
    "device": ("base",),
    "net": ("base",),
    "topology": ("base",),
    "p2p": ("base",),
    "plan": ("topology",),
    "bootstrap": ("net",),
    "link": ("net", "bootstrap"),
    "ccl": ("device",),
    "process": ("reduce", "p2p", "link", "bootstrap", "device"),
    "engine": ("process", "plan"),
    "collective": ("engine", "reduce", "ccl"),
    "messages": ("engine",),
    "rank": ("collective", "messages"),
    "comm": ("rank",),
    "observe": ("comm",),
    "api": ("observe",),
}
FACES = ("python", "torch", "interpose")  # they stand on isthmus.h alone, as any program does
ADAPTERS = ("device", "ccl", "interpose")
BESIDE = "rehearsal"  # simulated vendors: beside the house, and it shares no line with it but ANYWHERE's
PUBLIC = "isthmus/isthmus.h"
# Any code may include these, faces and the rehearsal too, so that clang checks their locks as it checks the library's. The
# headers need the standard library alone, so who includes them links nothing. The target isthmus_locks of CMakeLists.txt
# shows these and no others.
ANYWHERE = ("base/lock.hpp", "base/spin_lock.hpp", "base/thread_safety.hpp")

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
VENDOR_HEADER = re.compile(r"^(?!nccl/nccl_abi\.hpp$)(cuda|nccl|hip/|rccl|acl/|hccl|nvml|rocm|oneapi/|ccl\.)")
VENDOR_NAME = re.compile(
    r"\b(?:cu(?:Ctx|Mem|Stream|Event|Device|Init|Launch)\w*|cuda[A-Z]\w*|nccl[A-Z]\w*|hip[A-Z]\w*|rccl[A-Z]\w*|hccl[A-Z]\w*|Hccl[A-Z]\w*"
    r"|acl(?:rt)?[A-Z]\w*|lib(?:cuda|nccl|rccl|hccl|amdhip64|ascendcl)\w*)"
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def allowed(floor: str) -> set[str]:
    """The floors that `floor` may include, itself among them."""
    found = {floor}
    for lower in BELOW[floor]:
        found |= allowed(lower)
    return found


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def check_includes(where: str, floor: str, text: str) -> list[str]:
    """Breaches of one source file of a floor or face."""
    breaches = []
    for match in INCLUDE.finditer(text):
        name = match.group(2)
        place = f"{where}:{line_of(text, match.start())}"
        top = name.split("/")[0]
        if name in ANYWHERE or match.group(0).endswith("<net/if.h>"):  # the system's, and not of our floor net
            continue
        if where.removeprefix("csrc/") in ANYWHERE and (match.group(1) == '"' or "/" in name):
            breaches.append(f"{place}: any code may include this header, so it needs the standard library alone, not {name}")
        elif VENDOR_HEADER.match(name):
            breaches.append(f"{place}: vendor header {name}; vendors are opened at run time, from declarations of our own")
        elif floor == BESIDE:
            pytorch = top == "torch" and match.group(1) == "<"  # not our face of that name
            if (top in BELOW or top in FACES or name == PUBLIC) and not pytorch:
                locks = ", ".join(ANYWHERE)
                breaches.append(f"{place}: {floor}/ stands beside the house and may include {locks} of it, not {name}")
        elif top == BESIDE:
            breaches.append(f"{place}: {floor}/ may include nothing of {BESIDE}/")
        elif floor in FACES:
            if top in BELOW:
                breaches.append(f"{place}: {floor}/ is a face and may include {', '.join((PUBLIC, *ANYWHERE))}, not {name}")
        elif name == PUBLIC:
            if floor != "api":
                breaches.append(f"{place}: only api/ and what stands above it may include {PUBLIC}")
        elif top in BELOW and "/" in name and top not in allowed(floor):
            breaches.append(f"{place}: {floor}/ may not include {name}; it may include {', '.join(sorted(allowed(floor)))}")
        elif top in FACES and "/" in name and top != floor:
            breaches.append(f"{place}: {floor}/ may not include the face {name}")
    return breaches


def check_names(where: str, floor: str, text: str) -> list[str]:
    """Vendor identifiers outside the adapters. Comments may speak of vendors."""
    if floor in (*ADAPTERS, BESIDE):
        return []
    code = COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)
    return [
        f"{where}:{line_of(code, m.start())}: vendor name {m.group(0)} outside {', '.join(ADAPTERS)}"
        for m in VENDOR_NAME.finditer(code)
    ]


def check_cmake(floor: str, text: str) -> list[str]:
    """The DEPENDS of a floor's CMakeLists.txt."""
    match = re.search(r"isthmus_floor\(\s*(\w+)([^)]*)\)", text)
    if match is None:
        return [f"csrc/{floor}/CMakeLists.txt: no isthmus_floor({floor} ...)"]
    if match.group(1) != floor:
        return [f"csrc/{floor}/CMakeLists.txt: declares the floor {match.group(1)}"]
    named = re.search(r"DEPENDS\s+([\w\s]+)", match.group(2))
    wrong = sorted(set(named.group(1).split() if named else ()) - allowed(floor))
    return [f"csrc/{floor}/CMakeLists.txt: {floor} may not depend on {', '.join(wrong)}"] if wrong else []


def main() -> int:
    breaches, files = [], 0
    for folder in sorted(p for p in (ROOT / "csrc").iterdir() if p.is_dir() and p.name != "include"):
        floor = folder.name
        if floor not in BELOW and floor not in FACES and floor != BESIDE:
            breaches.append(f"csrc/{floor}: not a floor of docs/architecture.md")
            continue
        cmake = folder / "CMakeLists.txt"
        if floor in BELOW:
            breaches += check_cmake(floor, cmake.read_text()) if cmake.exists() else [f"csrc/{floor}: no CMakeLists.txt"]
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".cpp", ".hpp", ".h", ".inl", ".c")):
            files += 1
            text, where = path.read_text(), str(path.relative_to(ROOT))
            breaches += check_includes(where, floor, text) + check_names(where, floor, text)
    for breach in breaches:
        print(breach)
    print(f"layers: {files} files, {len(breaches)} breaches")
    return 1 if breaches or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
