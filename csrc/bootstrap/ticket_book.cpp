#include "bootstrap/ticket_book.hpp"

#include "net/siphash.hpp"
#include "net/wire.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr size_t kMostReason = 1000;  // bytes of the text of a failure

}  // namespace

TicketBook::TicketBook(size_t remembered, size_t reasons)
    : remembered_(remembered), reasons_(reasons), secret_(net::random16()) {}

uint64_t TicketBook::make() {
  const uint64_t number = made_;
  const size_t at = static_cast<size_t>(number % remembered_);
  if (at == fates_.size()) {
    fates_.push_back(Fate::Serves);
  } else {
    dropped_ += fates_[at] == Fate::Serves;
    fates_[at] = Fate::Serves;
  }
  ++made_;
  return number;
}

std::optional<uint64_t> TicketBook::find(uint32_t low) const noexcept {
  if (made_ == 0) return {};
  const uint32_t back = static_cast<uint32_t>(made_ - 1) - low;  // from the newest, in numbers that wrap
  if (back >= made_) return {};
  return made_ - 1 - back;
}

Bytes16 TicketBook::key(uint64_t number) const {
  net::ByteVector message;
  net::Writer(message).bytes(net::as_bytes("ticket")).number(number);
  return net::siphash128(secret_, message);
}

void TicketBook::note_over(uint64_t number, const Status &failure) {
  if (!remembers(number)) return;
  Fate &fate = fates_[static_cast<size_t>(number % remembered_)];
  if (fate != Fate::Serves) return;
  fate = failure.ok() ? Fate::Met : Fate::Failed;
  if (failure.ok()) return;
  failures_[number] = {failure.code, failure.text.substr(0, kMostReason)};
  failed_.push_back(number);
  if (failed_.size() <= reasons_) return;
  failures_.erase(failed_.front());
  failed_.pop_front();
}

std::optional<Status> TicketBook::over(uint64_t number) const {
  if (!remembers(number))
    return Status{Code::System, formatted("more than {} tickets were made after this one, so it is forgotten", remembered_)};
  switch (fates_[static_cast<size_t>(number % remembered_)]) {
    case Fate::Serves: return {};
    case Fate::Met: return Status{Code::System, "all its ranks met and have left; a ticket, or id, is for one meeting"};
    case Fate::Failed: break;
  }
  const auto at = failures_.find(number);
  if (at == failures_.end()) return Status{Code::PeerLost, "it failed, long ago"};
  // Ranks that waited are told by Timeout. Who comes later has not waited.
  const Code code = at->second.code == Code::Timeout ? Code::System : at->second.code;
  return Status{code, "it failed: " + at->second.text};
}

}  // namespace isthmus::bootstrap
