#include "base/file_name.hpp"

#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/format.hpp"

namespace isthmus {
namespace {

std::string host() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

// Calls text(piece) and letter(c) for what the pattern is made of; c is 0 where it ends behind a percent sign.
template <class Text, class Letter>
void read(std::string_view pattern, Text text, Letter letter) {
  while (!pattern.empty()) {
    const size_t percent = pattern.find('%');
    text(pattern.substr(0, percent));
    if (percent == std::string_view::npos) return;
    letter(percent + 1 < pattern.size() ? pattern[percent + 1] : '\0');
    pattern.remove_prefix(std::min(percent + 2, pattern.size()));
  }
}

}  // namespace

std::string pattern_fault(std::string_view pattern) {
  std::string fault;
  read(
      pattern, [](std::string_view) {},
      [&](char c) {
        if (c == 'h' || c == 'p' || c == 'r' || c == '%' || !fault.empty()) return;
        fault = c == 0 ? std::string("it ends with a lone %") : formatted("%{} stands for nothing", c);
      });
  return fault;
}

static bool has(std::string_view pattern, char letter) noexcept {
  bool found = false;
  read(
      pattern, [](std::string_view) {}, [&](char c) { found |= c == letter; });
  return found;
}
bool has_rank(std::string_view pattern) noexcept { return has(pattern, 'r'); }
bool has_process(std::string_view pattern) noexcept { return has(pattern, 'p'); }

std::string file_name(std::string_view pattern, int rank) {
  std::string out;
  read(
      pattern, [&](std::string_view text) { out += text; },
      [&](char c) {
        if (c == 'h') out += host();
        else if (c == 'p') out += std::to_string(::getpid());
        else if (c == 'r') out += rank < 0 ? "unknown" : std::to_string(rank);
        else out += '%';
      });
  return out;
}

}  // namespace isthmus
