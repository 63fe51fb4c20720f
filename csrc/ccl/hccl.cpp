#include "ccl/hccl.hpp"

#include <dlfcn.h>
#include <stdlib.h>

#include <cstring>
#include <memory>
#include <utility>

#include "base/assert.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"
#include "base/log.hpp"
#include "ccl/front_door.hpp"
#include "ccl/hccl_thread.hpp"
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
constexpr int kByte = kInt8;  // moves carry bytes, so every type can be moved

constexpr double kInitPatience = 0.5;

// The library's numbers of what every device reduces. -1: not every device reduces such a type, or by such an operation.
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

class HcclCommunicator final : public IslandCommunicator {
 public:
  HcclCommunicator(const HcclLibrary &library, const IslandJoin &join, std::shared_ptr<device::Stream> stream)
      : rank_(new_rank(library, join, std::move(stream))), thread_(rank_) {
    Task init;
    init.name = kInit;
    const bool made = thread_.ask(init, join.deadline.ns(), &join);
    if (made && !rank_->failure.happened()) return;
    const Status s = status().ok() ? join.waited("hccl") : status();
    thread_.leave(kInitPatience);
    throw Error(s.code, s.text);
  }
  ~HcclCommunicator() override { thread_.leave(kBrokenPatience); }

  int rank() const noexcept override { return rank_->rank; }
  int size() const noexcept override { return rank_->size; }
  device::Stream &stream() const noexcept override { return *rank_->stream; }
  Status status() const override { return rank_->failure.status(); }

  void all_reduce(const void *input, void *output, uint64_t count, DType dtype, Reduction by) override {
    reduction(Call::AllReduce, input, output, count, dtype, by.op, 0);
  }
  void reduce(const void *input, void *output, uint64_t count, DType dtype, Reduction by, int root) override {
    // The library wants both buffers on all ranks, and writes the second on the root alone.
    reduction(Call::Reduce, input, output ? output : const_cast<void *>(input), count, dtype, by.op, root);
  }
  void reduce_scatter(const void *input, void *output, uint64_t count, DType dtype, Reduction by) override {
    reduction(Call::ReduceScatter, input, output, count, dtype, by.op, 0);
  }
  void broadcast(void *buffer, uint64_t count, DType dtype, int root) override {
    move(Call::Broadcast, nullptr, buffer, count, dtype, root);
  }
  void all_gather(const void *input, void *output, uint64_t count, DType dtype) override {
    move(Call::AllGather, input, output, count, dtype, 0);
  }
  void all_to_all(const void *input, void *output, uint64_t count, DType dtype) override {
    move(Call::AllToAll, input, output, count, dtype, 0);
  }
  // A batch of messages, each with a buffer of its own. So the blocks need not be of one allocation, as the library's all_to_all wants.
  void all_to_all_v(const void *input, void *output, const Blocks &b) override {
    // A thread that is left behind in a call keeps its list. So nothing may be asked after an abort.
    if (rank_->aborted.load(std::memory_order_acquire)) return;
    uint64_t n = 0;
    auto *const from = const_cast<std::byte *>(static_cast<const std::byte *>(input));
    for (size_t q = 0; q < static_cast<size_t>(size()); ++q) {
      const auto peer = static_cast<uint32_t>(q);
      if (b.input_bytes[q] > 0) rank_->items[n++] = {kSends, from + b.input_at[q], b.input_bytes[q], kByte, peer};
      if (b.output_bytes[q] > 0)
        rank_->items[n++] = {kReceives, static_cast<std::byte *>(output) + b.output_at[q], b.output_bytes[q], kByte, peer};
    }
    submit({island_call_name(Call::AllToAllV), Call::AllToAllV, nullptr, nullptr, n, kByte, 0, 0});
  }
  void send(const void *buffer, uint64_t count, DType dtype, int peer) override {
    if (batch_.begun)
      return add({kSends, const_cast<void *>(buffer), count * dtype_size(dtype), kByte, 0}, Call::Send, peer);
    move(Call::Send, buffer, nullptr, count, dtype, peer);
  }
  void recv(void *buffer, uint64_t count, DType dtype, int peer) override {
    if (batch_.begun) return add({kReceives, buffer, count * dtype_size(dtype), kByte, 0}, Call::Recv, peer);
    move(Call::Recv, nullptr, buffer, count, dtype, peer);
  }
  // The messages are a batch. All other calls are made one after the other.
  void together(Calls calls, void *context) override {
    batch_ = {true, rank_->aborted.load(std::memory_order_acquire), 0, nullptr};
    try {
      calls(context);
    } catch (...) {
      batch_ = {};
      throw;
    }
    const Batch batch = std::exchange(batch_, {});
    if (batch.items > 0) submit({batch.first, Call::AllToAllV, nullptr, nullptr, batch.items, kByte, 0, 0});
  }

  void abort() noexcept override {
    rank_->aborted.store(true);
    rank_->back.ring();
  }
  bool failed() const noexcept override {
    HcclRank &r = *rank_;
    if (r.failure.happened()) return true;
    if (r.aborted.load(std::memory_order_acquire) || !r.library->f.GetCommAsyncError) return false;
    // The library tells of a failure of a device or of the network only when asked.
    if (!asked_.due()) return false;
    if (!r.calling.try_lock()) return false;
    const Lock lock(r.calling, kLocked);
    if (!r.handle) return false;
    Result state = kSuccess;
    const Result result = r.library->f.GetCommAsyncError(r.handle, &state);
    if (result != kAgain) r.failure.keep(outcome(*r.library, "communicator", result != kSuccess ? result : state, false));
    return r.failure.happened();
  }
  const char *inside() const noexcept override { return rank_->inside.load(std::memory_order_acquire); }

