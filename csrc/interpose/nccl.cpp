// The front door for NCCL.
#include "real.hpp"

#include "abi.hpp"
#include "routed_calls.hpp"

namespace isthmus::interpose {

const Vendor &vendor() noexcept {
  static constexpr Vendor kVendor = {"NCCL",
                                     "nccl",
                                     "cuda",
                                     "libnccl.so.2",
                                     "libnccl.so",
                                     "ISTHMUS_REAL_NCCL",
                                     "Install NVIDIA's NCCL (pip install nvidia-nccl-cu13)",
                                     "ncclGetVersion",
                                     "isthmus_bridge_nccl",
                                     kCallsDigest,
                                     nullptr,
                                     kInvalidUsage,
                                     kSystemError,
                                     kInternalError,
                                     {"nvidia/nccl/lib", "/usr/local/nccl/lib", "/usr/local/cuda/lib64", nullptr}};
  return kVendor;
}

}  // namespace isthmus::interpose
