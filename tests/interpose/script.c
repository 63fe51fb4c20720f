/* A program for NCCL, with -DAMD for RCCL, or as part of script_hccl.c for HCCL, that knows nothing of Isthmus: one rank, which makes the calls that a script says.
 *   script RANK RANKS FOLDER
 * It gets the unique id in FOLDER/id, which the rank with a script that says `id` leaves there, reads the calls from FOLDER/script.RANK and
 * their inputs, one after the other, from FOLDER/in.RANK, and writes the outputs to FOLDER/out.RANK. Prints what the program is told.
 *
 *   device N                                               works on that device from now on (at first on $DEVICE), with streams of its own
 *   id                                                     gets a unique id and gives it to all
 *   use NAME                                               from now on ids are left and found in that file, not in id
 *   init [BLOCKING]                                        a communicator of all ranks; the communicators have numbers from 0 on
 *   join RANK RANKS [BLOCKING]                             the same with that rank, inside of a group say
 *   scalable RANK RANKS NAME                               the same with two ids: that of the file which `use` names, and of NAME
 *   multi                                                  init by the function for several ranks of one device (RCCL)
 *   all N                                                  communicators of this process alone, one of each of its devices from N - 1 to 0
 *   early RANK RANKS                                       the same; the program copies the handle when the call returns, and uses its variable
 *                                                          for something else. Prints if that is written to later
  *   early_part COLOR KEY                                       the same for a split
 *   resolved                                               waits until the variable has another handle than the one remembered, and prints
 *   gone RANK RANKS                                        as early; the memory of the variable is unmapped when the call returns
 *   wrong TIMES                                            broadcasts from so many ranks that there are not; prints the last error's text
 *   keep, changed                                          remembers the handle, and prints if the variable has another one now
 *   recall                                                 uses the handle that it remembers
 *   comm N                                                 what follows is of that one
 *   split COLOR KEY                                        makes one more (or none: the number is used up all the same)
 *   shrink N FLAGS                                         makes one more, of all ranks but that one; -1: of all
 *   revoke FLAGS
 *   revoke_upon NAME                                       as abort_upon
 *   grow_id                                                gets an id from the communicator and gives it to all
 *   grow RANKS GIVES [BLOCKING]                            makes one more, with further ranks; GIVES 1: gives the id, 0: another one does
 *   come RANK RANKS [BLOCKING]                             comes to such a one, with the id
 *   ask                                                    prints count, rank and device
 *   CALL TYPE OP COUNT ROOT INPLACE STREAM                 an operation; OP -1 is the last factor that was made
 *   exchange TYPE COUNT STREAM MATRIX                      rank s sends rank d COUNT + s + 2 d elements (RCCL, HCCL); MATRIX 1: as HCCL's AlltoAllVC
 *                                                          INPLACE 2: with NULL for its memory, where there is nothing of it
 *   exchange_nothing MATRIX                                no elements at all, from and to NULL
 *   build FORM CALL TYPE COUNT ROOT STREAM                 an exchange of blocks as a build of PyTorch makes it. CALL is even, uneven (rank s sends rank d
 *                                                          COUNT * ((s + 2 d) % 3) elements), gather or scatter. FORM is call: the library's function;
 *                                                          group: sends and receives, none of them without elements; zeros: with those, too
 *   then STREAM                                            copies the last output there; what was copied is one more output
 *   kind STREAM KIND                                       that stream is from now on 0, 1: the NULL one, 2: the thread's, 3: a blocking one, 4: not so
 *   bare CALL STREAM                                       all_reduce, broadcast, send (to the next rank) or recv (from the one before) of one
 *                                                          float, signal (NCCL, RCCL) or enqueue (HCCL), and nothing else: no memory, no copies, no output
 *   wild MINE INPUT STREAM                                 all_reduce with an address of nothing, or of the program's own memory (MINE 1), for its
 *                                                          output, or its input
 *   scale TYPE RESIDENCE [STREAM]                          makes a factor of the next input; with a stream that copies it to the device
 *   unscale                                                destroys it
 *   group, end                                             begins and ends a group
 *   simulate                                               ends it without doing anything of it, and prints how long it would take
 *   hold STREAM, release                                   what is given to the stream now waits, inputs of operations too; until
 *   later MILLISECONDS NAME                                the same after so long, on another thread, which prints before that whether the file is there
 *   capture STREAM, stop STREAM                            records a graph
 *   peek                                                   waits for the stream of the last operation and prints the first byte of its output
 *   refuse N                                               of the threads that are made from now on, one is not, after N that are (refuse.c)
 *   starve N                                               of this thread's requests for memory one is refused, after N that are not (refuse.c)
 *   wait                                                   for all streams; then writes the outputs of all operations since the last one
 *   poll CODE                                              asks for the communicator's state until it is not CODE, and prints it
 *   finalize, destroy, abort
 *   abort_later MILLISECONDS                               aborts the communicator after so long, on another thread, and goes on
 *   abort_upon NAME                                        the same when that file is there
 *   abort_in STATE                                         aborts the communicator when it is in that state, on another thread, and goes on
 *   suspend, register                                      calls a function that is the vendor's alone; a handle that it gave is given back
 *   stray                                                  gives the handle to functions of the library that $CAREFUL names (careful.c)
 *   sleep MILLISECONDS
 *   touch NAME, expect NAME, kill                          leaves a file, waits for one, ends the process as the kernel would
 */
