// NCCL's functions for a communicator that spans vendors. The collectives are in face_nccl_calls.cpp.
#include "face_nccl.hpp"

#include <cstring>
#include <set>

#include "base/lock.hpp"
#include "handles.hpp"

namespace isthmus::bridge::nccl {
namespace {

using interpose::kInProgress;
using interpose::kInternalError;
using interpose::kInvalidArgument;
using interpose::kInvalidUsage;
using interpose::kRemoteError;
using interpose::kSuccess;
using interpose::kSystemError;
using interpose::kTimeout;
using interpose::kUnhandledDeviceError;

// The text stays for good. The standard library throws exceptions of few texts.
const char *no_memory(const char *what) noexcept {
  try {
    return keep(std::string("Isthmus: ") + what);
  } catch (const std::exception &) { return "Isthmus has no memory"; }
}

thread_local const char *the_last_told = nullptr;

class NcclFace final : public Face {
 public:
  NcclFace()
      : Face({"ncclGroupEnd", kInvalidArgument, kInvalidArgument, kInvalidUsage, kSystemError, kSystemError, kInProgress,
              true, GroupCheck::Late, group_wait}) {}

  using Face::number_of;
  Result number_of(isthmus_result code) const noexcept override {
    constexpr int kTimeoutSince = 23003;
    switch (code) {
      case ISTHMUS_OK: return kSuccess;
      case ISTHMUS_ERR_ARGUMENT: return kInvalidArgument;
      case ISTHMUS_ERR_CONFIG:
      case ISTHMUS_ERR_MISMATCH:
      case ISTHMUS_ERR_FORKED:
      case ISTHMUS_ERR_UNSUPPORTED: return kInvalidUsage;
      case ISTHMUS_ERR_TIMEOUT: return door().version >= kTimeoutSince ? kTimeout : kRemoteError;
      case ISTHMUS_ERR_PEER_LOST:
      case ISTHMUS_ERR_ABORTED: return kRemoteError;
      case ISTHMUS_ERR_RESOURCE:
      case ISTHMUS_ERR_SYSTEM:
      case ISTHMUS_ERR_AUTH: return kSystemError;
      case ISTHMUS_ERR_DEVICE: return kUnhandledDeviceError;
      case ISTHMUS_IN_PROGRESS: return kInProgress;
      default: return kInternalError;
    }
  }

