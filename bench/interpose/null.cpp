// An NCCL and an HCCL that do nothing, so that only the way to them costs time. A communicator is an address in an array.
#include <atomic>
#include <cstddef>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct UniqueId {
  unsigned char bytes[128];
};
struct RootInfo {
  unsigned char bytes[4108];
};
constexpr size_t kMost = 1 << 16, kBytes = 64;
char the_comms[kMost * kBytes];
unsigned the_next;                                // of those that one thread makes
std::atomic<unsigned> the_next_apart{kMost / 2};  // of those that an init makes that does not block

void *comm_of(unsigned number) { return the_comms + number % kMost * kBytes; }
// A call with another library's handle gets an invalid argument.
int checked(const void *comm) {
  return reinterpret_cast<uintptr_t>(comm) - reinterpret_cast<uintptr_t>(the_comms) < sizeof the_comms ? 0 : 4;
}
template <class Number>
int answered(const void *comm, Number *out) {
  *out = 0;
  return checked(comm);
}

}  // namespace

EXPORT int ncclGetVersion(int *version) {
  *version = 23203;
  return 0;
}
EXPORT int ncclGetUniqueId(UniqueId *id) {
  *id = {};
  return 0;
}
EXPORT int ncclCommInitRank(void **comm, int, UniqueId id, int) {
  *comm = comm_of(the_next++ % (kMost / 2));
  return id.bytes[127];
}
EXPORT int ncclCommInitRankConfig(void **comm, int, UniqueId, int, void *) {
  *comm = comm_of(the_next_apart.fetch_add(1, std::memory_order_relaxed) % (kMost / 2) + kMost / 2);
  return 0;
}
EXPORT int ncclCommGetAsyncError(void *comm, int *state) { return answered(comm, state); }
EXPORT int ncclCommCount(void *comm, int *out) { return answered(comm, out); }
EXPORT int ncclCommUserRank(void *comm, int *out) { return answered(comm, out); }
EXPORT int ncclAllReduce(const void *, void *, size_t, int, int, void *comm, void *) { return checked(comm); }
EXPORT int ncclBroadcast(const void *, void *, size_t, int, int, void *comm, void *) { return checked(comm); }
EXPORT int ncclReduceScatter(const void *, void *, size_t, int, int, void *comm, void *) { return checked(comm); }
EXPORT int ncclAllGather(const void *, void *, size_t, int, void *comm, void *) { return checked(comm); }
EXPORT int ncclSend(const void *, size_t, int, int, void *comm, void *) { return checked(comm); }
EXPORT int ncclRecv(void *, size_t, int, int, void *comm, void *) { return checked(comm); }
EXPORT int ncclGroupStart() { return 0; }
EXPORT int ncclGroupEnd() { return 0; }
EXPORT int ncclCommDestroy(void *comm) { return checked(comm); }
EXPORT const char *ncclGetErrorString(int) { return ""; }
EXPORT const char *ncclGetLastError(void *) { return ""; }

EXPORT int HcclGetRootInfo(RootInfo *root) {
  *root = {};
  return 0;
}
EXPORT int HcclCommInitRootInfo(uint32_t, const RootInfo *, uint32_t, void **comm) {
  *comm = comm_of(the_next++ % (kMost / 2));
  return 0;
}
EXPORT int HcclCommDestroy(void *comm) { return checked(comm); }
EXPORT int HcclGetRankId(void *comm, uint32_t *out) { return answered(comm, out); }
EXPORT int HcclGetRankSize(void *comm, uint32_t *out) { return answered(comm, out); }
EXPORT int HcclGetCommAsyncError(void *comm, int *out) { return answered(comm, out); }
EXPORT int HcclAllReduce(void *, void *, uint64_t, int, int, void *comm, void *) { return checked(comm); }
EXPORT int HcclReduceScatter(void *, void *, uint64_t, int, int, void *comm, void *) { return checked(comm); }
EXPORT int HcclAllGather(void *, void *, uint64_t, int, void *comm, void *) { return checked(comm); }
EXPORT int HcclBroadcast(void *, uint64_t, int, uint32_t, void *comm, void *) { return checked(comm); }
EXPORT int HcclSend(void *, uint64_t, int, uint32_t, void *comm, void *) { return checked(comm); }
EXPORT int HcclRecv(void *, uint64_t, int, uint32_t, void *comm, void *) { return checked(comm); }
EXPORT int HcclGroupStart() { return 0; }
EXPORT int HcclGroupEnd() { return 0; }
EXPORT int HcclAllReduceGraphMode(void *, void *, uint64_t, int, int, const char *, void *, const char *, void **, size_t,
                                  void *, uint64_t) {
  return 0;
}
