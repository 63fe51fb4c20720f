// Whether the interface of a stream that has fallen silent is down. The kernel tells all interfaces or none, so each is asked about at most
// once in kAskNs and silence, whichever of a link's streams are in doubt, and for how long.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "net/socket.hpp"

namespace isthmus::link {

class InterfaceDoubt {
 public:
  static constexpr int64_t kAskNs = 50'000'000;
  explicit InterfaceDoubt(size_t streams) { known_.reserve(streams); }

  // Whether the interface of the socket is down, as far as is known. `since`: when the silence began; an older answer says nothing of it.
  bool down(int socket, int64_t since, int64_t now) {
    net::Address own;
    try {
      own = net::local_address(socket);
    } catch (const Error &) { return false; }
    auto at = std::find_if(known_.begin(), known_.end(), [&](const KnownInterface &k) { return k.own.same_host(own); });
    if (at != known_.end() && at->asked >= since && now - at->asked < kAskNs) return at->down;
    if (at == known_.end()) {
      // A stream that comes again may have another address than before.
      if (known_.size() == known_.capacity()) known_.clear();
      at = known_.insert(known_.end(), KnownInterface{own, 0, false});
    }
    at->asked = now;
    return at->down = net::interface_down(socket);
  }

 private:
  struct KnownInterface {
    net::Address own;
    int64_t asked;
    bool down;
  };
  std::vector<KnownInterface> known_;  // never more than the streams
};

}  // namespace isthmus::link
