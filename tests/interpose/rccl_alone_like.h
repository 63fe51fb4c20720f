/* What the clients of these tests know of RCCL's interface that NCCL does not have. After nccl_like.h. */
int ncclAlltoAllv(const void *from, const size_t *counts, const size_t *places, void *to, const size_t *to_counts,
                  const size_t *to_places, int type, comm_handle comm, void *stream);
