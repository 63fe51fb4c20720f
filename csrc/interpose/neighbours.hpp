// What in this process shows that another front door should have been chosen. NCCL's and RCCL's functions have the same
// names, so the door of one vendor takes the calls that are meant for the other.
#pragma once

#include "text_buffer.hpp"

namespace isthmus::interpose {

// Writes a sentence behind `before`, in two cases:
// 1. The other vendor's door is preloaded, too.
// 2. Something that is loaded is linked against the other vendor's library, and nothing against this one's.
void describe_neighbours(TextBuffer &out, const char *before) noexcept;

void warn_of_neighbours() noexcept;  // writes the same sentence to the log

}  // namespace isthmus::interpose
