#include "ccl/hccl.hpp"

#include <dlfcn.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"
#include "base/log.hpp"
#include "base/own_thread.hpp"
#include "ccl/front_door.hpp"
#include "ccl/hccl_rank.hpp"
#include "device/acl_abi.hpp"
#include "device/calling.hpp"
#include "device/runtimes.hpp"

namespace isthmus::ccl {
namespace {

using namespace hccl;

constexpr const char *kFile = "libhccl.so", *kCommunication = "libhcomm.so", *kDeviceFile = "libascendcl.so";
constexpr const char *kMark = "HcclAllReduce";
constexpr const char *kWayOut =
    "install Huawei's CANN 8.0 or newer and source its set_env.sh, say where it is (ISTHMUS_CCL_LIBRARY), or go on without "
    "it (ISTHMUS_CCL=none)";
constexpr int kByte = kInt8;  // moves carry bytes, so every type works

constexpr double kPatience = 10, kBrokenPatience = 2, kInitPatience = 0.5;
constexpr int kLooks = 1000;

// -1: not reduced there by every device.
int type_number(DType t) noexcept {
  switch (t) {
    case DType::Int8: return kInt8;
    case DType::Int16: return kInt16;
    case DType::Int32: return kInt32;
    case DType::Float16: return kFloat16;
    case DType::Float32: return kFloat32;
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
bool reduces_there(DType dtype, RedOp op) noexcept {
  const int t = type_number(dtype), o = op_number(op);
  if (t < 0 || o < 0) return false;
  return o == kSum || (t != kInt16 && (t != kBFloat16 || o != kProd));
}

class HcclCommunicator final : public Communicator {
 public:
  HcclCommunicator(const Opened &library, const Join &join, std::shared_ptr<device::Stream> stream)
      : rank_(std::make_shared<Rank>()) {
    rank_->library = &library;
    rank_->stream = std::move(stream);
    rank_->rank = join.rank;
    rank_->size = join.size;
    rank_->items.resize(2 * static_cast<size_t>(join.size));
    std::memcpy(rank_->id.bytes, join.id.data(), kIdBytes);
    thread_ = begin_own_thread([rank = rank_] { rank->loop(); });
    Task init;
    init.name = kInit;
    const bool made = ask(init, join.deadline.ns(), &join);
    if (made && !rank_->failed.load()) return;
    const Status s = status().ok() ? join.waited("hccl") : status();
    leave(kInitPatience);
    throw Error(s.code, s.text);
  }
  ~HcclCommunicator() override { leave(kBrokenPatience); }

  int rank() const noexcept override { return rank_->rank; }
  int size() const noexcept override { return rank_->size; }
  device::Stream &stream() const noexcept override { return *rank_->stream; }
  Status status() const override {
    const Lock lock(rank_->mutex);
    return rank_->status;
  }

  void all_reduce(const void *send, void *recv, uint64_t count, DType dtype, Reduction by) override {
    reduction(Call::AllReduce, send, recv, count, dtype, by.op, 0);
  }
  void reduce(const void *send, void *recv, uint64_t count, DType dtype, Reduction by, int root) override {
    // The library wants both on all ranks, and writes the second on the root alone.
    reduction(Call::Reduce, send, recv ? recv : const_cast<void *>(send), count, dtype, by.op, root);
  }
  void reduce_scatter(const void *send, void *recv, uint64_t count, DType dtype, Reduction by) override {
    reduction(Call::ReduceScatter, send, recv, count, dtype, by.op, 0);
  }
  void broadcast(void *buffer, uint64_t count, DType dtype, int root) override {
    move(Call::Broadcast, nullptr, buffer, count, dtype, root);
  }
  void all_gather(const void *send, void *recv, uint64_t count, DType dtype) override {
    move(Call::AllGather, send, recv, count, dtype, 0);
  }
  void all_to_all(const void *send, void *recv, uint64_t count, DType dtype) override {
    move(Call::AllToAll, send, recv, count, dtype, 0);
  }
  // A batch of messages, each with a buffer of its own: blocks need not be of one allocation, as they must for the library's all_to_all.
  void all_to_all_v(const void *send, void *recv, const Blocks &b) override {
    // A thread that is left behind in a call keeps its list: nothing is asked of it after that.
    if (rank_->aborted.load(std::memory_order_acquire)) return;
    uint64_t n = 0;
    auto *const from = const_cast<std::byte *>(static_cast<const std::byte *>(send));
    for (size_t q = 0; q < static_cast<size_t>(size()); ++q) {
      const auto peer = static_cast<uint32_t>(q);
      if (b.send_bytes[q] > 0) rank_->items[n++] = {kSends, from + b.send_at[q], b.send_bytes[q], kByte, peer};
      if (b.recv_bytes[q] > 0)
        rank_->items[n++] = {kReceives, static_cast<std::byte *>(recv) + b.recv_at[q], b.recv_bytes[q], kByte, peer};
    }
    submit({island_call_name(Call::AllToAllV), Call::AllToAllV, nullptr, nullptr, n, kByte, 0, 0});
  }
  void send(const void *buffer, uint64_t count, DType dtype, int peer) override {
    move(Call::Send, buffer, nullptr, count, dtype, peer);
  }
  void recv(void *buffer, uint64_t count, DType dtype, int peer) override {
    move(Call::Recv, nullptr, buffer, count, dtype, peer);
  }

  void abort() noexcept override {
    rank_->aborted.store(true);
    rank_->back.ring();
  }
  bool failed() const noexcept override {
    Rank &r = *rank_;
    if (r.failed.load(std::memory_order_acquire)) return true;
    if (r.aborted.load(std::memory_order_acquire) || !r.library->f.GetCommAsyncError) return false;
    // The library tells of a device's or a network's failure when it is asked.
    const int64_t now = now_ns();
    int64_t asked = asked_ns_.load(std::memory_order_relaxed);
    if (now - asked < 1'000'000 || !asked_ns_.compare_exchange_strong(asked, now)) return false;
    if (!r.calling.try_lock()) return false;
    const Lock lock(r.calling, kLocked);
    if (!r.handle) return false;
    Result state = kSuccess;
    const Result result = r.library->f.GetCommAsyncError(r.handle, &state);
    // The stream is not asked: this thread drives operations, and the driver may be locked by whoever waits for the device.
    if (result != kAgain) r.keep(outcome(*r.library, "communicator", result != kSuccess ? result : state, false));
    return r.failed.load(std::memory_order_acquire);
  }
  const char *inside() const noexcept override { return rank_->inside.load(std::memory_order_acquire); }

 private:
  void reduction(Call call, const void *send, void *recv, uint64_t count, DType dtype, RedOp op, int root) {
    if (!reduces_there(dtype, op))
      fail(Code::Unsupported, "hccl {}: no {} of {} there", island_call_name(call), redop_name(op), dtype_name(dtype));
    submit({island_call_name(call), call, send, recv, count, type_number(dtype), op_number(op), root});
  }
  void move(Call call, const void *send, void *recv, uint64_t count, DType dtype, int peer) {
    submit({island_call_name(call), call, send, recv, count * dtype_size(dtype), kByte, 0, peer});
  }
  void submit(const Task &t) {
    if (t.peer < 0 || t.peer >= size())
      fail(Code::Argument, "hccl {}: rank {} is not of this island (0 to {})", t.name, t.peer, size() - 1);
    if (t.count == 0 || rank_->aborted.load(std::memory_order_acquire) || rank_->failed.load(std::memory_order_acquire))
      return;
    const int64_t until = now_ns() + kFollow;
    if (device::called("hccl", t.name, [&] { return ask(t, until); })) return;
    if (now_ns() < until) rank_->keep({Code::Aborted, formatted("hccl {}: aborted", t.name)});
    else
      rank_->keep({Code::Timeout, formatted("hccl {}: not on its stream in time; the other ranks of the island have not "
                                            "come to it",
                                            t.name)});
  }
  // The thread makes the call; whether it has been made when this returns.
  bool ask(const Task &t, int64_t until_ns, const Join *join = nullptr) {
    Rank &r = *rank_;
    r.task = t;
    const uint64_t number = r.asked.load(std::memory_order_relaxed) + 1;
    r.asked.store(number, std::memory_order_release);
    r.work.ring();
    const auto made = [&] { return r.done.load(std::memory_order_acquire) >= number; };
    const bool always = t.name == kDestroy;
    const auto over = [&] {
      return made() || (!always && r.aborted.load()) || r.ended.load(std::memory_order_acquire) || (join && join->in_vain());
    };
    Rank::wait(r.back, over, until_ns);
    if (!made()) r.aborted.store(true);  // nobody waits for it any more
    return made();
  }
  // Whether all that the stream was given before is done; waits so long for it.
  bool idle(double seconds) const noexcept {
    std::unique_ptr<device::Event> behind;
    for (int tries = 0; tries < 2; ++tries) {  // a call that fails once may be one of these
      try {
        if (!behind) behind = device::open_runtime("acl").make_event(stream().device());
        behind->record(stream());
        int looks = 0;  // a process that was held up has not looked often enough to say that the stream does not move
        for (const Deadline deadline(seconds); !behind->reached();
             std::this_thread::sleep_for(std::chrono::microseconds(100)))
          if (++looks > kLooks && deadline.passed()) {
            (void)behind.release();  // the stream still has it
            return false;
          }
        return true;
      } catch (const Error &) {
        if (behind && broken() && !stream().status().ok()) return true;  // a device that has failed does no more
      }
    }
    return false;
  }
  bool broken() const noexcept { return rank_->aborted.load() || rank_->failed.load(); }
  // The library's communicator may end when all that it has to do is done, which a call that failed may have left so, or when the stream was
  // stopped, which the engine does; other communicators' work stands there, too. Where that does not come it is left as it is. The library waits
  // for no other rank there, but a device that hangs may hold up this call as well.
  // A call that nobody waited for any more is on its way out, if it is not stuck: only then is it known what there is to end.
  void leave(double patience) noexcept {
    if (!thread_.joinable()) return;
    Rank &r = *rank_;
    const auto ended = [&] { return r.ended.load(std::memory_order_acquire); };
    const auto out = [&] { return ended() || r.done.load(std::memory_order_acquire) == r.asked.load(); };
    if (Rank::wait(r.back, out, Deadline(patience).ns()) && r.joined() && idle(broken() ? kBrokenPatience : kPatience)) {
      Task destroy;
      destroy.name = kDestroy;
      ask(destroy, Deadline(broken() ? kBrokenPatience : kPatience).ns());
    }
    const double seconds = out() ? kPatience : 0;  // else it is stuck
    r.stop.store(true);
    r.work.ring();
    if (Rank::wait(r.back, ended, Deadline(seconds).ns())) return thread_.join();
    abandon();
  }
  void abandon() noexcept {
    device::abandon_thread();
    rank_->left.store(true);
    const char *where = inside();
    ISTHMUS_WARN(
        "a thread of rank {} of an island is stuck in hccl {} and is left behind: the library has no call that ends it",
        rank(), where ? where : "at its end");
    thread_.detach();
  }

  const std::shared_ptr<Rank> rank_;
  std::thread thread_;
  mutable std::atomic<int64_t> asked_ns_{0};
};

// ---- the library ----------------------------------------------------------------------------------------------------------

class Hccl final : public Library {
 public:
  explicit Hccl(const std::string &path) {
    const std::string name = path.empty() ? kFile : path;
    void *library = path.empty() ? ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) : nullptr;
    if (!library) library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char *why = ::dlerror();
      fail(Code::Unsupported, "hccl: {} cannot be opened ({}); {}", name, why ? why : "no reason given", kWayOut);
    }
    if (const void *door = ::dlsym(library, kMark); door && is_front_door(door)) {
      // Its first call opens the library behind it.
      if (auto *first = reinterpret_cast<const char *(*)(Result)>(::dlsym(library, "HcclGetErrorString"))) first(kSuccess);
      const std::string behind = loaded_behind_door(kFile, kMark);
      library = behind.empty() ? nullptr : ::dlopen(behind.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (!library)
        fail(Code::Unsupported, "hccl: {} is Isthmus' own front door, and the library behind it is not found; {}", name,
             kWayOut);
    }
    // Newer versions keep what makes communicators in a library beside it.
    void *const second = ::dlopen(kCommunication, RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](const char *function) {
      const std::string symbol = std::string("Hccl") + function;
      void *const found = ::dlsym(library, symbol.c_str());
      return found || !second ? found : ::dlsym(second, symbol.c_str());
    };
    read_version();
#define ISTHMUS_LOAD(function, arguments)                                                                            \
  o_.f.function = reinterpret_cast<Result(*) arguments>(find(#function));                                            \
  if (!o_.f.function)                                                                                                \
    fail(Code::Unsupported, "hccl: neither {} (version {}) nor {} has Hccl{}; {}", name, o_.version, kCommunication, \
         #function, kWayOut);
    ISTHMUS_HCCL_FUNCTIONS(ISTHMUS_LOAD)
#undef ISTHMUS_LOAD
    o_.f.GetCommAsyncError = reinterpret_cast<decltype(o_.f.GetCommAsyncError)>(find("GetCommAsyncError"));
    o_.f.GetErrorString = reinterpret_cast<decltype(o_.f.GetErrorString)>(find("GetErrorString"));
    Dl_info info{};
    o_.path = ::dladdr(reinterpret_cast<void *>(o_.f.AllReduce), &info) && info.dli_fname ? info.dli_fname : name;
  }

  const char *family() const noexcept override { return "hccl"; }
  std::string version() const override { return o_.version; }
  std::string path() const override { return o_.path; }
  Capabilities capabilities() const noexcept override {
    Capabilities c;
    c.thread_ranks = true;
    c.id_bytes = kIdBytes;
    return c;
  }
  bool can(Call call, DType dtype, RedOp op) const noexcept override { return !reduces(call) || reduces_there(dtype, op); }

  std::vector<std::byte> make_id(int device) override {
    const auto stream = device::open_runtime("acl").make_stream(device, "id");
    const device::Entered entered(*stream);
    Id id{};
    if (o_.last_words) (void)o_.last_words();  // of this thread without a device, before it was entered
    if (const Status s = outcome(o_, "root info", o_.f.GetRootInfo(&id)); !s.ok()) throw Error(s.code, s.text);
    const auto *bytes = reinterpret_cast<const std::byte *>(id.bytes);
    return {bytes, bytes + kIdBytes};
  }
  std::unique_ptr<Communicator> join(const Join &join, std::shared_ptr<device::Stream> stream) override {
    if (join.id.size() != kIdBytes) fail(Code::Argument, "hccl: an id of {} bytes; {} are needed", join.id.size(), kIdBytes);
    if (join.size < 1 || join.rank < 0 || join.rank >= join.size)
      fail(Code::Argument, "hccl: rank {} of an island of {}", join.rank, join.size);
    if (!stream || !stream->handle()) fail(Code::Argument, "hccl: it needs a stream of its vendor's runtime");
    return std::make_unique<HcclCommunicator>(o_, join, std::move(stream));
  }

 private:
  // It has no call that tells its version: the device's library knows what was installed with it.
  void read_version() {
    void *library = ::dlopen(kDeviceFile, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!library) library = ::dlopen(kDeviceFile, RTLD_NOW | RTLD_LOCAL);
    o_.version = "unknown";
    if (!library) return;
    using Device = device::acl_abi::Functions;
    const auto package = reinterpret_cast<decltype(Device::aclsysGetCANNVersion)>(::dlsym(library, "aclsysGetCANNVersion"));
    const auto numbers = reinterpret_cast<decltype(Device::aclrtGetVersion)>(::dlsym(library, "aclrtGetVersion"));
    o_.last_words = reinterpret_cast<decltype(Device::aclGetRecentErrMsg)>(::dlsym(library, "aclGetRecentErrMsg"));
    device::acl_abi::PackageVersion version;
    if (package && package(kPackageHccl, &version) == 0 && version.version[0] != 0) {
      version.version[sizeof version.version - 1] = 0;
      o_.version = version.version;
      return;
    }
    int major = 0, minor = 0, patch = 0;
    if (numbers && numbers(&major, &minor, &patch) == 0) o_.version = formatted("{}.{}.{}", major, minor, patch);
  }

  Opened o_;
};

struct HcclOpened {
  Mutex mutex;  // held while the library is opened: one thread does
  std::shared_ptr<Library> library ISTHMUS_GUARDED_BY(mutex);
};
PerProcess<HcclOpened> hccl_opened;

}  // namespace

std::shared_ptr<Library> open_hccl(const std::string &path) {
  HcclOpened &mine = *hccl_opened;
  const Lock lock(mine.mutex);
  if (!mine.library) mine.library = std::make_shared<Hccl>(path);
  return mine.library;
}

}  // namespace isthmus::ccl
