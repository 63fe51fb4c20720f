/* What the clients of these tests know of HCCL's interface and of the runtime's, as a program would have it from the vendor's headers. */
#include <stddef.h>
#include <stdint.h>

typedef struct {
  unsigned char internal[4108];
} root_info;
typedef struct {
  int what; /* 0: send, 1: receive */
  void *buffer;
  uint64_t count;
  int type;
  uint32_t peer;
} message;
typedef union {
  int32_t value;
} setting;
typedef void *comm_handle;

int HcclGetRootInfo(root_info *root);
int HcclGetRootInfoScalable(root_info *root);
int HcclCommInitRootInfoScalable(uint32_t ranks, uint32_t roots, const root_info *infos, uint32_t rank, uint32_t further,
                                 const void *config, comm_handle *comm);
int HcclCommInitRootInfo(uint32_t ranks, const root_info *root, uint32_t rank, comm_handle *comm);
int HcclCommInitRootInfoConfig(uint32_t ranks, const root_info *root, uint32_t rank, const void *config, comm_handle *comm);
int HcclCommInitAll(uint32_t ranks, int32_t *devices, comm_handle *comms);
int HcclCommInitClusterInfo(const char *file, uint32_t rank, comm_handle *comm);
int HcclCreateSubCommConfig(comm_handle *comm, uint32_t count, uint32_t *ranks, uint64_t number, uint32_t rank, void *config,
                            comm_handle *part);
int HcclCommRegister(comm_handle comm, void *memory, uint64_t bytes, void **handle, uint32_t flags);
int HcclCommSuspend(comm_handle comm);
int HcclCommResume(comm_handle comm);
int HcclCommDestroy(comm_handle comm);
int HcclGetRankSize(comm_handle comm, uint32_t *size);
int HcclGetRankId(comm_handle comm, uint32_t *rank);
int HcclGetCommName(comm_handle comm, char *name);
int HcclGetCommAsyncError(comm_handle comm, int *state);
uint32_t HcclGetCommConfigCapability(void);
int HcclSetConfig(int which, setting to);
int HcclGetConfig(int which, setting *to);
const char *HcclGetErrorString(int result);
int HcclAllReduce(void *from, void *to, uint64_t count, int type, int op, comm_handle comm, void *stream);
int HcclReduce(void *from, void *to, uint64_t count, int type, int op, uint32_t root, comm_handle comm, void *stream);
int HcclReduceScatter(void *from, void *to, uint64_t count, int type, int op, comm_handle comm, void *stream);
int HcclAllGather(void *from, void *to, uint64_t count, int type, comm_handle comm, void *stream);
int HcclAllGatherV(void *from, uint64_t count, void *to, const void *counts, const void *offsets, int type, comm_handle comm,
                   void *stream);
int HcclAlltoAll(const void *from, uint64_t from_count, int from_type, const void *to, uint64_t to_count, int to_type,
                 comm_handle comm, void *stream);
int HcclAlltoAllV(const void *from, const void *from_counts, const void *from_offsets, int from_type, const void *to,
                  const void *to_counts, const void *to_offsets, int to_type, comm_handle comm, void *stream);
int HcclAlltoAllVC(const void *from, const void *counts, int from_type, const void *to, int to_type, comm_handle comm, void *stream);
int HcclReduceScatterV(void *from, const void *counts, const void *offsets, void *to, uint64_t count, int type, int op,
                       comm_handle comm, void *stream);
int HcclBroadcast(void *buffer, uint64_t count, int type, uint32_t root, comm_handle comm, void *stream);
int HcclScatter(void *from, void *to, uint64_t count, int type, uint32_t root, comm_handle comm, void *stream);
int HcclSend(void *from, uint64_t count, int type, uint32_t peer, comm_handle comm, void *stream);
int HcclRecv(void *to, uint64_t count, int type, uint32_t peer, comm_handle comm, void *stream);
int HcclBatchSendRecv(message *messages, uint32_t count, comm_handle comm, void *stream);
int HcclBarrier(comm_handle comm, void *stream);
int HcclGroupStart(void);
int HcclGroupEnd(void);

int aclInit(const char *settings);
int aclrtSetDevice(int32_t device);
int aclrtGetDevice(int32_t *device);
int aclrtMalloc(void **p, size_t bytes, int policy);
int aclrtMemcpy(void *to, size_t room, const void *from, size_t bytes, int kind);
int aclrtCreateStream(void **stream);
int aclrtSynchronizeStream(void *stream);