#define _GNU_SOURCE
#include "device_like.h"
#ifndef ASCEND /* script_hccl.c says those calls in HCCL's words */
#include "nccl_like.h"
#endif
#include "nccl_alone_like.h"
#include "nccl_newer_like.h"
#include "rccl_alone_like.h"
#include "rccl_older_like.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STREAMS = 3, DEVICES = 4, COMMS = 16, OUTPUTS = 4096 };

static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, 2, 2, 1, 1}; /* from 12 on those that HCCL alone has */
static const char *folder;
static int rank, ranks, line_number, last_op;
static comm_handle comms[COMMS];
static int made, now, comm_rank[COMMS], comm_ranks[COMMS];
static void *all_streams[DEVICES][STREAMS], **streams;
static void *spare;
static volatile uint64_t *words[STREAMS];
static int held;
static FILE *in, *out;
static struct output {
  void *device;
  size_t bytes;
  int on;
  void *stream;
} outputs[OUTPUTS];
static int outputs_used;

static int device_now;
static char id_file[64] = "id";

/* Memory is there before any stream is held up, because allocating may wait for all of them. */
enum { ARENA = 8 << 20 };
static struct arena {
  char *at;
  size_t left;
} arenas[DEVICES], pinned_arena;

static void *pinned(size_t bytes) {
  const size_t whole = (bytes / 4096 + 1) * 4096;
  char *p = pinned_arena.at;
  if (whole > pinned_arena.left) {
    p = aligned_alloc(4096, whole);
    memset(p, 0, whole);
    pin(p, whole);
    return p;
  }
  pinned_arena.at += whole;
  pinned_arena.left -= whole;
  return p;
}

/* Of zeros. */
static void *on_device(size_t bytes) {
  struct arena *a = &arenas[device_now];
  const size_t whole = (bytes / 256 + 1) * 256;
  void *p = a->at;
  if (whole > a->left) {
    void *zeros = calloc(1, whole);
    p = allocate(whole);
    copy_in(p, zeros, whole);
    free(zeros);
    return p;
  }
  a->at += whole;
  a->left -= whole;
  return p;
}

