#include "ccl/oneccl.hpp"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "base/environment.hpp"
#include "base/error.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"
#include "base/log.hpp"
#include "ccl/oneccl_communicator.hpp"
#include "ccl/oneccl_guards.hpp"
#include "ccl/oneccl_leftovers.hpp"
#include "ccl/oneccl_sharing.hpp"
#include "device/abandoned.hpp"
#include "device/host.hpp"

namespace isthmus::ccl {
namespace {

using namespace oneccl;

class OneCcl final : public Library {
 public:
  OneCcl(const std::string &path, const std::string &interface) {
    const std::string name = path.empty() ? "libccl.so.2" : path;
    const size_t slash = name.rfind('/');
    std::vector<std::pair<std::string, std::string>> variables = {
        {"CCL_WORKER_OFFLOAD", "0"}, {"CCL_ATL_SHM", "1"}, {"CCL_LOG_LEVEL", "error"}};
    if (!interface.empty())
      for (const char *variable : {"CCL_KVS_IFACE", "FI_TCP_IFACE"}) variables.emplace_back(variable, interface);
    if (slash != std::string::npos) {  // the transport may lie beside the library and not where the loader looks
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
  LibraryCapabilities capabilities() const noexcept override {
    LibraryCapabilities c;
    c.blocking = c.one_stream = true;
    c.id_bytes = kIdBytes;
    return c;
  }
  bool can(Call call, DType dtype, RedOp op) const noexcept override {
    if (call == Call::AllToAllV) return false;  // the library's all_to_all_v has no displacements
    return !reduces(call) || reduces_there(dtype, op);
  }

  Status usable() const override {
    const Lock lock(mutex_);
    const auto used = stream_.lock();
    if (device::abandoned_threads() == 0 && (!used || used->status().ok())) return {};
    return {Code::Unsupported, "oneccl: a thread of this process is stuck inside the library for good; start a new process"};
  }

  std::vector<std::byte> terms() const override { return terms_of(*sharing_.lock()); }
  void settle(std::span<const IslandMember> island) override {
    const Sharing decided = decide(island);
    const auto sharing = sharing_.lock();
    if (*sharing == decided) return;
    if (*sharing != Sharing::Undecided)
      fail(Code::Unsupported,
           "oneccl: another communicator of this process, made meanwhile, has decided otherwise on oneCCL's shared memory; "
           "set "
           "FI_PROVIDER=^shm for all ranks, or make one after the other");
    *sharing = decided;
    if (decided != Sharing::LeftOut) return;
    add_to_environment({{{"FI_PROVIDER", "^shm"}}});
    ISTHMUS_WARN(
        "oneccl: the process ids of the island's ranks on one host are not of one length, with which oneCCL's shared memory "
        "does not work; its traffic goes by TCP in this process");
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

  std::unique_ptr<IslandCommunicator> join(const IslandJoin &join, std::shared_ptr<device::Stream> stream) override {
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
    return join_island(f_, join, std::move(stream));
  }

 private:
  static std::string text(int code) { return formatted("{}.{}.{}", code / 10000, code / 100 % 100, code % 100); }

  static std::string way_out() {
    return formatted(
        "install oneCCL {} or newer, say where its libccl.so.2 is (ISTHMUS_CCL_LIBRARY), or go on without it "
        "(ISTHMUS_CCL=none)",
        text(kLeastVersion));
  }

  void *library_ = nullptr;  // never closed: the library's threads would run on in unmapped memory
  Functions f_{};
  std::string version_, path_;
  mutable Guarded<Sharing> sharing_{sharing_of(std::getenv("FI_PROVIDER"))};
  mutable Mutex mutex_;
  std::weak_ptr<device::Stream> stream_ ISTHMUS_GUARDED_BY(mutex_);  // of the communicators that are alive
};

struct OneCclOpened {
  Mutex mutex;  // held while the library is opened: one thread opens it
  std::shared_ptr<Library> library ISTHMUS_GUARDED_BY(mutex);
};
PerProcess<OneCclOpened> oneccl_opened;
constinit Beginning oneccl_begun;  // the library's threads and connections do not live on in a forked child

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
