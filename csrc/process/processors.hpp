// The processors of the host, and how many ranks share them.
#pragma once

namespace isthmus::process {

int processors() noexcept;       // that this process may use
bool oversubscribed() noexcept;  // more ranks on this host than processors
// Four processors or more for each rank of this host: who waits, the progress thread, and what a device's driver runs on.
bool processors_to_spare() noexcept;
// How many threads may help the `here` ranks of this process, of `on_host` ranks on this host, or as many as have been noted: of the processors that
// fall to them, two for each rank are left alone, and of a large share half.
int spare_processors(int here, int on_host) noexcept;
// A communicator has so many ranks on this host. The largest number counts.
void note_local_ranks(int ranks) noexcept;
int noted_local_ranks() noexcept;  // 1 at least

}  // namespace isthmus::process
