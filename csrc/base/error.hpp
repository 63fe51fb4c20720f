// Errors. Set-up code throws Error; the hot path carries a Code and a text in the operation. Both become isthmus_result and
// isthmus_last_error() at the C boundary, so the numbers of Code are those of isthmus.h (static_assert in api/).
#pragma once

#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/format.hpp"

namespace isthmus {

enum class Code : int {
  Ok = 0,
  Argument = 1,
  Config = 2,
  Mismatch = 3,
  Timeout = 4,
  PeerLost = 5,
  Aborted = 6,
  Resource = 7,
  System = 8,
  Auth = 9,
  Forked = 10,
  Interrupted = 11,
  Unsupported = 12,
  InProgress = 13,
  Internal = 14,
  Device = 15,
};
// The code with the highest number: a peer's message has no higher one.
inline constexpr Code kLastCode = Code::Device;

const char *code_name(Code code) noexcept;

// Holds an outcome where exceptions must not pass: worker threads, callbacks, the hot path.
struct Status {
  Code code = Code::Ok;
  std::string text;
  // The ranks of the communicator that the failure is about, ascending: who is lost, or who did not come. Empty: that is not known, or nobody.
  std::vector<int> ranks = {};
  bool ok() const noexcept { return code == Code::Ok; }
};

class Error : public std::exception {
 public:
  Error(Code code, std::string text, std::vector<int> ranks = {}) : why_{code, std::move(text), std::move(ranks)} {}
  explicit Error(Status why) noexcept : why_(std::move(why)) {}
  Code code() const noexcept { return why_.code; }
  const std::string &text() const noexcept { return why_.text; }
  const std::vector<int> &ranks() const noexcept { return why_.ranks; }
  const Status &why() const noexcept { return why_; }
  const char *what() const noexcept override { return why_.text.c_str(); }

 private:
  Status why_;
};

template <class... A>
[[noreturn]] void fail(Code code, fmt::format_string<A...> format, A &&...args) {
  throw Error(code, formatted(format, std::forward<A>(args)...));
}

// "connect: Connection refused (111)" for the errno value `error`.
std::string system_text(const char *what, int error);
Code system_code(int error) noexcept;  // Resource where memory or descriptors are used up, else System
bool no_descriptors(int error) noexcept;
std::string descriptor_limit(int error);  // "ulimit -n 1024": what a process, or a host, that has no more may raise
[[noreturn]] void fail_system(const char *what, int error);

}  // namespace isthmus
