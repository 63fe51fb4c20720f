// Where the real library is looked for.
#pragma once

#include "text_buffer.hpp"

namespace isthmus::interpose {

// Opens the first file that is the vendor's library and not this one, nor another copy of it. Null: there is none, and `tried` says where
// it was looked for and what was wrong with what was found.
void *open_real(TextBuffer &tried) noexcept;

// What the program opened by its path, where the hook before dlopen gave it this library (ways/dlopen.cpp). Null: nothing.
const char *asked_for() noexcept;

}  // namespace isthmus::interpose
