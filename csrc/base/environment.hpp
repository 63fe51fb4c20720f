// Variables for libraries that read them when they are opened, in a process whose other threads may read the environment meanwhile.
#pragma once

#include <span>
#include <string>
#include <utility>

namespace isthmus {

// Adds those (name, value) that the environment does not have. Unlike setenv() it makes one new list of variables and leaves the old one as
// it is, for whoever is reading it: what is added is never freed. A thread that changes the environment meanwhile may undo this, or this
// what it did.
void add_to_environment(std::span<const std::pair<std::string, std::string>> variables);

}  // namespace isthmus