static void work_on(int device) {
  int i;
  here(device);
  device_now = device;
  streams = all_streams[device];
  for (i = 0; i < STREAMS && !streams[i]; ++i) streams[i] = stream();
  if (!arenas[device].at) {
    arenas[device].at = on_device(ARENA);
    arenas[device].left = ARENA;
  }
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* As long as that on an idle machine: tests/patience.py. */
static double patient(double of_idle) {
  const char *factor = getenv("TEST_PATIENCE");
  return of_idle * (factor && atof(factor) > 1 ? atof(factor) : 1);
}

static const char *file(const char *name) {
  static __thread char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static void told(const char *call, int code) {
  if (code == 0) return;
  printf("%d %s: %d, %s, %s\n", line_number, call, code, ncclGetErrorString(code), ncclGetLastError(comms[now]));
  fflush(stdout);
}

static void expect(const char *name) {
  const double until = seconds() + patient(60);
  while (access(file(name), R_OK) != 0) {
    if (seconds() > until) die(name, -1);
    usleep(2000);
  }
}
static void touch(const char *name) {
  FILE *f = fopen(file(name), "w");
  if (!f || fclose(f)) die(name, -1);
}

static void *read_input(size_t bytes) {
  void *p = pinned(bytes);
  if (bytes && fread(p, 1, bytes, in) != bytes) die("reading the input of line", line_number);
  return p;
}

/* What only newer libraries have, or one vendor's. */
#define FOUND(name) ((__typeof__(&name))found(#name))
static void *found(const char *name);

static void make_id(comm_handle of) {
  static unique_id id; /* one variable for all ids, and before the first one it holds anything */
  static int used;
  FILE *f;
  char part[32], from[4096]; /* several ranks may make one */
  snprintf(part, sizeof part, "id.part.%d", rank);
  f = fopen(file(part), "w");
  if (!used++) memset(&id, 0xaa, sizeof id);
  if (of) told("grow_id", FOUND(ncclCommGetUniqueId)(of, &id));
  else OK(ncclGetUniqueId(&id));
  if (!f || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f)) die("writing the id", line_number);
  strcpy(from, file(part));
  if (rename(from, file(id_file))) die("renaming the id", line_number);
}

struct config { /* its beginning: `size` says that there is no more */
  size_t size;
  unsigned magic, version;
  int blocking, unused;
};

/* Its last bytes are an id of NCCL's or RCCL's, and those of HCCL's longer root info are so, too. */
static void read_id(unique_id *id) {
  size_t bytes;
  FILE *f;
  expect(id_file);
  f = fopen(file(id_file), "r");
  if (!f || fseek(f, 0, SEEK_END)) die("reading the id", line_number);
  memset(id, 0, sizeof *id);
  bytes = (size_t)ftell(f) < sizeof *id ? (size_t)ftell(f) : sizeof *id;
  if (fseek(f, -(long)bytes, SEEK_END) || fread((char *)id + sizeof *id - bytes, bytes, 1, f) != 1) die("reading the id", line_number);
  fclose(f);
}

static void init(int as, int of, int blocking) {
  struct config config = {sizeof(struct config), 0xcafebeef, 21400, 0, INT_MIN};
  unique_id id;
  read_id(&id);
  config.blocking = blocking;
  now = made++;
  told("init", blocking < 0 ? ncclCommInitRank(&comms[now], of, id, as) : ncclCommInitRankConfig(&comms[now], of, id, as, &config));
}

static void grow(comm_handle from, int as, int of, int gives, int blocking) {
  struct config config = {sizeof(struct config), 0xcafebeef, 22900, 0, INT_MIN};
  unique_id id;
  if (gives) read_id(&id);
  config.blocking = blocking;
  now = made++;
  told("grow", FOUND(ncclCommGrow)(from, of, gives ? &id : NULL, as, &comms[now], blocking < 0 ? NULL : &config));
}

static char something_else;
static comm_handle kept;
static comm_handle early_variable[COMMS];

static void init_early(int as, int of) {
  comm_handle *variable;
  unique_id id;
  read_id(&id);
  now = made++;
  variable = &early_variable[now];
  told("early", ncclCommInitRank(variable, of, id, as));
  comms[now] = *variable;
  *variable = &something_else;
}

static void init_gone(int as, int of) {
  comm_handle *variable = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  unique_id id;
  read_id(&id);
  now = made++;
  if (variable == MAP_FAILED) die("mmap", line_number);
  told("gone", ncclCommInitRank(variable, of, id, as));
  comms[now] = *variable;
  if (munmap(variable, 4096)) die("munmap", line_number);
}

static void resolved(void) {
  const double until = seconds() + patient(20);
  volatile comm_handle *variable = (volatile comm_handle *)&comms[now];
  while (*variable == kept && seconds() < until) usleep(1000);
  printf("it %s\n", *variable == kept ? "is the same" : "has changed");
}

static void wrong(int times) {
  int i;
  for (i = 0; i < times; ++i)
    if (ncclBroadcast(spare, spare, 1, 7, 1000 + i, comms[now], streams[0]) == 0) die("a broadcast from nobody", i);
  printf("%s\n", ncclGetLastError(NULL));
}

#ifndef ASCEND
static void *found(const char *name) {
  void *f = dlsym(RTLD_DEFAULT, name);
  if (!f) die(name, line_number);
  return f;
}
static void more(char *line) { die(line, line_number); }
static int all_to_all_v(const void *from, const size_t *out, const size_t *out_places, void *to, const size_t *in, const size_t *in_places,
                        int type, comm_handle comm, void *s) {
  return FOUND(ncclAlltoAllv)(from, out, out_places, to, in, in_places, type, comm, s);
}
static int by_matrix(const void *from, void *to, const size_t *counts, int type, comm_handle comm, void *s) {
  printf("none for %p %p %p %d %p %p\n", from, to, (const void *)counts, type, comm, s);
  die("a matrix of counts", line_number);
  return 0;
}
#endif

static void init_multi(void) {
  unique_id id;
  read_id(&id);
  now = made++;
  told("multi", FOUND(ncclCommInitRankMulti)(&comms[now], ranks, id, rank, rank));
}

static void init_scalable(int as, int of, const char *further) {
  char first[sizeof id_file];
  unique_id ids[2];
  read_id(&ids[0]);
  strcpy(first, id_file);
  snprintf(id_file, sizeof id_file, "%s", further);
  read_id(&ids[1]);
  strcpy(id_file, first);
  now = made++;
  told("scalable", FOUND(ncclCommInitRankScalable)(&comms[now], of, as, 2, ids, NULL));
}

static void init_all(int number) {
  int devices[DEVICES], i;
  for (i = 0; i < number; ++i) devices[i] = number - 1 - i;
  told("all", FOUND(ncclCommInitAll)(&comms[made], number, devices));
  now = made;
  made += number;
}

static void simulate(void) {
  struct {
    size_t size;
    unsigned magic, version;
    float seconds;
  } info = {sizeof info, 0x74685283, 22200, -1};
  told("simulate", FOUND(ncclGroupSimulateEnd)(&info));
  printf("%d simulated: %g\n", line_number, (double)info.seconds);
}

static void keep_output(void *at, size_t bytes, void *stream) {
  if (outputs_used == OUTPUTS) die("outputs", OUTPUTS);
  outputs[outputs_used].device = at;
  outputs[outputs_used].on = device_now;
  outputs[outputs_used].stream = stream;
  outputs[outputs_used++].bytes = bytes;
}
static void *input(size_t bytes, int number) {
  void *host = read_input(bytes), *there = on_device(bytes);
  if (bytes) copy_later(there, host, bytes, streams[number]);
  return there;
}

static void exchange(int type, size_t count, int number, int matrix) {
  size_t all[16 * 16], out_counts[16], out_places[16], in_counts[16], in_places[16], sent = 0, got = 0;
  void *from, *to, *s = streams[number];
  int a, b;
  for (a = 0; a < ranks; ++a)
    for (b = 0; b < ranks; ++b) all[a * ranks + b] = count + (size_t)a + 2 * (size_t)b;
  for (a = 0; a < ranks; ++a) {
    out_counts[a] = all[rank * ranks + a];
    in_counts[a] = all[a * ranks + rank];
    out_places[a] = sent;
    in_places[a] = got;
    sent += out_counts[a];
    got += in_counts[a];
  }
  from = input(sent * sizes[type], number);
  to = on_device(got * sizes[type]);
  if (matrix) told("exchange", by_matrix(from, to, all, type, comms[now], s));
  else told("exchange", all_to_all_v(from, out_counts, out_places, to, in_counts, in_places, type, comms[now], s));
  keep_output(to, got * sizes[type], s);
}

static comm_handle to_abort;
static int abort_milliseconds, abort_state;
static char abort_file[64];
static void *aborts(void *nothing) {
  if (*abort_file) expect(abort_file);
  else usleep(1000u * (unsigned)abort_milliseconds);
  ncclCommAbort(to_abort);
  return nothing;
}
static void *revokes(void *nothing) {
  expect(abort_file);
  FOUND(ncclCommRevoke)(to_abort, 0);
  return nothing;
}
static void *aborts_in(void *nothing) {
  const double until = seconds() + patient(30);
  int state = -1;
  while (state != abort_state && seconds() < until) {
    if (ncclCommGetAsyncError(to_abort, &state)) break;
    usleep(1000);
  }
  ncclCommAbort(to_abort);
  return nothing;
}
static void abort_on_a_thread(void *(*run)(void *)) {
  pthread_t thread;
  to_abort = comms[now];
  if (pthread_create(&thread, NULL, run, NULL) || pthread_detach(thread)) die("a thread that aborts", 0);
}
static void abort_later(int milliseconds) {
  abort_milliseconds = milliseconds;
  abort_on_a_thread(aborts);
}
static void abort_in(int state) {
  abort_state = state;
  abort_on_a_thread(aborts_in);
}

static int block(const char *call, int from, int to, int root) { /* how many counts */
  if (!strcmp(call, "uneven")) return (from + 2 * to) % 3;
  return !strcmp(call, "even") || (!strcmp(call, "gather") ? to : from) == root;
}

static void by_build(const char *form, const char *call, int type, size_t count, int root, int number) {
  size_t out_counts[16], out_places[16], in_counts[16], in_places[16], sent = 0, got = 0;
  const int even = !strcmp(call, "even"), uneven = !strcmp(call, "uneven"), gathers = !strcmp(call, "gather");
  char *from, *to, *s = streams[number];
  int r, code;
  for (r = 0; r < ranks; ++r) {
    out_counts[r] = count * (size_t)block(call, rank, r, root);
    in_counts[r] = count * (size_t)block(call, r, rank, root);
    out_places[r] = sent;
    in_places[r] = got;
    sent += out_counts[r];
    got += in_counts[r];
  }
  from = input(sent * sizes[type], number);
  to = on_device(got * sizes[type]);
  if (!strcmp(form, "call")) {
    if (even) code = FOUND(ncclAlltoAll)(from, to, count, type, comms[now], s);
    else if (uneven) code = all_to_all_v(from, out_counts, out_places, to, in_counts, in_places, type, comms[now], s);
    else code = (gathers ? FOUND(ncclGather) : FOUND(ncclScatter))(from, to, count, type, root, comms[now], s);
    told(call, code);
  } else {
    const int zeros = !strcmp(form, "zeros"), own = even || uneven; /* else the root copies its own block */
    if (!own && rank == root && count) copy_there(to + in_places[rank] * sizes[type], from + out_places[rank] * sizes[type], count * sizes[type], s);
    told("group", ncclGroupStart());
    for (r = 0; r < ranks; ++r) {
      if (!own && r == rank) continue;
      if (zeros || out_counts[r]) told("send", ncclSend(from + out_places[r] * sizes[type], out_counts[r], type, r, comms[now], s));
      if (zeros || in_counts[r]) told("recv", ncclRecv(to + in_places[r] * sizes[type], in_counts[r], type, r, comms[now], s));
    }
    told("end", ncclGroupEnd());
  }
  keep_output(to, got * sizes[type], s);
}

static void exchange_nothing(int matrix) {
  static const size_t none[16 * 16];
  if (matrix) told("exchange", by_matrix(NULL, NULL, none, 7, comms[now], streams[0]));
  else told("exchange", all_to_all_v(NULL, none, none, NULL, none, none, 7, comms[now], streams[0]));
}

static void operate(const char *call, int type, int op, size_t count, int root, int in_place, int number) {
  const int known = comm_ranks[now] || (ncclCommCount(comms[now], &comm_ranks[now]) == 0 && ncclCommUserRank(comms[now], &comm_rank[now]) == 0);
  const size_t bytes = count * sizes[type], all = bytes * (size_t)comm_ranks[now], place = bytes * (size_t)comm_rank[now];
  const int gathers = !strcmp(call, "all_gather"), scatters = !strcmp(call, "reduce_scatter"), rooted = !strcmp(call, "scatter"), collects = !strcmp(call, "gather"),
            exchanges = !strcmp(call, "all_to_all"), receives = !strcmp(call, "recv");
  const size_t from_bytes = scatters || rooted || exchanges ? all : receives ? 0 : bytes, to_bytes = gathers || collects || exchanges ? all : !strcmp(call, "send") ? 0 : bytes;
  const size_t largest = from_bytes > to_bytes ? from_bytes : to_bytes;
  void *host = read_input(from_bytes), *s = streams[number];
  char *from, *to;
  int code;
  if (!known) die("asking for the rank", line_number);
  if (in_place == 2 && largest == 0) {
    from = to = NULL;
  } else if (in_place) {
    from = to = on_device(largest);
    if (gathers) from += place;
    if (scatters) to += place;
  } else {
    from = on_device(from_bytes);
    to = on_device(to_bytes);
  }
  if (from_bytes && number >= 0) copy_later(from, host, from_bytes, s);
  if (op < 0) op = last_op;
  if (!strcmp(call, "all_reduce")) code = ncclAllReduce(from, to, count, type, op, comms[now], s);
  else if (!strcmp(call, "reduce")) code = ncclReduce(from, to, count, type, op, root, comms[now], s);
  else if (!strcmp(call, "broadcast")) code = ncclBroadcast(from, to, count, type, root, comms[now], s);
  else if (!strcmp(call, "bcast")) code = ncclBcast(to = from, count, type, root, comms[now], s);
  else if (gathers) code = ncclAllGather(from, to, count, type, comms[now], s);
  else if (scatters) code = ncclReduceScatter(from, to, count, type, op, comms[now], s);
  else if (!strcmp(call, "send")) code = ncclSend(from, count, type, root, comms[now], s);
  else if (receives) code = ncclRecv(to, count, type, root, comms[now], s);
  else if (exchanges) code = FOUND(ncclAlltoAll)(from, to, count, type, comms[now], s);
  else if (collects || rooted)
    code = (collects ? FOUND(ncclGather) : FOUND(ncclScatter))(from, to, count, type, root, comms[now], s);
  else die(call, line_number);
  told(call, code);
  keep_output(to, to_bytes, s);
}

static void bare(const char *call, void *s) {
  const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  if (!strcmp(call, "all_reduce")) told(call, ncclAllReduce(spare, spare, 1, 7, 0, comms[now], s));
  else if (!strcmp(call, "broadcast")) told(call, ncclBroadcast(spare, spare, 1, 7, 0, comms[now], s));
  else if (!strcmp(call, "send")) told(call, ncclSend(spare, 1, 7, next, comms[now], s));
  else if (!strcmp(call, "recv")) told(call, ncclRecv(spare, 1, 7, before, comms[now], s));
#ifdef ASCEND
  else if (!strcmp(call, "enqueue")) told(call, ((int (*)(comm_handle, const void *, void *, void *))found("HcclGroupEnqueueOp"))(comms[now], NULL, s, NULL));
#else
  else if (!strcmp(call, "signal")) told(call, FOUND(ncclSignal)(next, 0, 0, 0, comms[now], s));
#endif
  else die(call, line_number);
}

static void wild(int mine, int input, void *s) {
  static float own[100];
  void *nothing = (void *)(uintptr_t)0x7eadbeef0000, *wrong = mine ? (void *)own : nothing;
  told("wild", ncclAllReduce(input ? wrong : spare, input ? spare : wrong, 1, 7, 0, comms[now], s));
}

static void wait_for_all(void) {
  const int before = device_now;
  int i, d;
  for (d = 0; d < DEVICES; ++d) {
    if (!all_streams[d][0]) continue;
    work_on(d);
    for (i = 0; i < STREAMS; ++i) wait_for(streams[i]);
  }
  for (i = 0; i < outputs_used; ++i) {
    void *host = malloc(outputs[i].bytes + 1);
    work_on(outputs[i].on);
    if (outputs[i].bytes) copy_out(host, outputs[i].device, outputs[i].bytes);
    if (fwrite(host, 1, outputs[i].bytes, out) != outputs[i].bytes) die("writing the output of line", line_number);
    free(host);
  }
  outputs_used = 0;
  work_on(before);
}

static void copy_behind(int number) {
  const struct output last = outputs[outputs_used - 1];
  void *to = on_device(last.bytes);
  copy_there(to, last.device, last.bytes, streams[number]);
  keep_output(to, last.bytes, streams[number]);
}

static void peek(void) {
  unsigned char first = 0;
  const int i = outputs_used - 1;
  if (i >= 0) wait_for(outputs[i].stream);
  if (i >= 0 && outputs[i].bytes) copy_out(&first, outputs[i].device, 1);
  printf("%d peek: %d\n", line_number, first);
}

static void poll_while(int code) {
  const double until = seconds() + patient(30);
  int state = code;
  while (state == code && seconds() < until) {
    OK(ncclCommGetAsyncError(comms[now], &state));
    usleep(1000);
  }
  printf("%d state: %d, %s\n", line_number, state, state ? ncclGetLastError(comms[now]) : "");
  fflush(stdout);
}

static void release(void) {
  while (held) __atomic_store_n(words[--held], 1, __ATOMIC_RELEASE);
}
static int later_milliseconds, releasing;
static char later_file[64];
static pthread_t releaser;
static void *release_later(void *unused) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, later_file);
  usleep(1000u * (unsigned)later_milliseconds);
  printf("%s is %s\n", later_file, access(path, R_OK) == 0 ? "there" : "not there");
  fflush(stdout);
  release();
  return unused;
}
static void begin_release(void) {
  OK(pthread_create(&releaser, NULL, release_later, NULL));
  releasing = 1;
}
/* What it reads and writes is this thread's again. */
static void end_release(void) {
  if (releasing) OK(pthread_join(releaser, NULL));
  releasing = 0;
}

