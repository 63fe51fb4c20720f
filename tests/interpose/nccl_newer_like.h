/* What the clients of these tests know of NCCL's and RCCL's interface and look for by name, as not every version has it. After nccl_like.h. */
int ncclCommInitAll(comm_handle *comms, int count, const int *devices);
int ncclGroupSimulateEnd(void *info);
int ncclCommInitRankScalable(comm_handle *comm, int ranks, int rank, int count, unique_id *ids, void *config);
int ncclCommShrink(comm_handle comm, int *excluded, int count, comm_handle *part, void *config, int flags);
int ncclCommRevoke(comm_handle comm, int flags);
int ncclCommGetUniqueId(comm_handle comm, unique_id *id);
int ncclCommGrow(comm_handle comm, int ranks, const unique_id *id, int rank, comm_handle *grown, void *config);
int ncclCommRegister(comm_handle comm, void *buffer, size_t bytes, void **handle);
int ncclCommDeregister(comm_handle comm, void *handle);
int ncclAlltoAll(const void *from, void *to, size_t count, int type, comm_handle comm, void *stream);
int ncclGather(const void *from, void *to, size_t count, int type, int root, comm_handle comm, void *stream);
int ncclScatter(const void *from, void *to, size_t count, int type, int root, comm_handle comm, void *stream);
