/* The program of script.c for HCCL: the same words in its scripts, NCCL's numbers of types and reductions included.
 * Types 12 to 15 are those that it alone has: 16 bits with a sign and without, HIFLOAT8, FP8E8M0. Further words:
 *
 *   barrier STREAM
 *   batch TYPE COUNT STREAM                   a message to the next rank and one from the one before, together
 *   gather_v TYPE COUNT STREAM                rank r gives COUNT + r elements, which land with one element between each
 *   scatter_v TYPE OP COUNT STREAM            rank r gets COUNT + r elements
 *   part NUMBER RANK...                       makes a communicator of those ranks
 *   name                                      prints the communicator's
 *   nothing_v                                 gather_v, scatter_v and batch of no elements, with NULL for their memory
 *   empty_batch                               of no message
 *   huge BITS                                 sends two to the power of BITS elements of eight bytes to the next rank
 *   missing CALL                              all_reduce, broadcast, scatter or send, without memory
 *   typed TYPE OP                             an all_reduce of nothing with HCCL's own numbers
 *   meetings                                  prints how many go on of that of the further root info, `second`
 *   root                                      as `id`, for inits with several: `scalable` takes such alone
 */
#define _GNU_SOURCE
#define ASCEND
#include "hccl_like.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef root_info unique_id;
static int line_number, rank, ranks;
#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))

static int type_of(int type) {
  static const int types[] = {0, 7, 2, 9, 5, 6, 3, 4, 10, 11, 15, 16, 1, 8, 14, 17};
  return type >= 0 && type < LENGTH(types) ? types[type] : 99;
}
static int op_of(int op) { return op < 4 ? op : 99; }

static const char *ncclGetErrorString(int code) { return HcclGetErrorString(code); }
static const char *ncclGetLastError(comm_handle comm) { return comm ? "" : "-"; }
static int of_several;
static int ncclGetUniqueId(unique_id *id) { return of_several ? HcclGetRootInfoScalable(id) : HcclGetRootInfo(id); }
static int ncclCommInitRank(comm_handle *comm, int of, unique_id id, int as) {
  return HcclCommInitRootInfo((uint32_t)of, &id, (uint32_t)as, comm);
}
struct hccl_config { /* its beginning: `size` says that there is no more */
  size_t size;
  uint32_t magic, version;
  uint64_t reserved;
  uint32_t buffer_megabytes, deterministic;
  char name[128];
};
static int ncclCommInitRankConfig(comm_handle *comm, int of, unique_id id, int as, void *nccls) {
  struct hccl_config config = {sizeof(struct hccl_config), 0xf0f0f0f0, 1, 0, 200, 1, "by name"};
  (void)nccls;
  return HcclCommInitRootInfoConfig((uint32_t)of, &id, (uint32_t)as, &config, comm);
}
static int init_of_several(comm_handle *comm, int of, int as, int count, unique_id *ids, void *nccls) {
  struct hccl_config config = {sizeof(struct hccl_config), 0xf0f0f0f0, 1, 0, 200, 1, "of several"};
  (void)nccls;
  return HcclCommInitRootInfoScalable((uint32_t)of, (uint32_t)count, ids, (uint32_t)as, 0, &config, comm);
}
static int ncclCommGetAsyncError(comm_handle comm, int *state) { return HcclGetCommAsyncError(comm, state); }
static int ncclCommCount(comm_handle comm, int *count) { return HcclGetRankSize(comm, (uint32_t *)count); }
static int ncclCommUserRank(comm_handle comm, int *as) { return HcclGetRankId(comm, (uint32_t *)as); }
static int ncclCommCuDevice(comm_handle comm, int *device) {
  (void)comm;
  return aclrtGetDevice(device);
}
/* HCCL has none of these. */
static int none(const char *name) {
  fprintf(stderr, "line %d: HCCL has no %s\n", line_number, name);
  return 99;
}
static int ncclCommSplit(comm_handle comm, int color, int key, comm_handle *part, void *config) {
  return none(comm && part && (color || key || !config) ? "split" : "such split");
}
static int ncclCommAbort(comm_handle comm) { return none(comm ? "abort" : "such abort"); }
static int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, comm_handle comm) {
  return none(op && scalar && comm && (type || residence) ? "factors" : "such factors");
}
static int ncclRedOpDestroy(int op, comm_handle comm) { return none(op && comm ? "factors" : "such factors"); }
static int ncclCommFinalize(comm_handle comm) { return comm ? 0 : 1; } /* programs for HCCL wait for their streams */
static int ncclCommDestroy(comm_handle comm) { return HcclCommDestroy(comm); }
static int ncclGroupStart(void) { return HcclGroupStart(); }
static int ncclGroupEnd(void) { return HcclGroupEnd(); }
static int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, comm_handle comm, void *s) {
  return HcclAllReduce((void *)from, to, count, type_of(type), op_of(op), comm, s);
}
static int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, comm_handle comm, void *s) {
  return HcclReduce((void *)from, to, count, type_of(type), op_of(op), (uint32_t)root, comm, s);
}
static int ncclAllGather(const void *from, void *to, size_t count, int type, comm_handle comm, void *s) {
  return HcclAllGather((void *)from, to, count, type_of(type), comm, s);
}
static int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, comm_handle comm, void *s) {
  return HcclReduceScatter((void *)from, to, count, type_of(type), op_of(op), comm, s);
}
static int ncclBcast(void *buffer, size_t count, int type, int root, comm_handle comm, void *s) {
  return HcclBroadcast(buffer, count, type_of(type), (uint32_t)root, comm, s);
}
static int ncclSend(const void *from, size_t count, int type, int peer, comm_handle comm, void *s) {
  return HcclSend((void *)from, count, type_of(type), (uint32_t)peer, comm, s);
}
static int ncclRecv(void *to, size_t count, int type, int peer, comm_handle comm, void *s) {
  return HcclRecv(to, count, type_of(type), (uint32_t)peer, comm, s);
}
static int all_to_all(const void *from, void *to, size_t count, int type, comm_handle comm, void *s) {
  return HcclAlltoAll(from, count, type_of(type), to, count, type_of(type), comm, s);
}
static int scatter(const void *from, void *to, size_t count, int type, int root, comm_handle comm, void *s) {
  return HcclScatter((void *)from, to, count, type_of(type), (uint32_t)root, comm, s);
}
static int register_memory(comm_handle comm, void *p, size_t bytes, void **handle) {
  return HcclCommRegister(comm, p, bytes, handle, 0);
}
static int all_of_them(comm_handle *made, int number, const int *devices) { return HcclCommInitAll((uint32_t)number, (int32_t *)devices, made); }
static void *found(const char *name) {
  void *f;
  if (!strcmp(name, "ncclCommInitAll")) return (void *)all_of_them;
  if (!strcmp(name, "ncclCommInitRankScalable")) return (void *)init_of_several;
  if (!strcmp(name, "ncclAlltoAll")) return (void *)all_to_all;
  if (!strcmp(name, "ncclScatter")) return (void *)scatter;
  if (!strcmp(name, "ncclCommRegister")) return (void *)register_memory;
  f = dlsym(RTLD_DEFAULT, name);
  if (!f) none(name);
  return f;
}
static int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, comm_handle comm, void *s);
static int all_to_all_v(const void *from, const size_t *out, const size_t *out_places, void *to, const size_t *in, const size_t *in_places,
                        int type, comm_handle comm, void *s) {
  return HcclAlltoAllV(from, out, out_places, type_of(type), to, in, in_places, type_of(type), comm, s);
}
static int by_matrix(const void *from, void *to, const size_t *counts, int type, comm_handle comm, void *s) {
  return HcclAlltoAllVC(from, counts, type_of(type), to, type_of(type), comm, s);
}
static void more(char *line);
#include "script.c"

