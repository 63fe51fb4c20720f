// Which files are a vendor's collective library, and the door that stands for each.
#pragma once

namespace isthmus::interpose {

// The file of the door that a program is given in place of the file that it asks for, beside the library that this is built into; a text
// that stays. Null where the file that is asked for is to be opened: it is no vendor's by its base name or its SONAME, it is not there,
// there is no door for it, a door asks (as_it_is.hpp), or ISTHMUS_DISABLE=1. Any thread, no lock, no allocation; errno stays as it is.
const char *door_for(const char *asked) noexcept;

void say_given(const char *asked, const char *door) noexcept;  // a line of the log, at the level info

}  // namespace isthmus::interpose
