#!/usr/bin/env python3
"""Makes the pages of docs/reference that the code already says: C, Python, errors, and flags of the command line.

    .venv/bin/python scripts/reference.py            # writes them
    .venv/bin/python scripts/reference.py --check    # says which differ, and writes none

The package must be installed (`make build`): docstrings of the compiled module and flags are read from it.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "csrc" / "include" / "isthmus" / "isthmus.h"
PACKAGE = ROOT / "python" / "isthmus"
PAGES = ROOT / "docs" / "reference"
MADE = "<!-- Made by scripts/reference.py from {}: change that, and run the script. -->\n"


def comment_text(comment: str) -> str:
    """A comment of C as one paragraph, or as the items of its list."""
    lines = [re.sub(r"^\s*\*? ?", "", line) for line in re.sub(r"^/\*|\*/$", "", comment.strip()).split("\n")]
    return " ".join(line.strip() for line in lines if line.strip())


def joined(parts: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def cell(text: str) -> str:
    """For a row of a table. What looks like HTML or a link is text."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*")


# ---- C ---------------------------------------------------------------------------------------------------------------


def conventions(header: str) -> Iterator[str]:
    """The items of the list at the head of the header."""
    head = header[: header.index("*/")]
    for item in re.split(r"^ \*   - ", head[head.index("Conventions") :], flags=re.M)[1:]:
        yield " ".join(line.strip(" *") for line in item.strip().split("\n"))


def declarations(text: str) -> Iterator[tuple[str, str, str]]:
    """Of a section: the comment that stands before a declaration or a type (or ""), the text, and its trailing comment."""
    text = re.sub(r"^#(?:if|ifdef|ifndef|else|endif|define ISTHMUS_(?:H|API|VERSION_\w+)).*$", "", text, flags=re.M)
    token = re.compile(
        r"(?P<comment>/\*.*?\*/)|(?P<define>^#define (?P<macro>ISTHMUS_\w+)[^\n]*$)"
        r"|(?P<type>^typedef struct \w+ \{[^\n]*\} \w+;|^typedef (?:enum|struct) \w+ \{.*?^\} \w+;|^typedef [^{;]+;)"
        r"|(?P<function>^ISTHMUS_API [^;]+;)",
        re.DOTALL | re.M,
    )
    before = ""
    found: list[list[str]] = []
    end = 0
    for match in token.finditer(text):
        if match["comment"]:
            trailing = found and "\n" not in text[end : match.start()] and not before
            if trailing:
                found[-1][2] = comment_text(match["comment"])
            else:
                before = comment_text(match["comment"])
        else:
            body = re.sub(r"^ISTHMUS_API ", "", match.group(0))
            found.append([before, body, ""])
            before = ""
        end = match.end()
    for entry in found:
        yield entry[0], entry[1], entry[2]


def name_of(declaration: str) -> str:
    if match := re.match(r"#define (\w+)", declaration):
        return match[1]
    if declaration.startswith("typedef"):
        pointer = re.search(r"\(\*(\w+)\)", declaration)
        return pointer[1] if pointer else re.findall(r"\w+", declaration)[-1]
    return re.search(r"(\w+)\s*\(", declaration)[1]  # type: ignore[index]


def c_page() -> str:
    header = HEADER.read_text()
    out = ["# C\n", MADE.format("csrc/include/isthmus/isthmus.h")]
    out.append("""
A program includes `isthmus/isthmus.h` and links `libisthmus.so`: `cc program.c $(isthmus-config --cflags --libs)`.
[Errors](errors.md) lists the result codes. `examples/c` has programs to copy.

## Conventions
""")
    out += [f"- {cell(item)}" for item in conventions(header)]
    body = header[header.index("#define ISTHMUS_VERSION_MAJOR") : header.rindex("#ifdef __cplusplus")]
    parts = re.split(r"^/\* -{4} (.+?) -{4,} \*/$", body, flags=re.M)
    titles = ["types", *parts[1::2]]
    for title, text in zip(titles, parts[::2], strict=True):
        out.append(f"\n## {title[0].upper()}{title[1:]}")
        for before, declaration, after in declarations(text):
            out.append(f"\n### `{name_of(declaration)}`\n\n```c\n{declaration}\n```")
            out += [f"\n{sentence(cell(said))}" for said in (before, after) if said]
    return joined(out)