/* HCCL has it in place alone. */
static int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, comm_handle comm, void *s) {
  const size_t bytes = count * sizes[type];
  if (bytes && from != to) OK(aclrtMemcpyAsync(to, bytes, from, bytes, 3, s));
  return ncclBcast(to, count, type, root, comm, s);
}

static void unequal(int scatters, int type, int op, size_t count, int number) {
  uint64_t counts[16], places[16], end = 0;
  const size_t width = sizes[type], mine = count + (size_t)rank;
  void *from, *to;
  int r;
  for (r = 0; r < ranks; ++r) {
    counts[r] = count + (uint64_t)r;
    places[r] = end;
    end += counts[r] + (scatters ? 0 : 1);
  }
  from = input((scatters ? end : mine) * width, number);
  to = on_device((scatters ? mine : end) * width);
  if (scatters) told("scatter_v", HcclReduceScatterV(from, counts, places, to, mine, type_of(type), op_of(op), comms[now], streams[number]));
  else told("gather_v", HcclAllGatherV(from, mine, to, counts, places, type_of(type), comms[now], streams[number]));
  keep_output(to, (scatters ? mine : end) * width, streams[number]);
}

static void batch(int type, size_t count, int number) {
  const size_t bytes = count * sizes[type];
  message messages[2];
  memset(messages, 0, sizeof messages);
  messages[0].buffer = input(bytes, number);
  messages[0].peer = (uint32_t)((rank + 1) % ranks);
  messages[1].what = 1;
  messages[1].buffer = on_device(bytes);
  messages[1].peer = (uint32_t)((rank + ranks - 1) % ranks);
  messages[0].type = messages[1].type = type_of(type);
  messages[0].count = messages[1].count = count;
  told("batch", HcclBatchSendRecv(messages, 2, comms[now], streams[number]));
  keep_output(messages[1].buffer, bytes, streams[number]);
}

static void nothing_v(void) {
  static const uint64_t none[16];
  void *comm = comms[now], *s = streams[0];
  message messages[2];
  memset(messages, 0, sizeof messages);
  messages[0].peer = (uint32_t)((rank + 1) % ranks);
  messages[1].what = 1;
  messages[1].peer = (uint32_t)((rank + ranks - 1) % ranks);
  told("gather_v", HcclAllGatherV(NULL, 0, NULL, none, none, 4, comm, s));
  told("scatter_v", HcclReduceScatterV(NULL, none, none, NULL, 0, 4, 0, comm, s));
  told("batch", HcclBatchSendRecv(messages, 2, comm, s));
}

