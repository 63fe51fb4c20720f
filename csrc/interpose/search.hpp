// Where the real library is looked for.
#pragma once

#include "text_buffer.hpp"

namespace isthmus::interpose {

// Opens the first file that is the vendor's library. Neither this front door nor a copy of this door counts. Null: there is
// no such file. `tried` says where the search looked, and what was wrong with each file that the search found.
void *open_real(TextBuffer &tried) noexcept;

// The path of the library that the program asked for, where the hook before dlopen (ways/dlopen.cpp) gave the program this
// front door instead. Null: the program did not open the library in that way.
const char *asked_for() noexcept;

}  // namespace isthmus::interpose
