#include "comm/confirmation.hpp"

#include <algorithm>
#include <utility>

#include "comm/communicator.hpp"

namespace isthmus::comm {
namespace {

constexpr uint64_t kMade = 1, kMayTryAgain = 2;  // what a rank contributes

}  // namespace

rank::Verdict agree(rank::Rank &of, uint64_t flags, const Asking &asking) {
  return of.agreement().agree(flags, asking.suspects, false, asking.deadline, [&] { return asking.watch.status(); });
}

// The lock is not kept: a split of another thread may stand beside an agreement. Where another thread has it, in a call that makes a communicator,
// the two agreements at a time are refused by RankAgreement.
rank::Verdict agree(Communicator &whole, uint64_t flags, const std::vector<int> &suspects, bool alone, Deadline deadline) {
  if (whole.split_mutex_.try_lock()) {
    const Lock lock(whole.split_mutex_, kLocked);
    whole.confirmation_.settle(whole, suspects, alone, deadline);
  }
  return whole.local().agreement().agree(flags, suspects, alone, deadline);
}

Subject Confirmation::subject(const Communicator &whole) const {
  const bool waits = all_have_ || number_ == const_cast<Communicator &>(whole).local().agreement().number();
  return waits ? what_ : Subject();
}

// The verdict is known from here on, so nothing waits for it any more.
Confirmed Confirmation::ask(Communicator &whole, bool mine, bool may_try_again, const Asking &asking) {
  const uint64_t flags = (mine ? kMade : 0) | (may_try_again ? kMayTryAgain : 0);
  const rank::Verdict verdict = agree(whole.local(), flags, asking);
  number_ = 0;
  if (verdict.flags & kMade && verdict.out.count() == 0) {
    all_have_ = true;
    return {made_, true, {}};
  }
  made_.reset();  // the caller may have a last word for it
  return {nullptr, (verdict.flags & kMayTryAgain) != 0, verdict.out.list()};
}

Confirmed Confirmation::confirm(Communicator &whole, Subject what, std::shared_ptr<Communicator> made, bool may_try_again,
                                const Asking &asking) {
  what_ = what;
  number_ = whole.local().agreement().number();
  made_ = std::move(made);
  if (Status ended = asking.watch.status(); !ended.ok()) throw Error(std::move(ended));
  Confirmed all = ask(whole, made_ != nullptr, may_try_again, asking);
  if (all.made) {
    all_have_ = false;
    made_.reset();
    all.made->local().succession().keep(whole.local().succession());
  }
  return all;
}

std::optional<Confirmed> Confirmation::resume(Communicator &whole, Subject what, const Asking &asking) {
  if (!all_have_ && number_ != whole.local().agreement().number()) {
    end(whole);  // the program has gone on with other agreements
    return std::nullopt;
  }
  const bool same = what == what_;
  Confirmed all{made_, true, {}};
  if (!all_have_) all = ask(whole, same && made_, true, asking);
  if (!all.made) return all;
  if (!same)
    fail(Code::Aborted, "the other ranks have what an earlier call of this rank was to make, {}: make that call again",
         what_.of == Subject::Of::Shrink ? "what is left without some ranks" : "the communicator with newcomers");
  all_have_ = false;
  made_.reset();
  all.made->local().succession().keep(whole.local().succession());
  return all;
}

void Confirmation::settle(Communicator &whole, const std::vector<int> &suspects, bool alone, Deadline deadline) {
  if (subject(whole).of == Subject::Of::Nothing) return;
  const AbortWatch watch(whole.local());
  try {
    resume(whole, {}, {suspects, deadline, watch});
  } catch (const Error &e) {
    // Those that are out of reach, where they are lost, may be late with their end: this agreement is not to be had.
    const auto is_lost = [&](int q) { return whole.local().peers()[static_cast<size_t>(q)].lost(); };
    const bool lost =
        e.code() == Code::Timeout && !e.ranks().empty() && std::all_of(e.ranks().begin(), e.ranks().end(), is_lost);
    if (!alone || (e.code() != Code::PeerLost && !lost)) throw;
    end(whole);
  }
}

void Confirmation::end(Communicator &whole) noexcept {
  number_ = 0;
  all_have_ = false;
  const auto made = std::exchange(made_, nullptr);
  if (!made) return;
  made->local().succession().keep(whole.local().succession());
  made->destroy();
}

}  // namespace isthmus::comm