  void tell(const std::string &text) override { tell_again(keep(text)); }
  void tell_thrown(const char *what) noexcept override { tell_again(no_memory(what)); }
  const char *last_told() const noexcept override { return the_last_told; }
  void tell_again(const char *why) noexcept override {
    the_last_told = why;
    if (why) door().keep(why);
  }
  Outcome prepare(const Comm &comm, BridgedCall &operation) override { return read_factor(comm, operation); }
  // Spoils the group by a call that fails: then nothing of the group is launched. RCCL looks into a communicator before it
  // checks the communicator, so RCCL gets another call than NCCL.
  void spoil_group() override {
    constexpr int kFloat = 7, kSum = 0;
    if (std::strcmp(door().family, "rccl") == 0) {
      Handle none = nullptr;
      if (auto *f = real<Result(Handle *, int, UniqueId, int)>("ncclCommInitRank")) f(&none, 1, UniqueId{}, 1);
    } else if (auto *f = real<Result(const void *, void *, size_t, int, int, Handle, void *)>("ncclAllReduce")) {
      f(nullptr, nullptr, 0, kFloat, kSum, nullptr, nullptr);
    }
  }
};

// ---- life --------------------------------------------------------------------------------------------------------------------------

Result count(Handle comm, int *out) {
  return ask(face(), no_comm, "ncclCommCount", comm, out, [=](Comm &c) {
    *out = c.traits().size;
    return kSuccess;
  });
}
Result user_rank(Handle comm, int *out) {
  return ask(face(), no_comm, "ncclCommUserRank", comm, out, [=](Comm &c) {
    *out = c.traits().rank;
    return kSuccess;
  });
}
Result device(Handle comm, int *out) {
  return ask(face(), no_comm, "ncclCommCuDevice", comm, out, [=](Comm &c) {
    *out = c.traits().place.device;
    return kSuccess;
  });
}

// The structure of a newer vendor's library has more members than are known here. These members become zeros: no interface
// for kernels, no windows, no network of the library's own.
Result properties(Handle handle, void *out) {
  constexpr const char *kCall = "ncclCommQueryProperties";
  constexpr size_t kMaxSize = 4096;
  return ask(face(), no_comm, kCall, handle, out, [=](Comm &comm) {
    interpose::PropertiesHead head{};
    std::memcpy(&head, out, offsetof(interpose::PropertiesHead, rank));
    if (head.magic != kConfigMagic || head.size < sizeof head || head.size > kMaxSize)
      return refused(kInvalidUsage, kCall, "the structure was not initialised");
    head.rank = comm.traits().rank;
    head.nRanks = comm.traits().size;
    head.cudaDev = comm.traits().place.device;
    head.nvmlDev = -1;  // the device's number in the vendor's management library is not known
    std::memset(out, 0, head.size);
    std::memcpy(out, &head, sizeof head);
    return kSuccess;
  });
}

// Registering memory is a hint. A vendor's library that registers nothing (NCCL_LOCAL_REGISTER=0, no symmetric memory) answers
// with success and no handle, and a program may give back no handle. So do these functions.
Result register_nothing(const char *call, Handle handle, void **out) {
  if (!bridge::find(handle)) return no_comm(call);
  if (!out) return refused(kInvalidArgument, call, "an argument is NULL");
  *out = nullptr;
  return kSuccess;
}
Result deregister_nothing(const char *call, Handle handle, const void *given) {
  if (!bridge::find(handle)) return no_comm(call);
  if (!given) return kSuccess;
  return refused(kInvalidArgument, call, "nothing is registered with a communicator that spans vendors");
}
Result register_buffer(Handle comm, void *, size_t, void **out) { return register_nothing("ncclCommRegister", comm, out); }
Result deregister_buffer(Handle comm, void *given) { return deregister_nothing("ncclCommDeregister", comm, given); }
Result register_window(Handle comm, void *, size_t, interpose::Window *out, int) {
  return register_nothing("ncclCommWindowRegister", comm, out);
}
Result deregister_window(Handle comm, interpose::Window given) {
  return deregister_nothing("ncclCommWindowDeregister", comm, given);
}

Result async_error(Handle handle, Result *out) {
  constexpr const char *kCall = "ncclCommGetAsyncError";
  const CommPtr comm = bridge::find(handle);
  if (!comm) {  // the handle may have become an alias since the front door looked
    const Handle known = bridge::behind(handle);
    auto *f = known ? face().real<Result(Handle, Result *)>(kCall) : nullptr;
    return f ? f(known, out) : no_comm(kCall);
  }
  if (!out) return refused(kInvalidArgument, kCall, "an argument is NULL");
  *out = face().number_of(comm->status());
  return kSuccess;
}

Handle behind_handle(Handle handle) { return bridge::behind(handle); }

const char *last_error(Handle handle) noexcept try {
  const CommPtr comm = bridge::find(handle);
  if (!comm) return nullptr;
  const Outcome o = comm->status();
  return o.ok() || o.code == ISTHMUS_IN_PROGRESS ? nullptr : keep(o.text);
} catch (const std::exception &) { return "Isthmus has no memory to say why"; }

Result finalize(Handle handle) {
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm("ncclCommFinalize");
  if (comm->revoked())
    return refused(kInvalidUsage, "ncclCommFinalize", "the communicator was revoked: destroy or abort it");
  if (const Outcome o = comm->status(); o.code == ISTHMUS_IN_PROGRESS)
    return refused(kInvalidArgument, "ncclCommFinalize", o.text);
  return failed("ncclCommFinalize", comm->finalize());
}
// Ends a communicator of the vendor's, by either of its handles: the vendor's own, or the alias. The alias is dropped.
// False: the handle is ours, and no alias.
bool end_real(const char *call, Handle handle, Result &result) {
  Handle known = bridge::behind(handle);
  if (!known) {
    known = handle;
    handle = bridge::alias_of(known);
    if (!handle && bridge::in_range(known)) return false;
  }
  stop_asking(known);
  result = call_real<Result(Handle)>(call, known);
  if (handle && !face().failure(result)) drop_alias(handle);
  return true;
}
Result destroy(Handle handle) {
  constexpr const char *kCall = "ncclCommDestroy";
  if (Result ended; end_real(kCall, handle, ended)) return ended;
  CommPtr comm = bridge::find(handle);
  if (comm && comm->traits().promised)
    return refused(kInvalidUsage, kCall, "the communicator is made when the group ends, and that has not ended");
  if (comm) comm->drain();  // the handle still serves: another thread may abort what this one waits for
  comm = bridge::take_back(handle);
  if (comm) return failed(kCall, comm->destroy());
  // The handle may have become an alias meanwhile. The library destroys nothing that it still makes.
  if (const Handle known = bridge::behind(handle)) wait_until_made(known);
  Result ended;
  return end_real(kCall, handle, ended) ? ended : no_comm(kCall);
}
Result abort(Handle handle) {
  constexpr const char *kCall = "ncclCommAbort";
  Result ended;
  if (end_real(kCall, handle, ended)) return ended;
  const CommPtr comm = bridge::take_back(handle);
  if (!comm) return end_real(kCall, handle, ended) ? ended : no_comm(kCall);  // likewise
  comm->abort();
  return kSuccess;
}

// The state is "in progress" until the operations of this rank have ended, and then a success, also where the communicator had
// failed before.
Result revoke(Handle handle, int flags) {
  constexpr const char *kCall = "ncclCommRevoke";
  constexpr int kDefault = 0;
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm(kCall);
  if (flags != kDefault)
    return refused(kInvalidArgument, kCall, "flags " + std::to_string(flags) + ": not NCCL_REVOKE_DEFAULT");
  return not_ready(kCall, comm->revoke());
}

Result group_end() { return end_group(face()); }
Result fail_group(Result code, const char *why) {
  face().tell_again(why);  // so that the group's error has the text
  return note(code);
}
// Forgets the group: no call of the group is to be made.
void group_forget() { delete face().take_pending(); }

interpose::Calls make_calls() {
  interpose::Calls c{};
  c.handles = reserve_handles();
  c.fail_group = Caught<fail_group>::call;
  c.ncclGetUniqueId = Caught<get_unique_id>::call;
  c.ncclCommInitAll = Caught<init_all>::call;
  c.ncclCommInitRank = Caught<init_rank>::call;
  c.ncclCommInitRankConfig = Caught<init_rank_config>::call;
  c.ncclCommInitRankScalable = Caught<init_rank_scalable>::call;
  c.ncclCommInitRankMulti = Caught<init_rank_multi>::call;
  c.ncclCommSplit = Caught<split>::call;
  c.ncclCommShrink = Caught<shrink>::call;
  c.ncclCommGetUniqueId = Caught<get_grow_id>::call;
  c.ncclCommGrow = Caught<grow>::call;
  c.ncclCommRevoke = Caught<revoke>::call;
  c.ncclCommCount = Caught<count>::call;
  c.ncclCommUserRank = Caught<user_rank>::call;
  c.ncclCommCuDevice = Caught<device>::call;
  c.ncclCommQueryProperties = Caught<properties>::call;
  c.ncclCommRegister = Caught<register_buffer>::call;
  c.ncclCommDeregister = Caught<deregister_buffer>::call;
  c.ncclCommWindowRegister = Caught<register_window>::call;
  c.ncclCommWindowDeregister = Caught<deregister_window>::call;
  c.ncclCommGetAsyncError = Caught<async_error>::call;
  c.ncclCommFinalize = Caught<finalize>::call;
  c.ncclCommDestroy = Caught<destroy>::call;
  c.ncclCommAbort = Caught<abort>::call;
  c.ncclRedOpCreatePreMulSum = Caught<create_premul_sum>::call;
  c.ncclRedOpDestroy = Caught<destroy_op>::call;
  add_collectives(c);
  c.group_end = Caught<group_end>::call;
  c.group_forget = group_forget;
  c.behind = behind_handle;
  c.last_error = last_error;
  return c;
}

}  // namespace

Face &face() {
  static auto *const the_face = new NcclFace;  // a thread may still call when the process ends
  return *the_face;
}

const char *keep(const std::string &text) {
  constexpr size_t kMost = 4096;  // a program that goes on in spite of errors could fill the memory
  static auto *const texts = new Guarded<std::set<std::string>>;  // a program may read its text at any time
  {
    const auto all = texts->lock();
    if (const auto known = all->find(text); known != all->end()) return known->c_str();
    if (all->size() < kMost) return all->insert(text).first->c_str();
  }
  face().say(Level::Warn, text);
  return "Isthmus: this program has had more than 4096 different errors; the text of this one is in the log";
}
Result no_comm(const char *call) {
  return refused(kInvalidArgument, call, "this communicator, which spanned vendors, was destroyed or aborted");
}
Result no_handle(const char *call) { return refused(face().rules.no_handle, call, kNoHandle); }
Result aborted(const char *call) {
  return refused(kInvalidUsage, call, "the program aborted the communicator before the group ended");
}

}  // namespace isthmus::bridge::nccl

extern "C" __attribute__((visibility("default"))) const isthmus::interpose::Bridged *isthmus_bridge_nccl(
    const isthmus::interpose::FrontDoor *door) {
  namespace bridge = isthmus::bridge;
  return bridge::open_face(bridge::nccl::face(), door, isthmus::interpose::kCallsDigest, bridge::nccl::make_calls);
}