 private:
  static std::shared_ptr<HcclRank> new_rank(const HcclLibrary &library, const IslandJoin &join,
                                            std::shared_ptr<device::Stream> stream) {
    auto rank = std::make_shared<HcclRank>();
    rank->library = &library;
    rank->stream = std::move(stream);
    rank->rank = join.rank;
    rank->size = join.size;
    rank->items.resize(2 * static_cast<size_t>(join.size));
    std::memcpy(rank->id.bytes, join.id.data(), kIdBytes);
    return rank;
  }
  void reduction(Call call, const void *input, void *output, uint64_t count, DType dtype, RedOp op, int root) {
    if (!reduces_there(dtype, op))
      fail(Code::Unsupported, "hccl {}: no {} of {} there", island_call_name(call), redop_name(op), dtype_name(dtype));
    submit({island_call_name(call), call, input, output, count, type_number(dtype), op_number(op), root});
  }
  void move(Call call, const void *input, void *output, uint64_t count, DType dtype, int peer) {
    submit({island_call_name(call), call, input, output, count * dtype_size(dtype), kByte, 0, peer});
  }
  void check(const char *name, int peer) const {
    if (peer < 0 || peer >= size())
      fail(Code::Argument, "hccl {}: rank {} is not of this island (0 to {})", name, peer, size() - 1);
  }
  void add(BatchItem item, Call call, int peer) {
    check(island_call_name(call), peer);
    if (item.count == 0 || batch_.dropped) return;
    ISTHMUS_ASSERT(batch_.items < rank_->items.size(), "a batch has at most one message each way with each rank");
    item.peer = static_cast<uint32_t>(peer);
    if (!batch_.first) batch_.first = island_call_name(call);
    rank_->items[batch_.items++] = item;
  }
  void submit(const Task &t) {
    check(t.name, t.peer);
    if (t.count == 0 || rank_->aborted.load(std::memory_order_acquire) || rank_->failure.happened()) return;
    // A call of an operation is aborted at the operation's deadline.
    if (device::called("hccl", t.name, [&] { return thread_.ask(t, kNever); })) return;
    rank_->failure.keep({Code::Aborted, formatted("hccl {}: aborted", t.name)});
  }
  // Of the thread that calls: it is in together(), with so many messages.
  struct Batch {
    bool begun = false;
    bool dropped = false;  // it has begun after an abort: as in all_to_all_v(), the list is another thread's
    uint64_t items = 0;
    const char *first = nullptr;
  } batch_;
  const std::shared_ptr<HcclRank> rank_;
  HcclThread thread_;
  mutable SeldomAsked asked_;
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
      // The door's first call opens the library behind the door.
      if (auto *first = reinterpret_cast<const char *(*)(Result)>(::dlsym(library, "HcclGetErrorString"))) first(kSuccess);
      const std::string behind = loaded_behind_door(kFile, kMark);
      library = behind.empty() ? nullptr : ::dlopen(behind.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (!library)
        fail(Code::Unsupported, "hccl: {} is Isthmus' own front door, and the library behind it is not found; {}", name,
             kWayOut);
    }
    // Newer versions keep the functions that make communicators in a second library.
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
  LibraryCapabilities capabilities() const noexcept override {
    LibraryCapabilities c;
    c.thread_ranks = true;
    c.id_bytes = kIdBytes;
    return c;
  }
  bool can(Call call, DType dtype, RedOp op) const noexcept override { return !reduces(call) || reduces_there(dtype, op); }

  std::vector<std::byte> make_id(int device) override {
    const auto stream = device::open_runtime("acl").make_stream(device, "id");
    const device::Entered entered(*stream);
    Id id{};
    if (o_.last_words) (void)o_.last_words();  // takes away the words about this thread's time without a device
    if (const Status s = outcome(o_, "root info", o_.f.GetRootInfo(&id)); !s.ok()) throw Error(s.code, s.text);
    const auto *bytes = reinterpret_cast<const std::byte *>(id.bytes);
    return {bytes, bytes + kIdBytes};
  }
  std::unique_ptr<IslandCommunicator> join(const IslandJoin &join, std::shared_ptr<device::Stream> stream) override {
    if (join.id.size() != kIdBytes) fail(Code::Argument, "hccl: an id of {} bytes; {} are needed", join.id.size(), kIdBytes);
    if (join.size < 1 || join.rank < 0 || join.rank >= join.size)
      fail(Code::Argument, "hccl: rank {} of an island of {}", join.rank, join.size);
    if (!stream || !stream->handle()) fail(Code::Argument, "hccl: it needs a stream of its vendor's runtime");
    return std::make_unique<HcclCommunicator>(o_, join, std::move(stream));
  }

 private:
  // The library has no call that tells its version. The device's library knows what was installed with it.
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

  HcclLibrary o_;
};

struct HcclOpened {
  Mutex mutex;  // held while the library is opened: one thread opens it
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
