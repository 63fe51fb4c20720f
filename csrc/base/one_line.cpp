#include "base/one_line.hpp"

#include <algorithm>

namespace isthmus {

std::string one_line(std::string_view text, size_t most) {
  constexpr std::string_view kCut = "...";
  std::string out;
  size_t fits = 0;  // of it, with kCut behind
  for (size_t i = 0; i < text.size();) {
    const auto at = [&](size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
    const unsigned lead = at(i), next = at(i + 1);
    const size_t bytes = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    bool sound = bytes > 1 || (bytes == 1 && lead >= 0x20 && lead != 0x7f);
    for (size_t k = 1; k < bytes; ++k) sound &= (at(i + k) & 0xc0u) == 0x80;
    // What has a shorter form, halves of UTF-16, and numbers above the last.
    sound &= !(lead == 0xe0 && next < 0xa0) && !(lead == 0xed && next >= 0xa0) && !(lead == 0xf0 && next < 0x90) &&
             !(lead == 0xf4 && next >= 0x90);
    const size_t before = out.size();
    if (sound) out += text.substr(i, bytes);
    else if (!out.empty() && out.back() != ' ') out += ' ';
    if (out.size() > most) {
      out.resize(std::min(before, fits));
      return out += kCut;
    }
    if (out.size() + kCut.size() <= most) fits = out.size();
    i += sound ? bytes : 1;
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

std::string_view head_of(std::string_view text, size_t most) noexcept {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return text.substr(0, most);
}

}  // namespace isthmus
