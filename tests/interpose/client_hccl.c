/* A program for HCCL that knows nothing of Isthmus: two ranks, threads of this process, each with its device, make the calls of a training
 * job and of its failures, and print all that they got. The same lines must come with the bare library. */
#define _GNU_SOURCE
#include "hccl_like.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 2
#define COUNT 1000
enum { FLOAT = 4, SUM = 0, MAX = 2, NOWHERE = 9 };

static void die(const char *what, long code) {
  fprintf(stderr, "%s gave %ld\n", what, code);
  exit(3);
}
#define OK(call)                       \
  do {                                 \
    const long ok_ = (long)(call);     \
    if (ok_ != 0) die(#call, ok_);     \
  } while (0)

struct config { /* its beginning: `size` says that there is no more */
  size_t size;
  uint32_t magic, version;
  uint64_t reserved;
  uint32_t buffer_megabytes, deterministic;
  char name[128];
};

static root_info roots[3];
static comm_handle all[RANKS];

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

static void say_floats(struct rank *r, const char *what, void *stream, const float *device, int count) {
  float *host = malloc(sizeof(float) * (size_t)count);
  double sum = 0;
  int i;
  OK(aclrtSynchronizeStream(stream));
  OK(aclrtMemcpy(host, sizeof(float) * (size_t)count, device, sizeof(float) * (size_t)count, 2));
  for (i = 0; i < count; ++i) sum += host[i] * (i % 7 + 1);
  say(r, "rank %d %s: %g %g %g\n", r->rank, what, host[0], host[count - 1], sum);
  free(host);
}

static void *work(void *argument) {
  struct rank *r = argument;
  const uint32_t me = (uint32_t)r->rank, peer = 1 - me;
  comm_handle comm = NULL, part = NULL, named = NULL, nothing = NULL;
  struct config config = {sizeof(struct config), 0xf0f0f0f0, 1, 0, 200, 1, "by name"};
  uint64_t counts[RANKS] = {COUNT, 10}, offsets[RANKS] = {0, COUNT}, fives[RANKS] = {5, 5}, apart[RANKS] = {0, 500};
  uint32_t size = 0, rank = 9, alone[1];
  int state = -1, i, result;
  char name[128];
  float host[RANKS * COUNT];
  float *a = NULL, *b = NULL;
  void *s = NULL;
  message messages[2];
  OK(aclrtSetDevice(r->rank));
  OK(aclrtCreateStream(&s));
  OK(aclrtMalloc((void **)&a, sizeof host, 0));
  OK(aclrtMalloc((void **)&b, sizeof host, 0));
  for (i = 0; i < RANKS * COUNT; ++i) host[i] = (float)(i % 100 + 1000 * r->rank);
  OK(aclrtMemcpy(a, sizeof host, host, sizeof host, 1));
  OK(aclrtMemcpy(b, sizeof host, host, sizeof host, 1));

  OK(HcclCommInitRootInfo(RANKS, &roots[0], me, &comm));
  OK(HcclGetRankSize(comm, &size));
  OK(HcclGetRankId(comm, &rank));
  say(r, "rank %d is %u of %u\n", r->rank, rank, size);

  OK(HcclAllReduce(a, b, COUNT, FLOAT, SUM, comm, s));
  say_floats(r, "all_reduce", s, b, COUNT);
  OK(HcclReduce(a, b, COUNT, FLOAT, MAX, 1, comm, s));
  say_floats(r, "reduce", s, b, COUNT);
  OK(HcclAllGather(a, b, COUNT, FLOAT, comm, s));
  say_floats(r, "all_gather", s, b, RANKS * COUNT);
  OK(HcclReduceScatter(a, b, COUNT, FLOAT, SUM, comm, s));
  say_floats(r, "reduce_scatter", s, b, COUNT);
  OK(HcclAllGatherV(a, counts[me], b, counts, offsets, FLOAT, comm, s));
  say_floats(r, "all_gather_v", s, b, COUNT + 10);
  OK(HcclAlltoAll(a, COUNT, FLOAT, b, COUNT, FLOAT, comm, s));
  say_floats(r, "all_to_all", s, b, RANKS * COUNT);
  OK(HcclAlltoAllV(a, fives, apart, FLOAT, b, fives, apart, FLOAT, comm, s));
  say_floats(r, "all_to_all_v", s, b, RANKS * COUNT);
  OK(HcclScatter(a, b, COUNT, FLOAT, 1, comm, s));
  say_floats(r, "scatter", s, b, COUNT);
  OK(HcclBroadcast(b, COUNT, FLOAT, 1, comm, s));
  say_floats(r, "broadcast", s, b, COUNT);

  if (r->rank == 0) OK(HcclSend(a, COUNT, FLOAT, peer, comm, s));
  else OK(HcclRecv(b, COUNT, FLOAT, peer, comm, s));
  say_floats(r, "message", s, b, COUNT);
  memset(messages, 0, sizeof messages);
  for (i = 0; i < 2; ++i) {
    messages[i].what = i;
    messages[i].buffer = i ? (void *)b : (void *)a;
    messages[i].count = COUNT;
    messages[i].type = FLOAT;
    messages[i].peer = peer;
  }
  OK(HcclBatchSendRecv(messages, 2, comm, s));
  say_floats(r, "batch", s, b, COUNT);
  OK(HcclBarrier(comm, s));
  OK(aclrtSynchronizeStream(s));

  alone[0] = me;
  config.name[0] = 0;
  OK(HcclCreateSubCommConfig(&comm, 1, alone, 7 + me, 0, &config, &part));
  OK(HcclGetRankSize(part, &size));
  say(r, "rank %d has a part of %u\n", r->rank, size);
  OK(HcclCommDestroy(part));

  strcpy(config.name, "by name");
  OK(HcclCommInitRootInfoConfig(RANKS, &roots[1], me, &config, &named));
  OK(HcclGetCommName(named, name));
  say(r, "rank %d: called %s\n", r->rank, name);
  OK(HcclCommSuspend(named));
  result = HcclAllReduce(a, b, COUNT, FLOAT, SUM, named, s);
  say(r, "rank %d: suspended: %d, %s\n", r->rank, result, HcclGetErrorString(result));
  OK(HcclCommResume(named));
  OK(HcclGetCommAsyncError(named, &state));
  say(r, "rank %d: state %d\n", r->rank, state);
  OK(HcclCommDestroy(named));

  result = HcclAllReduce(a, b, COUNT, 99, SUM, comm, s);
  say(r, "rank %d: a type that there is not: %d, %s\n", r->rank, result, HcclGetErrorString(result));
  result = HcclCommInitClusterInfo("/nowhere", me, &nothing);
  say(r, "rank %d: a file that there is not: %d, %s\n", r->rank, result, HcclGetErrorString(result));

  OK(HcclAllReduce(a, b, COUNT, FLOAT, SUM, all[me], s));
  say_floats(r, "of all", s, b, COUNT);
  OK(HcclCommDestroy(all[me]));
  OK(HcclCommDestroy(comm));
  return NULL;
}

/* Which files the calls of this program go to, and which ones of a collective library are loaded. */
static int show(void) {
  Dl_info info;
  char line[4096];
  FILE *maps;
  const unsigned capability = HcclGetCommConfigCapability();
  if (!dladdr((void *)(uintptr_t)&HcclGetCommConfigCapability, &info)) return 4;
  printf("capability %u\nanswered by %s\n", capability, info.dli_fname);
  maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps))
    if (strstr(line, "r-xp") && strstr(line, "ccl.so")) printf("loaded %s", strchr(line, '/'));
  return 0;
}

