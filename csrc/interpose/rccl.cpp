// The front door for RCCL.
#include "real.hpp"

#include "abi.hpp"
#include "routed_calls.hpp"

namespace isthmus::interpose {

const Vendor &vendor() noexcept {
  static constexpr Vendor kVendor = {"RCCL",
                                     "rccl",
                                     "hip",
                                     "librccl.so.1",
                                     "librccl.so",
                                     "ISTHMUS_REAL_RCCL",
                                     "Install AMD's RCCL",
                                     "ncclGetVersion",
                                     "isthmus_bridge_nccl",
                                     kCallsDigest,
                                     nullptr,
                                     kInvalidUsage,
                                     kSystemError,
                                     kInternalError,
                                     {"torch/lib", "/opt/rocm/lib", "/opt/rocm/rccl/lib", nullptr}};
  return kVendor;
}

}  // namespace isthmus::interpose
