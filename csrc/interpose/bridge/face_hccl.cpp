// HCCL's functions for a communicator that spans vendors. The collectives are in face_hccl_calls.cpp.
#include "face_hccl.hpp"

#include <cstring>
#include <set>

#include "base/lock.hpp"
#include "handles.hpp"

namespace isthmus::bridge::hccl {
namespace {

using namespace interpose::hccl;  // its codes and types

class HcclFace final : public Face {
 public:
  HcclFace()
      : Face({"HcclGroupEnd", kParameter, kPointer, kNotSupported, kUnavailable, kSystem, kSuccess, false,
              GroupCheck::EarlyAndLate}) {}

  using Face::number_of;
  Result number_of(isthmus_result code) const noexcept override {
    switch (code) {
      case ISTHMUS_OK: return kSuccess;
      case ISTHMUS_ERR_ARGUMENT:
      case ISTHMUS_ERR_CONFIG:
      case ISTHMUS_ERR_MISMATCH: return kParameter;
      case ISTHMUS_ERR_FORKED:
      case ISTHMUS_ERR_UNSUPPORTED: return kNotSupported;
      case ISTHMUS_ERR_TIMEOUT: return kTimeout;
      case ISTHMUS_ERR_PEER_LOST:
      case ISTHMUS_ERR_ABORTED: return kRemote;
      case ISTHMUS_ERR_RESOURCE: return kUnavailable;
      case ISTHMUS_ERR_SYSTEM:
      case ISTHMUS_ERR_AUTH: return kSystem;
      case ISTHMUS_ERR_DEVICE: return kRuntime;
      case ISTHMUS_IN_PROGRESS: return kAgain;
      default: return kInternalError;
    }
  }

  // HCCL has no last error. The text is a line of the log, the first time that the text comes.
  void tell(const std::string &text) override {
    constexpr size_t kMost = 1000;  // a program that goes on in spite of errors could fill the memory
    static auto *const all_told = new Guarded<std::set<std::string>>;
    bool first = false;
    {
      const auto told = all_told->lock();
      first = told->size() < kMost && told->insert(text).second;
    }
    if (first) say(Level::Warn, text);
  }
  void tell_thrown(const char *what) noexcept override { door().say(static_cast<int>(Level::Warn), what); }
  // A barrier of Isthmus waits on the host, and a barrier of HCCL waits on a stream. So the host waits for the stream before
  // the barrier.
  Outcome prepare(const Comm &comm, BridgedCall &operation) override {
    if (operation.call != OperationKind::Barrier) return {};
    const DeviceGuard guard(devices());
    devices().enter(comm.traits().place);
    return devices().wait(operation.stream);
  }
};

Result rank_size(Handle handle, uint32_t *out) {
  return ask(face(), no_comm, "HcclGetRankSize", handle, out, [=](Comm &comm) {
    *out = static_cast<uint32_t>(comm.traits().size);
    return kSuccess;
  });
}
Result rank_id(Handle handle, uint32_t *out) {
  return ask(face(), no_comm, "HcclGetRankId", handle, out, [=](Comm &comm) {
    *out = static_cast<uint32_t>(comm.traits().rank);
    return kSuccess;
  });
}
Result comm_name(Handle handle, char *out) {
  return ask(face(), no_comm, "HcclGetCommName", handle, out, [=](Comm &comm) {
    constexpr size_t kBytes = sizeof ConfigHead::name;
    std::strncpy(out, comm.traits().name.c_str(), kBytes - 1);
    out[kBytes - 1] = 0;
    return kSuccess;
  });
}
Result async_error(Handle handle, Result *out) {
  constexpr const char *kCall = "HcclGetCommAsyncError";
  return ask(face(), no_comm, kCall, handle, out, [=](Comm &comm) {
    *out = failed(kCall, comm.status());
    return kSuccess;
  });
}
Result destroy(Handle handle) {
  const CommPtr comm = bridge::take_back(handle);
  return comm ? failed("HcclCommDestroy", comm->destroy()) : no_comm("HcclCommDestroy");
}

Result group_end() { return end_group(face()); }
Result fail_group(Result code, const char *) { return note(code); }  // no program can ask for a text

interpose::hccl::Calls make_calls() {
  interpose::hccl::Calls c{};
  c.handles = reserve_handles();
  c.fail_group = Caught<fail_group>::call;
  c.HcclGetRootInfo = Caught<get_root_info>::call;
  c.HcclGetRootInfoScalable = Caught<get_root_info_scalable>::call;
  c.HcclCommInitRootInfo = Caught<init>::call;
  c.HcclCommInitRootInfoConfig = Caught<init_config>::call;
  c.HcclCommInitRootInfoScalable = Caught<init_scalable>::call;
  c.HcclCreateSubCommConfig = Caught<create_part>::call;
  c.HcclGetRankSize = Caught<rank_size>::call;
  c.HcclGetRankId = Caught<rank_id>::call;
  c.HcclGetCommName = Caught<comm_name>::call;
  c.HcclGetCommAsyncError = Caught<async_error>::call;
  c.HcclCommDestroy = Caught<destroy>::call;
  add_collectives(c);
  c.group_end = Caught<group_end>::call;
  return c;
}

}  // namespace

Face &face() {
  static auto *const the_face = new HcclFace;  // a thread may still call when the process ends
  return *the_face;
}

Result no_comm(const char *call) {
  return note(refused(kParameter, call, "this communicator, which spanned vendors, was destroyed"));
}

}  // namespace isthmus::bridge::hccl

extern "C" __attribute__((visibility("default"))) const isthmus::interpose::Bridged *isthmus_bridge_hccl(
    const isthmus::interpose::FrontDoor *door) {
  namespace bridge = isthmus::bridge;
  return bridge::open_face(bridge::hccl::face(), door, isthmus::interpose::hccl::kCallsDigest, bridge::hccl::make_calls);
}
