// Whether this process has no descriptors left to take connections with. The limit is the process's, so all of its gates have one answer.
#pragma once

#include <string>

namespace isthmus::net {

// accept() has failed for want of descriptors. A gate tries again every 100 ms, as long as somebody waits there.
void note_shortage(int error) noexcept;
// "out of descriptors (ulimit -n 16)", where it lasts for a second already. Empty: it does not; it may be over by itself.
std::string lasting_shortage();

}  // namespace isthmus::net
