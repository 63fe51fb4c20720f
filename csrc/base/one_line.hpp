#pragma once

#include <string>
#include <string_view>

namespace isthmus {

// Somebody else's words, fit to stand in a line of ours: control characters and what is no UTF-8 become blanks, and what is longer than
// `most` bytes is cut and ends in "...".
std::string one_line(std::string_view text, size_t most);

// The first `most` bytes at most of UTF-8, with no character cut.
std::string_view head_of(std::string_view text, size_t most) noexcept;

}  // namespace isthmus
