"""`isthmus doctor`: what is here, what is missing and how to get it, and whether two ranks really work together."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import __version__, _core, context_stats, settings
from .._doors import DOORS, FOLDER
from .._errors import Error
from . import program
from .bench import find_benchmark
from .common import ask_ranks, mark
from .layout import Layout
from .topo import show


@dataclass
class Finding:
    """One line. `state` is ok, note (works, but poorer) or bad."""

    subject: str
    state: str
    text: str
    remedy: str = ""
    asked: bool = True  # somebody wants it: what is not here and nobody asked for is in the last line alone


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor", help="what is here, what is missing, does it work", description="Ends with 1 where something is broken."
    )
    parser.add_argument("--settings", action="store_true", help="list every setting with its value, range and meaning")
    parser.add_argument(
        "--markdown", action="store_true", help="print nothing but the settings, as docs/reference/settings.md has them"
    )
    parser.add_argument("--json", action="store_true", help="print the data")
    parser.add_argument("--no-test", action="store_true", help="leave out the self-test with two ranks")
    parser.add_argument(
        "--program",
        nargs=argparse.REMAINDER,
        metavar="CMD",
        help="nothing but this program: which library its collective calls go to, and what leads them to a front door; "
        "all that follows is the program's",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.markdown:
        print(settings_markdown(settings()), end="")
        return 0
    if options.program is not None:
        return program.run(options.program[1:] if options.program[:1] == ["--"] else options.program, options.json)
    findings = examine()
    test: dict[str, Any] | None = None
    if not options.no_test:
        test = self_test(findings)
    broken = any(finding.state == "bad" for finding in findings)
    rows: list[dict[str, Any]] = []
    if options.settings or options.json:
        with contextlib.suppress(Error):  # a setting that cannot be read; a finding says which
            rows = settings()
    if options.json:
        report = {"version": __version__, "ok": not broken, "findings": [asdict(f) for f in findings], "selftest": test}
        print(json.dumps(mark({**report, "settings": rows}), indent=2))
        return int(broken)
    console = terminal()
    seen = [f for f in findings if f.asked]
    if console.is_terminal:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")  # nothing of a path is cut off
        colours = {"ok": "green", "note": "yellow", "bad": "red"}
        for finding in seen:
            table.add_row(
                f"[{colours[finding.state]}]{finding.state}[/]", f"[bold]{finding.subject}[/]", escape(finding.text)
            )
            if finding.remedy:
                table.add_row("", "", f"[cyan]→ {escape(finding.remedy)}[/]")
        console.print(table)
    else:
        wide = max(len(finding.subject) for finding in seen)
        for finding in seen:
            remedy = f" → {finding.remedy}" if finding.remedy else ""
            print(f"{finding.state:4}  {finding.subject:{wide}}  {finding.text}{remedy}")
    if test:
        console.print()
        show(console, Layout(test["topology"]))
    if rows:
        console.print()
        console.print(settings_table(rows))
    console.print()
    print(verdict(findings))
    return int(broken)


def terminal() -> Console:
    """What is printed to. In a pipe lines are as long as they are."""
    there = sys.stdout is not None and sys.stdout.isatty()
    return Console() if there else Console(width=int(os.environ.get("COLUMNS") or 0) or 10_000)


def verdict(findings: list[Finding]) -> str:
    """The last line: whether it works, and what does not."""
    bad = [f for f in findings if f.state == "bad"]
    if bad:
        return f"isthmus does not work: {bad[0].subject}: {bad[0].text}" + (f" → {bad[0].remedy}" if bad[0].remedy else "")
    absent = [f.subject for f in findings if f.state == "note"]
    return "isthmus works" + (f", without {', '.join(absent)} (`isthmus doctor --json` says why)" if absent else "")


def examine() -> list[Finding]:
    """Everything that can be said without starting a rank."""
    findings = [Finding("isthmus", "ok", f"{__version__}, {Path(__file__).resolve().parent.parent}")]
    library = loaded_library()
    findings.append(Finding("library", "ok" if library else "note", library or "not found among this process's mappings"))
    findings.append(Finding("python", "ok", f"{platform.python_version()}, {sys.executable}"))
    findings.append(package("numpy", "arrays", "pip install numpy"))
    findings.append(
        package("torch", 'dist.init_process_group("isthmus")', "pip install torch==2.13.0, then reinstall isthmus")
    )
    findings.append(package("ml_dtypes", "NumPy arrays of bfloat16 and float8", "pip install ml_dtypes"))
    findings.append(package("mpi4py", "isthmus.from_mpi", "pip install mpi4py"))
    if package("torch", "", "").state == "ok":
        findings.append(torch_face())
    benchmark = find_benchmark()
    findings.append(
        Finding("isthmus-bench", "ok", str(benchmark))
        if benchmark
        else Finding("isthmus-bench", "note", "not in the package", "make build, in a source tree")
    )
    findings.append(processor())
    findings += kernel()
    findings.append(environment())
    findings += devices()
    findings += libraries()
    findings.append(ucx())
    findings.append(front_doors())
    return findings


def devices() -> list[Finding]:
    """The devices whose memory a rank could work on; host memory always."""
    chosen, given = "host", False  # by the environment
    with contextlib.suppress(Error):  # a setting that cannot be read; environment() says which
        row = next(row for row in settings() if row["name"] == "ISTHMUS_DEVICE")
        chosen, given = str(row["value"]), bool(row["given"])
    here = "as this environment has it" if given else "the default"
    wanted, _, number = chosen.partition(":")
    how = f"; ISTHMUS_DEVICE=host, {here}" if chosen == "host" else ", where ISTHMUS_DEVICE=host"
    findings = [Finding("host", "ok", f"ranks on host memory{how}")]
    there = seen = False
    for found in json.loads(_core.devices()):
        if not found["found"]:
            asked = found["vendor"] == wanted
            findings.append(Finding(found["vendor"], "bad" if asked else "note", found["text"], "", asked))
        for device in found["devices"]:
            name = f"{found['vendor']}:{device['number']}"
            there = there or chosen in (name, found["vendor"])
            text = f"{device['name']}, version {found['version']}; "
            if chosen in (name, found["vendor"]):
                text += f"ISTHMUS_DEVICE={chosen}, as this environment has it: "
                text += "a rank works on it" if chosen == name else "a rank works on the one of its local number"
            else:
                text += f"ISTHMUS_DEVICE={name} makes a rank work on it"
            if device["numa"] >= 0:
                text += f"; near NUMA node {device['numa']}"
            if not device["gates"]:
                text += "; its streams cannot wait for the host, so calls block until the exchange is done"
            findings.append(Finding(name, "ok", text))
            seen = True
    if seen:
        findings.append(huge_pages())
    if number and not there and not any(f.subject == wanted and f.state == "bad" for f in findings):
        findings.append(Finding(chosen, "bad", "there is no such device", "`isthmus doctor` lists those that there are"))
    return findings


def huge_pages() -> Finding:
    """Whether the staging memory, which a process with a device pins, may be of huge pages."""
    switch = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    try:
        chosen = switch.read_text().partition("[")[2].partition("]")[0]
    except OSError as error:
        return Finding("huge pages", "note", f"none for staging memory: {switch}: {error.strerror}", asked=False)
    if chosen in ("never", "deny"):
        text = f"none for staging memory: {switch} is {chosen}"
        return Finding("huge pages", "note", text, f"echo advise > {switch}", asked=False)
    return Finding("huge pages", "ok", f"for staging memory where the kernel has them: {switch} is {chosen}", asked=False)


def libraries() -> list[Finding]:
    """The vendors' libraries that could serve an island; none is needed."""
    findings: list[Finding] = []
    wanted = ""
    with contextlib.suppress(Error):
        row = next(row for row in settings() if row["name"] == "ISTHMUS_CCL")
        wanted = str(row["value"]) if row["given"] else ""
    try:
        known = json.loads(_core.libraries())
    except Error:  # a setting that cannot be read; environment() says which
        return findings
    for found in known:
        if found["found"]:
            text = f"{found['version']}, {found['path']}; ISTHMUS_CCL={found['family']} makes it serve this rank's island"
            findings.append(Finding(found["family"], "ok", text))
        else:
            asked = found["family"] == wanted
            findings.append(Finding(found["family"], "bad" if asked else "note", found["text"], "", asked))
    return findings


