// The front doors of csrc/interpose, where a program was started behind one: they have the SONAMEs of vendors' libraries, so that the loader
// gives them for the name. Behind one is the real library, which it opens at its first call.
#pragma once

#include <string>

namespace isthmus::ccl {

// Whether that function is a door's. Doors are known by a note.
bool is_front_door(const void *function) noexcept;

// The library that the process has loaded whose file is called like `file` ("libnccl.so.2", perhaps with other digits), which has that
// function, and which is no door; empty: there is none.
std::string loaded_behind_door(const char *file, const char *function);

}  // namespace isthmus::ccl
