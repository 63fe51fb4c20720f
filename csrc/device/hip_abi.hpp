// What Isthmus uses of AMD's runtime library, declared in our own words: names, numbers, signatures. tests/vendor compares them with the
// vendor's published declarations. Every function but the last two returns 0 for success. Streams and events are opaque pointers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::device::hip_abi {

using Result = int;
using Handle = void *;  // a stream, an event

inline constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100, kInvalidDevice = 101,
                        kNotReady = 600, kAlreadyRegistered = 712, kNotSupported = 801;
inline constexpr int kCaptureRelaxed = 2;
inline constexpr unsigned kStreamNonBlocking = 1, kEventDisableTiming = 2;
inline constexpr unsigned kRegisterPortable = 1, kRegisterMapped = 2;
inline constexpr unsigned kMallocSignalMemory = 2;  // of hipExtMallocWithFlags: 8 bytes that the host and streams reach
inline constexpr unsigned kWaitGreaterOrEqual = 0;  // (int64_t)(*address & mask) >= (int64_t)value
inline constexpr int kCopyDefault = 4;              // the runtime sees from the addresses which way the copy goes
inline constexpr int kAttributeMajor = 23, kAttributeMinor = 61, kAttributeWaits = 10013;

// What hipPointerGetAttributes fills in. The beginning is the same in all versions. What comes behind it differs.
struct PointerAttributes {
  int type = -1;
  int device = -1;
  void *there = nullptr, *host = nullptr;
  int managed = 0;
  unsigned flags = 0;
  std::byte more[224] = {};
};
// The numbers of `type`, which changed with version 6. Older versions answer kInvalidValue for memory that they do not know.
inline constexpr int kHost5 = 0, kDevice5 = 1, kUnregistered6 = 0, kHost6 = 1, kDevice6 = 2, kManaged6 = 3;

constexpr int version_code(int major, int minor) { return major * 10'000'000 + minor * 100'000; }
inline constexpr int kLeastVersion = version_code(5, 0);

// name, arguments
#define ISTHMUS_HIP_FUNCTIONS(F)                                                                  \
  F(hipInit, (unsigned))                                                                          \
  F(hipRuntimeGetVersion, (int *))                                                                \
  F(hipGetLastError, ())                                                                          \
  F(hipGetDeviceCount, (int *))                                                                   \
  F(hipGetDevice, (int *))                                                                        \
  F(hipSetDevice, (int))                                                                          \
  F(hipDeviceGetAttribute, (int *, int attribute, int device))                                    \
  F(hipDeviceGetName, (char *, int, int device))                                                  \
  F(hipDeviceGetPCIBusId, (char *, int, int device))                                              \
  F(hipMalloc, (void **, size_t))                                                                 \
  F(hipFree, (void *))                                                                            \
  F(hipExtMallocWithFlags, (void **, size_t, unsigned))                                           \
  F(hipHostRegister, (void *, size_t, unsigned))                                                  \
  F(hipHostUnregister, (void *))                                                                  \
  F(hipHostGetDevicePointer, (void **, void *, unsigned))                                         \
  F(hipMemcpyAsync, (void *, const void *, size_t, int kind, Handle stream))                      \
  F(hipPointerGetAttributes, (PointerAttributes *, const void *))                                 \
  F(hipStreamCreateWithFlags, (Handle *, unsigned))                                               \
  F(hipStreamDestroy, (Handle))                                                                   \
  F(hipStreamQuery, (Handle))                                                                     \
  F(hipStreamWaitEvent, (Handle stream, Handle event, unsigned))                                  \
  F(hipStreamIsCapturing, (Handle, int *))                                                        \
  F(hipThreadExchangeStreamCaptureMode, (int *))                                                  \
  F(hipStreamWaitValue64, (Handle stream, void *, uint64_t value, unsigned flags, uint64_t mask)) \
  F(hipStreamWriteValue64, (Handle stream, void *, uint64_t value, unsigned flags))               \
  F(hipEventCreateWithFlags, (Handle *, unsigned))                                                \
  F(hipEventDestroy, (Handle))                                                                    \
  F(hipEventRecord, (Handle event, Handle stream))                                                \
  F(hipEventQuery, (Handle))

struct Functions {
#define ISTHMUS_DECLARE(name, arguments) Result(*name) arguments = nullptr;
  ISTHMUS_HIP_FUNCTIONS(ISTHMUS_DECLARE)
#undef ISTHMUS_DECLARE
  Result (*hipLaunchHostFunc)(Handle stream, void (*)(void *), void *) = nullptr;  // not in the oldest versions
  const char *(*hipGetErrorName)(Result) = nullptr;
  const char *(*hipGetErrorString)(Result) = nullptr;
};

}  // namespace isthmus::device::hip_abi
