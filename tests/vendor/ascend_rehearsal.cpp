// What one source of the rehearsal exports under Huawei's names, compared with what Huawei publishes. Only compiled, never run:
// tests/suite/test_vendor_abi_ascend_rehearsal.py, which writes the three lists from the source's EXPORT lines and defines REHEARSAL_SOURCE.
// The source's functions get names of their own here, because one name cannot be declared in two ways.

#include "renamed.inc"  // #define aclInit rehearsed_aclInit, ...
#include REHEARSAL_SOURCE
#include "restored.inc"  // #undef aclInit, ...

#include <acl/acl.h>
#include <hccl/hccl.h>

#include "same_shape.hpp"

namespace {

using namespace rehearsal;

#define COMPARE(name) \
  static_assert(vendor::same_shape<decltype(&rehearsed_##name), decltype(&::name)>(), #name " is declared otherwise");
#include "compared.inc"  // COMPARE(aclInit), ...
#undef COMPARE

#define NUMBER(ours, theirs) static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #theirs)
#define FIELD(ours, our_field, theirs, their_field)                                                                         \
  static_assert(                                                                                                            \
      offsetof(ours, our_field) == offsetof(theirs, their_field) && sizeof(ours::our_field) == sizeof(theirs::their_field), \
      #their_field)

#ifdef REHEARSAL_ACL
static_assert(sizeof(acl::Result) == sizeof(aclError));
NUMBER(acl::kSuccess, ACL_SUCCESS);
NUMBER(acl::kInvalidParameter, ACL_ERROR_INVALID_PARAM);
NUMBER(acl::kUninitialized, ACL_ERROR_UNINITIALIZE);
NUMBER(acl::kAlreadyInitialized, ACL_ERROR_REPEAT_INITIALIZE);
NUMBER(acl::kAlreadyFinalized, ACL_ERROR_REPEAT_FINALIZE);
NUMBER(acl::kInvalidValue, ACL_ERROR_RT_PARAM_INVALID);
NUMBER(acl::kInvalidDevice, ACL_ERROR_RT_INVALID_DEVICEID);
NUMBER(acl::kNoContext, ACL_ERROR_RT_CONTEXT_NULL);
NUMBER(acl::kOtherContext, ACL_ERROR_RT_STREAM_CONTEXT);
NUMBER(acl::kInvalidTimestamp, ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID);
NUMBER(acl::kStreamSubscribed, ACL_ERROR_RT_STREAM_SUBSCRIBE);
NUMBER(acl::kThreadNotSubscribed, ACL_ERROR_RT_THREAD_SUBSCRIBE);
NUMBER(acl::kStreamNotSubscribed, ACL_ERROR_RT_STREAM_NO_CB_REG);
NUMBER(acl::kInvalidHandle, ACL_ERROR_RT_INVALID_HANDLE);
NUMBER(acl::kEventCaptured, ACL_ERROR_RT_EVENT_CAPTURED);
NUMBER(acl::kNotCapturing, ACL_ERROR_RT_STREAM_NOT_CAPTURED);
NUMBER(acl::kCaptureUnsupported, ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT);
NUMBER(acl::kCaptureUnmatched, ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED);
NUMBER(acl::kCaptureInvalidated, ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED);
NUMBER(acl::kNotSupported, ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
NUMBER(acl::kOutOfMemory, ACL_ERROR_RT_MEMORY_ALLOCATION);
NUMBER(acl::kNoDevice, ACL_ERROR_RT_NO_DEVICE);
NUMBER(acl::kNotPermitted, ACL_ERROR_RT_NO_PERMISSION);
NUMBER(acl::kInternal, ACL_ERROR_RT_INTERNAL_ERROR);
NUMBER(acl::kEventNotComplete, ACL_ERROR_RT_EVENT_NOT_COMPLETE);
NUMBER(acl::kReportTimeout, ACL_ERROR_RT_REPORT_TIMEOUT);
NUMBER(acl::kStreamTimeout, ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
NUMBER(acl::kEventTimeout, ACL_ERROR_RT_EVENT_SYNC_TIMEOUT);
NUMBER(acl::kMemoryFailed, ACL_ERROR_RT_DEVICE_MEM_ERROR);
NUMBER(acl::kHostRegistered, ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
NUMBER(acl::kHostNotRegistered, ACL_ERROR_HOST_MEMORY_NOT_REGISTERED);

NUMBER(acl::kMajorVersion, ACL_MAJOR_VERSION);
NUMBER(acl::kAicores, ACL_DEV_ATTR_AICORE_CORE_NUM);
NUMBER(acl::kCubeCores, ACL_DEV_ATTR_CUBE_CORE_NUM);
NUMBER(acl::kVectorCores, ACL_DEV_ATTR_VECTOR_CORE_NUM);
NUMBER(acl::kMemoryBytes, ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE);
NUMBER(acl::kCacheBytes, ACL_DEV_ATTR_L2_CACHE_SIZE);
NUMBER(acl::kSystem, ACL_DEV_ATTR_SMP_ID);
NUMBER(acl::kChip, ACL_DEV_ATTR_PHY_CHIP_ID);
NUMBER(acl::kVirtual, ACL_DEV_ATTR_IS_VIRTUAL);
NUMBER(acl::kHbm, ACL_HBM_MEM);
NUMBER(acl::kHbmHuge, ACL_HBM_MEM_HUGE);
NUMBER(acl::kHbmNormal, ACL_HBM_MEM_NORMAL);
NUMBER(acl::kOnHost, ACL_MEM_LOCATION_TYPE_HOST);
NUMBER(acl::kOnDevice, ACL_MEM_LOCATION_TYPE_DEVICE);
NUMBER(acl::kUnregistered, ACL_MEM_LOCATION_TYPE_UNREGISTERED);
static_assert(sizeof(acl::PointerAttributes) == sizeof(aclrtPtrAttributes) && sizeof(acl::Uuid) == sizeof(aclrtUuid));
FIELD(acl::PointerAttributes, device, aclrtPtrAttributes, location.id);
FIELD(acl::PointerAttributes, location, aclrtPtrAttributes, location.type);
FIELD(acl::PointerAttributes, page, aclrtPtrAttributes, pageSize);
FIELD(acl::PointerAttributes, reserved, aclrtPtrAttributes, rsv);

NUMBER(acl::kHostToHost, ACL_MEMCPY_HOST_TO_HOST);
NUMBER(acl::kHostToDevice, ACL_MEMCPY_HOST_TO_DEVICE);
NUMBER(acl::kDeviceToHost, ACL_MEMCPY_DEVICE_TO_HOST);
NUMBER(acl::kDeviceToDevice, ACL_MEMCPY_DEVICE_TO_DEVICE);
NUMBER(acl::kDefaultDirection, ACL_MEMCPY_DEFAULT);
NUMBER(acl::kLastMallocPolicy, ACL_MEM_MALLOC_HUGE1G_ONLY_P2P);
NUMBER(acl::kRegisterMapped, ACL_HOST_REGISTER_MAPPED);
NUMBER(acl::kRegisterIo, ACL_HOST_REGISTER_IOMEMORY);
NUMBER(acl::kRegisterReadOnly, ACL_HOST_REGISTER_READONLY);
NUMBER(acl::kMapped, ACL_HOST_REG_MAPPED);
NUMBER(acl::kIoMemory, ACL_HOST_REG_IOMEMORY);
NUMBER(acl::kReadOnly, ACL_HOST_REG_READONLY);
NUMBER(acl::kPinned, ACL_HOST_REG_PINNED);
NUMBER(acl::kFastLaunch, ACL_STREAM_FAST_LAUNCH);
NUMBER(acl::kFastSync, ACL_STREAM_FAST_SYNC);
NUMBER(acl::kLastStreamFlag, ACL_STREAM_DEVICE_USE_ONLY);
NUMBER(acl::kSync, ACL_EVENT_SYNC);
NUMBER(acl::kProgress, ACL_EVENT_CAPTURE_STREAM_PROGRESS);
NUMBER(acl::kTimeline, ACL_EVENT_TIME_LINE);
NUMBER(acl::kDeviceOnly, ACL_EVENT_DEVICE_USE_ONLY);
NUMBER(acl::kExternal, ACL_EVENT_EXTERNAL);
NUMBER(acl::kIpc, ACL_EVENT_IPC);
NUMBER(acl::kAtLeast, ACL_STREAM_WAIT_VALUE_GEQ);
NUMBER(acl::kEqual, ACL_STREAM_WAIT_VALUE_EQ);
NUMBER(acl::kAnd, ACL_STREAM_WAIT_VALUE_AND);
NUMBER(acl::kNor, ACL_STREAM_WAIT_VALUE_NOR);
NUMBER(acl::kStreamComplete, ACL_STREAM_STATUS_COMPLETE);
NUMBER(acl::kStreamNotReady, ACL_STREAM_STATUS_NOT_READY);
NUMBER(acl::kEventNotRecorded, ACL_EVENT_RECORDED_STATUS_NOT_READY);
NUMBER(acl::kEventRecorded, ACL_EVENT_RECORDED_STATUS_COMPLETE);
NUMBER(acl::kWaitsComplete, ACL_EVENT_WAIT_STATUS_COMPLETE);
NUMBER(acl::kWaitsNotReady, ACL_EVENT_WAIT_STATUS_NOT_READY);
NUMBER(acl::kCallbackNoBlock, ACL_CALLBACK_NO_BLOCK);
NUMBER(acl::kCallbackBlock, ACL_CALLBACK_BLOCK);
NUMBER(acl::kNotCaptured, ACL_MODEL_RI_CAPTURE_STATUS_NONE);
NUMBER(acl::kCaptureActive, ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE);
NUMBER(acl::kCaptureInvalid, ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED);
NUMBER(acl::kCaptureGlobal, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL);
NUMBER(acl::kCaptureThread, ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL);
NUMBER(acl::kCaptureRelaxed, ACL_MODEL_RI_CAPTURE_MODE_RELAXED);
#else
static_assert(sizeof(hccl::Result) == sizeof(HcclResult) && sizeof(hccl::CommHandle) == sizeof(HcclComm));
NUMBER(hccl::kSuccess, HCCL_SUCCESS);
NUMBER(hccl::kParameter, HCCL_E_PARA);
NUMBER(hccl::kNullPointer, HCCL_E_PTR);
NUMBER(hccl::kMemory, HCCL_E_MEMORY);
NUMBER(hccl::kInternal, HCCL_E_INTERNAL);
NUMBER(hccl::kNotSupported, HCCL_E_NOT_SUPPORT);
NUMBER(hccl::kUnavailable, HCCL_E_UNAVAIL);
NUMBER(hccl::kSystem, HCCL_E_SYSCALL);
NUMBER(hccl::kTimeout, HCCL_E_TIMEOUT);
NUMBER(hccl::kConnect, HCCL_E_TCP_CONNECT);
NUMBER(hccl::kTransfer, HCCL_E_TCP_TRANSFER);
NUMBER(hccl::kRuntime, HCCL_E_RUNTIME);
NUMBER(hccl::kDriver, HCCL_E_DRV);
NUMBER(hccl::kNetwork, HCCL_E_NETWORK);
NUMBER(hccl::kAgain, HCCL_E_AGAIN);
NUMBER(hccl::kRemote, HCCL_E_REMOTE);
NUMBER(hccl::kSuspended, HCCL_E_SUSPENDING);
NUMBER(hccl::kOutOfMemory, HCCL_E_OOM);

NUMBER(hccl::kInt8, HCCL_DATA_TYPE_INT8);
NUMBER(hccl::kInt16, HCCL_DATA_TYPE_INT16);
NUMBER(hccl::kInt32, HCCL_DATA_TYPE_INT32);
NUMBER(hccl::kFloat16, HCCL_DATA_TYPE_FP16);
NUMBER(hccl::kFloat32, HCCL_DATA_TYPE_FP32);
NUMBER(hccl::kInt64, HCCL_DATA_TYPE_INT64);
NUMBER(hccl::kUInt64, HCCL_DATA_TYPE_UINT64);
NUMBER(hccl::kUInt8, HCCL_DATA_TYPE_UINT8);
NUMBER(hccl::kUInt16, HCCL_DATA_TYPE_UINT16);
NUMBER(hccl::kUInt32, HCCL_DATA_TYPE_UINT32);
NUMBER(hccl::kFloat64, HCCL_DATA_TYPE_FP64);
NUMBER(hccl::kBfloat16, HCCL_DATA_TYPE_BFP16);
NUMBER(hccl::kInt128, HCCL_DATA_TYPE_INT128);
NUMBER(hccl::kHifloat8, HCCL_DATA_TYPE_HIF8);
NUMBER(hccl::kFloat8E4M3, HCCL_DATA_TYPE_FP8E4M3);
NUMBER(hccl::kFloat8E5M2, HCCL_DATA_TYPE_FP8E5M2);
NUMBER(hccl::kFloat8E8M0, HCCL_DATA_TYPE_FP8E8M0);
NUMBER(hccl::kSum, HCCL_REDUCE_SUM);
NUMBER(hccl::kProd, HCCL_REDUCE_PROD);
NUMBER(hccl::kMax, HCCL_REDUCE_MAX);
NUMBER(hccl::kMin, HCCL_REDUCE_MIN);

static_assert(sizeof(hccl::RootInfo) == sizeof(HcclRootInfo) && alignof(hccl::RootInfo) == alignof(HcclRootInfo),
              "HcclRootInfo");
static_assert(offsetof(hccl::Config, buffer_megabytes) == HCCL_COMM_CONFIG_INFO_BYTES);
FIELD(hccl::Config, buffer_megabytes, HcclCommConfig, hcclBufferSize);
FIELD(hccl::Config, deterministic, HcclCommConfig, hcclDeterministic);
FIELD(hccl::Config, name, HcclCommConfig, hcclCommName);
NUMBER(hccl::kConfigMagic, HCCL_COMM_CONFIG_MAGIC_WORD);
NUMBER(hccl::kNotSet, HCCL_COMM_DETERMINISTIC_CONFIG_NOT_SET);
NUMBER(hccl::kConfigCapability, HCCL_COMM_CONFIG_RESERVED);
NUMBER(hccl::kNameBytes, COMM_NAME_MAX_LENGTH);
static_assert(sizeof(hccl::Setting) == sizeof(HcclConfigValue));
NUMBER(hccl::kDeterministic, HCCL_DETERMINISTIC);

static_assert(sizeof(hccl::BatchItem) == sizeof(HcclSendRecvItem));
FIELD(hccl::BatchItem, what, HcclSendRecvItem, sendRecvType);
FIELD(hccl::BatchItem, buffer, HcclSendRecvItem, buf);
FIELD(hccl::BatchItem, count, HcclSendRecvItem, count);
FIELD(hccl::BatchItem, type, HcclSendRecvItem, dataType);
FIELD(hccl::BatchItem, peer, HcclSendRecvItem, remoteRank);
NUMBER(hccl::kSend, HCCL_SEND);
NUMBER(hccl::kReceive, HCCL_RECV);
#endif

}  // namespace
