// What Isthmus uses of NVIDIA's driver library, declared in our own words: names, numbers, signatures. tests/vendor compares them with the
// vendor's published header. Every function returns 0 for success. Contexts, streams and events are opaque pointers. Device memory is a
// 64-bit number.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::device::cuda_abi {

using Result = int;
using Device = int;
using Pointer = unsigned long long;
using Handle = void *;  // a context, a stream, an event

inline constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100, kNotReady = 600,
                        kAlreadyRegistered = 712;
inline constexpr int kCaptureRelaxed = 2;
inline constexpr unsigned kStreamNonBlocking = 1, kEventDisableTiming = 2;
inline constexpr unsigned kRegisterPortable = 1, kRegisterMapped = 2;
inline constexpr unsigned kWaitGreaterOrEqual = 0, kWriteDefault = 0;  // 64 bits: (int64_t)(*address - value) >= 0
inline constexpr int kAttributeNuma = 134, kAttribute64BitWaits = 122, kAttributeRegister = 99;
inline constexpr int kPointerMemoryType = 2, kPointerThere = 3, kPointerDevice = 9, kPointerManaged = 8;
inline constexpr unsigned kMemoryHost = 1, kMemoryDevice = 2;
inline constexpr int kLeastVersion = 11070;  // 11.7: the first with the second form of the wait and write functions

// name, arguments
#define ISTHMUS_CUDA_FUNCTIONS(F)                                   \
  F(cuInit, (unsigned))                                             \
  F(cuDriverGetVersion, (int *))                                    \
  F(cuDeviceGetCount, (int *))                                      \
  F(cuDeviceGet, (Device *, int))                                   \
  F(cuDeviceGetAttribute, (int *, int, Device))                     \
  F(cuDeviceGetName, (char *, int, Device))                         \
  F(cuDeviceGetPCIBusId, (char *, int, Device))                     \
  F(cuDevicePrimaryCtxRetain, (Handle *, Device))                   \
  F(cuDevicePrimaryCtxGetState, (Device, unsigned *, int *))        \
  F(cuCtxPushCurrent_v2, (Handle))                                  \
  F(cuCtxPopCurrent_v2, (Handle *))                                 \
  F(cuMemAlloc_v2, (Pointer *, size_t))                             \
  F(cuMemFree_v2, (Pointer))                                        \
  F(cuMemHostRegister_v2, (void *, size_t, unsigned))               \
  F(cuMemHostUnregister, (void *))                                  \
  F(cuMemHostGetDevicePointer_v2, (Pointer *, void *, unsigned))    \
  F(cuMemcpyAsync, (Pointer, Pointer, size_t, Handle))              \
  F(cuPointerGetAttribute, (void *, int, Pointer))                  \
  F(cuStreamCreate, (Handle *, unsigned))                           \
  F(cuStreamDestroy_v2, (Handle))                                   \
  F(cuStreamQuery, (Handle))                                        \
  F(cuStreamWaitEvent, (Handle, Handle, unsigned))                  \
  F(cuStreamIsCapturing, (Handle, int *))                           \
  F(cuThreadExchangeStreamCaptureMode, (int *))                     \
  F(cuStreamWaitValue64_v2, (Handle, Pointer, uint64_t, unsigned))  \
  F(cuStreamWriteValue64_v2, (Handle, Pointer, uint64_t, unsigned)) \
  F(cuLaunchHostFunc, (Handle, void (*)(void *), void *))           \
  F(cuEventCreate, (Handle *, unsigned))                            \
  F(cuEventDestroy_v2, (Handle))                                    \
  F(cuEventRecord, (Handle, Handle))                                \
  F(cuEventQuery, (Handle))                                         \
  F(cuGetErrorName, (Result, const char **))                        \
  F(cuGetErrorString, (Result, const char **))

// Functions that not every version has.
#define ISTHMUS_CUDA_OPTIONAL(F) F(cuCtxGetId, (Handle, unsigned long long *))

struct Functions {
#define ISTHMUS_DECLARE(name, arguments) Result(*name) arguments = nullptr;
  ISTHMUS_CUDA_FUNCTIONS(ISTHMUS_DECLARE)
  ISTHMUS_CUDA_OPTIONAL(ISTHMUS_DECLARE)
#undef ISTHMUS_DECLARE
};

}  // namespace isthmus::device::cuda_abi
