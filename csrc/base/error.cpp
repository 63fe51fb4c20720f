#include "base/error.hpp"

#include <sys/resource.h>

#include <cerrno>

namespace isthmus {

const char *code_name(Code code) noexcept {
  switch (code) {
    case Code::Ok: return "ok";
    case Code::Argument: return "bad argument";
    case Code::Config: return "bad setting";
    case Code::Mismatch: return "mismatch";
    case Code::Timeout: return "timeout";
    case Code::PeerLost: return "peer lost";
    case Code::Aborted: return "aborted";
    case Code::Resource: return "out of resources";
    case Code::System: return "system error";
    case Code::Auth: return "authentication failed";
    case Code::Forked: return "used in a forked child";
    case Code::Interrupted: return "interrupted";
    case Code::Unsupported: return "unsupported";
    case Code::InProgress: return "in progress";
    case Code::Internal: return "internal error";
    case Code::Device: return "device error";
  }
  return "unknown result";
}

std::string system_text(const char *what, int error) {
  char buffer[128] = {};
  // GNU strerror_r: returns the text, which may or may not be in `buffer`.
  std::string text = formatted("{}: {} ({})", what, strerror_r(error, buffer, sizeof buffer), error);
  if (no_descriptors(error)) text += formatted("; the limit: {}", descriptor_limit(error));
  return text;
}

Code system_code(int error) noexcept { return no_descriptors(error) || error == ENOMEM ? Code::Resource : Code::System; }

bool no_descriptors(int error) noexcept { return error == EMFILE || error == ENFILE; }

std::string descriptor_limit(int error) {
  rlimit most{};
  if (error == ENFILE || ::getrlimit(RLIMIT_NOFILE, &most) != 0) return "fs.file-max of this host";
  return formatted("ulimit -n {}", most.rlim_cur);
}

void fail_system(const char *what, int error) { throw Error(system_code(error), system_text(what, error)); }

}  // namespace isthmus
