// The file of a profile.
#pragma once

#include <string>

namespace isthmus::comm {

// The text of the file. Error(Config): there is no file, the file is no regular file, or the file is larger than a profile.
std::string read_profile(const std::string &path);

}  // namespace isthmus::comm
