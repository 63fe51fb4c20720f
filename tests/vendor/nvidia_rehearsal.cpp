// What one source of the rehearsal exports under NVIDIA's names, compared with the published headers. Only compiled, never run:
// tests/suite/test_vendor_abi.py, which writes the three lists from the source's EXPORT lines and defines REHEARSAL_SOURCE,
// and REHEARSAL_NCCL_VERSION and REHEARSAL_NCCL_LIBRARY if the source is one of NCCL's.
// The source's functions get names of their own here, because one name cannot be declared in two ways.

#include "renamed.inc"  // #define cuInit rehearsed_cuInit, ...
#include REHEARSAL_SOURCE
#include "restored.inc"  // #undef cuInit, ...

// With this the headers declare every variant of a function under the name that the library exports it by.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <nccl.h>

#include "same_shape.hpp"

namespace rehearsal {
namespace cuda {}
namespace nccl {}
}  // namespace rehearsal

namespace {

using namespace rehearsal;
using namespace rehearsal::cuda;
using namespace rehearsal::nccl;

#define COMPARE(name) \
  static_assert(vendor::same_shape<decltype(&rehearsed_##name), decltype(&::name)>(), #name " is declared otherwise");
#include "compared.inc"  // COMPARE(cuInit), ...
#undef COMPARE

#ifndef REHEARSAL_NCCL_VERSION
static_assert(sizeof(cuda::Result) == sizeof(CUresult) && sizeof(cuda::DeviceNumber) == sizeof(CUdevice));
static_assert(std::is_same_v<cuda::Address, CUdeviceptr>);
static_assert(+cuda::kSuccess == +CUDA_SUCCESS);
static_assert(+cuda::kInvalidValue == +CUDA_ERROR_INVALID_VALUE);
static_assert(+cuda::kOutOfMemory == +CUDA_ERROR_OUT_OF_MEMORY);
static_assert(+cuda::kNotInitialized == +CUDA_ERROR_NOT_INITIALIZED);
static_assert(+cuda::kNoDevice == +CUDA_ERROR_NO_DEVICE);
static_assert(+cuda::kInvalidDevice == +CUDA_ERROR_INVALID_DEVICE);
static_assert(+cuda::kInvalidContext == +CUDA_ERROR_INVALID_CONTEXT);
static_assert(+cuda::kInvalidHandle == +CUDA_ERROR_INVALID_HANDLE);
static_assert(+cuda::kIllegalState == +CUDA_ERROR_ILLEGAL_STATE);
static_assert(+cuda::kNotFound == +CUDA_ERROR_NOT_FOUND);
static_assert(+cuda::kNotReady == +CUDA_ERROR_NOT_READY);
static_assert(+cuda::kIllegalAddress == +CUDA_ERROR_ILLEGAL_ADDRESS);
static_assert(+cuda::kAlreadyRegistered == +CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(+cuda::kNotRegistered == +CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
static_assert(+cuda::kLaunchFailed == +CUDA_ERROR_LAUNCH_FAILED);
static_assert(+cuda::kNotPermitted == +CUDA_ERROR_NOT_PERMITTED);
static_assert(+cuda::kNotSupported == +CUDA_ERROR_NOT_SUPPORTED);
static_assert(+cuda::kCaptureUnsupported == +CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(+cuda::kCaptureInvalidated == +CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
static_assert(+cuda::kCaptureUnmatched == +CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
static_assert(+cuda::kCapturedEvent == +CUDA_ERROR_CAPTURED_EVENT);
static_assert(+cuda::kUnknown == +CUDA_ERROR_UNKNOWN);
#else
static_assert(sizeof(nccl::Result) == sizeof(ncclResult_t));
static_assert(+nccl::kSuccess == +ncclSuccess && +nccl::kUnhandledCuda == +ncclUnhandledCudaError);
static_assert(+nccl::kSystem == +ncclSystemError && +nccl::kInternal == +ncclInternalError);
static_assert(+nccl::kInvalidArgument == +ncclInvalidArgument && +nccl::kInvalidUsage == +ncclInvalidUsage);
static_assert(+nccl::kRemote == +ncclRemoteError && +nccl::kInProgress == +ncclInProgress);
static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId) && alignof(nccl::UniqueId) == alignof(ncclUniqueId));
static_assert(offsetof(nccl::Config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(nccl::Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(nccl::Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(nccl::Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(sizeof(nccl::SimInfo) == sizeof(ncclSimInfo_t) &&
              offsetof(nccl::SimInfo, seconds) == offsetof(ncclSimInfo_t, estimatedTime));
static_assert(offsetof(nccl::SimInfo, magic) == offsetof(ncclSimInfo_t, magic));
static_assert(ncclSimInfo_t NCCL_SIM_INFO_INITIALIZER.magic == nccl::kSimInfoMagic);
static_assert(nccl::kConfigMagic == NCCL_API_MAGIC && nccl::kUndefined == NCCL_CONFIG_UNDEF_INT);
static_assert(nccl::kTypes == ncclNumTypes && nccl::kOps == ncclNumOps);
#define NUMBER(ours, theirs) static_assert(static_cast<int>(ours) == +theirs)
NUMBER(Type::I8, ncclInt8);
NUMBER(Type::U8, ncclUint8);
NUMBER(Type::I32, ncclInt32);
NUMBER(Type::U32, ncclUint32);
NUMBER(Type::I64, ncclInt64);
NUMBER(Type::U64, ncclUint64);
NUMBER(Type::F16, ncclFloat16);
NUMBER(Type::F32, ncclFloat32);
NUMBER(Type::F64, ncclFloat64);
NUMBER(Type::BF16, ncclBfloat16);
NUMBER(Type::E4M3, ncclFloat8e4m3);
NUMBER(Type::E5M2, ncclFloat8e5m2);
NUMBER(Reduction::Sum, ncclSum);
NUMBER(Reduction::Prod, ncclProd);
NUMBER(Reduction::Max, ncclMax);
NUMBER(Reduction::Min, ncclMin);
NUMBER(Reduction::Avg, ncclAvg);
#undef NUMBER
#endif

}  // namespace
