// What Isthmus declares of UCX in its own words, compared with the published headers. Only compiled, never run:
// tests/suite/test_vendor_abi_ucx.py.

#include "link/ucx_abi.hpp"
// Then the vendor's.
#include <ucp/api/ucp.h>

#include "same_shape.hpp"

namespace {

namespace ux = isthmus::link::ucx_abi;

#define COMPARE(result, name, arguments)                                                      \
  static_assert(vendor::same_shape<decltype(ux::Functions::name), decltype(&::ucp_##name)>(), \
                "ucp_" #name " is declared otherwise");
ISTHMUS_UCP_FUNCTIONS(COMPARE)
#undef COMPARE
static_assert(vendor::same_shape<decltype(ux::Functions::status_string), decltype(&::ucs_status_string)>());

static_assert(ux::kApiMajor == UCP_API_MAJOR && ux::kApiMinor <= UCP_API_MINOR);
static_assert(sizeof(ux::Status) == sizeof(ucs_status_t));
static_assert(ux::kOk == UCS_OK && ux::kInProgress == UCS_INPROGRESS && ux::kUnreachable == UCS_ERR_UNREACHABLE);
static_assert(ux::kLast == UCS_ERR_LAST);

// A member lies where the vendor's lies, and has its size.
#define SAME(ours, member, theirs, their_member)                                                                     \
  static_assert(offsetof(ux::ours, member) == offsetof(theirs, their_member), #ours "::" #member " lies elsewhere"); \
  static_assert(sizeof(ux::ours::member) == sizeof(theirs::their_member), #ours "::" #member " has another size");
SAME(ContextParams, fields, ucp_params_t, field_mask)
SAME(ContextParams, features, ucp_params_t, features)
static_assert(sizeof(ux::ContextParams) == sizeof(ucp_params_t));
SAME(WorkerParams, fields, ucp_worker_params_t, field_mask)
SAME(WorkerParams, thread_mode, ucp_worker_params_t, thread_mode)
SAME(WorkerParams, flags, ucp_worker_params_t, flags)
static_assert(sizeof(ux::WorkerParams) == sizeof(ucp_worker_params_t));
SAME(EndpointParams, fields, ucp_ep_params_t, field_mask)
SAME(EndpointParams, address, ucp_ep_params_t, address)
SAME(EndpointParams, error_mode, ucp_ep_params_t, err_mode)
SAME(EndpointParams, on_error, ucp_ep_params_t, err_handler.cb)
SAME(EndpointParams, on_error_argument, ucp_ep_params_t, err_handler.arg)
static_assert(sizeof(ux::EndpointParams) == sizeof(ucp_ep_params_t));
SAME(MemoryParams, fields, ucp_mem_map_params_t, field_mask)
SAME(MemoryParams, address, ucp_mem_map_params_t, address)
SAME(MemoryParams, length, ucp_mem_map_params_t, length)
static_assert(sizeof(ux::MemoryParams) == sizeof(ucp_mem_map_params_t));
SAME(ArrivalParams, attributes, ucp_am_recv_param_t, recv_attr)
SAME(HandlerParams, fields, ucp_am_handler_param_t, field_mask)
SAME(HandlerParams, id, ucp_am_handler_param_t, id)
SAME(HandlerParams, callback, ucp_am_handler_param_t, cb)
SAME(HandlerParams, argument, ucp_am_handler_param_t, arg)
static_assert(sizeof(ux::HandlerParams) == sizeof(ucp_am_handler_param_t));
SAME(RequestParams, fields, ucp_request_param_t, op_attr_mask)
SAME(RequestParams, flags, ucp_request_param_t, flags)
SAME(RequestParams, sent, ucp_request_param_t, cb.send)
SAME(RequestParams, received, ucp_request_param_t, cb.recv_am)
SAME(RequestParams, user_data, ucp_request_param_t, user_data)
SAME(RequestParams, memory, ucp_request_param_t, memh)
static_assert(sizeof(ux::RequestParams) == sizeof(ucp_request_param_t));
#undef SAME

static_assert(ux::kParamFeatures == UCP_PARAM_FIELD_FEATURES);
static_assert(ux::kFeatureWakeup == UCP_FEATURE_WAKEUP && ux::kFeatureActiveMessages == UCP_FEATURE_AM);
static_assert(ux::kSerialized == UCS_THREAD_MODE_SERIALIZED);
static_assert(ux::kWorkerThreadMode == UCP_WORKER_PARAM_FIELD_THREAD_MODE &&
              ux::kWorkerFlags == UCP_WORKER_PARAM_FIELD_FLAGS);
static_assert(ux::kIgnoreRequestLeak == UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK);
static_assert(ux::kNoErrors == UCP_ERR_HANDLING_MODE_NONE && ux::kPeerErrors == UCP_ERR_HANDLING_MODE_PEER);
static_assert(ux::kEndpointAddress == UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
static_assert(ux::kEndpointErrorMode == UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
static_assert(ux::kEndpointOnError == UCP_EP_PARAM_FIELD_ERR_HANDLER);
static_assert(ux::kMemoryAddress == UCP_MEM_MAP_PARAM_FIELD_ADDRESS && ux::kMemoryLength == UCP_MEM_MAP_PARAM_FIELD_LENGTH);
static_assert(ux::kArrivalMayStay == UCP_AM_RECV_ATTR_FLAG_DATA && ux::kArrivalWaits == UCP_AM_RECV_ATTR_FLAG_RNDV);
static_assert(ux::kHandlerId == UCP_AM_HANDLER_PARAM_FIELD_ID && ux::kHandlerCallback == UCP_AM_HANDLER_PARAM_FIELD_CB);
static_assert(ux::kHandlerArgument == UCP_AM_HANDLER_PARAM_FIELD_ARG);
static_assert(ux::kRequestCallback == UCP_OP_ATTR_FIELD_CALLBACK && ux::kRequestUserData == UCP_OP_ATTR_FIELD_USER_DATA);
static_assert(ux::kRequestFlags == UCP_OP_ATTR_FIELD_FLAGS && ux::kRequestMemory == UCP_OP_ATTR_FIELD_MEMH);
static_assert(ux::kSendEager == UCP_AM_SEND_FLAG_EAGER && ux::kSendRendezvous == UCP_AM_SEND_FLAG_RNDV);
static_assert(ux::kCloseForce == UCP_EP_CLOSE_FLAG_FORCE);

}  // namespace
