// The signs in this process that another front door should have been chosen. NCCL's and RCCL's functions have the same
// names, so the door of one vendor takes the calls that are meant for the other vendor.
#pragma once

#include "text_buffer.hpp"

namespace isthmus::interpose {

// Writes a sentence behind `before`, in two cases:
// 1. The other vendor's door is preloaded, too.
// 2. A loaded object is linked against the other vendor's library, and no object against this vendor's library.
void describe_neighbours(TextBuffer &out, const char *before) noexcept;

void warn_of_neighbours() noexcept;  // writes the same sentence to the log

}  // namespace isthmus::interpose
