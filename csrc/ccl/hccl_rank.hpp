// One rank of an island that HCCL serves, as seen by the thread that makes the rank's calls. HcclThread (hccl_thread.hpp) is the other side,
// which begins the thread, asks for calls, and ends the thread.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/doorbell.hpp"
#include "base/error.hpp"
#include "base/lock.hpp"
#include "ccl/hccl_abi.hpp"
#include "ccl/island_ccl.hpp"
#include "ccl/stream_word.hpp"

namespace isthmus::ccl::hccl {

using namespace hccl_abi;

inline constexpr int64_t kSpin = 20'000;
inline constexpr int64_t kNap = 100'000'000;
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct HcclLibrary {
  Functions f;
  const char *(*last_words)() = nullptr;  // of the device's library, on the thread that failed
  std::string version, path;
};

// What a call's result means. `here`: this thread has made the call just now, so the device's library may have words for the failure.
inline Status outcome(const HcclLibrary &o, const char *call, Result r, bool here = true) {
  if (r == kSuccess) return {};
  const char *text = o.f.GetErrorString ? o.f.GetErrorString(r) : nullptr;
  const char *last = here && o.last_words ? o.last_words() : nullptr;
  return {r == kRuntimeFailed ? Code::Device : Code::System,
          formatted("hccl {}: {} ({}){}{}{}", call, text && *text ? text : "error", r,
                    r == kNotSupported ? "; ISTHMUS_CCL=none goes on without the library" : "", last && *last ? ": " : "",
                    last && *last ? last : "")};
}

// Compared by address: an array has one in all sources, a literal need not.
inline constexpr char kInit[] = "init", kDestroy[] = "destroy";

struct Task {
  const char *name = nullptr;  // kInit, kDestroy, or of the call
  Call call = Call::AllReduce;
  const void *input = nullptr;
  void *output = nullptr;
  uint64_t count = 0;
  int dtype = 0, op = 0, peer = 0;  // peer: the root of those that have one
};

// A thread that is left behind keeps its HcclRank alive.
struct HcclRank {
  const HcclLibrary *library = nullptr;
  std::shared_ptr<device::Stream> stream;
  Handle handle ISTHMUS_GUARDED_BY(calling) = nullptr;
  Id id{};
  int rank = 0, size = 1;
  Task task;
  std::vector<BatchItem> items;  // the messages of a task that is an all_to_all_v
  std::atomic<uint64_t> asked{0}, done{0};
  Doorbell work, back;
  std::atomic<bool> aborted{false}, stop{false}, ended{false};
  std::atomic<bool> parted{false};  // the thread ends, or was left behind. Who comes to it second knows of the first
  StreamFailure failure{stream};
  std::atomic<const char *> inside{nullptr};
  Mutex calling;  // held in the library's calls: one thread at a time is in the library

  bool broken() const noexcept { return aborted.load() || failure.happened(); }
  Result make(const Task &t) ISTHMUS_REQUIRES(calling) {
    const Functions &f = library->f;
    void *const input = const_cast<void *>(t.input);
    const auto peer = static_cast<uint32_t>(t.peer);
    const Queue queue = stream->handle();
    if (t.name == kInit) return f.CommInitRootInfo(static_cast<uint32_t>(size), &id, static_cast<uint32_t>(rank), &handle);
    if (t.name == kDestroy) return f.CommDestroy(std::exchange(handle, nullptr));
    switch (t.call) {
      case Call::AllReduce: return f.AllReduce(input, t.output, t.count, t.dtype, t.op, handle, queue);
      case Call::Reduce: return f.Reduce(input, t.output, t.count, t.dtype, t.op, peer, handle, queue);
      case Call::Broadcast: return f.Broadcast(t.output, t.count, t.dtype, peer, handle, queue);
      case Call::AllGather: return f.AllGather(input, t.output, t.count, t.dtype, handle, queue);
      case Call::ReduceScatter: return f.ReduceScatter(input, t.output, t.count, t.dtype, t.op, handle, queue);
      case Call::AllToAll: return f.AlltoAll(input, t.count, t.dtype, t.output, t.count, t.dtype, handle, queue);
      case Call::AllToAllV: return f.BatchSendRecv(items.data(), static_cast<uint32_t>(t.count), handle, queue);
      case Call::Send: return f.Send(input, t.count, t.dtype, peer, handle, queue);
      case Call::Recv: return f.Recv(t.output, t.count, t.dtype, peer, handle, queue);
    }
    return kSuccess;
  }
  bool joined() {
    const Lock lock(calling);
    return handle != nullptr;
  }
  void run() {
    const Lock lock(calling);
    // `inside` is stored before `aborted` is read. So a thread that aborts, and then finds nobody inside, knows that nobody will be.
    inside.store(task.name);
    if (!aborted.load() || task.name == kDestroy) failure.keep(outcome(*library, task.name, make(task)), true);
    inside.store(nullptr);
  }
  // Of the rank's thread. A thread that was left behind lets go of the rank, and with it perhaps of the stream, before it counts as back.
  static void loop(std::shared_ptr<HcclRank> rank) {
    if (!rank->makes_calls()) return;
    rank = nullptr;
    device::abandoned_thread_is_back();
  }
  bool makes_calls() {  // until it is to stop. True: the thread was left behind
    ::pthread_setname_np(::pthread_self(), "isthmus-hccl");
    try {
      const device::Entered device(*stream);
      if (library->last_words) (void)library->last_words();  // takes away the words about the thread's time without a device
      for (uint64_t next = 1;; ++next) {
        wait(
            work, [&] { return asked.load(std::memory_order_acquire) >= next || stop.load(); }, kNever);
        if (stop.load()) break;
        run();
        done.store(next, std::memory_order_release);
        back.ring();
      }
    } catch (const Error &e) { failure.keep({e.code(), e.text()}, false); }
    const bool left = parted.exchange(true);
    ended.store(true, std::memory_order_release);
    back.ring();
    return left;
  }
  // Waits at the bell until `ready()` or the deadline. Spins first. Returns ready().
  template <class R>
  static bool wait(Doorbell &bell, R ready, int64_t until_ns) {
    const int64_t begin = now_ns();
    for (int i = 0; i < 100'000; ++i) {
      if (ready()) return true;
      if ((i & 63) == 63 && now_ns() - begin > kSpin) break;
    }
    while (true) {
      Nap nap(bell);
      if (ready()) return true;
      const int64_t now = now_ns();
      if (now >= until_ns) return false;
      nap.sleep(std::min(until_ns - now, kNap));
    }
  }
};

}  // namespace isthmus::ccl::hccl
