// A door of NCCL that is slow on purpose: in front of the real door, whose other functions a program finds behind it.
#include <stddef.h>
#include <time.h>

int pncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream);

static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream) {
  for (const long long begin = now(); now() - begin < 2000;) continue;
  return pncclAllReduce(send, recv, count, type, op, comm, stream);
}
