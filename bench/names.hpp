// Names on the command line: what somebody may have meant who wrote another one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace isthmus::bench {

// The known name that differs least, where it differs little; else empty.
std::string nearest(std::string_view text, const std::vector<std::string> &known);
// The end of a sentence: ", did you mean all_reduce?", or ".".
std::string meant(std::string_view text, const std::vector<std::string> &known);

}  // namespace isthmus::bench