# ---- errors ----------------------------------------------------------------------------------------------------------


def errors_page() -> str:
    import isthmus

    listed = re.search(r"typedef enum isthmus_result \{(.*?)\}", HEADER.read_text(), re.DOTALL)
    assert listed
    out = ["# Errors\n", MADE.format("csrc/include/isthmus/isthmus.h and python/isthmus/_errors.py")]
    out.append("""
Every call of C returns an `isthmus_result`. `isthmus_last_error()` gives the text of the calling thread's last failure.
Python raises a class of the same name, and every class is an `isthmus.Error`. PyTorch's calls raise
`torch.distributed.DistBackendError` with the same text.

| C | number | Python | Python's own class | meaning |
| --- | --- | --- | --- | --- |""")
    for name, number, meaning in re.findall(r"(ISTHMUS_\w+) = (\d+),?\s*(?:/\*(.*?)\*/)?", listed[1], re.DOTALL):
        words = name.removeprefix("ISTHMUS_ERR_").split("_")
        kind = "".join(word.capitalize() for word in words) + "Error"
        raised = getattr(isthmus, kind, None)
        also = "".join(f"`{base.__name__}`" for base in raised.__bases__ if base is not isthmus.Error) if raised else ""
        out.append(f"| `{name}` | {number} | {f'`{kind}`' if raised else ''} | {also} | {cell(' '.join(meaning.split()))} |")
    out.append("""
After `ISTHMUS_ERR_ARGUMENT` and `ISTHMUS_ERR_UNSUPPORTED` the communicator works on. After every other error
`isthmus_comm_error()`, in Python `comm.error`, says whether the communicator still works. A communicator that has failed
returns its first error from every later call. [When something fails](../explain/failure.md) says what each rank sees.
[Find out why a job hangs](../howto/find-a-hang.md) says what to do.""")
    return joined(out)


# ---- Python ----------------------------------------------------------------------------------------------------------


def signature(of: Callable[..., object]) -> str:
    """Without types: a stub's and a docstring's then look alike."""
    parameters = inspect.signature(of).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters if p.name != "self"]
    return str(inspect.Signature(bare))


def described(name: str, of: object) -> str:
    text = inspect.getdoc(of) or ""
    first, _, rest = text.partition("\n")
    if re.match(rf"{re.escape(name.rpartition('.')[2])}\(", first):  # the compiled module's: the signature comes first
        prefix = name.rpartition(".")[0]
        first = re.sub(r"\(self: [\w.]+(?:, )?", "(", first).partition(" -> ")[0]
        first = re.sub(r": [\w.\[\] |]+(?= = )", "", re.sub(r": [\w.\[\] |]+(?=[,)])", "", first)).replace(" = ", "=")
        return f"\n### `{prefix + '.' if prefix else ''}{first}`\n\n{rest.strip()}"
    if inspect.isclass(of) or not callable(of):
        return f"\n### `{name}`\n\n{text}"
    return f"\n### `{name}{signature(of)}`\n\n{text}"


def members(of: type, name: str) -> Iterator[str]:
    for member in sorted(n for n in dir(of) if not n.startswith("_")):
        yield described(f"{name}.{member}", inspect.getattr_static(of, member))


def functions(file: Path, module: str) -> Iterator[str]:
    """The public functions of a module that is not imported: it may need torch."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and ast.get_docstring(node):
            arguments = re.sub(r": [^,=()\[\]]+(?:\[[^\]]*\]+)?(?: \| [^,=()]+)?(?=,|=| =|$)", "", ast.unparse(node.args))
            yield f"\n### `{module}.{node.name}({arguments})`\n\n{ast.get_docstring(node)}"


def classes(file: Path, module: str) -> Iterator[str]:
    """The public classes of a module that is not imported, and what they have of their own."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and ast.get_docstring(node):
            yield f"\n### `{module}.{node.name}`\n\n{ast.get_docstring(node)}"
            for one in node.body:
                if isinstance(one, ast.FunctionDef) and not one.name.startswith("_") and ast.get_docstring(one):
                    arguments = ", ".join(a.arg for a in one.args.args[1:])
                    called = "" if one.decorator_list else f"({arguments})"
                    yield f"\n### `{node.name}.{one.name}{called}`\n\n{ast.get_docstring(one)}"


