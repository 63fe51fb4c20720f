/* A library that looks at a handle as NCCL does: it reads where it points to. A communicator begins and ends with a number, and one whose
 * rank is -1 was destroyed before. What it takes for a communicator it would use. */
#include <stdint.h>

#include "nccl_like.h"

enum { GOOD = 0, INVALID_ARGUMENT = 4 };
static const uint64_t number = 0x0280028002800280;

/* Where ranks and the like are differs from version to version: at a multiple of 8 bytes here, not so there. */
struct comm {
  uint64_t first;
  char some[60000];
  int rank, ranks, device;
  int64_t bus;
  uint32_t *abort_flag;
  char more[200000];
  uint64_t last;
};
struct odd_comm {
  uint64_t first;
  char some[60004];
  int rank, ranks, device;
  char more[500];
  int state;
};

int ncclCommCount(comm_handle handle, int *count) {
  const struct comm *comm = handle;
  if (!comm || comm->first != number || comm->last != number) return INVALID_ARGUMENT;
  *count = comm->ranks;
  return GOOD;
}
/* As in versions that look for a communicator that was destroyed before they look at the numbers. */
int ncclCommDestroy(comm_handle handle) {
  const struct comm *comm = handle;
  const struct odd_comm *odd = handle;
  if (comm->rank != -1 && comm->ranks > 0 && comm->device != -1 && comm->bus != -1) return GOOD;
  if (odd->rank != -1 && odd->ranks > 0 && odd->device != -1) return GOOD;
  return INVALID_ARGUMENT;
}
/* As in versions that ask whether it was aborted first, and then look at the numbers. */
int ncclCommFinalize(comm_handle handle) {
  struct comm *comm = handle;
  if (*comm->abort_flag) comm->more[0] = 1; /* ends the program: a handle is not written to */
  return comm->first == number ? GOOD : INVALID_ARGUMENT;
}
/* As in versions that look at no number at all, but at what became of it last. */
int ncclCommUserRank(comm_handle handle, int *rank) {
  const struct odd_comm *comm = handle;
  if (comm->state != GOOD) return comm->state;
  *rank = comm->rank;
  return GOOD;
}
