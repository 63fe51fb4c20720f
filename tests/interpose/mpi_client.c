/* An MPI program for NCCL, with -DAMD for RCCL, with -DASCEND for HCCL, that knows nothing of Isthmus: rank 0 asks its library for an id, MPI
 * carries the id to the others, and all sum numbers on their devices and look at the sums. */
#include "device_like.h"
#ifdef ASCEND
#include "hccl_like.h"
#else
#include "nccl_like.h"
#endif

#include <mpi.h>
#include <string.h>

#define COUNT 100000

int main(int argc, char **argv) {
  union {
    char bytes[4108];
#ifdef ASCEND
    root_info id;
#else
    struct {
      char rest[4108 - 128];
      unique_id id; /* the end of a root info is one */
    };
#endif
  } handed;
  int rank = 0, ranks = 0, i;
  comm_handle comm = NULL;
  static float host[COUNT];
  float *on_device;
  void *s;
  OK(MPI_Init(&argc, &argv));
  OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  OK(MPI_Comm_size(MPI_COMM_WORLD, &ranks));
  start();
  here(0);
  memset(&handed, 0, sizeof handed);
#ifdef ASCEND
  if (rank == 0) OK(HcclGetRootInfo(&handed.id));
#else
  if (rank == 0) OK(ncclGetUniqueId(&handed.id));
#endif
  OK(MPI_Bcast(handed.bytes, (int)sizeof handed, MPI_BYTE, 0, MPI_COMM_WORLD));
#ifdef ASCEND
  OK(HcclCommInitRootInfo((uint32_t)ranks, &handed.id, (uint32_t)rank, &comm));
#else
  OK(ncclCommInitRank(&comm, ranks, handed.id, rank));
#endif
  s = stream();
  on_device = allocate(sizeof host);
  for (i = 0; i < COUNT; ++i) host[i] = (float)(i % 1000 + rank);
  copy_in(on_device, host, sizeof host);
#ifdef ASCEND
  OK(HcclAllReduce(on_device, on_device, COUNT, 4, 0, comm, s));
#else
  OK(ncclAllReduce(on_device, on_device, COUNT, 7, 0, comm, s));
#endif
  wait_for(s);
  copy_out(host, on_device, sizeof host);
  for (i = 0; i < COUNT; ++i)
    if (host[i] != (float)(ranks * (i % 1000) + ranks * (ranks - 1) / 2)) {
      fprintf(stderr, "rank %d: element %d is %g\n", rank, i, (double)host[i]);
      return 1;
    }
  printf("rank %d of %d: right\n", rank, ranks);
#ifdef ASCEND
  OK(HcclCommDestroy(comm));
#else
  OK(ncclCommDestroy(comm));
#endif
  OK(MPI_Finalize());
  return 0;
}
