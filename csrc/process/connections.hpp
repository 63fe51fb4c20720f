// Connects this process with several others.
#pragma once

#include <exception>
#include <optional>
#include <span>

#include "process/links.hpp"

namespace isthmus::process {

struct Wanted {  // as Links::connect() takes it
  const bootstrap::Endpoint *endpoint = nullptr;
  bool shared = false;
  std::optional<Streams> streams;  // none: its frames go through memory
  bootstrap::Peer *peer = nullptr;
  std::exception_ptr why;  // where there is no peer
};

// Those that this process has to dial it dials side by side, on a few threads (bootstrap/side_by_side.hpp): each dialogue waits some six times for the other
// process, which may be busy or far away. An error of one connection is that one's alone. What `look` throws ends all and is thrown; it is asked by
// the calling thread, every 20 ms.
void connect_all(Links &links, const bootstrap::Mesh &mesh, std::span<Wanted> all, const bootstrap::Bytes16 &key,
                 Deadline deadline, const bootstrap::Look &look);

}  // namespace isthmus::process
