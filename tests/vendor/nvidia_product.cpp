// What Isthmus declares of NVIDIA's libraries in its own words, compared with the published headers. Only compiled, never run:
// tests/suite/test_vendor_abi.py.

// Ours first: cuda.h turns names into those of their newest variants by macros.
#include "ccl/nccl_abi.hpp"
#include "device/cuda_abi.hpp"
// Then the vendor's.
#include <cuda.h>
#include <nccl.h>

#include "same_shape.hpp"

namespace {

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

namespace cu = isthmus::device::cuda_abi;

// Every function has the vendor's shape, and is the variant that the header means by that name, not one that it has left behind.
#define COMPARE(name, arguments)                                                                                         \
  static_assert(vendor::same_shape<decltype(cu::Functions::name), decltype(&::name)>(), #name " is declared otherwise"); \
  static_assert(std::string_view(#name) == TEXT(name), #name " is an old variant: cuda.h calls another by that name");
ISTHMUS_CUDA_FUNCTIONS(COMPARE)
ISTHMUS_CUDA_OPTIONAL(COMPARE)
#undef COMPARE

static_assert(sizeof(cu::Result) == sizeof(CUresult) && sizeof(cu::Device) == sizeof(CUdevice));
static_assert(std::is_same_v<cu::Pointer, CUdeviceptr>);
static_assert(sizeof(cu::Handle) == sizeof(CUcontext) && sizeof(cu::Handle) == sizeof(CUstream));
static_assert(sizeof(cu::Handle) == sizeof(CUevent));
static_assert(cu::kSuccess == CUDA_SUCCESS);
static_assert(cu::kInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(cu::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(cu::kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(cu::kNotReady == CUDA_ERROR_NOT_READY);
static_assert(cu::kAlreadyRegistered == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(cu::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(cu::kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(cu::kRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(cu::kRegisterMapped == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(cu::kWaitGreaterOrEqual == CU_STREAM_WAIT_VALUE_GEQ);
static_assert(cu::kWriteDefault == CU_STREAM_WRITE_VALUE_DEFAULT);
static_assert(cu::kAttributeNuma == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
static_assert(cu::kAttribute64BitWaits == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
static_assert(cu::kAttributeRegister == CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
static_assert(cu::kPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(cu::kPointerDevice == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(cu::kPointerManaged == CU_POINTER_ATTRIBUTE_IS_MANAGED);
static_assert(cu::kMemoryHost == CU_MEMORYTYPE_HOST && cu::kMemoryDevice == CU_MEMORYTYPE_DEVICE);
static_assert(cu::kLeastVersion <= CUDA_VERSION);

namespace nc = isthmus::ccl::nccl_abi;

#define COMPARE(name, arguments)                                                              \
  static_assert(vendor::same_shape<decltype(nc::Functions::name), decltype(&::nccl##name)>(), \
                "nccl" #name " is declared otherwise");
ISTHMUS_NCCL_FUNCTIONS(COMPARE)
COMPARE(GetErrorString, )
COMPARE(GetLastError, )
#undef COMPARE

static_assert(sizeof(nc::Id) == sizeof(ncclUniqueId) && alignof(nc::Id) == alignof(ncclUniqueId));
static_assert(nc::kIdBytes == NCCL_UNIQUE_ID_BYTES);
static_assert(sizeof(nc::Result) == sizeof(ncclResult_t));
static_assert(sizeof(nc::Handle) == sizeof(ncclComm_t) && sizeof(nc::Queue) == sizeof(cudaStream_t));
static_assert(nc::kSuccess == ncclSuccess && nc::kInProgress == ncclInProgress);
static_assert(nc::kDeviceFailed == ncclUnhandledCudaError);
static_assert(sizeof(nc::Type) == sizeof(ncclDataType_t));
static_assert(+nc::kInt8 == +ncclInt8 && +nc::kUInt8 == +ncclUint8);
static_assert(+nc::kInt32 == +ncclInt32 && +nc::kUInt32 == +ncclUint32);
static_assert(+nc::kInt64 == +ncclInt64 && +nc::kUInt64 == +ncclUint64);
static_assert(+nc::kFloat16 == +ncclFloat16 && +nc::kFloat32 == +ncclFloat32 && +nc::kFloat64 == +ncclFloat64);
static_assert(+nc::kBFloat16 == +ncclBfloat16);
static_assert(+nc::kFloat8e4m3 == +ncclFloat8e4m3 && +nc::kFloat8e5m2 == +ncclFloat8e5m2);
static_assert(sizeof(nc::ReduceOp) == sizeof(ncclRedOp_t));
static_assert(+nc::kSum == +ncclSum && +nc::kProd == +ncclProd && +nc::kMax == +ncclMax);
static_assert(+nc::kMin == +ncclMin && +nc::kAvg == +ncclAvg);
static_assert(sizeof(int) == sizeof(ncclScalarResidence_t) && nc::kScalarOnHost == ncclScalarHostImmediate);

// Ours is the beginning of theirs, up to where `size` says that it ends.
#define FIELD(ours, theirs)                                                     \
  static_assert(offsetof(nc::Config, ours) == offsetof(ncclConfig_t, theirs) && \
                sizeof(nc::Config::ours) == sizeof(ncclConfig_t::theirs))
FIELD(size, size);
FIELD(magic, magic);
FIELD(version, version);
FIELD(blocking, blocking);
FIELD(unused, cgaClusterSize);
#undef FIELD
static_assert(sizeof(nc::Config) == offsetof(ncclConfig_t, minCTAs) && sizeof(nc::Config) < sizeof(ncclConfig_t));
static_assert(alignof(nc::Config) == alignof(ncclConfig_t));
static_assert(nc::Config{}.size == sizeof(nc::Config) && nc::Config{}.magic == NCCL_API_MAGIC);
static_assert(nc::Config{}.unused == NCCL_CONFIG_UNDEF_INT);
static_assert(nc::Config{}.version == NCCL_VERSION(2, 14, 0) && nc::Config{}.version <= NCCL_VERSION_CODE);
static_assert(nc::version_code(2, 14, 0) == NCCL_VERSION(2, 14, 0));
static_assert(nc::version_code(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH) == NCCL_VERSION_CODE);

}  // namespace
