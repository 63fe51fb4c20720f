// Which files are a vendor's collective library, and which front door stands for each of them.
#pragma once

namespace isthmus::interpose {

// The file of the front door that a program is given in place of the file that it asks for. The door lies beside the library
// that this is built into. The text stays. Null: the file that is asked for is to be opened, because
// - the file is no vendor's, neither by its base name nor by its SONAME;
// - the file is not there;
// - there is no door for the file;
// - a door asks (as_it_is.hpp); or
// - ISTHMUS_DISABLE=1.
// Any thread, no lock, no allocation; errno stays as it is.
const char *door_for(const char *asked) noexcept;

void say_given(const char *asked, const char *door) noexcept;  // a line of the log, at the level info

}  // namespace isthmus::interpose
