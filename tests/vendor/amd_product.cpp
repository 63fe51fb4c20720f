// What Isthmus declares of AMD's runtime in its own words, compared with what AMD publishes: with HIP_MAJOR 5 the header of HIP 5.2, else
// published.inc, which is made of AMD's bindings of HIP 7 for Python. Only compiled, never run: tests/suite/test_vendor_abi_amd.py.

// Ours first.
#include "device/hip_abi.hpp"
// Then the vendor's.
#if HIP_MAJOR == 5
#define __HIP_DISABLE_CPP_FUNCTIONS__  // templates of the functions' names
#include <hip/hip_runtime_api.h>
#else
#include "published.inc"
#endif

#include "same_shape.hpp"

namespace {

namespace hp = isthmus::device::hip_abi;

#define COMPARE(name, arguments) \
  static_assert(vendor::same_shape<decltype(hp::Functions::name), decltype(&::name)>(), #name " is declared otherwise");
ISTHMUS_HIP_FUNCTIONS(COMPARE)
COMPARE(hipLaunchHostFunc, )
COMPARE(hipGetErrorName, )
COMPARE(hipGetErrorString, )
#undef COMPARE

#define NUMBER(ours, theirs) static_assert(static_cast<long long>(hp::ours) == static_cast<long long>(theirs), #theirs)
static_assert(sizeof(hp::Result) == sizeof(hipError_t));
static_assert(sizeof(hp::Handle) == sizeof(hipStream_t) && sizeof(hp::Handle) == sizeof(hipEvent_t));
NUMBER(kSuccess, hipSuccess);
NUMBER(kInvalidValue, hipErrorInvalidValue);
NUMBER(kOutOfMemory, hipErrorOutOfMemory);
NUMBER(kNoDevice, hipErrorNoDevice);
NUMBER(kNotReady, hipErrorNotReady);
NUMBER(kAlreadyRegistered, hipErrorHostMemoryAlreadyRegistered);
NUMBER(kStreamNonBlocking, hipStreamNonBlocking);
NUMBER(kEventDisableTiming, hipEventDisableTiming);
NUMBER(kRegisterPortable, hipHostRegisterPortable);
NUMBER(kRegisterMapped, hipHostRegisterMapped);
NUMBER(kMallocSignalMemory, hipMallocSignalMemory);
NUMBER(kWaitGreaterOrEqual, hipStreamWaitValueGte);
NUMBER(kCopyDefault, hipMemcpyDefault);
NUMBER(kAttributeMajor, hipDeviceAttributeComputeCapabilityMajor);
NUMBER(kAttributeMinor, hipDeviceAttributeComputeCapabilityMinor);
NUMBER(kAttributeWaits, hipDeviceAttributeCanUseStreamWaitValue);
#if HIP_MAJOR == 5
NUMBER(kHost5, hipMemoryTypeHost);
NUMBER(kDevice5, hipMemoryTypeDevice);
static_assert(offsetof(hp::PointerAttributes, type) == offsetof(hipPointerAttribute_t, memoryType));
#else
NUMBER(kUnregistered6, hipMemoryTypeUnregistered);
NUMBER(kHost6, hipMemoryTypeHost);
NUMBER(kDevice6, hipMemoryTypeDevice);
NUMBER(kManaged6, hipMemoryTypeManaged);
static_assert(offsetof(hp::PointerAttributes, type) == offsetof(hipPointerAttribute_t, type));
#endif
#undef NUMBER
static_assert(offsetof(hp::PointerAttributes, device) == offsetof(hipPointerAttribute_t, device));
static_assert(offsetof(hp::PointerAttributes, there) == offsetof(hipPointerAttribute_t, devicePointer));
static_assert(offsetof(hp::PointerAttributes, host) == offsetof(hipPointerAttribute_t, hostPointer));
static_assert(offsetof(hp::PointerAttributes, managed) == offsetof(hipPointerAttribute_t, isManaged));
static_assert(offsetof(hp::PointerAttributes, flags) == offsetof(hipPointerAttribute_t, allocationFlags));
static_assert(sizeof(hp::PointerAttributes) >= 256 && sizeof(hp::PointerAttributes) > sizeof(hipPointerAttribute_t));

}  // namespace