def ucx() -> Finding:
    """What a bridge of RDMA needs; nobody else does."""
    asked = False
    with contextlib.suppress(Error):  # a setting that cannot be read; environment() says which
        asked = next(row for row in settings() if row["name"] == "ISTHMUS_BRIDGE")["value"] == "ucx"
    found = json.loads(_core.ucx())
    if not found["found"]:
        return Finding("ucx", "bad" if asked else "note", found["text"], "", asked)
    text = f"{found['version']}, {found['path']}; over {', '.join(found['transports'])}; "
    text += "ISTHMUS_BRIDGE=ucx, as this environment has it" if asked else "ISTHMUS_BRIDGE=ucx takes it between islands"
    if not found["rdma"]:
        text += "; no RDMA device, and without one ISTHMUS_BRIDGE=tcp is as good"
    return Finding("ucx", "ok", text)


def front_doors() -> Finding:
    """What programs of other libraries can be led to."""
    here = [door.name for door in DOORS.values() if door.path.is_file()]
    if not here:
        return Finding("front doors", "note", f"none in {FOLDER}", "only for `isthmus run`: install anew")
    return Finding("front doors", "ok", f"{', '.join(here)}; `isthmus doctor --program CMD` says what leads a program there")


def package(name: str, purpose: str, remedy: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "note", f"not installed; needed for {purpose}", remedy, asked=name == "numpy")


