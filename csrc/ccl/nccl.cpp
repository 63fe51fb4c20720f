#include "ccl/nccl.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"
#include "base/log.hpp"
#include "ccl/front_door.hpp"
#include "ccl/nccl_abi.hpp"
#include "device/abandoned.hpp"
#include "device/calling.hpp"

namespace isthmus::ccl {
namespace {

using namespace nccl_abi;

// What tells one library of this shape from another.
struct Row : NcclFamily {
  const char *file, *prefix;  // SONAME; of every function
  const char *install;        // what to tell who has none
  int least, float8;          // the oldest that serves; since when it sums float8 (0: never)
};
constexpr Row kRows[] = {
    {{"nccl", "cuda"}, "libnccl.so.2", "nccl", "install NVIDIA's NCCL", version_code(2, 14, 0), version_code(2, 24, 3)},
    {{"rccl", "hip"}, "librccl.so.1", "nccl", "install AMD's RCCL", version_code(2, 14, 0), version_code(2, 20, 5)},
};

std::string version_text(int code) { return formatted("{}.{}.{}", code / 10000, code / 100 % 100, code % 100); }
std::string way_out(const Row &row) {
  return formatted("{} {} or newer, say where it is (ISTHMUS_CCL_LIBRARY), or go on without it (ISTHMUS_CCL=none)",
                   row.install, version_text(row.least));
}

// -1: no such type there.
int type_number(DType t) noexcept {
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
    case DType::Float8E4M3FN: return kFloat8e4m3;
    case DType::Float8E5M2: return kFloat8e5m2;
    default: return -1;
  }
}
int op_number(RedOp op) noexcept {
  switch (op) {
    case RedOp::Sum: return kSum;
    case RedOp::Prod: return kProd;
    case RedOp::Max: return kMax;
    case RedOp::Min: return kMin;
    case RedOp::Avg: return kAvg;
    default: return -1;
  }
}

struct Opened {
  const Row *row = nullptr;
  Functions f;
  int version = 0;
  std::string path;
};

// The bits of 2^-halvings, a number of that type.
uint64_t power_bits(DType t, int halvings) noexcept {
  const int exponent = t == DType::Float8E4M3FN ? 4 : 5, mantissa = static_cast<int>(8 * dtype_size(t)) - 1 - exponent;
  const int biased = (1 << (exponent - 1)) - 1 - halvings;
  return biased > 0 ? uint64_t(biased) << mantissa : uint64_t{1} << (mantissa - 1 + biased);
}
bool reduces_there(const Opened &o, DType dtype, Reduction by) noexcept {
  const int t = type_number(dtype);
  if (t < 0 || (t >= kFloat8e4m3 && (o.row->float8 == 0 || o.version < o.row->float8))) return false;
  if (by.op != RedOp::PremulSum) return op_number(by.op) >= 0;
  return is_short_ranged(dtype) && by.halvings >= 0 && by.halvings <= most_halvings(dtype);
}

Status outcome(const Opened &o, const char *call, Result r, Handle handle = nullptr) {
  if (r == kSuccess || r == kInProgress) return {};
  const char *text = o.f.GetErrorString ? o.f.GetErrorString(r) : nullptr;
  const char *last = o.f.GetLastError ? o.f.GetLastError(handle) : nullptr;
  return {Code::System, formatted("{} {}: {} ({}){}{}", o.row->family, call, text ? text : "unknown result", r,
                                  last && *last ? ": " : "", last && *last ? last : "")};
}

void nap() noexcept {
  const timespec t{0, 50'000};
  ::nanosleep(&t, nullptr);
}

// Calls of a communicator that is not blocking return before their work is on the stream, and what we submit next would overtake it; so
// every call is followed to that point. In turn no call waits for peers without a deadline.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const Opened &opened, const Join &join, std::shared_ptr<device::Stream> stream)
      : opened_(opened), stream_(std::move(stream)), rank_(join.rank), size_(join.size) {
    Config config;
    config.blocking = 0;
    Id id{};
    std::memcpy(id.bytes, join.id.data(), kIdBytes);
    const device::Entered device(*stream_);
    const Result r = f().CommInitRankConfig(&held_->handle, size_, id, rank_, &config);
    keep(outcome(opened_, "init", r));
    if (!failed()) follow("init", join.deadline.ns(), &join);
    if (!failed()) return;
    const Status s = status().code == Code::Timeout ? join.waited(opened_.row->family) : status();
    leave();
    throw Error(s.code, s.text);
  }
  ~NcclCommunicator() override { leave(); }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  device::Stream &stream() const noexcept override { return *stream_; }
  Status status() const override {
    const Lock lock(mutex_);
    return status_;
  }

  void all_reduce(const void *send, void *recv, uint64_t count, DType dtype, Reduction by) override {
    reduction(Call::AllReduce, count, dtype, by,
              [&](Handle h, int t, int o) { return f().AllReduce(send, recv, count, t, o, h, queue()); });
  }
  void reduce(const void *send, void *recv, uint64_t count, DType dtype, Reduction by, int root) override {
    check(Call::Reduce, root);
    reduction(Call::Reduce, count, dtype, by,
              [&](Handle h, int t, int o) { return f().Reduce(send, recv, count, t, o, root, h, queue()); });
  }
  void reduce_scatter(const void *send, void *recv, uint64_t count, DType dtype, Reduction by) override {
    reduction(Call::ReduceScatter, count, dtype, by,
              [&](Handle h, int t, int o) { return f().ReduceScatter(send, recv, count, t, o, h, queue()); });
  }
  void broadcast(void *buffer, uint64_t count, DType dtype, int root) override {
    check(Call::Broadcast, root);
    const uint64_t bytes = count * dtype_size(dtype);
    submit(Call::Broadcast, count, [&](Handle h) { return f().Broadcast(buffer, buffer, bytes, kUInt8, root, h, queue()); });
  }
  void all_gather(const void *send, void *recv, uint64_t count, DType dtype) override {
    const uint64_t bytes = count * dtype_size(dtype);
    submit(Call::AllGather, count, [&](Handle h) { return f().AllGather(send, recv, bytes, kUInt8, h, queue()); });
  }
  void all_to_all(const void *send, void *recv, uint64_t count, DType dtype) override {
    const uint64_t bytes = count * dtype_size(dtype);
    exchange(Call::AllToAll, send, recv, [&](size_t q) { return Exchange{bytes, q * bytes, bytes, q * bytes}; });
  }
  void all_to_all_v(const void *send, void *recv, const Blocks &b) override {
    exchange(Call::AllToAllV, send, recv, [&](size_t q) {
      return Exchange{b.send_bytes[q], b.send_at[q], b.recv_bytes[q], b.recv_at[q]};
    });
  }
  void send(const void *buffer, uint64_t count, DType dtype, int peer) override {
    check(Call::Send, peer);
    const uint64_t bytes = count * dtype_size(dtype);
    submit(Call::Send, count, [&](Handle h) { return f().Send(buffer, bytes, kUInt8, peer, h, queue()); });
  }
  void recv(void *buffer, uint64_t count, DType dtype, int peer) override {
    check(Call::Recv, peer);
    const uint64_t bytes = count * dtype_size(dtype);
    submit(Call::Recv, count, [&](Handle h) { return f().Recv(buffer, bytes, kUInt8, peer, h, queue()); });
  }

  // Another thread ends the vendor's communicator, because its call may wait for the device.
  void abort() noexcept override {
    if (aborted_.exchange(true)) return;
    try {
      killer_ = std::thread([held = held_, functions = &opened_.f] {
        // A call that is being followed on another thread sees the flag and leaves first.
        const Lock lock(held->calls);
        if (held->handle) functions->CommAbort(held->handle);
        held->handle = nullptr;
        held->ended.store(true, std::memory_order_release);
      });
    } catch (const std::exception &) { held_->ended.store(true); }  // no thread: the communicator is left as it is
  }
  bool aborting() const noexcept override {
    return aborted_.load(std::memory_order_acquire) && !held_->ended.load(std::memory_order_acquire);
  }
  bool failed() const noexcept override {
    if (failed_.load(std::memory_order_acquire)) return true;
    if (aborted_.load(std::memory_order_acquire)) return false;
    // The library tells of a device's or a network's failure when it is asked.
    const int64_t now = now_ns();
    int64_t asked = asked_ns_.load(std::memory_order_relaxed);
    if (now - asked < 1'000'000 || !asked_ns_.compare_exchange_strong(asked, now)) return false;
    if (!held_->calls.try_lock()) return false;
    const Lock lock(held_->calls, kLocked);
    if (!held_->handle) return false;
    Result state = kSuccess;
    const Result r = f().CommGetAsyncError(held_->handle, &state);
    keep(outcome(opened_, "communicator", r != kSuccess ? r : state, held_->handle));
    return failed_.load(std::memory_order_acquire);
  }

 private:
  const Functions &f() const noexcept { return opened_.f; }
  Queue queue() const noexcept { return stream_->handle(); }
  void keep(Status s) const {
    if (s.ok()) return;
    const Lock lock(mutex_);
    if (status_.ok()) status_ = std::move(s);
    failed_.store(true, std::memory_order_release);
  }
  // made(handle, type, op), the library's numbers.
  template <class F>
  void reduction(Call call, uint64_t count, DType dtype, Reduction by, F made) {
    if (!reduces_there(opened_, dtype, by))
      fail(Code::Unsupported, "{} {}: no {} of {} there", opened_.row->family, island_call_name(call), redop_name(by.op),
           dtype_name(dtype));
    const int t = type_number(dtype);
    submit(call, count, [&](Handle h) {
      held_->calls.counts_as_held();
      int o = op_number(by.op);
      if (by.op == RedOp::PremulSum)
        if (const Result r = multiplied(dtype, by.halvings, &o); r != kSuccess) return r;
      return made(h, t, o);
    });
  }
  // The library's operation, one a type: an island has one factor. It may be destroyed when the calls that were given it have returned. Those
  // that are left go with the communicator.
  Result multiplied(DType dtype, int halvings, int *op) ISTHMUS_REQUIRES(held_->calls) {
    Multiplied &m = multiplied_[static_cast<size_t>(dtype)];
    if (m.op >= 0 && m.halvings != halvings)
      if (const Result r = f().RedOpDestroy(std::exchange(m.op, -1), held_->handle); r != kSuccess)
        return keep(outcome(opened_, "end of an operation", r, held_->handle)), r;
    if (m.op < 0) {
      uint64_t factor = power_bits(dtype, halvings);
      const Result r = f().RedOpCreatePreMulSum(&m.op, &factor, type_number(dtype), kScalarOnHost, held_->handle);
      if (r != kSuccess) return m.op = -1, keep(outcome(opened_, "operation for premul_sum", r, held_->handle)), r;
      m.halvings = halvings;
    }
    *op = m.op;
    return kSuccess;
  }
  void check(Call call, int peer) const {
    if (peer < 0 || peer >= size_)
      fail(Code::Argument, "{} {}: rank {} is not of this island (0 to {})", opened_.row->family, island_call_name(call),
           peer, size_ - 1);
  }
  // With one rank: bytes that go there and come from there, and where in the two buffers.
  struct Exchange {
    uint64_t gives, from, takes, to;
  };
  // A group of sends and receives, of what `with` says of each rank of the island.
  template <class F>
  void exchange(Call call, const void *send, void *recv, F with) {
    uint64_t any = 0;
    for (size_t q = 0; q < static_cast<size_t>(size_); ++q) any |= with(q).gives | with(q).takes;
    submit(call, any, [&](Handle h) {
      Result r = f().GroupStart();
      if (r != kSuccess) return r;
      for (int q = 0; q < size_ && r == kSuccess; ++q) {
        const Exchange x = with(static_cast<size_t>(q));
        if (x.gives > 0) r = f().Send(static_cast<const std::byte *>(send) + x.from, x.gives, kUInt8, q, h, queue());
        if (r == kSuccess && x.takes > 0)
          r = f().Recv(static_cast<std::byte *>(recv) + x.to, x.takes, kUInt8, q, h, queue());
      }
      const Result end = f().GroupEnd();  // a group is never left open
      return r == kSuccess ? end : r;
    });
  }
  // made(handle), with Held::calls held.
  template <class F>
  void submit(Call call, uint64_t count, F made) {
    if (count == 0) return;
    const char *name = island_call_name(call);
    const Lock lock(held_->calls);
    const Handle h = held_->handle;
    if (aborted_.load(std::memory_order_acquire) || !h || failed_.load(std::memory_order_acquire)) return;
    const device::Entered device(*stream_);
    const Result r = device::called(opened_.row->family, name, [&] { return made(h); });
    keep(outcome(opened_, name, r, h));
    if (r == kInProgress) follow(name, now_ns() + kFollow);
  }
  // Waits until what was begun is on the stream.
  void follow(const char *call, int64_t until_ns, const Join *join = nullptr) const ISTHMUS_REQUIRES(held_->calls) {
    const Handle h = held_->handle;
    for (int i = 0;; ++i) {
      Result state = kSuccess;
      const Result r = device::called(opened_.row->family, call, [&] { return f().CommGetAsyncError(h, &state); });
      if (r != kSuccess || state != kInProgress) return keep(outcome(opened_, call, r != kSuccess ? r : state, h));
      if (aborted_.load(std::memory_order_acquire))
        return keep({Code::Aborted, formatted("{} {}: aborted", opened_.row->family, call)});
      if (now_ns() > until_ns || (join && join->in_vain()))
        return keep({Code::Timeout, formatted("{} {}: not on its stream in time; the other ranks of the island have not "
                                              "come to it",
                                              opened_.row->family, call)});
      if (i < 1000) ::sched_yield();
      else nap();
    }
  }
  // Destroys what works; aborts what does not. Either call may wait for ever where a device hangs, so both have a thread and a deadline.
  // Unchecked: no other thread calls this when it ends, and the one that abort() has begun may hold the lock for ever.
  void leave() noexcept ISTHMUS_UNCHECKED {
    constexpr double kPatience = 10;
    try {
      const bool broken = failed_.load() || aborted_.load();
      const auto killer = std::make_shared<std::thread>(std::move(killer_));
      const Handle handle = killer->joinable() ? nullptr : std::exchange(held_->handle, nullptr);
      if (!killer->joinable() && !handle) return;
      const auto ended = device::call_within(kPatience, [handle, broken, functions = &opened_.f, killer] {
        if (killer->joinable()) killer->join();
        else broken ? functions->CommAbort(handle) : functions->CommDestroy(handle);
        return Status{};
      });
      if (!ended)
        ISTHMUS_WARN("{}: the communicator of rank {} did not end in {} s and is left behind, with the thread that ends it",
                     opened_.row->family, rank_, kPatience);
    } catch (const std::exception &) {}
  }

  static constexpr int64_t kFollow = 600'000'000'000;  // an operation's own deadline aborts long before
  const Opened &opened_;
  const std::shared_ptr<device::Stream> stream_;
  const int rank_, size_;
  struct Held {   // by the thread that ends it too, which may be left behind
    Mutex calls;  // held in the library's calls: abort ends the communicator between two of them
    Handle handle ISTHMUS_GUARDED_BY(calls) = nullptr;
    std::atomic<bool> ended{false};  // by abort()
  };
  const std::shared_ptr<Held> held_ = std::make_shared<Held>();
  struct Multiplied {
    int op = -1, halvings = 0;
  };
  std::array<Multiplied, kDTypeCount> multiplied_ ISTHMUS_GUARDED_BY(held_->calls){};
  std::thread killer_;
  std::atomic<bool> aborted_{false};
  mutable std::atomic<bool> failed_{false};
  mutable std::atomic<int64_t> asked_ns_{0};
  mutable Mutex mutex_;
  mutable Status status_ ISTHMUS_GUARDED_BY(mutex_);
};

class Nccl final : public Library {
 public:
  Nccl(const Row &row, const std::string &path) {
    o_.row = &row;
    const std::string name = path.empty() ? row.file : path;
    void *library = path.empty() ? ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) : nullptr;
    if (!library) library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char *why = ::dlerror();
      fail(Code::Unsupported, "{}: {} cannot be opened ({}); {}", row.family, name, why ? why : "no reason given",
           way_out(row));
    }
    const auto version_of =
        reinterpret_cast<Result (*)(int *)>(::dlsym(library, (std::string(row.prefix) + "GetVersion").c_str()));
    if (version_of && is_front_door(reinterpret_cast<const void *>(version_of))) {
      const bool opened = version_of(&o_.version) == kSuccess;
      const std::string behind =
          opened ? loaded_behind_door(row.file, (std::string(row.prefix) + "GetVersion").c_str()) : std::string();
      library = behind.empty() ? nullptr : ::dlopen(behind.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (!library)
        fail(Code::Unsupported, "{}: {} is Isthmus' own front door, and the library behind it is not found; {}", row.family,
             name, way_out(row));
    }
    const auto find = [&](const char *function) { return ::dlsym(library, (std::string(row.prefix) + function).c_str()); };
    const auto get_version = reinterpret_cast<Result (*)(int *)>(find("GetVersion"));
    if (!get_version)
      fail(Code::Unsupported, "{}: {} has no {}GetVersion, so it is no library of that kind; {}", row.family, name,
           row.prefix, way_out(row));
    if (const Result r = get_version(&o_.version); r != kSuccess)
      fail(Code::Unsupported, "{}: {} does not tell its version ({}GetVersion gives {}); {}", row.family, name, row.prefix,
           r, way_out(row));
    if (o_.version < row.least)
      fail(Code::Unsupported, "{}: {} is version {}; {}", row.family, name, version_text(o_.version), way_out(row));
#define ISTHMUS_LOAD(function, arguments)                                                                                  \
  o_.f.function = reinterpret_cast<Result(*) arguments>(find(#function));                                                  \
  if (!o_.f.function)                                                                                                      \
    fail(Code::Unsupported, "{}: {} (version {}) has no {}{}; {}", row.family, name, version_text(o_.version), row.prefix, \
         #function, way_out(row));
    ISTHMUS_NCCL_FUNCTIONS(ISTHMUS_LOAD)
#undef ISTHMUS_LOAD
    o_.f.GetErrorString = reinterpret_cast<decltype(o_.f.GetErrorString)>(find("GetErrorString"));
    o_.f.GetLastError = reinterpret_cast<decltype(o_.f.GetLastError)>(find("GetLastError"));
    Dl_info info{};
    o_.path = ::dladdr(reinterpret_cast<void *>(o_.f.GetVersion), &info) && info.dli_fname ? info.dli_fname : name;
  }

  const char *family() const noexcept override { return o_.row->family; }
  std::string version() const override { return version_text(o_.version); }
  std::string path() const override { return o_.path; }
  Capabilities capabilities() const noexcept override {
    Capabilities c;
    c.groups = c.abort = c.thread_ranks = true;
    c.host_memory = true;  // its kernels read and write wherever the device does (NCCL's and RCCL's argcheck.cc)
    c.id_bytes = kIdBytes;
    return c;
  }
  bool can(Call call, DType dtype, RedOp op) const noexcept override {
    return !reduces(call) || reduces_there(o_, dtype, op);
  }
  std::vector<std::byte> make_id(int) override {
    Id id{};
    const Result r = o_.f.GetUniqueId(&id);
    if (const Status s = outcome(o_, "unique id", r); !s.ok()) throw Error(s.code, s.text);
    const auto *bytes = reinterpret_cast<const std::byte *>(id.bytes);
    return {bytes, bytes + kIdBytes};
  }
  std::unique_ptr<Communicator> join(const Join &join, std::shared_ptr<device::Stream> stream) override {
    if (join.id.size() != kIdBytes)
      fail(Code::Argument, "{}: an id of {} bytes; {} are needed", family(), join.id.size(), kIdBytes);
    if (join.size < 1 || join.rank < 0 || join.rank >= join.size)
      fail(Code::Argument, "{}: rank {} of an island of {}", family(), join.rank, join.size);
    if (!stream || !stream->handle()) fail(Code::Argument, "{}: it needs a stream of its vendor's runtime", family());
    return std::make_unique<NcclCommunicator>(o_, join, std::move(stream));
  }

 private:
  Opened o_;
};

struct NcclOpened {
  Mutex mutex;  // held while a library is opened: one thread does
  std::map<std::string, std::shared_ptr<Library>> libraries ISTHMUS_GUARDED_BY(mutex);
};
PerProcess<NcclOpened> nccl_opened;

}  // namespace

std::span<const NcclFamily> nccl_families() noexcept {
  static constexpr auto kFamilies = [] {
    std::array<NcclFamily, std::size(kRows)> families{};
    for (size_t i = 0; i < families.size(); ++i) families[i] = kRows[i];
    return families;
  }();
  return kFamilies;
}

std::shared_ptr<Library> open_nccl(const std::string &family, const std::string &path) {
  NcclOpened &mine = *nccl_opened;
  const Lock lock(mine.mutex);
  if (const auto it = mine.libraries.find(family); it != mine.libraries.end()) return it->second;
  for (const Row &row : kRows)
    if (family == row.family) return mine.libraries[family] = std::make_shared<Nccl>(row, path);
  fail(Code::Argument, "there is no library of the family {} here", family);
}

}  // namespace isthmus::ccl
