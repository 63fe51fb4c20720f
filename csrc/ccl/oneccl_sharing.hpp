// Whether the ranks of an island use oneCCL's shared memory.
//
// oneCCL's transport (libfabric's provider "shm") names the memory of a process after the process id. oneCCL reads the name of another rank into as
// many bytes as its own name has. So ranks of one host whose process ids have unlike numbers of digits, 9999 and 10000, cannot connect, and
// oneCCL then ends the process (seen with 2022.2: a double free). All ranks of such an island leave the provider out, and their traffic goes by
// TCP. A process decides once, because libfabric reads FI_PROVIDER once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ccl/island_ccl.hpp"

namespace isthmus::ccl::oneccl {

enum class Sharing : uint8_t { Undecided = 0, Used = 1, LeftOut = 2 };

// What FI_PROVIDER says; null: it is not set.
Sharing sharing_of(const char *fi_provider) noexcept;
// The terms of a process that has decided so.
std::vector<std::byte> terms_of(Sharing sharing);
// The decision of an island, the same on all its ranks. Throws Error(Unsupported) where the ranks' earlier decisions allow none.
Sharing decide(std::span<const IslandMember> island);

}  // namespace isthmus::ccl::oneccl
