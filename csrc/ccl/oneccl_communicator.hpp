// One rank of an island that oneCCL serves. The library's calls block, so the thread of a host stream makes them.
//
//   caller                                     thread of the stream, one for all communicators
//     all_reduce(): checks, submits   ------>    run(): `inside` names the call, then looks at `aborted`
//     goes on                                    the library's call, until the island's other ranks have made theirs
//     abort(): sets `aborted`                    (stays in the call: the library has no call that ends it)
//     inside() names the call: the engine leaves the thread behind, with the stream
//     ~(): submits end()              ------>    end(): the library's communicator ends, and the OneCclRank with it
#pragma once

#include <memory>

#include "base/dtype.hpp"
#include "ccl/island_ccl.hpp"
#include "ccl/oneccl_abi.hpp"

namespace isthmus::ccl::oneccl {

using namespace oneccl_abi;

const char *result_text(Result r);

// Whether the library reduces numbers of that type that way.
bool reduces_there(DType dtype, RedOp op) noexcept;

// Library::join(), for arguments that are in order. `stream` is a device::HostStream. `f` outlives the communicator.
std::unique_ptr<IslandCommunicator> join_island(const Functions &f, const IslandJoin &join,
                                                std::shared_ptr<device::Stream> stream);

}  // namespace isthmus::ccl::oneccl
