"""What is too long is found, and so is an exception that nothing needs. csrc/ has none but those of the list."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_sizes  # noqa: E402

CODE = r'''
#define BODY {
// class Comment { int no; };
namespace a::b {

const char *text = "{ not a bracket", *raw = R"(}}{)";
constexpr int kSizes[] = {1, 2, 3};
enum class Kind : uint8_t { One, Two };

class Thing final : public Base<Thing> {
 public:
  explicit Thing(std::vector<int> v = {}, int n = 1) : Base<Thing>{n}, values_{std::move(v)}, n_(n) {
    for (;;) {}
  }
  Thing(const Thing &) = delete;
  ~Thing() override = default;
  int n() const noexcept { return n_; }
  std::map<int, std::string> declared(const char *text, int n = 3) const;
  template <class T, size_t N = 4>
  auto shaped(T t) noexcept(false) -> decltype(t) {
    return t;
  }
  bool operator==(const Thing &other) const { return n_ == other.n_; }
  static Thing *made();
  friend class Other;
  friend int look(const Thing &) { return 1; }
  using Function = void (*)(int);
  struct Inner {
    int x = 0, y = 0;
  };
  static constexpr int kMost = 3;

 private:
  struct {
    int unnamed;
  } one, two;
  std::function<void(int, int)> call_ = [](int, int) { return; };
  void (*pointer_)(int) = nullptr;
  std::vector<int> values_ ISTHMUS_GUARDED_BY(at(mutex_)){};
  void with_lock() ISTHMUS_REQUIRES(mutex_);
  alignas(64) std::atomic<int> n_{0};
  int array_[2] = {1, 2};
};

template <>
int Outer<int>::Nested::method(const Call &call,
                               int n) const {
  struct Local {
    void of_it() {}
  };
  return n;
}

static void *address = nullptr;
bool Outer::operator()(int n) const { return n; }

}  // namespace a::b
'''


def test_functions_are_found_with_their_lines() -> None:
    found = check_sizes.Reader(CODE).read()
    lines = {one.name: one.lines for one in found.functions}
    assert lines == {
        "Thing::Thing": 3,
        "Thing::n": 1,
        "Thing::shaped": 4,
        "Thing::operator==": 1,
        "Thing::look": 1,
        "Outer<int>::Nested::method": 8,
        "Outer::operator()": 1,
    }


def test_methods_and_fields_are_counted() -> None:
    found = check_sizes.Reader(CODE).read()
    counts = {one.name: (one.methods, one.fields) for one in found.classes}
    # Deleted and defaulted ones are no methods, constants no fields.
    assert counts == {"Thing": (8, 7), "Thing::Inner": (0, 2), "Thing::(unnamed)": (0, 1)}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("void f() {\n" + ";\n" * 69 + "}\n", "x.cpp f()"),
        ("//\n" * 451, "x.cpp"),
        ("class C {\n" + "".join(f"  void m{n}();\n" for n in range(26)) + "};\n", "x.cpp C: methods"),
        ("struct S {\n" + "".join(f"  int f{n} = 0;\n" for n in range(21)) + "};\n", "x.cpp S: fields"),
        ("struct S {\n" + "".join(f"  int f{n} ISTHMUS_GUARDED_BY(m);\n" for n in range(21)) + "};\n", "x.cpp S: fields"),
    ],
)
def test_what_is_too_long_is_a_breach_but_for_an_exception(text: str, key: str) -> None:
    assert len(check_sizes.check([("x.cpp", text)], {})) == 1
    assert check_sizes.check([("x.cpp", text)], {key: "a reason"}) == []
    assert len(check_sizes.check([("x.cpp", text)], {key: " "})) == 1, "an exception without a reason"


def test_what_is_just_short_enough_is_none() -> None:
    text = "void f() {\n" + ";\n" * 68 + "}\nstruct S {\n" + "".join(f"  int f{n};\n" for n in range(20)) + "};\n"
    assert check_sizes.check([("x.cpp", text)], {}) == []


def test_an_exception_that_nothing_needs_is_a_breach() -> None:
    assert len(check_sizes.check([("x.cpp", "void f() {}\n")], {"x.cpp f()": "a reason"})) == 1


def test_csrc_has_no_breach() -> None:
    assert check_sizes.main() == 0
