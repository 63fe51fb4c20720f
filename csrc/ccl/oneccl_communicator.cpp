#include "ccl/oneccl_communicator.hpp"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "ccl/first_failure.hpp"
#include "ccl/oneccl_guards.hpp"
#include "ccl/oneccl_leftovers.hpp"
#include "device/host.hpp"

namespace isthmus::ccl::oneccl {
namespace {

constexpr int kByte = kUInt8;  // moves carry bytes, so every type can be moved

// The library's numbers of a type and an operation. -1: the library has none.
int dtype_number(DType t) noexcept {
  switch (t) {
    case DType::Int8: return kInt8;
    case DType::UInt8: return kUInt8;
    case DType::Int32: return kInt32;
    case DType::UInt32: return kUInt32;
    case DType::Int64: return kInt64;
    case DType::UInt64: return kUInt64;
    case DType::Float16: return kFloat16;
    case DType::Float32: return kFloat32;
    case DType::Float64: return kFloat64;
    case DType::BFloat16: return kBFloat16;
    default: return -1;
  }
}
int op_number(RedOp op) noexcept {
  switch (op) {
    case RedOp::Sum: return kSum;
    case RedOp::Prod: return kProd;
    case RedOp::Max: return kMax;
    case RedOp::Min: return kMin;
    default: return -1;
  }
}

// What the thread of the stream works with. The thread is the last user, so the thread deletes it.
struct OneCclRank {
  const Functions *f = nullptr;
  Handle handle = nullptr;
  Id id{};
  int rank = 0, size = 1;
  std::atomic<bool> aborted{false};
  FirstFailure failure;
  std::atomic<const char *> inside{nullptr};  // the call of this rank in which the thread is
  std::atomic<bool> begun{false};             // init has been made or left out
};

Status outcome(const OneCclRank &r, const char *call, Result result) {
  if (result == kSuccess) return {};
  const char *words = r.f->GetLastError ? r.f->GetLastError(r.handle) : nullptr;
  return {Code::System, formatted("oneccl {}: {} ({}){}{}", call, result_text(result), result, words && *words ? ": " : "",
                                  words && *words ? words : "")};
}

struct OneCclCall {
  OneCclRank *rank;
  void *input, *output;
  uint64_t count;
  int dtype, op, peer;  // peer: the root of those that have one
  Call call;
};

// Makes one call. The result is OK in any case: a failure of one communicator is not the stream's, which others share.
Status run(const OneCclCall &a) {
  const Functions &f = *a.rank->f;
  Handle h = a.rank->handle;
  // `inside` is stored before `aborted` is read. So a thread that aborts, and then finds nobody inside, knows that nobody will be.
  a.rank->inside.store(island_call_name(a.call));
  if (a.rank->aborted.load() || a.rank->failure.happened()) {
    a.rank->inside.store(nullptr);
    return {};
  }
  Result r = kSuccess;
  const Unending unending;
  switch (a.call) {
    case Call::AllReduce: r = f.AllReduce(a.input, a.output, a.count, a.dtype, a.op, h, nullptr); break;
    case Call::Reduce: r = f.Reduce(a.input, a.output, a.count, a.dtype, a.op, a.peer, h, nullptr); break;
    case Call::Broadcast: r = f.Broadcast(a.input, a.output, a.count, a.dtype, a.peer, h, nullptr); break;
    case Call::AllGather: r = f.AllGather(a.input, a.output, a.count, a.dtype, h, nullptr); break;
    case Call::ReduceScatter: r = f.ReduceScatter(a.input, a.output, a.count, a.dtype, a.op, h, nullptr); break;
    case Call::AllToAll: r = f.AllToAll(a.input, a.output, a.count, a.dtype, h, nullptr); break;
    case Call::AllToAllV: break;  // never asked
    case Call::Send: r = f.Send(a.input, a.count, a.dtype, a.peer, h, nullptr); break;
    case Call::Recv: r = f.Recv(a.output, a.count, a.dtype, a.peer, h, nullptr); break;
  }
  a.rank->inside.store(nullptr, std::memory_order_release);
  a.rank->failure.keep(outcome(*a.rank, island_call_name(a.call), r));
  return {};
}

struct Life {
  OneCclRank *rank;
};
Status begin(const Life &l) {
  OneCclRank &r = *l.rank;
  r.inside.store("init");
  if (!r.aborted.load()) {  // else nobody waits for this rank, and no other rank would meet it in the library
    const Unending unending;
    const Result result = r.f->CommInitRank(&r.handle, static_cast<size_t>(r.size), r.id, r.rank);
    r.failure.keep(outcome(r, "init", result));
  }
  r.inside.store(nullptr, std::memory_order_release);
  r.begun.store(true, std::memory_order_release);
  return {};
}

Status end(const Life &l) {
  if (l.rank->handle && !l.rank->aborted.load(std::memory_order_acquire)) {
    l.rank->inside.store("destroy", std::memory_order_release);
    const Unending unending;
    l.rank->f->CommDestroy(l.rank->handle);
  }
  delete l.rank;
  return {};
}

constexpr const char *kDestroy = "oneccl destroy";

// A thread that is stuck in the library does not survive the library's destructors, which are of several files, some opened late. Exit handlers
// run backwards. This one is registered when the thread is left behind, so it runs before those destructors. It ends the process with the status
// that the process was to have.
void end_without_destructors(int status, void *) {
  std::fflush(nullptr);
  remove_own_leftovers();
  ::_exit(status);
}
void abandon(device::HostStream &stream) noexcept {
  static std::once_flag once;
  std::call_once(once, [] { ::on_exit(end_without_destructors, nullptr); });
  stream.abandon();
}

class OneCclCommunicator final : public IslandCommunicator {
 public:
  OneCclCommunicator(const Functions &f, const IslandJoin &join, std::shared_ptr<device::Stream> stream)
      : stream_(std::static_pointer_cast<device::HostStream>(std::move(stream))), rank_(new OneCclRank) {
    rank_->f = &f;
    rank_->rank = join.rank;
    rank_->size = join.size;
    std::memcpy(rank_->id.bytes, join.id.data(), kIdBytes);
    stream_->call("oneccl init", begin, Life{rank_});
    constexpr int64_t kLook = 50'000'000;
    // The wait is for `begun`, not for an empty stream: others may meanwhile give the stream work that waits for this rank.
    const auto begun = [&] { return rank_->begun.load(std::memory_order_acquire); };
    while (!begun() && stream_->usable() && !join.deadline.passed() && !join.in_vain())
      (void)stream_->drain(std::min(now_ns() + kLook, join.deadline.ns()));
    const bool drained = begun();
    const Status waited = drained ? Status{} : join.waited("oneccl");
    const Status status = drained ? rank_->failure.status() : Status{};
    if (drained && status.ok()) return;
    abort();
    leave();
    if (drained) throw Error(status.code, status.text);
    throw Error(waited.code, waited.text);
  }
  ~OneCclCommunicator() override { leave(); }

