#include "comm/commit.hpp"

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "comm/abort_watch.hpp"
#include "comm/communicator.hpp"
#include "rank/blame.hpp"

namespace isthmus::comm {
namespace {

// What a rank contributes: a mark, the operation's number, and whether it has ended well here. A rank that makes another call contributes something
// else. The two lowest bits are 0: they say "made" to ranks that still confirm what an earlier call has made (Confirmation).
constexpr uint64_t kCommits = uint64_t{0x69636d} << 40, kDone = 4;
uint64_t mark_of(const engine::Operation &op) { return kCommits | (op.sequence << 3 & ((uint64_t{1} << 40) - 1)); }

// The verdict of all. Another rank may be in its operation until the deadline of that, and then looks for who is to blame, seldom for longer than
// kBlamePatience. Who has not come by then is named, so that the others hear an answer: the one that leads the agreement knows who.
rank::Verdict ask(rank::Rank &local, uint64_t flags, const engine::Operation &op, const AbortWatch &watch) {
  constexpr int64_t kLeastNs = seconds_to_ns(rank::kBlamePatience + 0.5);
  const int64_t patience = std::max(seconds_to_ns(op.call.timeout), kLeastNs);
  // Who is interrupted leaves at once, and who is aborted: the others hear that, and no rank waits for its word.
  const auto interrupted = [&] {
    Status why = local.core().failure();
    return why.code == Code::Interrupted ? why : watch.status();
  };
  try {
    return local.agreement().agree(flags, {}, false, Deadline::at_ns(std::max(op.time.deadline_ns, now_ns()) + patience),
                                   interrupted);
  } catch (const Error &late) {
    if (late.code() != Code::Timeout) throw;
    return local.agreement().agree(flags, late.ranks(), false, Deadline::at_ns(now_ns() + patience), interrupted);
  }
}

// Why it is not done on all. OK: it is.
Status outcome(rank::Rank &local, const engine::Operation &op, const AbortWatch &watch) {
  const Status own = engine::status_of(local.core(), op);
  if (own.code == Code::Interrupted) return own;
  const auto what = [&] { return local.core().describe(op); };
  rank::Verdict verdict;
  try {
    verdict = ask(local, mark_of(op) | (own.ok() ? kDone : 0), op, watch);
  } catch (const Error &e) {
    if (!own.ok()) return own;  // so it is done on none
    const bool out = !local.agreement().members().has(local.id().rank);
    return {e.code(),
            formatted("{} ended well here, and is undone: {}{}", what(), e.text(),
                      out ? "" : "; whether the other ranks have it is not known here"),
            e.ranks()};
  }
  std::vector<int> lost = verdict.out.list();
  // An earlier agreement may have gone on without some, who still take part in operations.
  const rank::RankSet members = local.agreement().members();
  for (int r = 0; r < local.id().world; ++r)
    if (!members.has(r) && std::find(lost.begin(), lost.end(), r) == lost.end()) lost.push_back(r);
  if (verdict.flags == (mark_of(op) | kDone) && lost.empty()) return {};
  if (!own.ok()) return {own.code, own.text, lost.empty() ? own.ranks : lost};
  if (!lost.empty()) {
    std::string who;
    for (const int q : lost) who += formatted("{}{}", who.empty() ? "" : ", ", local.id().text(q));
    return {Code::PeerLost,
            formatted("{} ended well here, and is undone on all ranks: {} {} lost, or did not come to it", what(), who,
                      lost.size() == 1 ? "is" : "are"),
            std::move(lost)};
  }
  if ((verdict.flags & ~kDone) != mark_of(op))
    return {Code::Mismatch,
            formatted("{} ended well here, and is undone: another rank made another call in its place; all ranks "
                      "give commit, or none",
                      what())};
  const Status why = local.core().failure();
  return {why.ok() ? Code::Aborted : why.code,
          formatted("{} ended well here, and is undone on all ranks: on another one it failed{}{}", what(),
                    why.ok() ? "" : ": ", why.text),
          why.ranks};
}

}  // namespace

//   rank 0   keeps what it will write | the operation ends well --> agree: done ----\     /--> all have done it: over
//                                                                                    >---<
//   rank 1   keeps what it will write | the operation fails -----> agree: not done -/     \--> one has not, or is lost: writes back what it kept
//
// A rank whose operation has failed takes part, for the others wait for its word. Once one was not done on all, the ranks have heard so, and ask no
// more.
class AllOrNone {
 public:
  static Status run(Communicator &whole, engine::Operation &op) {
    take_turn(whole.split_mutex_, whole, "an operation with commit", Deadline(op.call.timeout));
    const Lock lock(whole.split_mutex_, kLocked);
    rank::Rank &local = whole.local();
    const AbortWatch watch(local);
    local.run(&op);
    local.driver().wait(&op, INT64_MAX);
    if (whole.undone_) return engine::status_of(local.core(), op);
    Status end = outcome(local, op, watch);
    if (end.ok()) return end;
    whole.undone_ = true;
    if (op.end.result == Code::Ok && op.kept.bytes) std::memcpy(op.call.output, op.kept.bytes.get(), op.kept.size);
    local.core().fail(end, process::Tell::Peers);
    return end;
  }
};

Status commit(Communicator &whole, engine::Operation &op) { return AllOrNone::run(whole, op); }

}  // namespace isthmus::comm
