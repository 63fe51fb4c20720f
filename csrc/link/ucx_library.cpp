#include "link/ucx_library.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <sstream>
#include <utility>

#include "base/environment.hpp"
#include "base/error.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"

namespace isthmus::link {
namespace {

using namespace ucx_abi;

constexpr const char *kName = "libucp.so.0";
constexpr const char *kWayOut =
    "install UCX 1.11 or newer (Debian and Ubuntu: apt-get install libucx0; Fedora: dnf install ucx), or set "
    "ISTHMUS_BRIDGE=tcp";

Beginning ucx_begun;  // its threads and connections do not come along when a process forks

// What UCX reads when it is opened. A variable that the program has set stays.
//   UCX_ERROR_SIGNALS, UCX_HANDLE_ERRORS: no handlers of signals, which are the program's.
//   UCX_MEM_EVENTS: no patches of the program's mmap() and munmap(). They serve a cache of registered memory, and what Isthmus gives UCX is
//     registered once.
//   UCX_LOG_LEVEL: on standard output, UCX would tell of each peer that ends. Isthmus tells of it, and by rank.
void prepare_environment() {
  const std::pair<std::string, std::string> variables[] = {{"UCX_ERROR_SIGNALS", ""},
                                                           {"UCX_HANDLE_ERRORS", "none"},
                                                           {"UCX_MEM_EVENTS", "n"},
                                                           {"UCX_LOG_LEVEL", "fatal"},
                                                           {"UCX_WARN_UNUSED_ENV_VARS", "n"}};
  add_to_environment(variables);
}

// What `print` writes to the file that it is given.
template <class Print>
std::string printed(Print print) {
  char *text = nullptr;
  size_t bytes = 0;
  std::FILE *file = ::open_memstream(&text, &bytes);
  if (!file) return {};
  print(file);
  std::fclose(file);
  std::string out(text, bytes);
  std::free(text);
  return out;
}

}  // namespace

const UcxLibrary &UcxLibrary::open() {
  if (ucx_begun.in_a_parent())
    fail(Code::Forked,
         "UCX was in use in the process from which this one was forked, and does not outlive a fork: start a new process "
         "(multiprocessing: the method 'spawn' or 'forkserver'), or set ISTHMUS_BRIDGE=tcp");
  static Mutex mutex;
  static const UcxLibrary *opened = nullptr;  // never destroyed: threads may use it while the process ends
  const Lock lock(mutex);
  if (!opened) opened = new UcxLibrary;
  ucx_begun.note();
  return *opened;
}

UcxLibrary::UcxLibrary() {
  prepare_environment();
  void *library = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *why = ::dlerror();
    fail(Code::Unsupported, "ucx: {} cannot be opened ({}); {}", kName, why ? why : "no reason given", kWayOut);
  }
#define ISTHMUS_FIND(result, name, arguments)                                              \
  functions_.name = reinterpret_cast<result(*) arguments>(::dlsym(library, "ucp_" #name)); \
  if (!functions_.name) fail(Code::Unsupported, "ucx: {} has no ucp_" #name ", so it is too old; {}", kName, kWayOut);
  ISTHMUS_UCP_FUNCTIONS(ISTHMUS_FIND)
#undef ISTHMUS_FIND
  functions_.status_string = reinterpret_cast<decltype(functions_.status_string)>(
      ::dlsym(library, "ucs_status_string"));  // of libucs, below libucp
  unsigned major = 0, minor = 0, patch = 0;
  functions_.get_version(&major, &minor, &patch);
  version_ = formatted("{}.{}.{}", major, minor, patch);
  if (major != kApiMajor || minor < kApiMinor)
    fail(Code::Unsupported, "ucx: {} is version {}; {}", kName, version_, kWayOut);
  Dl_info info{};
  path_ = ::dladdr(reinterpret_cast<void *>(functions_.get_version), &info) && info.dli_fname ? info.dli_fname : kName;
}

std::string UcxLibrary::text(Status status) const {
  const char *said = functions_.status_string ? functions_.status_string(status) : nullptr;
  return formatted("{} ({})", said ? said : "UCX status", static_cast<int>(status));
}

Context UcxLibrary::make_context() const {
  Config *config = nullptr;
  if (const Status s = functions_.config_read(nullptr, nullptr, &config); s != kOk)
    fail(Code::Unsupported, "ucx: its settings (UCX_* in the environment) cannot be read: {}", text(s));
  ContextParams params;
  params.fields = kParamFeatures;
  params.features = kFeatureActiveMessages | kFeatureWakeup;
  Context context = nullptr;
  const Status s = functions_.init_version(kApiMajor, kApiMinor, &params, config, &context);
  functions_.config_release(config);
  if (s != kOk) {
    const char *tls = std::getenv("UCX_TLS");
    fail(Code::Unsupported,
         "ucx: version {} cannot begin: {}. UCX_TLS is {}; it must leave transports that this machine has, and "
         "UCX_LOG_LEVEL=info makes UCX say more",
         version_, text(s), tls ? tls : "not set");
  }
  return context;
}

std::vector<std::string> UcxLibrary::transports(Context context) const {
  // "#      resource 0  :  md 0  dev 0  flags -- self/memory0"
  std::istringstream lines(printed([&](std::FILE *file) { functions_.context_print_info(context, file); }));
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);)
    if (const size_t at = line.find("resource "), last = line.find_last_of(' ');
        at != std::string::npos && last != std::string::npos && line.find('/', last) != std::string::npos)
      found.push_back(line.substr(last + 1));
  return found;
}

bool is_rdma(const std::string &transport) noexcept {
  for (const char *begin : {"rc_", "dc_", "ud_"})
    if (transport.starts_with(begin)) return true;
  return false;
}

}  // namespace isthmus::link
