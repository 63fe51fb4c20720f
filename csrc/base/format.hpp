// Text from a format string, which is checked when it is compiled, and values. What fmt does at run time is compiled once, in
// format.cpp: its headers are most of what a file would cost to compile.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <span>
#include <string>

namespace isthmus {

std::string format_values(fmt::string_view format, fmt::format_args values);

template <class... A>
std::string formatted(fmt::format_string<A...> format, A &&...values) {
  return format_values(format, fmt::make_format_args(values...));
}

std::string hex(std::span<const uint8_t> bytes);  // two small digits a byte

}  // namespace isthmus
