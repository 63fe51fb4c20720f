// The processors of the host, and how many ranks share them.
#pragma once

namespace isthmus::process {

int processors() noexcept;       // that this process may use
bool oversubscribed() noexcept;  // more ranks on this host than processors
// A communicator has so many ranks on this host. The largest number counts.
void note_local_ranks(int ranks) noexcept;

}  // namespace isthmus::process
