// UCX, opened at run time: libucp with the functions of link/ucx_abi.hpp. A process opens it at most once, and never closes it.
#pragma once

#include <string>
#include <vector>

#include "link/ucx_abi.hpp"

namespace isthmus::link {

class UcxLibrary {
 public:
  // Throws Error(Unsupported): it is not there, too old, or a parent of this forked process has used it. The text says what to do.
  static const UcxLibrary &open();

  const ucx_abi::Functions *operator->() const noexcept { return &functions_; }
  const std::string &version() const noexcept { return version_; }
  const std::string &path() const noexcept { return path_; }
  std::string text(ucx_abi::Status status) const;

  // A context for active messages, as this process' environment (UCX_TLS and others) has it. Throws Error(Unsupported).
  ucx_abi::Context make_context() const;
  // "tcp/eth0", "rc_mlx5/mlx5_0:1": the transports and devices that `context` may use.
  std::vector<std::string> transports(ucx_abi::Context context) const;

 private:
  UcxLibrary();
  ucx_abi::Functions functions_;
  std::string version_, path_;
};

// Whether a transport of that name goes through an RDMA device.
bool is_rdma(const std::string &transport) noexcept;

}  // namespace isthmus::link
