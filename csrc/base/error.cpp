#include "base/error.hpp"

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
  return formatted("{}: {} ({})", what, strerror_r(error, buffer, sizeof buffer), error);
}

void fail_system(const char *what, int error) { throw Error(Code::System, system_text(what, error)); }

}  // namespace isthmus
