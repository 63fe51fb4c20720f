// The file of a profile.
#pragma once

#include <string>

namespace isthmus::comm {

// The text of the file. Throws Error(Config) where there is none, where it is no regular file, and where it is larger than a profile.
std::string read_profile(const std::string &path);

}  // namespace isthmus::comm