  int rank() const noexcept override { return rank_->rank; }
  int size() const noexcept override { return rank_->size; }
  device::Stream &stream() const noexcept override { return *stream_; }
  Status status() const override { return rank_->failure.status(); }

  void all_reduce(const void *input, void *output, uint64_t count, DType dtype, Reduction by) override {
    reduction(Call::AllReduce, input, output, count, dtype, by.op, 0);
  }
  void reduce(const void *input, void *output, uint64_t count, DType dtype, Reduction by, int root) override {
    reduction(Call::Reduce, input, output, count, dtype, by.op, root);
  }
  void reduce_scatter(const void *input, void *output, uint64_t count, DType dtype, Reduction by) override {
    reduction(Call::ReduceScatter, input, output, count, dtype, by.op, 0);
  }
  void broadcast(void *buffer, uint64_t count, DType dtype, int root) override {
    move(Call::Broadcast, buffer, buffer, count, dtype, root);
  }
  void all_gather(const void *input, void *output, uint64_t count, DType dtype) override {
    move(Call::AllGather, input, output, count, dtype, 0);
  }
  void all_to_all(const void *input, void *output, uint64_t count, DType dtype) override {
    move(Call::AllToAll, input, output, count, dtype, 0);
  }
  void all_to_all_v(const void *, void *, const Blocks &) override {
    fail(Code::Unsupported, "oneccl all_to_all_v: the library's has no displacements");
  }
  void send(const void *buffer, uint64_t count, DType dtype, int peer) override {
    move(Call::Send, buffer, nullptr, count, dtype, peer);
  }
  void recv(void *buffer, uint64_t count, DType dtype, int peer) override {
    move(Call::Recv, nullptr, buffer, count, dtype, peer);
  }