int main(int argc, char **argv) {
  static struct rank ranks[RANKS];
  pthread_t threads[RANKS];
  int32_t devices[RANKS] = {0, 1};
  setting to = {1}, is = {9};
  int i, result;
  if (argc > 1 && strcmp(argv[1], "show") == 0) return show();
  OK(aclInit(NULL));
  OK(aclrtSetDevice(0));
  printf("capability %u\n", HcclGetCommConfigCapability());
  OK(HcclSetConfig(0, to));
  OK(HcclGetConfig(0, &is));
  printf("set to %d\n", is.value);
  for (i = 0; i < 3; ++i) OK(HcclGetRootInfo(&roots[i]));
  printf("two roots are %s\n", memcmp(&roots[0], &roots[1], sizeof roots[0]) ? "two" : "one");
  OK(HcclCommInitAll(RANKS, devices, all));
  for (i = 0; i < RANKS; ++i) {
    ranks[i].rank = i;
    if (pthread_create(&threads[i], NULL, work, &ranks[i])) return 4;
  }
  for (i = 0; i < RANKS; ++i) pthread_join(threads[i], NULL);
  for (i = 0; i < RANKS; ++i) {
    fputs(ranks[i].said, stdout);
    if (!strstr(ranks[i].said, " all_reduce: 1000 1198 4.39261e+06\n")) return 5;
  }
  result = HcclAllReduce(NULL, NULL, 1, FLOAT, SUM, NULL, NULL);
  printf("no communicator: %d, %s\n", result, HcclGetErrorString(result));
  result = HcclCommInitRootInfo(RANKS, &roots[2], NOWHERE, &all[0]);
  printf("no such rank: %d, %s\n", result, HcclGetErrorString(result));
  for (i = 0; i < 25; ++i) printf("%d: %s\n", i, HcclGetErrorString(i));
  return 0;
}
