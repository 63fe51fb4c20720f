#include "rank/rank_port.hpp"

#include "base/one_line.hpp"
#include "rank/rank.hpp"

namespace isthmus::rank {

int RankPort::rank() const noexcept { return rank_.id().rank; }
int RankPort::world() const noexcept { return rank_.id().world; }
uint32_t RankPort::index() const noexcept { return rank_.id().index; }
uint32_t RankPort::epoch() const noexcept { return rank_.id().epoch; }

std::weak_ptr<process::LocalRank> RankPort::itself() noexcept {
  const std::shared_ptr<Rank> rank = rank_.weak_from_this().lock();
  return rank ? std::shared_ptr<process::LocalRank>(rank, this) : nullptr;
}

bool RankPort::give_idle_staging() noexcept {
  if (rank_.core().failed()) return false;  // a device may still come to the memory
  const bool spares = rank_.messages().places().free_spares();
  return rank_.collectives().memory().give_idle() || spares;
}

bool RankPort::has_lent_staging() const noexcept { return !rank_.core().failed() && rank_.collectives().memory().lent(); }

// ---- links ---------------------------------------------------------------------------------------------------------------------------

link::Accept RankPort::accept_frame(const link::FrameHeader &h, int64_t since_ns, std::byte *&to) {
  if (h.source >= static_cast<uint32_t>(world()) || h.epoch != epoch()) return link::Accept::Drop;
  if (h.kind != link::FrameKind::PlanData) return rank_.messages().matcher().accept(h, to);
  return rank_.collectives().host().accept(h, since_ns, to);
}

void RankPort::received_frame(const link::FrameHeader &h) {
  if (h.kind == link::FrameKind::PlanData) rank_.collectives().host().inbox().received(h);
  else rank_.messages().matcher().received(h);
}

void RankPort::link_broken(const link::Link *link, const std::string &why) noexcept {
  for (int q = 0; q < world(); ++q)
    if (const PeerRank &p = rank_.peers()[static_cast<size_t>(q)]; p.link == link && p.process && !p.left.load())
      rank_.agreement().cut(q);
  rank_.events().link_broken(link, why);
}

process::PathTo RankPort::path_to(int rank) const noexcept {
  const PeerRank &p = rank_.peers()[static_cast<size_t>(rank)];
  return {p.process, p.link, p.their_index};
}

// ---- control -------------------------------------------------------------------------------------------------------------------------

void RankPort::credit(uint32_t rank, uint64_t granted) noexcept { rank_.events().credit(rank, granted); }

void RankPort::peer_left(uint32_t rank, uint64_t done, uint64_t sent, Leaving how) noexcept {
  rank_.events().left(rank, done, sent, how);
  rank_.agreement().look();
}

void RankPort::peer_ends_library(uint32_t rank, Leaving how) noexcept { rank_.events().ends_library(rank, how); }

void RankPort::came_out_of_band(const process::OutOfBandHead &head, std::span<const std::byte> bytes) {
  rank_.exchange().came(head, bytes);
}

void RankPort::withdrawn_out_of_band(uint32_t rank, uint64_t number) { rank_.exchange().inbox().withdrawn(rank, number); }

void RankPort::came_of_agreement(const process::AgreeHead &head, std::span<const std::byte> ranks) {
  rank_.agreement().came(head, ranks);
}

void RankPort::peer_lost(bootstrap::Peer &process, const std::string &why) noexcept {
  rank_.events().lost(process, why);
  rank_.agreement().look();
}

void RankPort::fail(Failure why, Tell whom) noexcept { rank_.core().fail(std::move(why), whom); }

void RankPort::raised(std::string_view what, bool first) noexcept {
  constexpr size_t kMost = 300;
  Failure why{{Code::PeerLost, formatted("{} raised {}", rank_.id().text(rank()), one_line(what, kMost)), {rank()}}};
  why.raiser = first ? rank() : -1;
  fail(std::move(why), Tell::Peers);
}

Failure RankPort::why() const { return rank_.core().why(); }
Answer RankPort::answer(const process::RankQuestion &question) const noexcept { return rank_.events().answer(question); }
std::string RankPort::inside_text() const { return rank_.core().inside_text(); }
std::string RankPort::waiting_text() const { return rank_.events().waiting_text(); }

// ---- progress ------------------------------------------------------------------------------------------------------------------------

bool RankPort::has_work() const noexcept { return rank_.core().has_work(); }
uint32_t RankPort::waiters() const noexcept { return rank_.core().waiters.load(std::memory_order_relaxed); }
bool RankPort::drive(LookAt links) noexcept { return rank_.driver().drive(links); }
int64_t RankPort::check_deadlines(int64_t now) noexcept { return rank_.driver().check_deadlines(now); }
bool RankPort::polls_device() const noexcept { return rank_.driver().polls_device(); }

// ---- the device ----------------------------------------------------------------------------------------------------------------------

device::Runtime *RankPort::runtime() const noexcept { return rank_.device().runtime; }
int RankPort::device() const noexcept { return rank_.device().number; }
bool RankPort::carry_messages() noexcept { return rank_.messages().copies().carry(); }
void RankPort::look_at_device() noexcept { rank_.driver().look_at_device(); }
void RankPort::stop_stream() noexcept { rank_.collectives().device().stop_stream(); }

}  // namespace isthmus::rank