def python_page() -> str:
    import isthmus

    out = ["# Python\n", MADE.format("the docstrings of python/isthmus and csrc/python")]
    out.append("\n[Use the Python package](../howto/python.md) shows how these work together.\n\n## Module `isthmus`")
    plain = [n for n in isthmus.__all__ if not isinstance(getattr(isthmus, n), type)]
    out += [described(n, getattr(isthmus, n)) for n in plain if callable(getattr(isthmus, n))]
    out.append("\n### `ANY_SOURCE`\n\nAs the `peer` of `recv`: a message of any rank.")
    out.append(described("group(*, async_op=False)", isthmus.group))
    out.append("\n## `Comm`\n\n" + (inspect.getdoc(isthmus.Comm) or ""))
    out += members(isthmus.Comm, "Comm")
    out.append("\n## `Work`\n\n" + (inspect.getdoc(isthmus.Work) or ""))
    out += members(isthmus.Work, "Work")
    out.append("\n## `Explanation`\n\n" + (inspect.getdoc(isthmus.Explanation) or ""))
    out.append("\n## Errors\n\n[Errors](errors.md) has the table of classes.")
    out.append("\n## Module `isthmus.torch`\n\n[Use the PyTorch backend](../howto/torch.md). These functions look inside.")
    out += functions(PACKAGE / "torch" / "__init__.py", "isthmus.torch")
    out.append("\n## Module `isthmus.elastic`\n\n[Survive failures](../howto/survive-failures.md) shows its use.")
    out += functions(PACKAGE / "elastic" / "__init__.py", "isthmus.elastic")
    for file in ("__init__", "_state", "_sync"):
        found = classes(PACKAGE / "elastic" / f"{file}.py", "isthmus.elastic")
        out += (one for one in found if "Sync" not in one.partition("\n\n")[0])  # which is nobody's but run's
    out.append("\n## Module `isthmus.torchft`\n\n[Survive failures](../howto/survive-failures.md#torchft) shows its use.")
    out += classes(PACKAGE / "torchft.py", "isthmus.torchft")
    out.append("\n## Module `isthmus.launch`")
    out += functions(PACKAGE / "launch.py", "isthmus.launch")
    out.append("\n## Module `isthmus.rehearse`")
    out += functions(PACKAGE / "rehearse.py", "isthmus.rehearse")
    return joined(out)


# ---- flags -----------------------------------------------------------------------------------------------------------


def rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.dest in ("help", "version") or action.help == argparse.SUPPRESS:
            continue
        choices = "\\|".join(map(str, action.choices)) if action.choices and not action.metavar else ""
        value = "" if action.nargs == 0 else choices or str(action.metavar or action.dest.upper())
        names = ", ".join(action.option_strings) or "PROGRAM ..."
        if not action.option_strings and action.nargs != argparse.REMAINDER:
            names, value = str(action.metavar or action.dest).upper(), ""
        taken = f" {value}" if value and action.option_strings else ""
        must = " (must be given)" if action.required and action.option_strings else ""
        yield f"| `{names}{taken}` | {cell(action.help or '')}{must} |"


def flags_page() -> str:
    from isthmus.__main__ import parser

    top = parser()
    (commands,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    helps = {choice.dest: choice.help for choice in commands._choices_actions}
    out = ["# Commands and their flags\n", MADE.format("python/isthmus/cli")]
    out.append(
        "\n`isthmus COMMAND --help` prints the same. `isthmus bench` takes the flags of `isthmus-bench`, which\n"
        "[Benchmarks](../howto/bench.md) lists. `isthmus-config` prints what C programs are built with."
    )
    for name, command in commands.choices.items():
        out.append(f"\n## `isthmus {name}`\n\n{sentence(helps.get(name) or '')}.")
        if command.description:
            out.append("\n```text\n" + command.description.strip() + "\n```")
        if found := list(rows(command)):
            out.append("\n| flag | meaning |\n| --- | --- |\n" + "\n".join(found))
    return joined(out)


MAKERS = {"c.md": c_page, "errors.md": errors_page, "python.md": python_page, "flags.md": flags_page}


def main() -> int:
    differ = []
    for name, maker in MAKERS.items():
        page, made = PAGES / name, maker()
        if not page.exists() or page.read_text() != made:
            differ.append(f"docs/reference/{name}")
            if "--check" not in sys.argv[1:]:
                page.write_text(made)
    print("\n".join(differ) or "every page is as the code says")
    return 1 if differ and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
