/* A program for NCCL, or with -DAMD for RCCL, that knows nothing of Isthmus: two ranks, threads of this process, each with its device, make
 * the calls of a training job and of its failures, and print all that they got. The same lines must come with the bare library. */
#define _GNU_SOURCE
#include "device_like.h"
#include "nccl_like.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 2
#define COUNT 1000
enum { FLOAT = 7, SUM = 0, HOST_SCALAR = 1 };

struct config { /* its beginning: `size` says that there is no more */
  size_t size;
  unsigned magic, version;
  int blocking, unused;
};

static unique_id ids[3];

struct rank {
  int rank;
  char said[1 << 14]; /* printed when all have ended, in the order of the ranks */
  size_t used;
};

static void say(struct rank *r, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  r->used += (size_t)vsnprintf(r->said + r->used, sizeof r->said - r->used, format, arguments);
  va_end(arguments);
}

static void say_floats(struct rank *r, const char *what, const float *device, int count) {
  float *host = malloc(sizeof(float) * (size_t)count);
  double sum = 0;
  int i;
  copy_out(host, device, sizeof(float) * (size_t)count);
  for (i = 0; i < count; ++i) sum += host[i] * (i % 7 + 1);
  say(r, "rank %d %s: %g %g %g\n", r->rank, what, host[0], host[count - 1], sum);
  free(host);
}

static void *work(void *argument) {
  struct rank *r = argument;
  const int peer = 1 - r->rank;
  comm_handle comm = NULL, part = NULL, slow = NULL;
  int count = 0, rank = -1, device = -1, state = -1, op = -1, i, result;
  float host[RANKS * COUNT], factor = 0.5f;
  float *a, *b;
  void *s;
  struct config config = {sizeof(struct config), 0xcafebeef, 21400, 0, INT_MIN};
  here(r->rank);
  s = stream();
  a = allocate(sizeof host);
  b = allocate(sizeof host);
  for (i = 0; i < RANKS * COUNT; ++i) host[i] = (float)(i % 100 + 1000 * r->rank);
  copy_in(a, host, sizeof host);

  OK(ncclCommInitRank(&comm, RANKS, ids[0], r->rank));
  OK(ncclCommCount(comm, &count));
  OK(ncclCommUserRank(comm, &rank));
  OK(ncclCommCuDevice(comm, &device));
  say(r, "rank %d is %d of %d on device %d\n", r->rank, rank, count, device);

  OK(ncclAllReduce(a, b, COUNT, FLOAT, SUM, comm, s));
  wait_for(s);
  say_floats(r, "all_reduce", b, COUNT);
  OK(ncclRedOpCreatePreMulSum(&op, &factor, FLOAT, HOST_SCALAR, comm));
  OK(ncclAllReduce(a, b, COUNT, FLOAT, op, comm, s));
  OK(ncclRedOpDestroy(op, comm));
  wait_for(s);
  say_floats(r, "scaled", b, COUNT);
  OK(ncclAllGather(a, b, COUNT, FLOAT, comm, s));
  wait_for(s);
  say_floats(r, "all_gather", b, RANKS * COUNT);
  OK(ncclReduceScatter(a, b, COUNT, FLOAT, SUM, comm, s));
  wait_for(s);
  say_floats(r, "reduce_scatter", b, COUNT);

  OK(ncclGroupStart());
  OK(ncclSend(a, COUNT, FLOAT, peer, comm, s));
  OK(ncclRecv(b, COUNT, FLOAT, peer, comm, s));
  OK(ncclBroadcast(a + COUNT, b + COUNT, COUNT, FLOAT, 1, comm, s));
  OK(ncclGroupEnd());
  wait_for(s);
  say_floats(r, "group", b, RANKS * COUNT);

  OK(ncclCommSplit(comm, r->rank, 0, &part, NULL));
  OK(ncclCommCount(part, &count));
  say(r, "rank %d has a part of %d\n", r->rank, count);
  OK(ncclCommDestroy(part));

  result = ncclAllReduce(a, b, COUNT, 99, SUM, comm, s);
  say(r, "rank %d: a type that there is not: %d, %s\n", r->rank, result, ncclGetErrorString(result));

  result = ncclCommInitRankConfig(&slow, RANKS, ids[1], r->rank, &config);
  say(r, "rank %d: not blocking: %d\n", r->rank, result);
  do OK(ncclCommGetAsyncError(slow, &state));
  while (state == 7);
  say(r, "rank %d: ready: %d\n", r->rank, state);
  OK(ncclCommAbort(slow));

  OK(ncclCommFinalize(comm));
  OK(ncclCommDestroy(comm));
  return NULL;
}

/* Which files the calls of this program go to, and which ones of a collective library are loaded. */
static int show(void) {
  int version = 0;
  Dl_info info;
  char line[4096];
  FILE *maps;
  OK(ncclGetVersion(&version));
  if (!dladdr((void *)(uintptr_t)&ncclGetVersion, &info)) return 4;
  printf("version %d\nanswered by %s\n", version, info.dli_fname);
  maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps))
    if (strstr(line, "r-xp") && strstr(line, "ccl.so")) printf("loaded %s", strchr(line, '/'));
  return 0;
}

int main(int argc, char **argv) {
  static struct rank ranks[RANKS];
  pthread_t threads[RANKS];
  int version = 0, i, result;
  if (argc > 1 && strcmp(argv[1], "show") == 0) return show();
  start();
  OK(ncclGetVersion(&version));
  printf("version %d\n", version);
  for (i = 0; i < 3; ++i) OK(ncclGetUniqueId(&ids[i]));
  printf("two ids are %s\n", memcmp(&ids[0], &ids[1], sizeof ids[0]) ? "two" : "one");
  for (i = 0; i < RANKS; ++i) {
    ranks[i].rank = i;
    if (pthread_create(&threads[i], NULL, work, &ranks[i])) return 4;
  }
  for (i = 0; i < RANKS; ++i) pthread_join(threads[i], NULL);
  for (i = 0; i < RANKS; ++i) {
    fputs(ranks[i].said, stdout);
    if (!strstr(ranks[i].said, " all_reduce: 1000 1198 4.39261e+06\n")) return 5;
  }
  result = ncclAllReduce(NULL, NULL, 1, FLOAT, SUM, NULL, NULL);
  printf("no communicator: %d, %s, %s\n", result, ncclGetErrorString(result), ncclGetLastError(NULL));
  for (i = 0; i < 9; ++i) printf("%d: %s\n", i, ncclGetErrorString(i));
  return 0;
}
