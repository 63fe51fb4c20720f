// Whether this process has no descriptors left for connections. The limit is the process's, so all that take and make some have one answer.
#pragma once

#include <string>

namespace isthmus::net {

// An accept() or a socket() has failed for want of descriptors. Who needs one tries again within half a second: a gate every 100 ms, as long as
// somebody waits there, and who connects every 200 ms.
void note_shortage(int error) noexcept;
// "out of descriptors (ulimit -n 16)", where it lasts for a second already. Empty: it does not; it may be over by itself.
std::string lasting_shortage();

}  // namespace isthmus::net
