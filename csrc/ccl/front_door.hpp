// The front doors of csrc/interpose. A front door has the SONAME of a vendor's library. So in a program that was started behind a door the loader
// gives the door for the library's name. Behind the door is the real library, which the door opens at its first call.
#pragma once

#include <string>

namespace isthmus::ccl {

// Whether that function is a door's. A note in its file tells a door.
bool is_front_door(const void *function) noexcept;

// The library behind a door: a library that the process has loaded, that has the function, and that is no door. Files that are called like `file`
// ("libnccl.so.2", perhaps with other digits) come first. Empty: there is none.
std::string loaded_behind_door(const char *file, const char *function);

}  // namespace isthmus::ccl
