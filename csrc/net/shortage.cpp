#include "net/shortage.hpp"

#include <cstdint>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"

namespace isthmus::net {
namespace {

constexpr int64_t kLastsNs = 1'000'000'000;
constexpr int64_t kOverNs = 500'000'000;  // after the last note

struct Shortage {
  Mutex mutex;
  int64_t since_ns ISTHMUS_GUARDED_BY(mutex) = 0, last_ns ISTHMUS_GUARDED_BY(mutex) = 0;
  int why ISTHMUS_GUARDED_BY(mutex) = 0;
};
PerProcess<Shortage> the_shortage;

}  // namespace

void note_shortage(int error) noexcept {
  const int64_t now = now_ns();
  Shortage &s = *the_shortage;
  const Lock lock(s.mutex);
  if (now - std::exchange(s.last_ns, now) > kOverNs) s.since_ns = now;
  s.why = error;
}

std::string lasting_shortage() {
  Shortage &s = *the_shortage;
  const Lock lock(s.mutex);
  if (s.last_ns == 0 || now_ns() - s.last_ns > kOverNs || s.last_ns - s.since_ns < kLastsNs) return {};
  return formatted("out of descriptors ({})", descriptor_limit(s.why));
}

}  // namespace isthmus::net
