#!/usr/bin/env python3
"""How long a thing of csrc/ may be: a function, a file, a class. One line a breach; exit status 1 if there is one.

EXCEPTIONS has what is longer, with the reason. A line of it that nothing needs is a
breach too, so the list only says what is true.

A small reader of C++ finds the functions and classes. It takes the code as clang-format leaves it. It knows comments,
literals, the preprocessor's lines, namespaces, classes, and lists of initialisers; of a function it sees only the ends.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (".cpp", ".hpp", ".h", ".c", ".inl")

FUNCTION_LINES, FILE_LINES, METHODS, FIELDS = 70, 450, 25, 20

EXCEPTIONS: dict[str, str] = {
    "csrc/api/isthmus.cpp": "one short function for each of isthmus.h",
    "csrc/comm/call_request.hpp CallRequest: fields": "what a call of isthmus.h can say",
    "csrc/device/acl.cpp AclCalls: methods": "the vendor's calls, one method each",
    "csrc/device/cuda.cpp CudaCalls: methods": "the vendor's calls, one method each",
    "csrc/device/hip.cpp HipCalls: methods": "the vendor's calls, one method each",
    "csrc/device/runtime.hpp Runtime: methods": "an interface: all that is asked of a device's runtime",
    "csrc/device/vendor_runtime.hpp VendorRuntime: methods": "Runtime's methods",
    "csrc/include/isthmus/isthmus.h": "the only public header",
    "csrc/plan/islands.cpp plan_island_broadcast()": "the template of a plan: its stages in their order",
    "csrc/plan/moves.cpp plan_broadcast()": "the template of a plan: its stages in their order",
    "csrc/plan/plan.hpp Step: fields": "a record: what a step can say",
    "csrc/plan/plan.hpp Plan: fields": "a record: what a plan says",
    "csrc/plan/reductions.cpp plan_all_reduce()": "the template of a plan: its stages in their order",
    "csrc/plan/reductions.cpp plan_reduce()": "the template of a plan: its stages in their order",
    "csrc/plan/reductions.cpp plan_reduce_scatter()": "the template of a plan: its stages in their order",
    "csrc/plan/shared_islands.cpp plan_shared_broadcast()": "the template of a plan: its stages in their order",
    "csrc/plan/shared_islands.cpp plan_shared_all_gather()": "the template of a plan: its stages in their order",
    "csrc/plan/shared_sums.cpp plan_shared_all_reduce()": "the template of a plan: its stages in their order",
    "csrc/rank/rank_port.hpp RankPort: methods": "LocalRank's functions, one method each",
    "csrc/rehearsal/core/settings.hpp Settings: fields": "one field a setting",
    "csrc/rehearsal/torch/acl.cpp Acl: methods": "AscendCL's functions, one method each",
    "csrc/rehearsal/torch/acl.cpp Acl: fields": "AscendCL's functions, one pointer each",
    "csrc/rehearsal/torch/api.hpp Api: methods": "an interface: all that PyTorch's device asks of a vendor",
    "csrc/torch/backend.hpp Backend: methods": "c10d::Backend's methods",
}

LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^\s()\\]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\'',
    re.DOTALL,
)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)
ATTRIBUTE = re.compile(r"\b(?:alignas|decltype|noexcept|__attribute__)\s*\(\)")
# Of csrc/base/thread_safety.hpp.
LOCKS = re.compile(
    r"\bISTHMUS_(?:CAPABILITY|SCOPED_LOCK|(?:POINTS_TO_)?GUARDED_BY|REQUIRES|REQUIRES_SHARED|EXCLUDES|ACQUIRE|ACQUIRE_SHARED|RELEASE"
    r"|RELEASE_SHARED|TRY_ACQUIRE|ASSERTS_HELD|RETURNS_LOCK|UNCHECKED)\b(?:\((?:[^()]|\([^()]*\))*\))?"
)
TEMPLATE = re.compile(r"\btemplate\s*<")
CLASS = re.compile(
    r"\b(class|struct|union)\b(?:\s+alignas\(\)|\s+[A-Z]\w*_API\b)?(?:\s+(?P<name>[A-Za-z_]\w*(?:::\w+)*))?"
    r"(?:<[^{]*>)?(?:\s+final)?\s*(?::(?!:)|$)"
)
ASSIGNED = re.compile(r"(?<![=!<>])=(?!=)")
INITIALISERS = re.compile(r"\)[^:]*(?<!:):(?!:)")  # of a constructor, behind its arguments
BEHIND = re.compile(r"(?:\s|const\b|noexcept\b|override\b|final\b|mutable\b|try\b|requires\b.*|->.*|&)*", re.DOTALL)
NAME = re.compile(
    r"((?:[A-Za-z_]\w*(?:<[^()]*>)?\s*::\s*)*(?:\boperator\s*(?:\(\)|[^\s\w(]+|\s[\w:\s*&]+)|~?[A-Za-z_]\w*))\s*\("
)
NO_FIELD = re.compile(r"^(?:using|typedef|friend|static_assert|static|enum|template|extern|constexpr|class|struct|union)\b")


@dataclass
class Function:
    name: str
    first: int
    last: int

    @property
    def lines(self) -> int:
        return self.last - self.first + 1


@dataclass
class Class:
    name: str
    line: int
    methods: int = 0
    fields: int = 0


@dataclass
class Found:
    functions: list[Function] = field(default_factory=list)
    classes: list[Class] = field(default_factory=list)


def blank(text: str) -> str:
    """The code, with spaces for comments, literals, preprocessor's lines, words on locks: every line keeps its number."""
    keep = lambda m: re.sub(r"[^\n]", " ", m.group(0))  # noqa: E731
    code = PREPROCESSOR.sub(keep, LITERAL.sub(lambda m: keep(m) if m.group(0)[0] == "/" else '"' + keep(m)[2:] + '"', text))
    return LOCKS.sub(keep, code)


