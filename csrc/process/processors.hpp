// The processors of the host, and how many ranks share them.
#pragma once

namespace isthmus::process {

int processors() noexcept;       // that this process may use
bool oversubscribed() noexcept;  // more ranks on this host than processors
// Four processors or more for each rank of this host: who waits, the progress thread, and what a device's driver runs on.
bool processors_to_spare() noexcept;
// A communicator has so many ranks on this host. The largest number counts.
void note_local_ranks(int ranks) noexcept;

}  // namespace isthmus::process
