// What Isthmus declares of Huawei's libraries in its own words, compared with the published headers. Only compiled, never
// run: tests/suite/test_vendor_abi_ascend.py.

// Ours first.
#include "ccl/hccl_abi.hpp"
#include "device/acl_abi.hpp"
// Then the vendor's.
#include <acl/acl.h>
#include <acl/error_codes/rt_error_codes.h>
#include <hccl/hccl.h>

#include "same_shape.hpp"

namespace {

namespace ac = isthmus::device::acl_abi;

#define COMPARE(name, arguments) \
  static_assert(vendor::same_shape<decltype(ac::Functions::name), decltype(&::name)>(), #name " is declared otherwise");
ISTHMUS_ACL_FUNCTIONS(COMPARE)
ISTHMUS_ACL_OPTIONAL(COMPARE)
COMPARE(aclrtGetSocName, )
COMPARE(aclGetRecentErrMsg, )
#undef COMPARE

#define NUMBER(ours, theirs) static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #ours)
static_assert(sizeof(ac::Result) == sizeof(aclError));
static_assert(sizeof(ac::Handle) == sizeof(aclrtStream) && sizeof(ac::Handle) == sizeof(aclrtEvent));
static_assert(sizeof(ac::Handle) == sizeof(aclrtContext) && sizeof(ac::Handle) == sizeof(aclmdlRI));
static_assert(vendor::same_shape<ac::HostFunction, aclrtHostFunc>() &&
              vendor::same_shape<ac::HostFunction, aclrtCallback>());
NUMBER(ac::kSuccess, ACL_SUCCESS);
NUMBER(ac::kInvalidParameter, ACL_ERROR_INVALID_PARAM);
NUMBER(ac::kInitialised, ACL_ERROR_REPEAT_INITIALIZE);
NUMBER(ac::kParameter, ACL_ERROR_RT_PARAM_INVALID);
NUMBER(ac::kNoContext, ACL_ERROR_RT_CONTEXT_NULL);
NUMBER(ac::kNoMemory, ACL_ERROR_BAD_ALLOC);
NUMBER(ac::kNotSupported, ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
NUMBER(ac::kOutOfMemory, ACL_ERROR_RT_MEMORY_ALLOCATION);
NUMBER(ac::kNoDevice, ACL_ERROR_RT_NO_DEVICE);
NUMBER(ac::kAlreadyRegistered, ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
NUMBER(ac::kMallocHugeFirst, ACL_MEM_MALLOC_HUGE_FIRST);
NUMBER(ac::kHostToHost, ACL_MEMCPY_HOST_TO_HOST);
NUMBER(ac::kHostToDevice, ACL_MEMCPY_HOST_TO_DEVICE);
NUMBER(ac::kDeviceToHost, ACL_MEMCPY_DEVICE_TO_HOST);
NUMBER(ac::kDeviceToDevice, ACL_MEMCPY_DEVICE_TO_DEVICE);
NUMBER(ac::kStreamFastLaunch, ACL_STREAM_FAST_LAUNCH);
NUMBER(ac::kStreamFastSync, ACL_STREAM_FAST_SYNC);
NUMBER(ac::kStopOnFailure, ACL_STOP_ON_FAILURE);
NUMBER(ac::kStreamComplete, ACL_STREAM_STATUS_COMPLETE);
NUMBER(ac::kStreamBusy, ACL_STREAM_STATUS_NOT_READY);
NUMBER(ac::kEventSync, ACL_EVENT_SYNC);
NUMBER(ac::kEventPending, ACL_EVENT_RECORDED_STATUS_NOT_READY);
NUMBER(ac::kEventComplete, ACL_EVENT_RECORDED_STATUS_COMPLETE);
NUMBER(ac::kRegisterMapped, ACL_HOST_REGISTER_MAPPED);
NUMBER(ac::kRegisterV2Mapped, ACL_HOST_REG_MAPPED);
NUMBER(ac::kRegisterV2Pinned, ACL_HOST_REG_PINNED);
NUMBER(ac::kCallbackNoBlock, ACL_CALLBACK_NO_BLOCK);
NUMBER(ac::kCaptureNone, ACL_MODEL_RI_CAPTURE_STATUS_NONE);
NUMBER(ac::kAtHost, ACL_MEM_LOCATION_TYPE_HOST);
NUMBER(ac::kAtDevice, ACL_MEM_LOCATION_TYPE_DEVICE);
NUMBER(ac::kAtNobody, ACL_MEM_LOCATION_TYPE_UNREGISTERED);
NUMBER(ac::kAtHostNode, ACL_MEM_LOCATION_TYPE_HOST_NUMA);
NUMBER(ac::kPackageCann, ACL_PKG_NAME_CANN);

#define FIELD(mine, theirs, field, other)                                  \
  static_assert(offsetof(mine, field) == offsetof(theirs, other), #field); \
  static_assert(sizeof(mine::field) == sizeof(theirs::other), #field)
// Ours is longer: a newer library may fill in more.
static_assert(offsetof(ac::PointerAttributes, device) == offsetof(aclrtPtrAttributes, location.id));
static_assert(offsetof(ac::PointerAttributes, type) == offsetof(aclrtPtrAttributes, location.type));
static_assert(sizeof(ac::PointerAttributes::type) == sizeof(aclrtMemLocationType));
FIELD(ac::PointerAttributes, aclrtPtrAttributes, page, pageSize);
static_assert(offsetof(ac::PointerAttributes, more) == offsetof(aclrtPtrAttributes, rsv));
static_assert(sizeof(ac::PointerAttributes) >= sizeof(aclrtPtrAttributes) + 64);
FIELD(ac::PackageVersion, aclCANNPackageVersion, version, version);
FIELD(ac::PackageVersion, aclCANNPackageVersion, reserved, reserved);
static_assert(sizeof(ac::PackageVersion) == sizeof(aclCANNPackageVersion));

namespace hc = isthmus::ccl::hccl_abi;

#define COMPARE(name, arguments)                                                              \
  static_assert(vendor::same_shape<decltype(hc::Functions::name), decltype(&::Hccl##name)>(), \
                "Hccl" #name " is declared otherwise");
ISTHMUS_HCCL_FUNCTIONS(COMPARE)
COMPARE(GetCommAsyncError, )
COMPARE(GetErrorString, )
#undef COMPARE

static_assert(sizeof(hc::Id) == sizeof(HcclRootInfo) && alignof(hc::Id) == alignof(HcclRootInfo));
NUMBER(hc::kIdBytes, HCCL_ROOT_INFO_BYTES);
static_assert(sizeof(hc::Result) == sizeof(HcclResult) && sizeof(hc::Handle) == sizeof(HcclComm));
static_assert(sizeof(hc::Queue) == sizeof(aclrtStream));
static_assert(sizeof(hc::Type) == sizeof(HcclDataType) && sizeof(hc::ReduceOp) == sizeof(HcclReduceOp));
static_assert(sizeof(hc::BatchItem) == sizeof(HcclSendRecvItem));
static_assert(offsetof(hc::BatchItem, buffer) == offsetof(HcclSendRecvItem, buf));
static_assert(offsetof(hc::BatchItem, count) == offsetof(HcclSendRecvItem, count));
static_assert(offsetof(hc::BatchItem, type) == offsetof(HcclSendRecvItem, dataType));
static_assert(offsetof(hc::BatchItem, peer) == offsetof(HcclSendRecvItem, remoteRank));
NUMBER(hc::kSends, HCCL_SEND);
NUMBER(hc::kReceives, HCCL_RECV);
NUMBER(hc::kSuccess, HCCL_SUCCESS);
NUMBER(hc::kNotSupported, HCCL_E_NOT_SUPPORT);
NUMBER(hc::kAgain, HCCL_E_AGAIN);
NUMBER(hc::kRuntimeFailed, HCCL_E_RUNTIME);
NUMBER(hc::kInt8, HCCL_DATA_TYPE_INT8);
NUMBER(hc::kInt16, HCCL_DATA_TYPE_INT16);
NUMBER(hc::kInt32, HCCL_DATA_TYPE_INT32);
NUMBER(hc::kFloat16, HCCL_DATA_TYPE_FP16);
NUMBER(hc::kFloat32, HCCL_DATA_TYPE_FP32);
NUMBER(hc::kBFloat16, HCCL_DATA_TYPE_BFP16);
NUMBER(hc::kSum, HCCL_REDUCE_SUM);
NUMBER(hc::kProd, HCCL_REDUCE_PROD);
NUMBER(hc::kMax, HCCL_REDUCE_MAX);
NUMBER(hc::kMin, HCCL_REDUCE_MIN);
NUMBER(hc::kPackageHccl, ACL_PKG_NAME_HCCL);
#undef FIELD
#undef NUMBER

}  // namespace