def torch_face() -> Finding:
    try:
        importlib.import_module("isthmus.torch")
        return Finding("isthmus.torch", "ok", 'backend "isthmus" registers')
    except Exception as error:  # whatever the extension says is the finding
        return Finding("isthmus.torch", "note", f"{type(error).__name__}: {error}")


def loaded_library() -> str:
    """The path of libisthmus in this process."""
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        path = line.partition("/")[1] + line.partition("/")[2]
        if os.path.basename(path).startswith("libisthmus.so"):
            return path
    return ""


def processor() -> Finding:
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    stats = context_stats()
    target = f", reductions use {stats['simd']}" if "simd" in stats else ""
    return Finding("processor", "ok", f"{model}, {len(os.sched_getaffinity(0))} cores for this process{target}")


def kernel() -> list[Finding]:
    findings = [Finding("kernel", "ok", f"{platform.system()} {platform.release()}")]
    try:
        os.close(os.memfd_create("isthmus-doctor"))
    except OSError as error:
        findings.append(
            Finding("shared memory", "bad", f"memfd_create: {error.strerror}", "allow memfd_create in the sandbox")
        )
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        text = f"pidfd_open: {error.strerror}; the death of a peer is noticed through its connection only"
        findings.append(Finding("pidfd", "note", text, "Linux 5.3 or newer, or allow pidfd_open in the sandbox"))
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024:
        findings.append(Finding("descriptors", "note", f"at most {soft} open files", "ulimit -n 65536"))
    return findings


def environment() -> Finding:
    """The environment's settings, which the library validates when it reads them."""
    given = sorted(name for name in os.environ if name.startswith("ISTHMUS_"))
    try:
        settings()
    except Error as error:
        return Finding("settings", "bad", str(error), "correct or unset the variable")
    shown = ("set: " + ", ".join(given)) if given else "all at their defaults"
    return Finding("settings", "ok", f"{shown}; `isthmus settings` lists them")


def self_test(findings: list[Finding]) -> dict[str, Any] | None:
    """Two ranks over shared memory, then on two islands over TCP."""
    first: dict[str, Any] | None = None
    for subject, islands, bridge in (("shared memory", None, None), ("TCP", "a:1,b:1", "tcp")):
        options = argparse.Namespace(ranks=2, islands=islands, bridge=bridge, ccl=None, timeout=20.0)
        try:
            answer = ask_ranks("selftest", {}, options)
        except Error as error:
            findings.append(Finding(subject, "bad", str(error)))
            continue
        text = f"2 ranks agree; all_reduce of 8 bytes takes {answer['all_reduce_8B_us']} µs (with Python)"
        findings.append(Finding(subject, "ok", text))
        first = first or answer
    return first


def settings_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="settings", title_justify="left", show_lines=False)
    for column in ("name", "value", "default", "range", "meaning"):
        table.add_column(column, overflow="fold")
    for row in rows:
        name = f"[bold]{row['name']}[/]" if row.get("given") else str(row["name"])
        cells = [escape(str(row.get(key, ""))) for key in ("value", "default", "range", "meaning")]
        table.add_row(name, *cells)
    return table


def settings_markdown(rows: list[dict[str, Any]]) -> str:
    """docs/reference/settings.md: made from the library's own table, so it cannot say anything else."""
    lines = [
        "# Settings",
        "",
        "Every setting is an environment variable of this name, or an entry of `settings=` at init",
        '(`"CHUNK_BYTES=1M;LOG=info"`, the prefix may be left out), which goes before the environment. A value outside its',
        "range and a name that is not here are errors. Bytes take K, M or G.",
        "",
        "Settings of *all ranks* must be equal on all of them; init compares them and names the ranks that differ. Those of",
        "the *process* are taken by its first communicator; a later one that asks for another value gets an error.",
        "",
        "| name | default | range | belongs to | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        choices = str(row["range"]).replace("|", ", ")
        default = f"`{row['default']}`" if row["default"] != "" else ""
        scope = ", ".join(word for word, given in (("all ranks", row["agreed"]), ("process", row["process"])) if given)
        lines.append(f"| `{row['name']}` | {default} | {choices} | {scope} | {row['meaning']} |")
    last = (
        "`isthmus settings` shows the values in force, `isthmus settings NAME` all of one; `isthmus doctor --markdown`"
        " prints this page."
    )
    return "\n".join([*lines, "", last, ""])


__all__ = ["add_parser", "examine", "run"]
