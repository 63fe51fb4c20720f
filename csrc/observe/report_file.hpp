// Files for which settings give the names. Folders that are missing are made. Throws Error: the file cannot be written.
#pragma once

#include <string>

namespace isthmus::observe {

// The file has the text or what it had before, never a part.
void write_file(const std::string &path, const std::string &text);
// `anew`: what the file had goes. Without it several processes may add to a file.
void append_to_file(const std::string &path, const std::string &text, bool anew);

}  // namespace isthmus::observe
