// Wrong names on the command line, and the known name that the user may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace isthmus::bench {

// The known name that differs least from the given one. Empty where even that name differs much.
std::string nearest(std::string_view text, const std::vector<std::string> &known);
// The end of a sentence: ", did you mean all_reduce?", or ".".
std::string meant(std::string_view text, const std::vector<std::string> &known);

}  // namespace isthmus::bench
