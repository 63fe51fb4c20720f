#define FMT_HEADER_ONLY 1
#include <fmt/format.h>

#include "base/format.hpp"

namespace isthmus {

std::string format_values(fmt::string_view format, fmt::format_args values) { return fmt::vformat(format, values); }

}  // namespace isthmus
