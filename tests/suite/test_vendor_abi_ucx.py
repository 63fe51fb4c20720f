"""What Isthmus declares of UCX is what UCX publishes: the compiler compares them with the headers of Debian's libucx-dev.

As in test_vendor_abi.py, the file of tests/vendor is only compiled.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from test_vendor_abi import OURS, ROOT, compile_only

DECLARED = ROOT / "csrc" / "link" / "ucx_abi.hpp"
PRODUCT = OURS / "ucx_product.cpp"
needs_headers = pytest.mark.skipif(
    not Path("/usr/include/ucp/api/ucp.h").is_file(), reason="the headers of UCX are not here (Debian: libucx-dev)"
)


@needs_headers
def test_the_products_declarations_are_the_published_ones() -> None:
    errors = compile_only(PRODUCT, ROOT / "csrc", OURS)
    assert not errors, errors


WRONG = [
    ("kFeatureActiveMessages = 1 << 6", "kFeatureActiveMessages = 1 << 7", "kFeatureActiveMessages"),
    ("using Status = int8_t", "using Status = int", "sizeof(ux::Status)"),
    ("  unsigned long cpus[16] = {};", "  unsigned long cpus[8] = {};", "WorkerParams::flags lies elsewhere"),
    ("  int error_mode = kNoErrors;\n", "", "EndpointParams"),
    ("kRequestMemory = 1 << 8", "kRequestMemory = 1 << 9", "kRequestMemory"),
    ("am_recv_data_nbx, (Worker, void *arrival,", "am_recv_data_nbx, (Worker,", "ucp_am_recv_data_nbx is declared"),
    ("kSendEager = 1 << 1, kSendRendezvous = 1 << 2", "kSendEager = 1 << 2, kSendRendezvous = 1 << 1", "kSendRendezvous"),
]


@needs_headers
@pytest.mark.parametrize(("right", "wrong", "complaint"), WRONG, ids=[complaint for _, _, complaint in WRONG])
def test_a_wrong_declaration_is_found(right: str, wrong: str, complaint: str, tmp_path: Path) -> None:
    text = DECLARED.read_text()
    assert right in text, f"{right} is no longer in {DECLARED.name}: choose another line for this test"
    changed = tmp_path / "link" / DECLARED.name
    changed.parent.mkdir()
    changed.write_text(text.replace(right, wrong))
    errors = compile_only(PRODUCT, tmp_path, OURS)
    assert complaint in errors, errors


def test_every_function_is_in_the_library() -> None:
    try:
        library = ctypes.CDLL("libucp.so.0")
    except OSError:
        pytest.skip("libucp.so.0 is not on this machine (Debian: libucx0)")
    functions = re.findall(r"\bF\([\w ]+, (\w+),", DECLARED.read_text())
    assert len(functions) > 20
    assert not [name for name in functions if not hasattr(library, f"ucp_{name}")]