def closed(text: str, opening: str, closing: str) -> str:
    """The text with nothing between its outermost brackets of a kind."""
    out, depth = [], 0
    for c in text:
        if c == closing:
            depth = max(depth - 1, 0)
        if depth == 0:
            out.append(c)
        if c == opening:
            depth += 1
    return "".join(out)


def without_templates(text: str) -> str:
    """The text without what stands between < and >, and without `template` itself."""
    text = TEMPLATE.sub("<", text)
    while (shorter := re.sub(r"<[^<>]*>", " ", text)) != text:
        text = shorter
    return text.strip()


class Reader:
    """Walks one file. The walk stands in a namespace, in a class, or in a bracket whose inside says nothing."""

    def __init__(self, text: str) -> None:
        self.code, self.found, self.at, self.line = blank(text), Found(), 0, 1

    def read(self) -> Found:
        self._scope(None, "")
        return self.found

    def _skip(self) -> None:
        """To behind the bracket that closes the one before the place of the walk."""
        depth = 1
        while depth and self.at < len(self.code):
            c = self.code[self.at]
            depth += (c == "{") - (c == "}")
            self.line += c == "\n"
            self.at += 1

    def _scope(self, inside: Class | None, prefix: str) -> None:
        """What stands in a namespace (inside: None) or a class, to its end."""
        head, first = "", self.line
        while self.at < len(self.code):
            c = self.code[self.at]
            self.at += 1
            self.line += c == "\n"
            if c == "}":
                return
            if c == ";" and closed(head, "(", ")").count("(") == closed(head, "(", ")").count(")"):
                if inside:
                    self._member(inside, head)
                head = ""
            elif c == ":" and inside and head.strip() in ("public", "private", "protected"):
                head = ""
            elif c == "{":
                head = self._bracket(head.strip(), first, inside, prefix)
            else:
                if not head.strip() and not c.isspace():
                    first = self.line
                head += c

    def _bracket(self, head: str, first: int, inside: Class | None, prefix: str) -> str:
        """Behind an opening bracket, and what the statement is behind its end: empty where that ends it."""
        flat = closed(head, "(", ")")
        if flat.count("(") != flat.count(")"):  # among the arguments, as a default
            self._skip()
            return head
        if re.match(r"(?:inline\s+)?namespace\b|extern\s*\"", head):
            self._scope(None, prefix)
            return ""
        plain = without_templates(flat)
        if "=" not in plain and (declared := CLASS.search(plain)) and not plain.startswith("enum"):
            name = declared.group("name") or ""
            self._class(prefix + name if name else prefix + "(unnamed)", first)
            return "class {}"
        if not is_function(plain):
            self._skip()
            return head + "{}"
        name = NAME.search(re.sub(r"^template\s*<(?:[^<>]|<[^<>]*>)*>\s*", "", head))
        self._skip()
        self.found.functions.append(Function(prefix + re.sub(r"\s+", "", name.group(1) if name else "?"), first, self.line))
        if inside:
            inside.methods += 1
        return ""

    def _class(self, name: str, first: int) -> None:
        one = Class(name, first)
        self.found.classes.append(one)
        self._scope(one, f"{name}::")

    @staticmethod
    def _member(inside: Class, head: str) -> None:
        """A statement of a class that ended without a body of its own."""
        head = head.strip()
        if head in ("", "class {}"):
            return
        if head.startswith("class {}"):  # an object of the class that stood there
            inside.fields += 1 + head.count(",")
            return
        plain = ATTRIBUTE.sub(" ", closed(head, "(", ")")).strip()
        pointer = re.search(r"\(\s*\*", head) is not None
        value = without_templates(plain.split("=")[0]) if "operator" not in plain else plain
        if re.search(r"=\s*(?:default|delete)\s*$", plain) or value.startswith("friend"):
            return
        if "operator" in value or ("(" in value and not pointer):
            inside.methods += 0 if NO_FIELD.match(value) and not value.startswith(("static", "constexpr")) else 1
        elif not NO_FIELD.match(value):
            inside.fields += 1 + without_templates(closed(plain, "{", "}")).count(",")


