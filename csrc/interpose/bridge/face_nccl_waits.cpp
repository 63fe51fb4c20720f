// Waits for the real library, whose communicators tell nobody when they go on.
//
// A destroy that has waited for the census waits until the library has made the communicator: the library destroys nothing else.
//
// What the end of a group waits for, where the real library's part of the group has ended with work in progress: that the
// library has given all streams what the group has for them. Isthmus' part follows on the same streams. So all ranks have the
// two parts in one order: the streams of two ranks that have them in two orders would wait for each other for good.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
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
constexpr std::chrono::microseconds kPause{100};  // between two questions

// The library's communicators about which somebody asks. The library frees a communicator that the program aborts. So
// each question is asked under the lock, and stop_asking() takes the communicator out before the abort.
struct AskedComm {
  const void *by;
  Handle comm;
};
Guarded<std::vector<AskedComm>> &all_asked() {
  static auto *const all = new Guarded<std::vector<AskedComm>>;  // a thread may still ask when the process ends
  return *all;
}

// Operations have no deadline, unless the program sets one.
Clock::duration patience() {
  constexpr double kMost = 1e9;
  const char *set = std::getenv("ISTHMUS_TIMEOUT");
  const double seconds = set ? std::strtod(set, nullptr) : 0;
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(seconds > 0 ? std::min(seconds, kMost) : kMost));
}

class NcclGroupWait final : public GroupWait {
 public:
  explicit NcclGroupWait(const ThreadState &t) : joined_(t.joined) {
    if (joined_ > ThreadState::kMostJoined) return;
    const auto all = all_asked().lock();
    for (int i = 0; i < joined_; ++i) all->push_back({this, t.comm(i)});
  }
  ~NcclGroupWait() override {
    const auto all = all_asked().lock();
    std::erase_if(*all, [this](const AskedComm &a) { return a.by == this; });
  }

  Outcome wait(const std::function<Outcome()> &ours) override {
    if (joined_ > ThreadState::kMostJoined)
      return {ISTHMUS_ERR_UNSUPPORTED, "the group has operations on more than " + std::to_string(ThreadState::kMostJoined) +
                                           " communicators of " + door().name +
                                           "'s own, some of which do not block, or there is no memory for their list"};
    auto *ask = face().real<State>(kCall);
    if (!ask) return {};
    const auto until = Clock::now() + patience();
    for (;;) {
      bool going_on = false;
      if (Outcome o = look(ask, going_on); !o.ok() || !going_on) return o;
      if (Outcome o = ours(); !o.ok()) return o;
      if (Clock::now() > until)
        return {ISTHMUS_ERR_TIMEOUT, std::string(door().name) + "'s own part of the group has not begun (ISTHMUS_TIMEOUT)"};
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  // Not OK: why there is nothing to wait for. `going_on`: some communicator is in progress.
  Outcome look(State *ask, bool &going_on) const {
    const auto all = all_asked().lock();
    int there = 0;
    for (const AskedComm &a : *all) {
      if (a.by != this) continue;
      ++there;
      Result state = kSuccess;
      const Result r = ask(a.comm, &state);
      if (const Result failed = face().failure(r) ? r : state; face().failure(failed))
        return {ISTHMUS_ERR_SYSTEM,
                std::string(door().name) + "'s own part of the group failed (" + std::to_string(failed) + ")", failed};
      going_on = going_on || state == kInProgress;
    }
    if (there < joined_) return {ISTHMUS_ERR_ABORTED, "the program aborted a communicator of the group"};
    return {};
  }

  const int joined_;
};

}  // namespace

std::unique_ptr<GroupWait> group_wait() { return std::make_unique<NcclGroupWait>(*door().thread()); }

void wait_until_made(Handle comm) {
  auto *ask = face().real<State>(kCall);
  if (!ask) return;
  const auto mine = [&comm](const AskedComm &a) { return a.by == &comm; };
  all_asked().lock()->push_back({&comm, comm});
  for (;; std::this_thread::sleep_for(kPause)) {
    const auto all = all_asked().lock();
    if (std::none_of(all->begin(), all->end(), mine)) return;  // the program has aborted it
    Result state = kSuccess;
    if (ask(comm, &state) == kSuccess && state == kInProgress) continue;
    std::erase_if(*all, mine);
    return;
  }
}

void stop_asking(Handle comm) {
  std::erase_if(*all_asked().lock(), [comm](const AskedComm &a) { return a.comm == comm; });
}

}  // namespace isthmus::bridge::nccl
