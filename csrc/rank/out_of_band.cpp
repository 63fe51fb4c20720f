#include "rank/out_of_band.hpp"

#include <algorithm>
#include <chrono>

#include "base/clock.hpp"

namespace isthmus::rank {

bool OutOfBand::wanted(uint32_t from, About about, size_t bytes) const {
  return from < world_ && bytes <= kMostMessage &&
         std::find(forgotten_.begin(), forgotten_.end(), about.subject) == forgotten_.end();
}

void OutOfBand::add(std::deque<Message> &kept, About about, uint64_t number, std::span<const std::byte> bytes) const {
  make_room(kept);
  kept.push_back({about, number, {bytes.begin(), bytes.end()}, false, false});
}

void OutOfBand::came(uint32_t from, About about, uint64_t number, std::span<const std::byte> bytes) {
  {
    const Lock lock(mutex_);
    if (!wanted(from, about, bytes.size())) return;
    add(from_[from].kept, about, number, bytes);
  }
  changed_.notify_all();
}

void OutOfBand::replace(uint32_t from, About about, uint64_t number, std::span<const std::byte> bytes) {
  {
    const Lock lock(mutex_);
    if (!wanted(from, about, bytes.size())) return;
    auto &kept = from_[from].kept;
    std::erase_if(kept, [&](const Message &m) { return m.about == about; });
    add(kept, about, number, bytes);
    kept.back().note = true;
  }
  changed_.notify_all();
}

void OutOfBand::make_room(std::deque<Message> &kept) const {
  if (kept.size() < most_kept_) return;
  auto least = std::find_if(kept.begin(), kept.end(), [](const Message &m) { return m.withdrawn; });
  if (least == kept.end()) least = std::find_if(kept.begin(), kept.end(), [](const Message &m) { return m.note; });
  kept.erase(least != kept.end() ? least : kept.begin());
}

void OutOfBand::give_back(int from, Message message) {
  const Lock lock(mutex_);
  auto &[kept, given_up] = from_[static_cast<size_t>(from)];
  message.withdrawn = std::find(given_up.begin(), given_up.end(), message.number) != given_up.end();
  make_room(kept);
  kept.push_front(std::move(message));
}

void OutOfBand::withdrawn(uint32_t from, uint64_t number) {
  if (from >= world_) return;
  const Lock lock(mutex_);
  auto &[kept, given_up] = from_[from];
  const auto at = std::find_if(kept.begin(), kept.end(), [&](const Message &m) { return m.number == number; });
  if (at != kept.end()) return void(at->withdrawn = true);
  if (given_up.size() >= most_kept_) given_up.pop_front();
  given_up.push_back(number);
}

bool OutOfBand::was_withdrawn(int from, const Message &taken) {
  const Lock lock(mutex_);
  const auto &given_up = from_[static_cast<size_t>(from)].given_up;
  return std::find(given_up.begin(), given_up.end(), taken.number) != given_up.end();
}

std::optional<OutOfBand::Message> OutOfBand::take(int from, About about, int64_t until_ns) {
  Lock lock(mutex_);
  auto &kept = from_[static_cast<size_t>(from)].kept;
  for (;;) {
    const auto at =
        std::find_if(kept.begin(), kept.end(), [&](const Message &m) { return m.about == about && !m.withdrawn; });
    if (at != kept.end()) {
      Message message = std::move(*at);
      kept.erase(at);
      return message;
    }
    const int64_t left = until_ns - now_ns();
    if (left <= 0) return std::nullopt;
    changed_.wait_for(lock, std::chrono::nanoseconds(left));
  }
}

bool OutOfBand::has(int from, About about) {
  const Lock lock(mutex_);
  const auto &kept = from_[static_cast<size_t>(from)].kept;
  return std::any_of(kept.begin(), kept.end(), [&](const Message &m) { return m.about == about && !m.withdrawn; });
}

void OutOfBand::forget(uint64_t subject) {
  const Lock lock(mutex_);
  forgotten_.push_back(subject);
  if (forgotten_.size() > kMostForgotten) forgotten_.pop_front();
  for (auto &[kept, given_up] : from_) std::erase_if(kept, [&](const Message &m) { return m.about.subject == subject; });
}

void OutOfBand::drop_turns(uint64_t subject, uint64_t before) {
  const Lock lock(mutex_);
  for (auto &[kept, given_up] : from_)
    std::erase_if(kept, [&](const Message &m) { return m.about.subject == subject && m.about.turn < before; });
}

bool OutOfBand::has_other(int from, std::span<const uint64_t> than) {
  const Lock lock(mutex_);
  const auto &kept = from_[static_cast<size_t>(from)].kept;
  return std::any_of(kept.begin(), kept.end(), [&](const Message &m) {
    return (m.about.subject & kOfOneSize) != 0 && std::find(than.begin(), than.end(), m.about.subject) == than.end();
  });
}

}  // namespace isthmus::rank
