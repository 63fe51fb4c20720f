// What in this process speaks against this door: NCCL's and RCCL's functions have the same names, so one door takes the other's calls.
#pragma once

#include "text_buffer.hpp"

namespace isthmus::interpose {

// In a sentence behind `before`, if there is something: the other door is preloaded too, or what is loaded is linked against the other
// vendor's library and nothing against this one's.
void describe_neighbours(TextBuffer &out, const char *before) noexcept;

void warn_of_neighbours() noexcept;  // the same as a line of the log

}  // namespace isthmus::interpose
