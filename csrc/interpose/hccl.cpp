// The front door for HCCL.
#include <atomic>

#include "own_hccl.hpp"
#include "real.hpp"
#include "bound_function.hpp"

namespace isthmus::interpose {

using namespace hccl;

const Vendor &vendor() noexcept {
  static constexpr Vendor kVendor = {
      "HCCL",
      "hccl",
      "acl",
      "libhccl.so",
      "libhccl.so",
      "ISTHMUS_REAL_HCCL",
      "Install Huawei's CANN and source its set_env.sh",
      "HcclAllReduce",  // Intel's HCCL has other names: hcclAllReduce and the like
      "isthmus_bridge_hccl",
      hccl::kCallsDigest,
      "libhcomm.so",
      kNotSupported,
      kNotFound,
      kInternalError,
      {"$ASCEND_HOME_PATH/lib64", "$ASCEND_TOOLKIT_HOME/lib64", "/usr/local/Ascend/cann/lib64",
       "/usr/local/Ascend/ascend-toolkit/latest/lib64", "/usr/local/Ascend/nnae/latest/lib64",
       "/usr/local/Ascend/latest/lib64", "$HOME/Ascend/cann/lib64", "$HOME/Ascend/ascend-toolkit/latest/lib64", nullptr}};
  return kVendor;
}

// HCCL has no function that tells its version. The version of CANN stands in the path of the file.
void write_version_of(TextBuffer &, void *) noexcept {}
int version_of(const Real &) noexcept { return 0; }

// HCCL has no last error to ask for. The reason goes to the log, and, where there is no library, to HcclGetErrorString.
Result refuse(const char *name, bool spans) noexcept {
  const Real &r = real();
  reason_for(name, r, spans);
  return code_of(r);
}
void keep(const char *) noexcept {}

const char *own_HcclGetErrorString(Result code) noexcept {
  using GetErrorString = const char *(Result);
  static std::atomic<GetErrorString *> slot;
  if (auto *f = slot.load(std::memory_order_acquire)) return f(code);
  if (auto *f = reinterpret_cast<GetErrorString *>(look_up("HcclGetErrorString"))) {
    slot.store(f, std::memory_order_release);
    return f(code);
  }
  const Real &r = real();
  return code == kSuccess ? "no error" : r.handle ? "the HCCL in use has no texts for errors" : r.text;
}

// Groups: the real library's own group, and behind that group the calls that the bridge has put off.
Result own_HcclGroupStart() noexcept {
  static constinit BoundFunction<Result()> slot{nullptr};
  auto *f = bound(slot);
  if (!f && !(f = bind(slot, "HcclGroupStart"))) return refuse("HcclGroupStart");
  const Result r = f();
  if (ThreadState &t = thread(); r == kSuccess && t.inside == 0) ++t.depth;
  return r;
}

Result own_HcclGroupEnd() noexcept {
  static constinit BoundFunction<Result()> slot{nullptr};
  auto *f = bound(slot);
  if (!f && !(f = bind(slot, "HcclGroupEnd"))) return refuse("HcclGroupEnd");
  ThreadState &t = thread();
  if (t.inside > 0) return f();
  if (t.depth > 0) --t.depth;
  if (t.depth > 0 || !t.pending) return f();
  const Inside inside;
  return the_bridge()->group_end();
}

}  // namespace isthmus::interpose
