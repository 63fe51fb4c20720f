/* What the clients of these tests know of NCCL's interface that RCCL does not have. After nccl_like.h. */
int ncclCommSuspend(comm_handle comm, int flags);
int ncclSignal(int peer, int signal, int context, unsigned int flags, comm_handle comm, void *stream);
