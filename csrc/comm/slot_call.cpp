#include "comm/slot_call.hpp"

#include <vector>

namespace isthmus::comm {
namespace {

constexpr uint64_t kMostElements = uint64_t{1} << 56;

// One side of a v-collective.
struct SideLists {
  std::vector<uint64_t> counts, displs;

  void take(const char *name, const Numbering &numbering, const uint64_t *&given_counts, const uint64_t *&given_displs) {
    if (!given_counts) return;
    counts.clear();
    displs.clear();
    uint64_t at = 0;
    for (int slot = 0; slot < numbering.slots(); ++slot) {
      const uint64_t count = given_counts[slot];
      if (numbering.rank(slot) >= 0) {
        counts.push_back(count);
        displs.push_back(given_displs ? given_displs[slot] : at);
      }
      if (given_displs) continue;
      if (count > kMostElements || at > kMostElements)
        fail(Code::Argument, "{}: a count of {} elements is negative or too large", name, static_cast<int64_t>(count));
      at += count;
    }
    given_counts = counts.data();
    given_displs = displs.data();
  }
};

thread_local SideLists send_lists, recv_lists;

}  // namespace

CallRequest in_ranks(const CallRequest &request, const Numbering &numbering) {
  CallRequest out = request;
  out.numbering = &numbering;
  const char *const name = collective_name(request.collective);
  const bool rooted = has_root(request.collective), inside = request.root >= 0 && request.root < numbering.slots();
  if (inside && (rooted || is_message(request.collective))) {  // else the number is refused behind this
    out.root = numbering.rank(request.root);
    if (out.root < 0) numbering.rank_of(formatted("{}: {}", name, rooted ? "root" : "peer").c_str(), request.root);
  }
  if (!is_varying(request.collective)) return out;
  send_lists.take(name, numbering, out.send_counts, out.send_displs);
  recv_lists.take(name, numbering, out.recv_counts, out.recv_displs);
  return out;
}

}  // namespace isthmus::comm
