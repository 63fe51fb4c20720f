/* A library that looks at a handle as NCCL does: it reads where it points to. A communicator begins and ends with a number, and one whose
 * rank is -1 was destroyed before. What it takes for a communicator it would use. */
#include <stdint.h>

enum { GOOD = 0, INVALID_ARGUMENT = 4 };
static const uint64_t number = 0x0280028002800280;

struct comm {
  uint64_t first;
  char some[60000];
  int rank, ranks, device;
  int64_t bus;
  char more[200000];
  uint64_t last;
};

int ncclCommCount(const struct comm *comm, int *count);
int ncclCommCount(const struct comm *comm, int *count) {
  if (!comm || comm->first != number || comm->last != number) return INVALID_ARGUMENT;
  *count = comm->ranks;
  return GOOD;
}
/* As in versions that look for a communicator that was destroyed before they look at the numbers. */
int ncclCommDestroy(struct comm *comm);
int ncclCommDestroy(struct comm *comm) {
  if (comm->rank == -1 || comm->ranks <= 0 || comm->device == -1 || comm->bus == -1) return INVALID_ARGUMENT;
  return GOOD;
}
