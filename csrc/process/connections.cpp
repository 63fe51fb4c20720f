#include "process/connections.hpp"

#include <set>
#include <utility>
#include <vector>

#include "bootstrap/side_by_side.hpp"

namespace isthmus::process {
namespace {

constexpr size_t kMostAtOnce = 8;  // dialogues of one caller: each has a thread

}  // namespace

void connect_all(Links &links, const bootstrap::Mesh &mesh, std::span<Wanted> all, const bootstrap::Bytes16 &key,
                 Deadline deadline, const bootstrap::Look &look) {
  std::vector<size_t> dialed, others;
  std::set<bootstrap::Bytes16> seen;  // a process that is wanted twice is dialed once
  for (size_t i = 0; i < all.size(); ++i) {
    const Wanted &w = all[i];
    const bool streams = w.streams && w.streams->carrier == Carrier::Tcp;
    const bool dials = mesh.must_dial(*w.endpoint, streams) && seen.insert(w.endpoint->process).second;
    (dials ? dialed : others).push_back(i);
  }
  const auto one = [&](size_t i, const bootstrap::Look &its) {
    Wanted &w = all[i];
    w.peer = &links.connect(*w.endpoint, key, w.shared, w.streams ? &*w.streams : nullptr, deadline, its);
  };
  bootstrap::SideBySide side_by_side(std::move(dialed), kMostAtOnce, one, look);
  side_by_side.take_part();
  for (const size_t i : others) side_by_side.one(i);
  side_by_side.await();
  for (auto &[i, why] : side_by_side.take_failed()) all[i].why = std::move(why);
}

}  // namespace isthmus::process
