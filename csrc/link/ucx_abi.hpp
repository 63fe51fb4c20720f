// What Isthmus uses of UCX 1.11 and later, declared in our own words: names, numbers, layouts and signatures of the C interface of libucp.
// tests/vendor compares them with the published headers. A status is one byte: 0 is success, 1 "in progress", what is below 0 a failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace isthmus::link::ucx_abi {

inline constexpr unsigned kApiMajor = 1, kApiMinor = 11;

using Status = int8_t;
inline constexpr Status kOk = 0, kInProgress = 1, kNoMemory = -4, kUnreachable = -6, kBusy = -15, kCanceled = -16,
                        kLast = -100;

// What a call returns that may go on: null for done, a status for a failure, else a request that request_free() gives back.
using StatusPointer = void *;
inline bool is_failure(StatusPointer p) noexcept {
  return reinterpret_cast<uintptr_t>(p) >= static_cast<uintptr_t>(static_cast<intptr_t>(kLast));
}
inline Status failure_of(StatusPointer p) noexcept { return static_cast<Status>(reinterpret_cast<intptr_t>(p)); }

using Context = void *;
using Config = void;
using Worker = void *;
using Endpoint = void *;
using Memory = void *;  // a registration
using Address = void;   // of a worker, to be told to others

inline constexpr uint64_t kFeatureWakeup = 1 << 4, kFeatureActiveMessages = 1 << 6;
struct ContextParams {
  uint64_t fields = 0;  // which members count, in this and all that follow
  uint64_t features = 0;
  size_t request_size = 0;
  void (*request_init)(void *) = nullptr;
  void (*request_cleanup)(void *) = nullptr;
  uint64_t tag_sender_mask = 0;
  int workers_shared = 0;
  size_t estimated_endpoints = 0;
  size_t estimated_local = 0;
  const char *name = nullptr;
};
inline constexpr uint64_t kParamFeatures = 1 << 0;

enum ThreadMode : int { kSingle, kSerialized, kMulti };
struct WorkerParams {
  uint64_t fields = 0;
  int thread_mode = kSingle;
  unsigned long cpus[16] = {};
  unsigned events = 0;
  void *user_data = nullptr;
  int event_fd = -1;
  uint64_t flags = 0;
  const char *name = nullptr;
  size_t alignment = 0;
  uint64_t client_id = 0;
};
inline constexpr uint64_t kWorkerThreadMode = 1 << 0, kWorkerFlags = 1 << 5;
inline constexpr uint64_t kIgnoreRequestLeak = 1 << 0;  // a worker's flag: it prints no warning of requests that never ended

struct SocketAddress {
  const void *address = nullptr;
  unsigned length = 0;
};
using OnError = void (*)(void *argument, Endpoint, Status);
enum ErrorMode : int { kNoErrors, kPeerErrors };
struct EndpointParams {
  uint64_t fields = 0;
  const Address *address = nullptr;
  int error_mode = kNoErrors;
  OnError on_error = nullptr;
  void *on_error_argument = nullptr;
  void *user_data = nullptr;
  unsigned flags = 0;
  SocketAddress socket;
  void *request = nullptr;
  const char *name = nullptr;
  SocketAddress local_socket;
};
inline constexpr uint64_t kEndpointAddress = 1 << 0, kEndpointErrorMode = 1 << 1, kEndpointOnError = 1 << 2;

struct MemoryParams {
  uint64_t fields = 0;
  void *address = nullptr;
  size_t length = 0;
  unsigned flags = 0;
  unsigned protection = 0;
  int type = 0;
};
inline constexpr uint64_t kMemoryAddress = 1 << 0, kMemoryLength = 1 << 1;

// What came with an active message, beside its header and data.
struct ArrivalParams {
  uint64_t attributes = 0;
  Endpoint reply = nullptr;
};
inline constexpr uint64_t kArrivalMayStay = 1 << 16;  // the data stay where they are, if the callback returns kInProgress
inline constexpr uint64_t kArrivalWaits = 1 << 17;    // the data are still at the sender's: am_recv_data_nbx() brings them

