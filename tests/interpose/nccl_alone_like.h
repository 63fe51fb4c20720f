/* What the clients of these tests know of NCCL's interface that RCCL does not have. After nccl_like.h. */
int ncclCommSuspend(comm_handle comm, int flags);
