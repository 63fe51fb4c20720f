// What the end of a group waits for, where the real library's part of the group has ended with work in progress: that the
// library has given all streams what the group has for them. Isthmus' part follows on the same streams. So all ranks have the
// two parts in one order: the streams of two ranks that have them in two orders would wait for each other for good.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/lock.hpp"
#include "face_nccl.hpp"

namespace isthmus::bridge::nccl {
namespace {

using interpose::kInProgress;
using interpose::kSuccess;
using interpose::ThreadState;
using State = Result(Handle, Result *);
using Clock = std::chrono::steady_clock;

constexpr const char *kCall = "ncclCommGetAsyncError";

// The library's communicators that some thread asks about. The library frees a communicator that the program aborts. So each
// question is asked under the lock, and stop_asking() takes the communicator out before the abort.
Guarded<std::vector<Handle>> &asked() {
  static auto *const all = new Guarded<std::vector<Handle>>;  // a thread may still ask when the process ends
  return *all;
}

class Asking {
 public:
  explicit Asking(const ThreadState &t) : t_(t) {
    const auto all = asked().lock();
    all->insert(all->end(), t.comms, t.comms + t.joined);
  }
  ~Asking() {
    const auto all = asked().lock();
    for (int i = 0; i < t_.joined; ++i)
      if (const auto at = std::find(all->begin(), all->end(), t_.comms[i]); at != all->end()) all->erase(at);
  }
  Asking(const Asking &) = delete;
  Asking &operator=(const Asking &) = delete;

 private:
  const ThreadState &t_;
};

// kSuccess, kInProgress, or why there is nothing to wait for.
Outcome state_of(Handle comm, State *ask, Result &state) {
  const auto all = asked().lock();
  if (std::find(all->begin(), all->end(), comm) == all->end())
    return {ISTHMUS_ERR_ABORTED, "the program aborted a communicator of the group"};
  const Result r = ask(comm, &state);
  const Result failed = face().failure(r) ? r : state;
  if (!face().failure(failed)) return {};
  return {ISTHMUS_ERR_SYSTEM, std::string(door().name) + "'s own part of the group failed (" + std::to_string(failed) + ")",
          failed};
}

// Operations have no deadline, unless the program sets one.
Clock::duration patience() {
  constexpr double kMost = 1e9;
  const char *set = std::getenv("ISTHMUS_TIMEOUT");
  const double seconds = set ? std::strtod(set, nullptr) : 0;
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(seconds > 0 ? std::min(seconds, kMost) : kMost));
}

Outcome wait_for(Handle comm, State *ask, Clock::time_point until, const std::function<Outcome()> &ours) {
  for (;;) {
    Result state = kSuccess;
    if (Outcome o = state_of(comm, ask, state); !o.ok() || state != kInProgress) return o;
    if (Outcome o = ours(); !o.ok()) return o;
    if (Clock::now() > until)
      return {ISTHMUS_ERR_TIMEOUT, std::string(door().name) + "'s own part of the group has not begun (ISTHMUS_TIMEOUT)"};
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // the library tells nobody
  }
}

}  // namespace

Outcome wait_for_group(const std::function<Outcome()> &ours) {
  const ThreadState &t = *door().thread();
  if (t.joined > ThreadState::kMostJoined)
    return {ISTHMUS_ERR_UNSUPPORTED, "the group has operations on more than " + std::to_string(ThreadState::kMostJoined) +
                                         " communicators of " + door().name + "'s own, some of which do not block"};
  auto *ask = face().real<State>(kCall);
  if (!ask) return {};
  const Asking asking(t);
  const auto until = Clock::now() + patience();
  for (int i = 0; i < t.joined; ++i)
    if (Outcome o = wait_for(t.comms[i], ask, until, ours); !o.ok()) return o;
  return {};
}

bool asked_about(Handle comm) {
  const auto all = asked().lock();
  return std::find(all->begin(), all->end(), comm) != all->end();
}

void stop_asking(Handle comm) { std::erase(*asked().lock(), comm); }

}  // namespace isthmus::bridge::nccl