  void abort() noexcept override { rank_->aborted.store(true); }
  bool failed() const noexcept override { return rank_->failure.happened() || !stream_->usable(); }
  const char *inside() const noexcept override { return rank_->inside.load(std::memory_order_acquire); }
  bool held_up() const noexcept override { return stream_->inside() != nullptr && !inside(); }
  void leave_behind() noexcept override { abandon(*stream_); }

 private:
  void reduction(Call call, const void *input, void *output, uint64_t count, DType dtype, RedOp op, int root) {
    const int t = dtype_number(dtype), o = op_number(op);
    if (t < 0 || o < 0)
      fail(Code::Unsupported, "oneccl {}: no {} of {} there", island_call_name(call), redop_name(op), dtype_name(dtype));
    submit({rank_, const_cast<void *>(input), output, count, t, o, root, call});
  }
  void move(Call call, const void *input, void *output, uint64_t count, DType dtype, int peer) {
    submit({rank_, const_cast<void *>(input), output, count * dtype_size(dtype), kByte, 0, peer, call});
  }
  void submit(const OneCclCall &a) {
    if (a.peer < 0 || a.peer >= rank_->size)
      fail(Code::Argument, "oneccl {}: rank {} is not of this island (0 to {})", island_call_name(a.call), a.peer,
           rank_->size - 1);
    if (a.count) stream_->call(island_call_name(a.call), run, a);
  }

  // Ends the library's communicator on the stream's thread, behind the calls that were submitted. A thread that does not come out of a call of this
  // communicator is left behind, with all that it uses. Where the thread is in a call of another communicator, what is ours stays for ever.
  void leave() noexcept {
    bool drained = stream_->drain(Deadline(rank_->aborted.load() ? 0.5 : 1.5).ns());
    if (!drained &&
        !rank_->aborted.load()) {  // another communicator holds up the stream; the other ranks of the island wait no longer
      abort();
      drained = stream_->drain(Deadline(0.1).ns());
    }
    if (drained) {
      const int stops = Unending::stops();
      stream_->call(kDestroy, end, Life{rank_});
      for (const Deadline patience(10); !patience.passed() && Unending::stops() == stops;)
        if (stream_->drain(Deadline(0.05).ns())) return;
      const char *where = stream_->inside();
      if (where && std::strcmp(where, kDestroy) == 0)
        abandon(*stream_);  // else what another communicator submitted goes first
    } else if (inside()) {
      abandon(*stream_);
    }
  }

  std::shared_ptr<device::HostStream> stream_;
  OneCclRank *rank_;
};

}  // namespace

const char *result_text(Result r) {
  return r >= 0 && static_cast<size_t>(r) < std::size(kResultTexts) ? kResultTexts[r] : "unknown result";
}

bool reduces_there(DType dtype, RedOp op) noexcept { return dtype_number(dtype) >= 0 && op_number(op) >= 0; }

std::unique_ptr<IslandCommunicator> join_island(const Functions &f, const IslandJoin &join,
                                                std::shared_ptr<device::Stream> stream) {
  return std::make_unique<OneCclCommunicator>(f, join, std::move(stream));
}

}  // namespace isthmus::ccl::oneccl