static void make_part(const char *numbers) {
  struct hccl_config config = {sizeof(struct hccl_config), 0xf0f0f0f0, 1, 0, 200, 1, ""};
  const int parent = now;
  uint32_t members[16], count = 0, mine = 0;
  uint64_t number = 0;
  int used = 0, got = 0;
  sscanf(numbers, "%lu%n", &number, &used);
  for (numbers += used; sscanf(numbers, "%u%n", &members[count], &got) == 1; numbers += got) {
    if (members[count] == (uint32_t)rank) mine = count;
    ++count;
  }
  now = made++;
  told("part", HcclCreateSubCommConfig(&comms[parent], count, members, number, mine, &config, &comms[now]));
}

static void missing(const char *call) {
  void *s = streams[0], *comm = comms[now];
  const uint32_t next = (uint32_t)((rank + 1) % ranks);
  if (!strcmp(call, " all_reduce\n")) told("missing", HcclAllReduce(spare, NULL, 1, 4, 0, comm, s));
  else if (!strcmp(call, " broadcast\n")) told("missing", HcclBroadcast(NULL, 1, 4, next, comm, s));
  else if (!strcmp(call, " scatter\n")) told("missing", HcclScatter(NULL, spare, 1, 4, (uint32_t)rank, comm, s));
  else if (!strcmp(call, " send\n")) told("missing", HcclSend(NULL, 1, 4, next, comm, s));
  else die(call, line_number);
}

/* Comes to the meeting of a root info as its only rank. 1: the meeting took it, so nobody had ended it. */
static int goes_on(const char *root_info_file) {
  void *library = dlopen("libisthmus.so.0.1", RTLD_LAZY | RTLD_NOLOAD), *meeting = NULL; /* the one that the door has opened */
  int (*join)(const char *, int, int, double, void **);
  int (*exchange)(void *, const void *, void *, size_t);
  const char *(*last_error)(void);
  void (*leave)(void *);
  char first[sizeof id_file];
  unique_id id;
  int code;
  strcpy(first, id_file);
  snprintf(id_file, sizeof id_file, "%s", root_info_file);
  read_id(&id);
  strcpy(id_file, first);
  if (!library) die("libisthmus.so.0.1 is not open", line_number);
  *(void **)&join = dlsym(library, "isthmus_meeting_join");
  *(void **)&exchange = dlsym(library, "isthmus_meeting_exchange");
  *(void **)&last_error = dlsym(library, "isthmus_last_error");
  *(void **)&leave = dlsym(library, "isthmus_meeting_leave");
  code = join((const char *)&id + sizeof id - 72, 0, 1, patient(30), &meeting);
  if (!code) code = exchange(meeting, NULL, NULL, 0);
  /* Who made the id may end just now. */
  if (code && !strstr(last_error(), " is over: all its ranks met") && !strstr(last_error(), "no longer listens") &&
      !strstr(last_error(), "left the rendezvous"))
    die(last_error(), line_number);
  leave(meeting);
  return !code;
}

static void more(char *line) {
  char call[64] = "", name[128] = "";
  int a = 0, b = 0, c = 0, d = 0, used = 0;
  const int given = sscanf(line, "%63s%n %d %d %d %d", call, &used, &a, &b, &c, &d);
  if (!strcmp(call, "barrier") && given == 2) told(call, HcclBarrier(comms[now], streams[a]));
  else if (!strcmp(call, "batch") && given == 4) batch(a, (size_t)b, c);
  else if (!strcmp(call, "gather_v") && given == 4) unequal(0, a, 0, (size_t)b, c);
  else if (!strcmp(call, "scatter_v") && given == 5) unequal(1, a, b, (size_t)c, d);
  else if (!strcmp(call, "typed") && given == 3) told(call, HcclAllReduce(spare, spare, 0, a, b, comms[now], streams[0]));
  else if (!strcmp(call, "nothing_v")) nothing_v();
  else if (!strcmp(call, "empty_batch")) told(call, HcclBatchSendRecv(NULL, 0, comms[now], streams[0]));
  else if (!strcmp(call, "huge") && given == 2) told(call, HcclSend(spare, (uint64_t)1 << a, 10, (uint32_t)((rank + 1) % ranks), comms[now], streams[0]));
  else if (!strcmp(call, "missing")) missing(line + used);
  else if (!strcmp(call, "part")) make_part(line + used);
  else if (!strcmp(call, "meetings")) {
    printf("%d meetings\n", goes_on("second"));
  } else if (!strcmp(call, "root")) {
    of_several = 1;
    make_id(NULL);
    of_several = 0;
  }
  else if (!strcmp(call, "name")) {
    OK(HcclGetCommName(comms[now], name));
    printf("called %s\n", name);
  } else die(line, line_number);
}
