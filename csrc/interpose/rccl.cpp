#include "real.hpp"

namespace isthmus::interpose {

const Vendor kVendor = {"RCCL",
                        "librccl.so.1",
                        "librccl.so",
                        "ISTHMUS_REAL_RCCL",
                        "Install AMD's RCCL",
                        {"torch/lib", "/opt/rocm/lib", "/opt/rocm/rccl/lib", nullptr}};

}  // namespace isthmus::interpose
