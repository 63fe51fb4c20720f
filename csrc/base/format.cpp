#define FMT_HEADER_ONLY 1
#include <fmt/format.h>

#include "base/format.hpp"

namespace isthmus {

std::string format_values(fmt::string_view format, fmt::format_args values) { return fmt::vformat(format, values); }

std::string hex(std::span<const uint8_t> bytes) {
  std::string out;
  for (const uint8_t byte : bytes) out += formatted("{:02x}", byte);
  return out;
}

}  // namespace isthmus
