// An NCCL and an HCCL that do nothing, so that only the way to them costs time. Also the functions that the bridge wants of
// a driver.
#include <cstddef>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
struct UniqueId {
  unsigned char bytes[128];
};
char by_id, by_config;  // their addresses are the communicators
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
  *comm = &by_id;
  return id.bytes[127];
}
EXPORT int ncclCommInitRankConfig(void **comm, int, UniqueId, int, void *) {
  *comm = &by_config;
  return 0;
}
EXPORT int ncclCommGetAsyncError(void *, int *state) {
  *state = 0;
  return 0;
}
// A call with another library's handle gets an invalid argument.
EXPORT int ncclAllReduce(const void *, void *, size_t, int, int, void *comm, void *) {
  return comm == &by_id || comm == &by_config ? 0 : 4;
}
EXPORT int ncclGroupStart() { return 0; }
EXPORT int ncclGroupEnd() { return 0; }
EXPORT int ncclCommDestroy(void *) { return 0; }
EXPORT const char *ncclGetErrorString(int) { return ""; }
EXPORT const char *ncclGetLastError(void *) { return ""; }

EXPORT int HcclAllReduce(void *, void *, uint64_t, int, int, void *, void *) { return 0; }
EXPORT int HcclAllReduceGraphMode(void *, void *, uint64_t, int, int, const char *, void *, const char *, void **, size_t,
                                  void *, uint64_t) {
  return 0;
}

// The bridge wants all of these functions of the driver, and calls the first two. No context is current.
EXPORT int cuCtxGetCurrent(void **context) {
  *context = nullptr;
  return 0;
}
EXPORT int cuCtxSetCurrent(void *) { return 0; }
#define NOT_CALLED(name) \
  EXPORT int name() { return 1; }
NOT_CALLED(cuCtxGetDevice)
NOT_CALLED(cuStreamIsCapturing)
NOT_CALLED(cuStreamSynchronize)
NOT_CALLED(cuMemcpyDtoH_v2)
NOT_CALLED(cuStreamCreate)
NOT_CALLED(cuStreamDestroy_v2)
NOT_CALLED(cuEventCreate)
NOT_CALLED(cuEventRecord)
NOT_CALLED(cuStreamWaitEvent)
NOT_CALLED(cuEventDestroy_v2)
