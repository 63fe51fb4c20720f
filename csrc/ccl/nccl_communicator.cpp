#include "ccl/nccl_communicator.hpp"

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/lock.hpp"
#include "ccl/nccl_handle.hpp"
#include "ccl/premul_sums.hpp"
#include "ccl/stream_word.hpp"
#include "device/calling.hpp"

namespace isthmus::ccl::nccl {
namespace {

void nap() noexcept {
  const timespec t{0, 50'000};
  ::nanosleep(&t, nullptr);
}

void check(const NcclLibrary &library, Call call, int peer, int size) {
  if (peer < 0 || peer >= size)
    fail(Code::Argument, "{} {}: rank {} is not of this island (0 to {})", library.row->family, island_call_name(call), peer,
         size - 1);
}

// A group of the library's, which begins with the first call that is added. Of the thread that calls.
class NcclGroup {
 public:
  bool wanted() const noexcept { return wanted_; }
  void want() noexcept { wanted_ = true; }
  template <class F>
  Status add(const NcclLibrary &library, const char *name, Handle h, F made) {
    if (!first_) {
      if (const Status s = outcome(library, name, library.f.GroupStart(), h); !s.ok()) return s;
      first_ = name;
    }
    return outcome(library, name, device::called(library.row->family, name, [&] { return made(h); }), h);
  }
  // The name of the first call, and what the end of the group gives. Null: there was no call. The group is closed also where this throws:
  // the thread was left behind in the library's call, which has come back too late.
  const char *end(const NcclLibrary &library, Result *result) {
    wanted_ = false;
    const char *const first = std::exchange(first_, nullptr);
    if (first) *result = device::called(library.row->family, first, [&] { return library.f.GroupEnd(); });
    return first;
  }

 private:
  bool wanted_ = false;
  const char *first_ = nullptr;
};

// The vendor's communicator is not blocking. So a call returns before its work is on the stream, and what we submit next would overtake the work.
// Therefore every call is followed until its work is on the stream. In return no call waits for peers without a deadline.
class NcclCommunicator final : public IslandCommunicator {
 public:
  NcclCommunicator(const NcclLibrary &library, const IslandJoin &join, std::shared_ptr<device::Stream> stream)
      : library_(library),
        held_(std::make_shared<NcclHandle>(library, stream)),
        stream_(std::move(stream)),
        rank_(join.rank),
        size_(join.size) {
    Config config;
    config.blocking = 0;
    Id id{};
    std::memcpy(id.bytes, join.id.data(), kIdBytes);
    const device::Entered device(*stream_);
    const Result r = f().CommInitRankConfig(&held_->handle, size_, id, rank_, &config);
    failure_.keep(outcome(library_, "init", r));
    if (!failed()) follow("init", join.deadline.ns(), &join);
    if (!failed()) return;
    const Status s = status().code == Code::Timeout ? join.waited(library_.row->family) : status();
    held_->end(true, rank_);
    throw Error(s.code, s.text);
  }
  ~NcclCommunicator() override { held_->end(failure_.happened() || aborted_.load(), rank_); }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  device::Stream &stream() const noexcept override { return *stream_; }
  Status status() const override { return failure_.status(); }

  void all_reduce(const void *input, void *output, uint64_t count, DType dtype, Reduction by) override {
    reduction(Call::AllReduce, count, dtype, by,
              [&](Handle h, int t, int o) { return f().AllReduce(input, output, count, t, o, h, queue()); });
  }
  void reduce(const void *input, void *output, uint64_t count, DType dtype, Reduction by, int root) override {
    check(library_, Call::Reduce, root, size_);
    reduction(Call::Reduce, count, dtype, by,
              [&](Handle h, int t, int o) { return f().Reduce(input, output, count, t, o, root, h, queue()); });
  }
  void reduce_scatter(const void *input, void *output, uint64_t count, DType dtype, Reduction by) override {
    reduction(Call::ReduceScatter, count, dtype, by,
              [&](Handle h, int t, int o) { return f().ReduceScatter(input, output, count, t, o, h, queue()); });
  }
  void broadcast(void *buffer, uint64_t count, DType dtype, int root) override {
    check(library_, Call::Broadcast, root, size_);
    const uint64_t bytes = count * dtype_size(dtype);
    submit(Call::Broadcast, count, [&](Handle h) { return f().Broadcast(buffer, buffer, bytes, kUInt8, root, h, queue()); });
  }
  void all_gather(const void *input, void *output, uint64_t count, DType dtype) override {
    const uint64_t bytes = count * dtype_size(dtype);
    submit(Call::AllGather, count, [&](Handle h) { return f().AllGather(input, output, bytes, kUInt8, h, queue()); });
  }
  void all_to_all(const void *input, void *output, uint64_t count, DType dtype) override {
    const uint64_t bytes = count * dtype_size(dtype);
    exchange(Call::AllToAll, input, output, [&](size_t q) { return PeerShare{bytes, q * bytes, bytes, q * bytes}; });
  }
  void all_to_all_v(const void *input, void *output, const Blocks &b) override {
    exchange(Call::AllToAllV, input, output, [&](size_t q) {
      return PeerShare{b.input_bytes[q], b.input_at[q], b.output_bytes[q], b.output_at[q]};
    });
  }
  void send(const void *buffer, uint64_t count, DType dtype, int peer) override {
    check(library_, Call::Send, peer, size_);
    const uint64_t bytes = count * dtype_size(dtype);
    submit(Call::Send, count, [&](Handle h) { return f().Send(buffer, bytes, kUInt8, peer, h, queue()); });
  }
  void recv(void *buffer, uint64_t count, DType dtype, int peer) override {
    check(library_, Call::Recv, peer, size_);
    const uint64_t bytes = count * dtype_size(dtype);
    submit(Call::Recv, count, [&](Handle h) { return f().Recv(buffer, bytes, kUInt8, peer, h, queue()); });
  }

  void together(Calls calls, void *context) override {
    const Lock lock(held_->calls);
    const device::Entered device(*stream_);
    group_.want();
    std::exception_ptr thrown;
    try {
      calls(context);
    } catch (...) { thrown = std::current_exception(); }
    Result r = kSuccess;
    // A group is never left open. Where its end came back too late, that Error goes on in place of what `calls` has thrown.
    if (const char *first = group_.end(library_, &r)) {
      failure_.keep(outcome(library_, first, r, held_->handle));
      if (r == kInProgress) follow(first);
    }
    if (thrown) std::rethrow_exception(thrown);
  }

  void abort() noexcept override {
    if (!aborted_.exchange(true)) held_->kill();
  }
  bool aborting() const noexcept override {
    return aborted_.load(std::memory_order_acquire) && !held_->killed.load(std::memory_order_acquire);
  }
  bool failed() const noexcept override {
    if (failure_.happened()) return true;
    if (aborted_.load(std::memory_order_acquire)) return false;
    // The library tells of a failure of a device or of the network only when asked.
    if (!asked_.due()) return false;
    if (!held_->calls.try_lock()) return false;
    const Lock lock(held_->calls, kLocked);
    if (!held_->handle) return false;
    Result state = kSuccess;
    const Result r = f().CommGetAsyncError(held_->handle, &state);
    failure_.keep(outcome(library_, "communicator", r != kSuccess ? r : state, held_->handle));
    return failure_.happened();
  }

 private:
  const Functions &f() const noexcept { return library_.f; }
  Queue queue() const noexcept { return stream_->handle(); }
  // Submits made(handle, type, op), which gets the library's numbers.
  template <class F>
  void reduction(Call call, uint64_t count, DType dtype, Reduction by, F made) {
    if (!reduces_there(library_, dtype, by))
      fail(Code::Unsupported, "{} {}: no {} of {} there", library_.row->family, island_call_name(call), redop_name(by.op),
           dtype_name(dtype));
    const int t = type_number(dtype);
    submit(call, count, [&](Handle h) {
      held_->calls.counts_as_held();
      int o = op_number(by.op);
      if (by.op == RedOp::PremulSum)
        if (const Result r = sums_.find(library_, h, dtype, by, failure_, &o); r != kSuccess) return r;
      return made(h, t, o);
    });
  }
  // What goes to one rank and what comes from it, in bytes, with the places in the two buffers.
  struct PeerShare {
    uint64_t gives, from, takes, to;
  };
  // Submits a group of sends and receives. with(q) is the share of rank q of the island.
  template <class F>
  void exchange(Call call, const void *input, void *output, F with) {
    uint64_t any = 0;
    for (size_t q = 0; q < static_cast<size_t>(size_); ++q) any |= with(q).gives | with(q).takes;
    submit(call, any, [&](Handle h) {
      Result r = f().GroupStart();
      if (r != kSuccess) return r;
      for (int q = 0; q < size_ && r == kSuccess; ++q) {
        const PeerShare x = with(static_cast<size_t>(q));
        if (x.gives > 0) r = f().Send(static_cast<const std::byte *>(input) + x.from, x.gives, kUInt8, q, h, queue());
        if (r == kSuccess && x.takes > 0)
          r = f().Recv(static_cast<std::byte *>(output) + x.to, x.takes, kUInt8, q, h, queue());
      }
      const Result end = f().GroupEnd();  // a group is never left open
      return r == kSuccess ? end : r;
    });
  }
  // Makes the call made(handle), with NcclHandle::calls held.
  template <class F>
  void submit(Call call, uint64_t count, F made) {
    if (count == 0) return;
    const char *name = island_call_name(call);
    const auto over = [&](Handle h) { return aborted_.load(std::memory_order_acquire) || !h || failure_.happened(); };
    if (group_.wanted()) {
      held_->calls.counts_as_held();
      if (const Handle h = held_->handle; !over(h)) failure_.keep(group_.add(library_, name, h, made));
      return;
    }
    const Lock lock(held_->calls);
    const Handle h = held_->handle;
    if (over(h)) return;
    const device::Entered device(*stream_);
    const Result r = device::called(library_.row->family, name, [&] { return made(h); });
    failure_.keep(outcome(library_, name, r, h));
    if (r == kInProgress) follow(name);
  }
  // Waits until the work of the call is on the stream. A call of an operation is aborted at the operation's deadline.
  //
  // Up to NCCL 2.25 the job of such a call stays in the thread-local memory of this thread, where the next group of any communicator would find
  // it. The next call that needs this communicator completes the job; it may come from another thread, when this one has ended. So where the call
  // ends well, this thread makes one that does nothing else.
  void follow(const char *call, int64_t until_ns = std::numeric_limits<int64_t>::max(),
              const IslandJoin *join = nullptr) const ISTHMUS_REQUIRES(held_->calls) {
    const Handle h = held_->handle;
    for (int i = 0;; ++i) {
      Result state = kSuccess;
      Result r = device::called(library_.row->family, call, [&] { return f().CommGetAsyncError(h, &state); });
      if (r == kSuccess && state == kSuccess) {
        int count = 0;
        r = device::called(library_.row->family, call, [&] { return f().CommCount(h, &count); });
      }
      if (r != kSuccess || state != kInProgress) return failure_.keep(outcome(library_, call, r != kSuccess ? r : state, h));
      if (aborted_.load(std::memory_order_acquire))
        return failure_.keep({Code::Aborted, formatted("{} {}: aborted", library_.row->family, call)});
      if (now_ns() > until_ns || (join && join->in_vain()))
        return failure_.keep(
            {Code::Timeout, formatted("{} {}: not on its stream in time; the other ranks of the island have not "
                                      "come to it",
                                      library_.row->family, call)});
      if (i < 1000) ::sched_yield();
      else nap();
    }
  }
  const NcclLibrary &library_;
  const std::shared_ptr<NcclHandle> held_;
  const std::shared_ptr<device::Stream> stream_;
  const int rank_, size_;
  PremulSums sums_ ISTHMUS_GUARDED_BY(held_->calls);
  NcclGroup group_;
  std::atomic<bool> aborted_{false};
  mutable StreamFailure failure_{stream_};
  mutable SeldomAsked asked_;
};

}  // namespace

std::unique_ptr<IslandCommunicator> join_island(const NcclLibrary &library, const IslandJoin &join,
                                                std::shared_ptr<device::Stream> stream) {
  return std::make_unique<NcclCommunicator>(library, join, std::move(stream));
}

}  // namespace isthmus::ccl::nccl
