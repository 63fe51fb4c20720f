/* What the clients of these tests know of NCCL's and RCCL's interface, as a program would have it from the vendor's header. */
#include <stddef.h>

typedef struct {
  unsigned char bytes[128];
} unique_id;
typedef void *comm_handle;

int ncclGetVersion(int *version);
int ncclGetUniqueId(unique_id *id);
const char *ncclGetErrorString(int result);
const char *ncclGetLastError(comm_handle comm);
int ncclCommInitRank(comm_handle *comm, int ranks, unique_id id, int rank);
int ncclCommInitRankConfig(comm_handle *comm, int ranks, unique_id id, int rank, void *config);
int ncclCommGetAsyncError(comm_handle comm, int *state);
int ncclCommCount(comm_handle comm, int *count);
int ncclCommUserRank(comm_handle comm, int *rank);
int ncclCommCuDevice(comm_handle comm, int *device);
int ncclCommSplit(comm_handle comm, int color, int key, comm_handle *part, void *config);
int ncclCommAbort(comm_handle comm);
int ncclCommFinalize(comm_handle comm);
int ncclCommDestroy(comm_handle comm);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, comm_handle comm, void *stream);
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, comm_handle comm, void *stream);
int ncclAllGather(const void *from, void *to, size_t count, int type, comm_handle comm, void *stream);
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, comm_handle comm, void *stream);
int ncclSend(const void *from, size_t count, int type, int peer, comm_handle comm, void *stream);
int ncclRecv(void *to, size_t count, int type, int peer, comm_handle comm, void *stream);
int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, comm_handle comm);
int ncclRedOpDestroy(int op, comm_handle comm);
int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, comm_handle comm, void *stream);
int ncclBcast(void *buffer, size_t count, int type, int root, comm_handle comm, void *stream);
