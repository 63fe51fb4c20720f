// What Isthmus uses of Huawei's runtime library, declared in our own words: names, numbers, signatures. tests/vendor compares them with the
// vendor's published headers. Every function but the last two returns 0 for success. Contexts, streams and events are opaque pointers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::device::acl_abi {

using Result = int;
using Handle = void *;  // a context, a stream, an event
using HostFunction = void (*)(void *);

inline constexpr Result kSuccess = 0, kInvalidParameter = 100000, kInitialised = 100002, kNotSubscribed = 100035,
                        kReportTimeout = 100036, kParameter = 107000, kNoContext = 107002, kNoMemory = 200000,
                        kNotSupported = 207000, kOutOfMemory = 207001, kNoDevice = 207004, kAlreadyRegistered = 507910;
inline constexpr int kMallocHugeFirst = 0;
inline constexpr int kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3;
inline constexpr unsigned kStreamFastLaunch = 1, kStreamFastSync = 2;
inline constexpr uint64_t kStopOnFailure = 1;  // without this mode a stream goes on behind a step that failed
inline constexpr int kStreamComplete = 0, kStreamBusy = 1;
inline constexpr unsigned kEventSync = 1;
inline constexpr int kEventPending = 0, kEventComplete = 1;  // the other way round than the states of streams
inline constexpr int kRegisterMapped = 0;                    // of aclrtHostRegister
inline constexpr unsigned kRegisterV2Mapped = 0x2, kRegisterV2Pinned = 0x10000000;
inline constexpr int kCallbackNoBlock = 0;
inline constexpr int kCaptureNone = 0;
inline constexpr int kAtHost = 0, kAtDevice = 1, kAtNobody = 2, kAtHostNode = 4;
inline constexpr int kPackageCann = 0;

struct PointerAttributes {
  unsigned device = 0;
  int type = kAtNobody;
  unsigned page = 0;
  unsigned more[32] = {};  // the vendor's struct is shorter today
};

struct PackageVersion {
  char version[128] = {};
  char parts[4][64] = {};
  char reserved[128] = {};
};

// name, arguments
#define ISTHMUS_ACL_FUNCTIONS(F)                                                     \
  F(aclInit, (const char *))                                                         \
  F(aclrtGetVersion, (int *, int *, int *))                                          \
  F(aclrtGetDeviceCount, (unsigned *))                                               \
  F(aclrtSetDevice, (int))                                                           \
  F(aclrtGetCurrentContext, (Handle *))                                              \
  F(aclrtSetCurrentContext, (Handle))                                                \
  F(aclrtMalloc, (void **, size_t, int policy))                                      \
  F(aclrtFree, (void *))                                                             \
  F(aclrtHostUnregister, (void *))                                                   \
  F(aclrtMemcpyAsync, (void *, size_t room, const void *, size_t, int kind, Handle)) \
  F(aclrtPointerGetAttributes, (const void *, PointerAttributes *))                  \
  F(aclrtCreateStreamWithConfig, (Handle *, unsigned priority, unsigned flags))      \
  F(aclrtDestroyStream, (Handle))                                                    \
  F(aclrtStreamQuery, (Handle, int *))                                               \
  F(aclrtStreamWaitEvent, (Handle stream, Handle event))                             \
  F(aclrtCreateEventExWithFlag, (Handle *, unsigned))                                \
  F(aclrtDestroyEvent, (Handle))                                                     \
  F(aclrtRecordEvent, (Handle event, Handle stream))                                 \
  F(aclrtQueryEventStatus, (Handle, int *))

// Functions that not every version has. A version must have one of the first two. It must also have the third, or all of the fourth to seventh.
#define ISTHMUS_ACL_OPTIONAL(F)                                            \
  F(aclrtHostRegisterV2, (void *, uint64_t, unsigned))                     \
  F(aclrtHostRegister, (void *, uint64_t, int type, void **))              \
  F(aclrtLaunchHostFunc, (Handle stream, HostFunction, void *))            \
  F(aclrtLaunchCallback, (HostFunction, void *, int block, Handle stream)) \
  F(aclrtSubscribeReport, (uint64_t thread, Handle stream))                \
  F(aclrtProcessReport, (int milliseconds))                                \
  F(aclrtUnSubscribeReport, (uint64_t thread, Handle stream))              \
  F(aclrtSetStreamFailureMode, (Handle, uint64_t))                         \
  F(aclrtDestroyStreamForce, (Handle))                                     \
  F(aclrtStreamAbort, (Handle))                                            \
  F(aclmdlRICaptureGetInfo, (Handle stream, int *status, Handle *graph))   \
  F(aclsysGetCANNVersion, (int package, PackageVersion *))

struct Functions {
#define ISTHMUS_DECLARE(name, arguments) Result(*name) arguments = nullptr;
  ISTHMUS_ACL_FUNCTIONS(ISTHMUS_DECLARE)
  ISTHMUS_ACL_OPTIONAL(ISTHMUS_DECLARE)
#undef ISTHMUS_DECLARE
  const char *(*aclrtGetSocName)() = nullptr;
  const char *(*aclGetRecentErrMsg)() = nullptr;  // not in all versions
};

}  // namespace isthmus::device::acl_abi
