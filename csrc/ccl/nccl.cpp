#include "ccl/nccl.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"
#include "base/log.hpp"
#include "ccl/front_door.hpp"
#include "ccl/nccl_communicator.hpp"
#include "ccl/nccl_library.hpp"

namespace isthmus::ccl {
namespace {

using namespace nccl;

constexpr NcclRow kRows[] = {
    {{"nccl", "cuda"}, "libnccl.so.2", "nccl", "install NVIDIA's NCCL", version_code(2, 14, 0), version_code(2, 24, 3)},
    {{"rccl", "hip"}, "librccl.so.1", "nccl", "install AMD's RCCL", version_code(2, 14, 0), version_code(2, 20, 5)},
};

std::string version_text(int code) { return formatted("{}.{}.{}", code / 10000, code / 100 % 100, code % 100); }
std::string way_out(const NcclRow &row) {
  return formatted("{} {} or newer, say where it is (ISTHMUS_CCL_LIBRARY), or go on without it (ISTHMUS_CCL=none)",
                   row.install, version_text(row.least));
}

// NVIDIA's library takes this variable over what a communicator's configuration says, so the calls that we count on to return would wait.
void warn_of_blocking(const char *family) {
  const char *const value = std::getenv("NCCL_COMM_BLOCKING");
  if (!value || std::strtoll(value, nullptr, 0) != 1) return;  // read as the library reads it
  ISTHMUS_WARN(
      "{}: NCCL_COMM_BLOCKING=1 in the environment makes the library's calls block: one that does not come back cannot be "
      "aborted, and after an init that fails the device may count as hung until the process ends; unset it",
      family);
}

class Nccl final : public Library {
 public:
  Nccl(const NcclRow &row, const std::string &path) {
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
    warn_of_blocking(row.family);
  }

  const char *family() const noexcept override { return o_.row->family; }
  std::string version() const override { return version_text(o_.version); }
  std::string path() const override { return o_.path; }
  LibraryCapabilities capabilities() const noexcept override {
    LibraryCapabilities c;
    c.groups = c.abort = c.thread_ranks = true;
    c.host_memory = true;  // the kernels read and write wherever the device does (NCCL's and RCCL's argcheck.cc)
    c.id_bytes = kIdBytes;
    return c;
  }
  bool can(Call call, DType dtype, RedOp op) const noexcept override {
    return !reduces(call) || reduces_there(o_, dtype, op == RedOp::PremulSum ? Reduction::multiplied(0) : Reduction(op));
  }
  std::vector<std::byte> make_id(int) override {
    Id id{};
    const Result r = o_.f.GetUniqueId(&id);
    if (const Status s = outcome(o_, "unique id", r); !s.ok()) throw Error(s.code, s.text);
    const auto *bytes = reinterpret_cast<const std::byte *>(id.bytes);
    return {bytes, bytes + kIdBytes};
  }
  std::unique_ptr<IslandCommunicator> join(const IslandJoin &join, std::shared_ptr<device::Stream> stream) override {
    if (join.id.size() != kIdBytes)
      fail(Code::Argument, "{}: an id of {} bytes; {} are needed", family(), join.id.size(), kIdBytes);
    if (join.size < 1 || join.rank < 0 || join.rank >= join.size)
      fail(Code::Argument, "{}: rank {} of an island of {}", family(), join.rank, join.size);
    if (!stream || !stream->handle()) fail(Code::Argument, "{}: it needs a stream of its vendor's runtime", family());
    return join_island(o_, join, std::move(stream));
  }

 private:
  NcclLibrary o_;
};

struct NcclOpened {
  Mutex mutex;  // held while a library is opened: one thread opens it
  std::map<std::string, std::shared_ptr<Library>> libraries ISTHMUS_GUARDED_BY(mutex);
};
PerProcess<NcclOpened> nccl_opened;

}  // namespace

std::span<const NcclFamily> nccl_families() noexcept {
  static constexpr auto kFamilies = [] {
    std::array<NcclFamily, std::size(kRows)> families{};
    for (size_t i = 0; i < families.size(); ++i)
      families[i] = kRows[i];  // NOLINT(cppcoreguidelines-slicing): what the others see of a row
    return families;
  }();
  return kFamilies;
}

std::shared_ptr<Library> open_nccl(const std::string &family, const std::string &path) {
  NcclOpened &mine = *nccl_opened;
  const Lock lock(mine.mutex);
  if (const auto it = mine.libraries.find(family); it != mine.libraries.end()) return it->second;
  for (const NcclRow &row : kRows)
    if (family == row.family) return mine.libraries[family] = std::make_shared<Nccl>(row, path);
  fail(Code::Argument, "there is no library of the family {} here", family);
}

}  // namespace isthmus::ccl
