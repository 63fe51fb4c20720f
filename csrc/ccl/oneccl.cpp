#include "ccl/oneccl.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "base/environment.hpp"
#include "base/error.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"
#include "ccl/oneccl_abi.hpp"
#include "ccl/oneccl_leftovers.hpp"
#include "device/abandoned.hpp"
#include "device/host.hpp"

namespace isthmus::ccl {
namespace {

using namespace oneccl_abi;

const char *result_text(Result r) {
  return r >= 0 && static_cast<size_t>(r) < std::size(kResultTexts) ? kResultTexts[r] : "unknown result";
}

// -1: no such type there.
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
constexpr int kByte = kUInt8;  // moves carry bytes, so every type works

// Signals of writes to a peer that is gone must not end the process; threads that the library starts inherit the mask.
class WithoutPipeSignal {
 public:
  WithoutPipeSignal() {
    sigset_t pending;
    sigemptyset(&set_);
    sigaddset(&set_, SIGPIPE);
    ::sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~WithoutPipeSignal() {  // one that came meanwhile is the library's
    constexpr timespec kNow{};
    if (!was_pending_) ::sigtimedwait(&set_, nullptr, &kNow);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutPipeSignal(const WithoutPipeSignal &) = delete;
  WithoutPipeSignal &operator=(const WithoutPipeSignal &) = delete;

 private:
  sigset_t set_, before_;
  bool was_pending_ = false;
};

// ---- one rank of an island ------------------------------------------------------------------------------------------------

// What the thread of the stream works with; it is the last to use it, so it ends it.
struct Rank {
  const Functions *f = nullptr;
  Handle handle = nullptr;
  Id id{};
  int rank = 0, size = 1;
  std::atomic<bool> aborted{false};
  std::atomic<bool> failed{false};            // status says why
  std::atomic<const char *> inside{nullptr};  // the call of this rank that the thread is in
  std::atomic<bool> begun{false};             // init has been made, or left out
  mutable Mutex mutex;
  Status status ISTHMUS_GUARDED_BY(mutex);

  Status first_failure() const {
    const Lock lock(mutex);
    return status;
  }
  void keep(Status s) {
    if (s.ok()) return;
    const Lock lock(mutex);
    if (status.ok()) status = std::move(s);
    failed.store(true, std::memory_order_release);
  }
};

Status outcome(const Rank &r, const char *call, Result result) {
  if (result == kSuccess) return {};
  const char *words = r.f->GetLastError ? r.f->GetLastError(r.handle) : nullptr;
  return {Code::System, formatted("oneccl {}: {} ({}){}{}", call, result_text(result), result, words && *words ? ": " : "",
                                  words && *words ? words : "")};
}

struct Arguments {
  Rank *rank;
  void *send, *recv;
  uint64_t count;
  int dtype, op, peer;  // peer: the root of those that have one
  Call call;
};

// Where a rank is gone, the library throws out of a destructor: when a communicator is ended and its id was that rank's, and, it seems, when
// its transport notices in a call. The language then ends the process. So the thread that is in there stops for good instead, and is left behind
// as one that hangs there.
class Unending {
 public:
  // Of the library's own C++ run time, which need not be ours.
  static void find(void *library) {
    set_ = reinterpret_cast<Handler (*)(Handler)>(::dlsym(library, "_ZSt13set_terminatePFvvE"));
  }
  Unending() {
    here_ = true;
    if (const Handler before = set_ ? set_(stop) : nullptr; before != stop) before_ = before;
  }
  ~Unending() {
    here_ = false;
    if (!set_) return;
    // Whatever is there and is not ours, the program has set meanwhile, and it is put back; so is what it sets while that is done.
    Handler put = before_, ours = stop;
    for (Handler there = set_(put); there != ours; there = set_(put)) {
      ours = put;
      put = there;
    }
  }
  static int stops() noexcept { return stops_.load(); }  // threads that it has stopped
  Unending(const Unending &) = delete;
  Unending &operator=(const Unending &) = delete;

 private:
  using Handler = void (*)();
  static void stop() {
    if (here_) stops_.fetch_add(1);
    while (here_) ::pause();
    // Of another thread: the program's own, which may call what it found, and that is this where it was set during a call.
    if (const Handler before = before_; before && !std::exchange(asked_, true)) before();
    std::abort();
  }
  inline static Handler (*set_)(Handler) = nullptr;
  inline static std::atomic<Handler> before_{nullptr};
  inline static std::atomic<int> stops_{0};
  inline static thread_local bool here_ = false, asked_ = false;
};

// The stream has no part in a failure of one communicator: others share it.
Status run(const Arguments &a) {
  const Functions &f = *a.rank->f;
  Handle h = a.rank->handle;
  // In this order, so that whoever aborts and then finds nobody inside knows that nobody will be.
  a.rank->inside.store(island_call_name(a.call));
  if (a.rank->aborted.load() || a.rank->failed.load()) {
    a.rank->inside.store(nullptr);
    return {};
  }
  Result r = kSuccess;
  const Unending unending;
  switch (a.call) {
    case Call::AllReduce: r = f.AllReduce(a.send, a.recv, a.count, a.dtype, a.op, h, nullptr); break;
    case Call::Reduce: r = f.Reduce(a.send, a.recv, a.count, a.dtype, a.op, a.peer, h, nullptr); break;
    case Call::Broadcast: r = f.Broadcast(a.send, a.recv, a.count, a.dtype, a.peer, h, nullptr); break;
    case Call::AllGather: r = f.AllGather(a.send, a.recv, a.count, a.dtype, h, nullptr); break;
    case Call::ReduceScatter: r = f.ReduceScatter(a.send, a.recv, a.count, a.dtype, a.op, h, nullptr); break;
    case Call::AllToAll: r = f.AllToAll(a.send, a.recv, a.count, a.dtype, h, nullptr); break;
    case Call::AllToAllV: break;  // never asked
    case Call::Send: r = f.Send(a.send, a.count, a.dtype, a.peer, h, nullptr); break;
    case Call::Recv: r = f.Recv(a.recv, a.count, a.dtype, a.peer, h, nullptr); break;
  }
  a.rank->inside.store(nullptr, std::memory_order_release);
  a.rank->keep(outcome(*a.rank, island_call_name(a.call), r));
  return {};
}

struct Life {
  Rank *rank;
};
Status begin(const Life &l) {
  Rank &r = *l.rank;
  r.inside.store("init");
  if (!r.aborted.load()) {  // else nobody waits for it any more, and nobody would meet it there
    const Unending unending;
    const Result result = r.f->CommInitRank(&r.handle, static_cast<size_t>(r.size), r.id, r.rank);
    r.keep(outcome(r, "init", result));
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

// A thread that is stuck in the library does not survive the library's destructors, which are of several files, some opened late. Exit
// handlers run backwards: this one, registered when the thread is left behind, comes before them and ends the process with the status
// that it was to have.
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

class OneCclCommunicator final : public Communicator {
 public:
  OneCclCommunicator(const Functions &f, const Join &join, std::shared_ptr<device::Stream> stream)
      : stream_(std::static_pointer_cast<device::HostStream>(std::move(stream))), rank_(new Rank) {
    rank_->f = &f;
    rank_->rank = join.rank;
    rank_->size = join.size;
    std::memcpy(rank_->id.bytes, join.id.data(), kIdBytes);
    stream_->call("oneccl init", begin, Life{rank_});
    constexpr int64_t kLook = 50'000'000;
    // Not until the stream is drained: others may give it work meanwhile that waits for this.
    const auto begun = [&] { return rank_->begun.load(std::memory_order_acquire); };
    while (!begun() && stream_->usable() && !join.deadline.passed() && !join.in_vain())
      (void)stream_->drain(std::min(now_ns() + kLook, join.deadline.ns()));
    const bool drained = begun();
    const Status waited = drained ? Status{} : join.waited("oneccl");
    const Status status = drained ? rank_->first_failure() : Status{};
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
  Status status() const override { return rank_->first_failure(); }

  void all_reduce(const void *send, void *recv, uint64_t count, DType dtype, Reduction by) override {
    reduction(Call::AllReduce, send, recv, count, dtype, by.op, 0);
  }
  void reduce(const void *send, void *recv, uint64_t count, DType dtype, Reduction by, int root) override {
    reduction(Call::Reduce, send, recv, count, dtype, by.op, root);
  }
  void reduce_scatter(const void *send, void *recv, uint64_t count, DType dtype, Reduction by) override {
    reduction(Call::ReduceScatter, send, recv, count, dtype, by.op, 0);
  }
  void broadcast(void *buffer, uint64_t count, DType dtype, int root) override {
    move(Call::Broadcast, buffer, buffer, count, dtype, root);
  }
  void all_gather(const void *send, void *recv, uint64_t count, DType dtype) override {
    move(Call::AllGather, send, recv, count, dtype, 0);
  }
  void all_to_all(const void *send, void *recv, uint64_t count, DType dtype) override {
    move(Call::AllToAll, send, recv, count, dtype, 0);
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
  bool failed() const noexcept override { return rank_->failed.load(std::memory_order_acquire) || !stream_->usable(); }
  const char *inside() const noexcept override { return rank_->inside.load(std::memory_order_acquire); }
  bool held_up() const noexcept override { return stream_->inside() != nullptr && !inside(); }
  void leave_behind() noexcept override { abandon(*stream_); }

 private:
  void reduction(Call call, const void *send, void *recv, uint64_t count, DType dtype, RedOp op, int root) {
    const int t = dtype_number(dtype), o = op_number(op);
    if (t < 0 || o < 0)
      fail(Code::Unsupported, "oneccl {}: no {} of {} there", island_call_name(call), redop_name(op), dtype_name(dtype));
    submit({rank_, const_cast<void *>(send), recv, count, t, o, root, call});
  }
  void move(Call call, const void *send, void *recv, uint64_t count, DType dtype, int peer) {
    submit({rank_, const_cast<void *>(send), recv, count * dtype_size(dtype), kByte, 0, peer, call});
  }
  void submit(const Arguments &a) {
    if (a.peer < 0 || a.peer >= rank_->size)
      fail(Code::Argument, "oneccl {}: rank {} is not of this island (0 to {})", island_call_name(a.call), a.peer,
           rank_->size - 1);
    if (a.count) stream_->call(island_call_name(a.call), run, a);
  }

  // Ends the library's communicator on the stream's thread, behind the calls that were submitted. If the thread does not come out of a
  // call of this communicator, it is left behind with all that it uses; if it is in another's, what is ours stays for ever.
  void leave() noexcept {
    bool drained = stream_->drain(Deadline(rank_->aborted.load() ? 0.5 : 1.5).ns());
    if (!drained && !rank_->aborted.load()) {  // held up by another communicator; the others of the island wait no longer
      abort();
      drained = stream_->drain(Deadline(0.1).ns());
    }
    if (drained) {
      const int stops = Unending::stops();
      stream_->call(kDestroy, end, Life{rank_});
      for (const Deadline patience(10); !patience.passed() && Unending::stops() == stops;)
        if (stream_->drain(Deadline(0.05).ns())) return;
      const char *where = stream_->inside();
      if (where && std::strcmp(where, kDestroy) == 0) abandon(*stream_);  // else what another submitted goes first
    } else if (inside()) {
      abandon(*stream_);
    }
  }

  std::shared_ptr<device::HostStream> stream_;
  Rank *rank_;
};

// ---- the library ----------------------------------------------------------------------------------------------------------

class OneCcl final : public Library {
 public:
  OneCcl(const std::string &path, const std::string &interface) {
    const std::string name = path.empty() ? "libccl.so.2" : path;
    const size_t slash = name.rfind('/');
    std::vector<std::pair<std::string, std::string>> variables = {
        {"CCL_WORKER_OFFLOAD", "0"}, {"CCL_ATL_SHM", "1"}, {"CCL_LOG_LEVEL", "error"}};
    if (!interface.empty())
      for (const char *variable : {"CCL_KVS_IFACE", "FI_TCP_IFACE"}) variables.emplace_back(variable, interface);
    if (slash != std::string::npos) {  // its transport, where it lies beside it and not where the loader looks
      const std::string folder = name.substr(0, slash), providers = folder + "/prov", fabric = folder + "/libfabric.so.1";
      struct stat found;
      if (::stat(providers.c_str(), &found) == 0) variables.emplace_back("FI_PROVIDER_PATH", providers);
      add_to_environment(variables);
      if (::stat(fabric.c_str(), &found) == 0) ::dlopen(fabric.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    add_to_environment(variables);
    note_earlier_files();
    const WithoutPipeSignal masked;
    library_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library_) {
      const char *why = ::dlerror();
      fail(Code::Unsupported, "oneccl: {} cannot be opened ({}); {}", name, why ? why : "no reason given", way_out());
    }
    remove_leftovers_of_the_dead();
    static const pid_t opener = ::getpid();
    std::atexit([] {
      if (::getpid() == opener) remove_own_leftovers();
    });
    const auto find = [&](const char *function) { return ::dlsym(library_, (std::string("oneccl") + function).c_str()); };
    const auto get_version = reinterpret_cast<decltype(f_.GetVersion)>(find("GetVersion"));
    if (!get_version)
      fail(Code::Unsupported, "oneccl: {} has no onecclGetVersion, so it is no library of that kind; {}", name, way_out());
    int code = 0;
    if (const Result r = get_version(&code); r != kSuccess)
      fail(Code::Unsupported, "oneccl: {} does not tell its version (onecclGetVersion gives {}); {}", name, r, way_out());
    version_ = text(code);
    if (code < kLeastVersion) fail(Code::Unsupported, "oneccl: {} is version {}; {}", name, version_, way_out());
#define ISTHMUS_FIND(function, arguments)                               \
  f_.function = reinterpret_cast<Result(*) arguments>(find(#function)); \
  if (!f_.function)                                                     \
    fail(Code::Unsupported, "oneccl: {} (version {}) has no oneccl{}; {}", name, version_, #function, way_out());
    ISTHMUS_ONECCL_FUNCTIONS(ISTHMUS_FIND)
#undef ISTHMUS_FIND
    Unending::find(library_);
    f_.GetLastError = reinterpret_cast<decltype(f_.GetLastError)>(find("GetLastError"));
    Dl_info info{};
    path_ = ::dladdr(reinterpret_cast<void *>(f_.GetVersion), &info) && info.dli_fname ? info.dli_fname : name;
  }

  const char *family() const noexcept override { return "oneccl"; }
  std::string version() const override { return version_; }
  std::string path() const override { return path_; }
  Capabilities capabilities() const noexcept override {
    Capabilities c;
    c.blocking = c.one_stream = true;
    c.id_bytes = kIdBytes;
    return c;
  }
  bool can(Call call, DType dtype, RedOp op) const noexcept override {
    if (call == Call::AllToAllV) return false;  // its blocks have no displacements
    return !reduces(call) || (dtype_number(dtype) >= 0 && op_number(op) >= 0);
  }

  Status usable() const override {
    const Lock lock(mutex_);
    const auto used = stream_.lock();
    if (device::abandoned_threads() == 0 && (!used || used->status().ok())) return {};
    return {Code::Unsupported, "oneccl: a thread of this process is stuck inside the library for good; start a new process"};
  }

  std::vector<std::byte> make_id(int) override {
    const WithoutPipeSignal masked;
    Id id{};
    const Result r = f_.GetUniqueId(&id);
    if (r != kSuccess)
      fail(Code::System, "oneccl unique id: {} ({}); is its transport (libfabric) installed?", result_text(r), r);
    const auto *bytes = reinterpret_cast<const std::byte *>(id.bytes);
    return {bytes, bytes + kIdBytes};
  }

  std::unique_ptr<Communicator> join(const Join &join, std::shared_ptr<device::Stream> stream) override {
    if (join.id.size() != kIdBytes)
      fail(Code::Argument, "oneccl: an id of {} bytes; {} are needed", join.id.size(), kIdBytes);
    if (join.size < 1 || join.rank < 0 || join.rank >= join.size)
      fail(Code::Argument, "oneccl: rank {} of an island of {}", join.rank, join.size);
    if (!dynamic_cast<device::HostStream *>(stream.get()))
      fail(Code::Argument, "oneccl serves the host; it was given a stream of another device");
    if (const Status s = usable(); !s.ok()) throw Error(s.code, s.text);
    {
      const Lock lock(mutex_);
      const auto used = stream_.lock();
      if (used && used != stream)
        fail(Code::Argument, "oneccl: all its communicators in a process share one stream; another one was given before");
      stream_ = stream;
    }
    return std::make_unique<OneCclCommunicator>(f_, join, std::move(stream));
  }

 private:
  static std::string text(int code) { return formatted("{}.{}.{}", code / 10000, code / 100 % 100, code % 100); }

  static std::string way_out() {
    return formatted(
        "install oneCCL {} or newer, say where its libccl.so.2 is (ISTHMUS_CCL_LIBRARY), or go on without it "
        "(ISTHMUS_CCL=none)",
        text(kLeastVersion));
  }

  void *library_ = nullptr;  // never closed: its threads would run on in nothing
  Functions f_{};
  std::string version_, path_;
  mutable Mutex mutex_;
  std::weak_ptr<device::Stream> stream_ ISTHMUS_GUARDED_BY(mutex_);  // of the communicators that live
};

struct OneCclOpened {
  Mutex mutex;  // held while the library is opened: one thread does
  std::shared_ptr<Library> library ISTHMUS_GUARDED_BY(mutex);
};
PerProcess<OneCclOpened> oneccl_opened;
constinit Beginning oneccl_begun;  // its threads and connections do not live on in a forked child

}  // namespace

std::shared_ptr<Library> open_oneccl(const std::string &path, const std::string &interface) {
  OneCclOpened &mine = *oneccl_opened;
  const Lock lock(mine.mutex);
  if (mine.library) return mine.library;
  if (oneccl_begun.in_a_parent())
    fail(Code::Forked,
         "oneccl: the parent process has opened it, and it does not work in a forked child; start this process by spawn, or "
         "set ISTHMUS_CCL=none");
  oneccl_begun.note();
  try {
    mine.library = std::make_shared<OneCcl>(path, interface);
  } catch (...) {
    oneccl_begun.take_back();
    throw;
  }
  return mine.library;
}

}  // namespace isthmus::ccl
