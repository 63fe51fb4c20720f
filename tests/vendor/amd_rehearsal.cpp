// What one source of the rehearsal exports under AMD's names, compared with what AMD publishes. Only compiled, never run:
// tests/suite/test_vendor_abi_amd.py, which writes the three lists from the source's EXPORT lines and defines REHEARSAL_SOURCE, HIP_MAJOR, and
// REHEARSAL_NCCL_VERSION and REHEARSAL_NCCL_LIBRARY if the source is one of RCCL's. HIP_MAJOR 5 is compared with the header of HIP 5.2. For 7 there is no header to be
// had: published.inc is made of AMD's bindings of HIP 7 and RCCL for Python, with the signatures, structs and numbers in them.
// The source's functions get names of their own here, because one name cannot be declared in two ways.

#include "renamed.inc"  // #define hipInit rehearsed_hipInit, ...
#include REHEARSAL_SOURCE
#include "restored.inc"  // #undef hipInit, ...

#if HIP_MAJOR == 5
#define __HIP_DISABLE_CPP_FUNCTIONS__  // templates of the functions' names
#include <hip/hip_runtime_api.h>
#else
#include "published.inc"
#endif

#include "same_shape.hpp"

namespace {

using namespace rehearsal;

#define COMPARE(name) \
  static_assert(vendor::same_shape<decltype(&rehearsed_##name), decltype(&::name)>(), #name " is declared otherwise");
#include "compared.inc"  // COMPARE(hipInit), ...
#undef COMPARE

#define NUMBER(ours, theirs) static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #theirs)
#define BITS(ours, theirs) static_assert(static_cast<unsigned>(ours) == static_cast<unsigned>(theirs), #theirs)

#ifndef REHEARSAL_NCCL_VERSION
static_assert(sizeof(hip::Result) == sizeof(hipError_t));
NUMBER(hip::kSuccess, hipSuccess);
NUMBER(hip::kInvalidValue, hipErrorInvalidValue);
NUMBER(hip::kOutOfMemory, hipErrorOutOfMemory);
NUMBER(hip::kNotInitialized, hipErrorNotInitialized);
NUMBER(hip::kInvalidDirection, hipErrorInvalidMemcpyDirection);
NUMBER(hip::kNoDevice, hipErrorNoDevice);
NUMBER(hip::kInvalidDevice, hipErrorInvalidDevice);
NUMBER(hip::kInvalidContext, hipErrorInvalidContext);
NUMBER(hip::kInvalidHandle, hipErrorInvalidHandle);
NUMBER(hip::kIllegalState, hipErrorIllegalState);
NUMBER(hip::kNotFound, hipErrorNotFound);
NUMBER(hip::kNotReady, hipErrorNotReady);
NUMBER(hip::kIllegalAddress, hipErrorIllegalAddress);
NUMBER(hip::kAlreadyRegistered, hipErrorHostMemoryAlreadyRegistered);
NUMBER(hip::kNotRegistered, hipErrorHostMemoryNotRegistered);
NUMBER(hip::kLaunchFailed, hipErrorLaunchFailure);
NUMBER(hip::kNotSupported, hipErrorNotSupported);
NUMBER(hip::kCaptureUnsupported, hipErrorStreamCaptureUnsupported);
NUMBER(hip::kCaptureInvalidated, hipErrorStreamCaptureInvalidated);
NUMBER(hip::kCaptureUnmatched, hipErrorStreamCaptureUnmatched);
NUMBER(hip::kCapturedEvent, hipErrorCapturedEvent);
NUMBER(hip::kUnknown, hipErrorUnknown);

static_assert(hip::kVersion / 10'000'000 == HIP_MAJOR);
NUMBER(hip::kAsyncEngines, hipDeviceAttributeAsyncEngineCount);
NUMBER(hip::kMapsHostMemory, hipDeviceAttributeCanMapHostMemory);
NUMBER(hip::kHostPointersOnDevice, hipDeviceAttributeCanUseHostPointerForRegisteredMem);
NUMBER(hip::kConcurrentKernels, hipDeviceAttributeConcurrentKernels);
NUMBER(hip::kIntegrated, hipDeviceAttributeIntegrated);
NUMBER(hip::kMajor, hipDeviceAttributeComputeCapabilityMajor);
NUMBER(hip::kManagedMemory, hipDeviceAttributeManagedMemory);
NUMBER(hip::kMinor, hipDeviceAttributeComputeCapabilityMinor);
NUMBER(hip::kMultiprocessors, hipDeviceAttributeMultiprocessorCount);
NUMBER(hip::kPciBus, hipDeviceAttributePciBusId);
NUMBER(hip::kPciDevice, hipDeviceAttributePciDeviceId);
NUMBER(hip::kUnifiedAddressing, hipDeviceAttributeUnifiedAddressing);
NUMBER(hip::kWarpSize, hipDeviceAttributeWarpSize);
NUMBER(hip::kFirstOfAmd, hipDeviceAttributeAmdSpecificBegin);
NUMBER(hip::kWaits, hipDeviceAttributeCanUseStreamWaitValue);
#if HIP_MAJOR == 5
NUMBER(hip::kPciDomain, hipDeviceAttributePciDomainID);
NUMBER(hip::kLastCommon, hipDeviceAttributeMemoryPoolsSupported);
NUMBER(hip::kLastOfAmd, hipDeviceAttributeFineGrainSupport);
#define TYPE memoryType
#else
NUMBER(hip::kPciDomain, hipDeviceAttributePciDomainId);
NUMBER(hip::kRegistersHostMemory, hipDeviceAttributeHostRegisterSupported);
NUMBER(hip::kNuma, hipDeviceAttributeHostNumaId);
NUMBER(hip::kLastCommon, hipDeviceAttributeHandleTypeFabricSupported);
NUMBER(hip::kLastOfAmd, hipDeviceAttributeMaxDynDataPrefetchRegions);
NUMBER(hip::kUnregistered, hipMemoryTypeUnregistered);
NUMBER(-2, hipInvalidDeviceId);
#define TYPE type
#endif
NUMBER(hip::kHost, hipMemoryTypeHost);
NUMBER(hip::kDevice, hipMemoryTypeDevice);

#define FIELD(ours, theirs)                                                                          \
  static_assert(offsetof(hip::PointerAttributes, ours) == offsetof(hipPointerAttribute_t, theirs) && \
                sizeof(hip::PointerAttributes::ours) == sizeof(hipPointerAttribute_t::theirs))
FIELD(type, TYPE);
FIELD(device, device);
FIELD(device_pointer, devicePointer);
FIELD(host_pointer, hostPointer);
FIELD(managed, isManaged);
FIELD(flags, allocationFlags);
#undef FIELD
static_assert(sizeof(hip::PointerAttributes) == sizeof(hipPointerAttribute_t) && sizeof(hipUUID_t) == 16);

NUMBER(hip::kHostToHost, hipMemcpyHostToHost);
NUMBER(hip::kHostToDevice, hipMemcpyHostToDevice);
NUMBER(hip::kDeviceToHost, hipMemcpyDeviceToHost);
NUMBER(hip::kDeviceToDevice, hipMemcpyDeviceToDevice);
NUMBER(hip::kDefaultDirection, hipMemcpyDefault);
NUMBER(0, hipStreamCaptureStatusNone);
NUMBER(1, hipStreamCaptureStatusActive);
NUMBER(2, hipStreamCaptureStatusInvalidated);
NUMBER(0, hipStreamCaptureModeGlobal);
BITS(hip::kAtLeast, hipStreamWaitValueGte);
BITS(hip::kEqual, hipStreamWaitValueEq);
BITS(hip::kAnd, hipStreamWaitValueAnd);
BITS(hip::kNor, hipStreamWaitValueNor);
BITS(0, hipDeviceMallocDefault);
BITS(hip::kFineGrained, hipDeviceMallocFinegrained);
BITS(hip::kSignalMemory, hipMallocSignalMemory);
BITS(hip::kPortable, hipHostMallocPortable);
BITS(hip::kMapped, hipHostMallocMapped);
BITS(hip::kWriteCombined, hipHostMallocWriteCombined);
BITS(hip::kNumaUser, hipHostMallocNumaUser);
BITS(hip::kCoherent, hipHostMallocCoherent);
BITS(hip::kNonCoherent, hipHostMallocNonCoherent);
BITS(hip::kPortable, hipHostRegisterPortable);
BITS(hip::kMapped, hipHostRegisterMapped);
BITS(hip::kIoMemory, hipHostRegisterIoMemory);
BITS(hip::kCoarseGrained, hipExtHostRegisterCoarseGrained);
BITS(1, hipStreamNonBlocking);
BITS(hip::kBlockingSync, hipEventBlockingSync);
BITS(hip::kDisableTiming, hipEventDisableTiming);
BITS(hip::kInterprocess, hipEventInterprocess);
BITS(hip::kReleaseToDevice, hipEventReleaseToDevice);
BITS(hip::kReleaseToSystem, hipEventReleaseToSystem);
#else
static_assert(sizeof(nccl::Result) == sizeof(ncclResult_t));
NUMBER(nccl::kSuccess, ncclSuccess);
NUMBER(nccl::kUnhandledCuda, ncclUnhandledCudaError);
NUMBER(nccl::kSystem, ncclSystemError);
NUMBER(nccl::kInternal, ncclInternalError);
NUMBER(nccl::kInvalidArgument, ncclInvalidArgument);
NUMBER(nccl::kInvalidUsage, ncclInvalidUsage);
NUMBER(nccl::kRemote, ncclRemoteError);
NUMBER(nccl::kInProgress, ncclInProgress);
static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId) && alignof(nccl::UniqueId) == alignof(ncclUniqueId));
static_assert(offsetof(nccl::Config, size) == offsetof(ncclConfig_v22800, size));
static_assert(offsetof(nccl::Config, magic) == offsetof(ncclConfig_v22800, magic));
static_assert(offsetof(nccl::Config, version) == offsetof(ncclConfig_v22800, version));
static_assert(offsetof(nccl::Config, blocking) == offsetof(ncclConfig_v22800, blocking));
NUMBER(nccl::kTypes, ncclNumTypes);
NUMBER(nccl::kOps, ncclNumOps);
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
#endif

}  // namespace