def is_function(plain: str) -> bool:
    """Whether a head, without what is in its round brackets, is that of a function's body."""
    plain = ATTRIBUTE.sub(" ", plain).strip()
    if "(" not in plain or plain.startswith("enum"):
        return False
    if "operator" not in plain and ASSIGNED.search(plain.split("(")[0]):
        return False
    if INITIALISERS.search(plain):
        return plain.endswith((")", "}"))  # else it is the bracket of one of them
    return BEHIND.fullmatch(plain[plain.rindex(")") + 1 :]) is not None


def measure(where: str, text: str) -> Iterable[tuple[str, str]]:
    """What is too long in one file: the key of EXCEPTIONS, and the sentence."""
    lines = text.count("\n")
    if lines > FILE_LINES:
        yield where, f"{where}: {lines} lines; a file has at most {FILE_LINES}"
    found = Reader(text).read()
    for one in found.functions:
        if one.lines > FUNCTION_LINES:
            yield (
                f"{where} {one.name}()",
                f"{where}:{one.first}: {one.name}() has {one.lines} lines; a function has at most {FUNCTION_LINES}",
            )
    for kind in found.classes:
        if kind.methods > METHODS:
            yield (
                f"{where} {kind.name}: methods",
                f"{where}:{kind.line}: {kind.name} has {kind.methods} methods; a class has at most {METHODS}",
            )
        if kind.fields > FIELDS:
            yield (
                f"{where} {kind.name}: fields",
                f"{where}:{kind.line}: {kind.name} has {kind.fields} fields; a class has at most {FIELDS}",
            )


def check(texts: Iterable[tuple[str, str]], exceptions: dict[str, str]) -> list[str]:
    """Breaches of these files, which are (name, text)."""
    breaches, needed = [], set()
    for where, text in texts:
        for key, sentence in measure(where, text):
            needed.add(key)
            if key not in exceptions:
                breaches.append(sentence)
    for key, reason in exceptions.items():
        if key not in needed:
            breaches.append(f"scripts/check_sizes.py: {key!r} needs no exception; take the line out")
        if not reason.strip():
            breaches.append(f"scripts/check_sizes.py: {key!r} has no reason")
    return breaches


def main() -> int:
    paths = sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in SOURCES)
    breaches = check(((str(p.relative_to(ROOT)), p.read_text()) for p in paths), EXCEPTIONS)
    for breach in breaches:
        print(breach)
    print(f"sizes: {len(paths)} files, {len(EXCEPTIONS)} exceptions, {len(breaches)} breaches")
    return 1 if breaches or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
