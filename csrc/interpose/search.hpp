// Where the real library is looked for.
#pragma once

#include "text_buffer.hpp"

namespace isthmus::interpose {

// Opens the first file that is the vendor's library. Neither this library nor a copy of it counts. Null: there is none.
// `tried` says where this looked, and what was wrong with what was found.
void *open_real(TextBuffer &tried) noexcept;

// The path of the library that the program opened, where the hook before dlopen (ways/dlopen.cpp) gave it this library
// instead. Null: the program did not do so.
const char *asked_for() noexcept;

}  // namespace isthmus::interpose
