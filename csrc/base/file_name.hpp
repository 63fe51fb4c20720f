// Names of files that settings give as patterns: each process of a job fills in its own.
#pragma once

#include <string>
#include <string_view>

namespace isthmus {

// What stands in a pattern, in words, for documentation and errors.
inline constexpr const char *kPatternText =
    "a path, in which %h is the host's name, %p the process, %r the rank, %% a percent sign";

// What is wrong with the pattern; empty: nothing.
std::string pattern_fault(std::string_view pattern);
bool has_rank(std::string_view pattern) noexcept;
bool has_process(std::string_view pattern) noexcept;
// The pattern filled in for this process, and for `rank` (below 0: "unknown").
std::string file_name(std::string_view pattern, int rank);

}  // namespace isthmus