/* The handle where it does not belong: a library of the vendor's, called past the door. */
static void stray(void) {
  const char *path = getenv("CAREFUL");
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  int (*count)(comm_handle, int *) = library ? (int (*)(comm_handle, int *))dlsym(library, "ncclCommCount") : NULL;
  int (*user_rank)(comm_handle, int *) = library ? (int (*)(comm_handle, int *))dlsym(library, "ncclCommUserRank") : NULL;
  int (*destroy)(comm_handle) = library ? (int (*)(comm_handle))dlsym(library, "ncclCommDestroy") : NULL;
  int (*finalize)(comm_handle) = library ? (int (*)(comm_handle))dlsym(library, "ncclCommFinalize") : NULL;
  int got = -1;
  if (!count || !user_rank || !destroy || !finalize) die("the library is not there", 0);
  printf("%d stray: %d %d %d", line_number, count(comms[now], &got), user_rank(comms[now], &got) != 0, got);
  printf(" %d %d\n", destroy(comms[now]), finalize(comms[now]));
}

static void obey(char *line) {
  char call[64] = "", word[64] = "", form[64] = "";
  int a = 0, b = 0, c = 0, d = 0, e = 0, count = 0, given;
  long n = 0;
  given = sscanf(line, "%63s %d %d %d", call, &a, &b, &c);
  if (given < 1 || call[0] == '#') return;
  if (!strcmp(call, "id")) make_id(NULL);
  else if (!strcmp(call, "grow_id")) make_id(comms[now]);
  else if (!strcmp(call, "grow")) grow(comms[now], -1, a, b, given > 3 ? c : -1);
  else if (!strcmp(call, "come")) grow(NULL, a, b, 1, given > 3 ? c : -1);
  else if (!strcmp(call, "revoke")) told("revoke", FOUND(ncclCommRevoke)(comms[now], a));
  else if (!strcmp(call, "init")) init(rank, ranks, given > 1 ? a : -1);
  else if (!strcmp(call, "join")) init(a, b, given > 3 ? c : -1);
  else if (!strcmp(call, "keep")) kept = comms[now];
  else if (!strcmp(call, "recall")) comms[now] = kept;
  else if (!strcmp(call, "abort_later")) abort_later(a);
  else if (!strcmp(call, "abort_in")) abort_in(a);
  else if (!strcmp(call, "abort_upon") && sscanf(line, "%*s %63s", abort_file) == 1) abort_on_a_thread(aborts);
  else if (!strcmp(call, "revoke_upon") && sscanf(line, "%*s %63s", abort_file) == 1) abort_on_a_thread(revokes);
  else if (!strcmp(call, "resolved")) resolved();
  else if (!strcmp(call, "gone")) init_gone(a, b);
  else if (!strcmp(call, "wrong")) wrong(a);
  else if (!strcmp(call, "changed")) printf("it %s\n", comms[now] == kept ? "is the same" : "has changed");
  else if (!strcmp(call, "early_part")) {
    const int parent = now;
    now = made++;
    told("early_part", ncclCommSplit(comms[parent], a, b, &early_variable[now], NULL));
    comms[now] = early_variable[now];
    early_variable[now] = &something_else;
  } else if (!strcmp(call, "early")) init_early(a, b);
  else if (!strcmp(call, "comm")) now = a;
  else if (!strcmp(call, "split")) {
    const int parent = now;
    now = made++;
    told("split", ncclCommSplit(comms[parent], a, b, &comms[now], NULL));
  } else if (!strcmp(call, "shrink")) {
    const int parent = now;
    comm_handle *part = &comms[made];
    told("shrink", FOUND(ncclCommShrink)(comms[parent], &a, a >= 0, part, NULL, b));
    if (*part) now = made++;
  } else if (!strcmp(call, "ask")) {
    if (!comms[now]) {
      printf("none\n");
    } else {
      told("count", ncclCommCount(comms[now], &count));
      told("rank", ncclCommUserRank(comms[now], &a));
      told("device", ncclCommCuDevice(comms[now], &b));
      printf("rank %d of %d on %d\n", a, count, b);
    }
  } else if (!strcmp(call, "exchange") && sscanf(line, "%*s %d %ld %d %d", &a, &n, &b, &c) == 4) {
    exchange(a, (size_t)n, b, c);
  } else if (!strcmp(call, "build") && sscanf(line, "%*s %63s %63s %d %ld %d %d", form, word, &a, &n, &b, &c) == 6) {
    by_build(form, word, a, (size_t)n, b, c);
  } else if (!strcmp(call, "scale")) {
    void *scalar = read_input(sizes[a]);
    if (b == 0) {
      void *device = on_device(8);
      if (given > 3) copy_later(device, scalar, sizes[a], streams[c]);
      else copy_in(device, scalar, sizes[a]);
      scalar = device;
    }
    told("scale", ncclRedOpCreatePreMulSum(&last_op, scalar, a, b, comms[now]));
  } else if (!strcmp(call, "unscale")) told("unscale", ncclRedOpDestroy(last_op, comms[now]));
  else if (!strcmp(call, "group")) told("group", ncclGroupStart());
  else if (!strcmp(call, "end")) told("end", ncclGroupEnd());
  else if (!strcmp(call, "simulate")) simulate();
  else if (!strcmp(call, "multi")) init_multi();
  else if (!strcmp(call, "scalable") && sscanf(line, "%*s %d %d %63s", &a, &b, word) == 3) init_scalable(a, b, word);
  else if (!strcmp(call, "all")) init_all(a);
  else if (!strcmp(call, "hold")) {
    end_release();
    *words[held] = 0;
    hold(streams[a], words[held++]);
  } else if (!strcmp(call, "kind")) streams[a] = stream_of_kind(b);
  else if (!strcmp(call, "then")) copy_behind(a);
  else if (!strcmp(call, "exchange_nothing")) exchange_nothing(a);
  else if (!strcmp(call, "release")) {
    end_release();
    release();
  } else if (!strcmp(call, "later")) {
    end_release();
    if (sscanf(line, "%*s %d %63s", &later_milliseconds, later_file) != 2) die("a release names a time and a file", 0);
    begin_release();
  } else if (!strcmp(call, "capture")) begin_capture(streams[a]);
  else if (!strcmp(call, "stop")) end_capture(streams[a]);
  else if (!strcmp(call, "bare") && sscanf(line, "%*s %63s %d", word, &a) == 2) bare(word, streams[a]);
  else if (!strcmp(call, "wild")) wild(a, b, streams[c]);
  else if (!strcmp(call, "device")) work_on(a);
  else if (!strcmp(call, "sleep")) usleep(1000u * (unsigned)a);
  else if (!strcmp(call, "peek")) peek();
  else if (!strcmp(call, "refuse")) ((void (*)(int))found("refuse_thread"))(a);
  else if (!strcmp(call, "starve")) ((void (*)(int))found("refuse_memory"))(a);
  else if (!strcmp(call, "wait")) wait_for_all();
  else if (!strcmp(call, "poll")) poll_while(a);
  else if (!strcmp(call, "finalize")) told("finalize", ncclCommFinalize(comms[now]));
  else if (!strcmp(call, "destroy")) told("destroy", ncclCommDestroy(comms[now]));
  else if (!strcmp(call, "abort")) told("abort", ncclCommAbort(comms[now]));
  else if (!strcmp(call, "register")) {
    void *handle = NULL;
    told("register", FOUND(ncclCommRegister)(comms[now], streams, 8, &handle));
    if (handle) told("deregister", FOUND(ncclCommDeregister)(comms[now], handle));
  } else if (!strcmp(call, "suspend")) told("suspend", FOUND(ncclCommSuspend)(comms[now], 1));
  else if (!strcmp(call, "stray")) stray();
  else if (!strcmp(call, "touch") && sscanf(line, "%*s %63s", word) == 1) touch(word);
  else if (!strcmp(call, "expect") && sscanf(line, "%*s %63s", word) == 1) expect(word);
  else if (!strcmp(call, "use") && sscanf(line, "%*s %63s", id_file) == 1) {
  } else if (!strcmp(call, "kill")) raise(SIGKILL);
  else if (sscanf(line, "%63s %d %d %ld %d %d %d", call, &a, &b, &n, &c, &d, &e) == 7) operate(call, a, b, (size_t)n, c, d, e);
  else more(line);
}

int main(int argc, char **argv) {
  char line[256], name[64];
  FILE *script;
  int i;
  if (argc != 4) return 2;
  rank = atoi(argv[1]);
  ranks = atoi(argv[2]);
  folder = argv[3];
  start();
  work_on(getenv("DEVICE") ? atoi(getenv("DEVICE")) : 0);
  pinned_arena.at = pinned(ARENA);
  pinned_arena.left = ARENA;
  spare = on_device(4);
  for (i = 0; i < STREAMS; ++i) words[i] = word_to_wait_for();
  snprintf(name, sizeof name, "script.%d", rank);
  script = fopen(file(name), "r");
  snprintf(name, sizeof name, "in.%d", rank);
  in = fopen(file(name), "r");
  snprintf(name, sizeof name, "out.%d", rank);
  out = fopen(file(name), "w");
  if (!script || !in || !out) die("opening the files of rank", rank);
  while (fgets(line, sizeof line, script)) {
    ++line_number;
    obey(line);
  }
  for (i = 0; i < COMMS; ++i)
    if (early_variable[i] && early_variable[i] != &something_else) printf("the variable of communicator %d was written to\n", i);
  if (fclose(out)) die("closing the output", rank);
  end_release();
  return 0;
}
