"""A class name that stands twice is found, and so is a repeat that nothing needs. csrc/ has none but those of the list."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_names  # noqa: E402

FIRST = "namespace a {\nclass Thing final : public Base {\n  struct Part {};\n};\nclass Declared;\n}\n"
SECOND = "namespace b {\nnamespace {\nstruct Thing {\n  int n;\n};\n}\nstruct Outer {\n  struct Inner {};\n};\n}\n"
TWICE = [("csrc/a.hpp", FIRST), ("csrc/b.cpp", SECOND)]


def test_classes_are_found_with_their_places() -> None:
    assert check_names.classes(TWICE) == {
        "Thing": ["csrc/a.hpp:2", "csrc/b.cpp:3"],
        "Part": ["csrc/a.hpp:3"],
        "Outer": ["csrc/b.cpp:7"],
        "Inner": ["csrc/b.cpp:8"],
    }


def test_a_class_in_a_class_counts_by_its_inner_name() -> None:
    for text in ("struct Other {\n  struct Inner {};\n};\n", "struct Other::Inner {\n};\n", "struct Inner {\n};\n"):
        (breach,) = check_names.check([("csrc/a.hpp", text), ("csrc/b.cpp", SECOND)], {})
        assert "Inner is a class of csrc/a.hpp" in breach, text


def test_the_rehearsal_is_checked_alone() -> None:
    first, second = (f"csrc/rehearsal/{place}" for place in ("core/a.hpp", "nccl/b.cpp"))
    assert check_names.check([TWICE[0], (first, SECOND)], {}) == [], "it includes nothing of the house"
    (breach,) = check_names.check([(first, "class X_API Thing : public Base {\n};\n"), (second, SECOND)], {})
    assert breach == f"{second}:3: Thing is a class of {first}:1 too; a name stands once"


def test_a_name_that_stands_twice_is_a_breach_but_for_a_repeat_with_a_reason() -> None:
    (breach,) = check_names.check(TWICE, {})
    assert breach == "csrc/b.cpp:3: Thing is a class of csrc/a.hpp:2 too; a name stands once"
    assert check_names.check(TWICE, {"Thing": "to be renamed"}) == []
    assert len(check_names.check(TWICE, {"Thing": " "})) == 1, "a repeat without a reason"


def test_a_repeat_that_nothing_needs_is_a_breach() -> None:
    assert len(check_names.check(TWICE[:1], {"Thing": "to be renamed"})) == 1


def test_names_that_somebody_else_has_chosen_are_left_out() -> None:
    others = ("rehearsal/nccl/nccl_abi.hpp", "ccl/nccl_abi.hpp", "interpose/abi.hpp", "interpose/abi_hccl.hpp")
    for where in (f"csrc/{other}" for other in others):
        assert check_names.check([TWICE[0], (where, SECOND)], {}) == [], where
    assert len(check_names.check([TWICE[0], ("csrc/net/abiding.hpp", SECOND)], {})) == 1


def test_csrc_has_no_breach() -> None:
    assert check_names.main() == 0
