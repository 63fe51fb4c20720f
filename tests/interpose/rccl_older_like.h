/* What the clients of these tests know of RCCL's interface that RCCL 2.13 alone had, so that there is nothing to compare it with. After
 * nccl_like.h. */
int ncclCommInitRankMulti(comm_handle *comm, int ranks, unique_id id, int rank, int number);
