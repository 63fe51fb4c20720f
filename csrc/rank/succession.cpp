#include "rank/succession.hpp"

#include <utility>

#include "base/clock.hpp"

namespace isthmus::rank {

bool Succession::await_quiet(int64_t until_ns) noexcept {
  constexpr int64_t kAskNs = 50'000'000;
  core_.context->progress().stand_in();
  for (int64_t asked = now_ns(); core_.has_work();) {
    const int64_t now = now_ns();
    if (now >= until_ns) return false;
    if (driver_.drive()) continue;
    driver_.check_deadlines(now);
    if (now - asked >= kAskNs) {
      asked = now;
      core_.ask_for_interrupt();
    }
    core_.context->links().sleep(core_.context->links().count() != 0, std::min<int64_t>(1'000'000, until_ns - now),
                                 [&](LookAt links) { return driver_.drive(links) || !core_.has_work(); });
  }
  return true;
}

Estate Succession::estate(int64_t until_ns) noexcept {
  if (!await_quiet(until_ns)) return {};
  collective::DeviceSide::DeviceEstate device = collectives_.device().estate();
  return {device.quiet && !messages_.copying(), std::move(device.library), collectives_.memory().fixed(),
          collectives_.memory().fixed_room()};
}

// It may have ended for certain, may have left, or may have ended the last collective that read here. One that is only lost may go on in the midst of
// a copy.
bool Succession::comes_no_more(int rank) const noexcept {
  const PeerRank &p = core_.peers[static_cast<size_t>(rank)];
  if (!p.mail || (p.process && p.process->surely_ended())) return true;
  if (p.left.load(std::memory_order_acquire) && !p.left_writing.load()) return true;
  const bool writes = messages_.slots().written_by(rank) || messages_.library().with(rank);
  return !writes && p.mail->done.value.load(std::memory_order_acquire) >= collectives_.entered();
}

bool Succession::ring_is_free(std::span<const bool> quiet, int64_t until_ns) const noexcept {
  const auto free = [&] {
    for (int q = 0; q < core_.id.world; ++q)
      if (q != core_.id.rank && !quiet[static_cast<size_t>(q)] && !comes_no_more(q)) return false;
    return true;
  };
  while (!free() && now_ns() < until_ns) core_.context->links().sleep_at_doorbell(5'000'000, free);
  return free();
}

void Succession::let_go(Borrowed what) noexcept {
  if (what.ring) collectives_.memory().let_go_fixed();
  if (!what.library) return;
  core_.exec.take();  // the thread that drives may look at the library just now
  collectives_.device().let_go_library();
  core_.exec.give();
}

void Succession::keep(Succession &before) noexcept { before.let_go(std::exchange(borrowed_, {})); }

void Succession::give_back() noexcept { let_go(std::exchange(borrowed_, {})); }

void Succession::give_back_ring() noexcept { let_go({false, std::exchange(borrowed_.ring, false)}); }

}  // namespace isthmus::rank