using OnArrival = Status (*)(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                             const ArrivalParams *);
struct HandlerParams {
  uint64_t fields = 0;
  unsigned id = 0;
  uint32_t flags = 0;
  OnArrival callback = nullptr;
  void *argument = nullptr;
};
inline constexpr uint64_t kHandlerId = 1 << 0, kHandlerCallback = 1 << 2, kHandlerArgument = 1 << 3;

using OnSent = void (*)(void *request, Status, void *user_data);
using OnReceived = void (*)(void *request, Status, size_t bytes, void *user_data);
struct RequestParams {
  uint32_t fields = 0;
  uint32_t flags = 0;
  void *request = nullptr;
  union {
    OnSent sent = nullptr;
    OnReceived received;
  };
  uint64_t datatype = 0;
  void *user_data = nullptr;
  void *reply_buffer = nullptr;
  int memory_type = 0;
  void *receive_info = nullptr;
  Memory memory = nullptr;
};
inline constexpr uint32_t kRequestCallback = 1 << 1, kRequestUserData = 1 << 2, kRequestFlags = 1 << 4,
                          kRequestMemory = 1 << 8;
inline constexpr uint32_t kSendEager = 1 << 1, kSendRendezvous = 1 << 2;  // flags of am_send_nbx()
inline constexpr uint32_t kCloseForce = 1 << 0;                           // a flag of ep_close_nbx()

// result, name without "ucp_", arguments
#define ISTHMUS_UCP_FUNCTIONS(F)                                                                                       \
  F(void, get_version, (unsigned *, unsigned *, unsigned *))                                                           \
  F(Status, config_read, (const char *, const char *, Config **))                                                      \
  F(Status, config_modify, (Config *, const char *name, const char *value))                                            \
  F(void, config_release, (Config *))                                                                                  \
  F(Status, init_version, (unsigned, unsigned, const ContextParams *, const Config *, Context *))                      \
  F(void, cleanup, (Context))                                                                                          \
  F(void, context_print_info, (Context, FILE *))                                                                       \
  F(Status, worker_create, (Context, const WorkerParams *, Worker *))                                                  \
  F(void, worker_destroy, (Worker))                                                                                    \
  F(Status, worker_get_address, (Worker, Address **, size_t *))                                                        \
  F(void, worker_release_address, (Worker, Address *))                                                                 \
  F(unsigned, worker_progress, (Worker))                                                                               \
  F(Status, worker_get_efd, (Worker, int *))                                                                           \
  F(Status, worker_arm, (Worker))                                                                                      \
  F(Status, worker_signal, (Worker))                                                                                   \
  F(Status, worker_set_am_recv_handler, (Worker, const HandlerParams *))                                               \
  F(Status, ep_create, (Worker, const EndpointParams *, Endpoint *))                                                   \
  F(StatusPointer, ep_flush_nbx, (Endpoint, const RequestParams *))                                                    \
  F(StatusPointer, ep_close_nbx, (Endpoint, const RequestParams *))                                                    \
  F(StatusPointer, am_send_nbx,                                                                                        \
    (Endpoint, unsigned id, const void *header, size_t header_bytes, const void *data, size_t, const RequestParams *)) \
  F(StatusPointer, am_recv_data_nbx, (Worker, void *arrival, void *to, size_t, const RequestParams *))                 \
  F(void, am_data_release, (Worker, void *arrival))                                                                    \
  F(Status, request_check_status, (void *))                                                                            \
  F(void, request_free, (void *))                                                                                      \
  F(Status, mem_map, (Context, const MemoryParams *, Memory *))                                                        \
  F(Status, mem_unmap, (Context, Memory))

struct Functions {
#define ISTHMUS_DECLARE(result, name, arguments) result(*name) arguments = nullptr;
  ISTHMUS_UCP_FUNCTIONS(ISTHMUS_DECLARE)
#undef ISTHMUS_DECLARE
  const char *(*status_string)(Status) = nullptr;  // ucs_status_string
};

}  // namespace isthmus::link::ucx_abi
