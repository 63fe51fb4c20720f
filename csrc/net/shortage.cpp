#include "net/shortage.hpp"

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "base/error.hpp"

namespace isthmus::net {
namespace {

constexpr int64_t kLastsNs = 1'000'000'000;
constexpr int64_t kOverNs = 500'000'000;  // after the last note

std::atomic<int64_t> since_ns{0}, last_ns{0};
std::atomic<int> why{0};

}  // namespace

void note_shortage(int error) noexcept {
  const int64_t now = now_ns();
  if (now - last_ns.exchange(now) > kOverNs) since_ns.store(now);
  why.store(error);
}

std::string lasting_shortage() {
  const int64_t last = last_ns.load();
  if (last == 0 || now_ns() - last > kOverNs || last - since_ns.load() < kLastsNs) return {};
  return formatted("out of descriptors ({})", descriptor_limit(why.load()));
}

}  // namespace isthmus::net
