/* A library in front of a vendor's simulated one (NCCL's, RCCL's, HCCL's with -DASCEND), which appends every call of it to the file $RECORD:
 * the function, its code, and its arguments. c: a communicator, n: one that was made, i: an id, s: a stream, b: memory, by their addresses or
 * contents, which test_spanning_record.py names so that two runs can be compared; other words are numbers.
 * What is not here is the simulated library's own, as this one needs it, and what that does not have is this one's. SIMULATED is its path.
 */
#define _GNU_SOURCE
#ifdef ASCEND
#include "hccl_like.h"
#else
#include "nccl_like.h"
#include "nccl_newer_like.h"
#endif

#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static __thread int inside; /* what the library calls of its own functions is not the program's */

static void *next(const char *name) {
  void *library = dlopen(SIMULATED, RTLD_LAZY | RTLD_LOCAL), *f = library ? dlsym(library, name) : NULL;
  if (!f) {
    fprintf(stderr, "%s is not in %s\n", name, SIMULATED);
    abort();
  }
  return f;
}

static void note(const char *name, int code, const char *format, ...) {
  const char *path = getenv("RECORD");
  FILE *f = path && !inside ? fopen(path, "a") : NULL;
  va_list words;
  if (!f) return;
  flockfile(f);
  fprintf(f, "%s =%d", name, code);
  va_start(words, format);
  vfprintf(f, format, words);
  va_end(words);
  fputc('\n', f);
  fclose(f);
}

enum { OURS = 80 }; /* the last bytes of an id, which have nothing of the vendor's: there Isthmus writes how ranks meet */

static unsigned long long digest(const void *bytes, size_t size) {
  const unsigned char *p = bytes;
  unsigned long long sum = 14695981039346656037ull;
  while (size--) sum = (sum ^ *p++) * 1099511628211ull;
  return sum;
}

/* Begins with its size. */
static unsigned long long digest_config(const void *config) { return config ? digest(config, *(const size_t *)config) : 0; }

#define CALL(name, parameters, arguments, ...)        \
  int name parameters;                                \
  int name parameters {                               \
    static int(*real) parameters;                     \
    int code;                                         \
    if (!real) real = (int(*) parameters)next(#name); \
    ++inside;                                         \
    code = real arguments;                            \
    --inside;                                         \
    note(#name, code, __VA_ARGS__);                   \
    return code;                                      \
  }

#ifdef ASCEND
#define U64 " %lu"
CALL(HcclGetRootInfo, (root_info * id), (id), " i%llx", digest(id, sizeof *id - OURS))
CALL(HcclCommInitRootInfo, (uint32_t of, const root_info *id, uint32_t as, comm_handle *c), (of, id, as, c),
     " %u i%llx %u n%p", of, digest(id, sizeof *id - OURS), as, *c)
CALL(HcclCommInitRootInfoConfig, (uint32_t of, const root_info *id, uint32_t as, const void *config, comm_handle *c),
     (of, id, as, config, c), " %u i%llx %u %#llx n%p", of, digest(id, sizeof *id - OURS), as, digest_config(config), *c)
CALL(HcclGetRootInfoScalable, (root_info * id), (id), " i%llx", digest(id, sizeof *id - OURS))
CALL(HcclCommInitRootInfoScalable,
     (uint32_t of, uint32_t count, const root_info *id, uint32_t as, uint32_t further, const void *config, comm_handle *c),
     (of, count, id, as, further, config, c), " %u %u i%llx i%llx %u %u %#llx n%p", of, count, digest(&id[0], sizeof *id - OURS),
     digest(&id[count - 1], sizeof *id - OURS), as, further, digest_config(config), *c)
CALL(HcclCommInitAll, (uint32_t number, int32_t *devices, comm_handle *c), (number, devices, c), " %u %d %d n%p n%p", number,
     devices[0], devices[number - 1], c[0], c[number - 1])
CALL(HcclCreateSubCommConfig,
     (comm_handle * c, uint32_t count, uint32_t *members, uint64_t number, uint32_t as, void *config, comm_handle *part),
     (c, count, members, number, as, config, part), " c%p %u %u %u" U64 " %u %#llx n%p", *c, count, members[0],
     members[count - 1], number, as, digest_config(config), *part)
CALL(HcclCommDestroy, (comm_handle c), (c), " c%p", c)
CALL(HcclGetRankSize, (comm_handle c, uint32_t *size), (c, size), " c%p %u", c, *size)
CALL(HcclGetRankId, (comm_handle c, uint32_t *as), (c, as), " c%p %u", c, *as)
CALL(HcclGetCommAsyncError, (comm_handle c, int *state), (c, state), " c%p %d", c, *state)
CALL(HcclGroupStart, (void), (), "%s", "")
CALL(HcclGroupEnd, (void), (), "%s", "")
CALL(HcclAllReduce, (void *a, void *b, uint64_t n, int type, int op, comm_handle c, void *s), (a, b, n, type, op, c, s),
     " b%p b%p" U64 " %d %d c%p s%p", a, b, n, type, op, c, s)
CALL(HcclReduce, (void *a, void *b, uint64_t n, int type, int op, uint32_t root, comm_handle c, void *s),
     (a, b, n, type, op, root, c, s), " b%p b%p" U64 " %d %d %u c%p s%p", a, b, n, type, op, root, c, s)
CALL(HcclReduceScatter, (void *a, void *b, uint64_t n, int type, int op, comm_handle c, void *s), (a, b, n, type, op, c, s),
     " b%p b%p" U64 " %d %d c%p s%p", a, b, n, type, op, c, s)
CALL(HcclAllGather, (void *a, void *b, uint64_t n, int type, comm_handle c, void *s), (a, b, n, type, c, s),
     " b%p b%p" U64 " %d c%p s%p", a, b, n, type, c, s)
CALL(HcclBroadcast, (void *a, uint64_t n, int type, uint32_t root, comm_handle c, void *s), (a, n, type, root, c, s),
     " b%p" U64 " %d %u c%p s%p", a, n, type, root, c, s)
CALL(HcclScatter, (void *a, void *b, uint64_t n, int type, uint32_t root, comm_handle c, void *s),
     (a, b, n, type, root, c, s), " b%p b%p" U64 " %d %u c%p s%p", a, b, n, type, root, c, s)
CALL(HcclSend, (void *a, uint64_t n, int type, uint32_t peer, comm_handle c, void *s), (a, n, type, peer, c, s),
     " b%p" U64 " %d %u c%p s%p", a, n, type, peer, c, s)
CALL(HcclRecv, (void *a, uint64_t n, int type, uint32_t peer, comm_handle c, void *s), (a, n, type, peer, c, s),
     " b%p" U64 " %d %u c%p s%p", a, n, type, peer, c, s)
CALL(HcclBatchSendRecv, (message * m, uint32_t n, comm_handle c, void *s), (m, n, c, s),
     " %u %d b%p" U64 " %d %u %d b%p" U64 " %d %u c%p s%p", n, m->what, m->buffer, m->count, m->type, m->peer, m[n - 1].what,
     m[n - 1].buffer, m[n - 1].count, m[n - 1].type, m[n - 1].peer, c, s)
CALL(HcclBarrier, (comm_handle c, void *s), (c, s), " c%p s%p", c, s)
#else
CALL(ncclGetVersion, (int *version), (version), " %d", *version)
CALL(ncclGetUniqueId, (unique_id * id), (id), " i%llx", digest(id, sizeof *id - OURS))
CALL(ncclCommInitRank, (comm_handle * c, int of, unique_id id, int as), (c, of, id, as), " %d i%llx %d n%p", of,
     digest(&id, sizeof id - OURS), as, *c)
CALL(ncclCommInitRankConfig, (comm_handle * c, int of, unique_id id, int as, void *config), (c, of, id, as, config),
     " %d i%llx %d %#llx n%p", of, digest(&id, sizeof id - OURS), as, digest_config(config), *c)
CALL(ncclCommInitRankScalable, (comm_handle * c, int of, int as, int count, unique_id *id, void *config),
     (c, of, as, count, id, config), " %d %d %d i%llx i%llx %#llx n%p", of, as, count, digest(&id[0], sizeof *id - OURS),
     digest(&id[count - 1], sizeof *id - OURS), digest_config(config), *c)
CALL(ncclCommShrink, (comm_handle c, int *excluded, int count, comm_handle *part, void *config, int flags),
     (c, excluded, count, part, config, flags), " c%p %d %d %#llx n%p %d", c, excluded[0], count, digest_config(config), *part,
     flags)
CALL(ncclCommInitAll, (comm_handle * c, int number, const int *devices), (c, number, devices), " %d %d %d n%p n%p", number,
     devices[0], devices[number - 1], c[0], c[number - 1])
CALL(ncclCommSplit, (comm_handle c, int color, int key, comm_handle *part, void *config), (c, color, key, part, config),
     " c%p %d %d %#llx n%p", c, color, key, digest_config(config), *part)
CALL(ncclCommFinalize, (comm_handle c), (c), " c%p", c)
CALL(ncclCommDestroy, (comm_handle c), (c), " c%p", c)
CALL(ncclCommAbort, (comm_handle c), (c), " c%p", c)
CALL(ncclCommCount, (comm_handle c, int *count), (c, count), " c%p %d", c, *count)
CALL(ncclCommUserRank, (comm_handle c, int *as), (c, as), " c%p %d", c, *as)
CALL(ncclCommCuDevice, (comm_handle c, int *device), (c, device), " c%p %d", c, *device)
CALL(ncclGroupStart, (void), (), "%s", "")
CALL(ncclGroupEnd, (void), (), "%s", "")
CALL(ncclAllReduce, (const void *a, void *b, size_t n, int type, int op, comm_handle c, void *s), (a, b, n, type, op, c, s),
     " b%p b%p %zu %d %d c%p s%p", a, b, n, type, op, c, s)
CALL(ncclReduce, (const void *a, void *b, size_t n, int type, int op, int root, comm_handle c, void *s),
     (a, b, n, type, op, root, c, s), " b%p b%p %zu %d %d %d c%p s%p", a, b, n, type, op, root, c, s)
CALL(ncclReduceScatter, (const void *a, void *b, size_t n, int type, int op, comm_handle c, void *s),
     (a, b, n, type, op, c, s), " b%p b%p %zu %d %d c%p s%p", a, b, n, type, op, c, s)
CALL(ncclAllGather, (const void *a, void *b, size_t n, int type, comm_handle c, void *s), (a, b, n, type, c, s),
     " b%p b%p %zu %d c%p s%p", a, b, n, type, c, s)
CALL(ncclBroadcast, (const void *a, void *b, size_t n, int type, int root, comm_handle c, void *s),
     (a, b, n, type, root, c, s), " b%p b%p %zu %d %d c%p s%p", a, b, n, type, root, c, s)
CALL(ncclBcast, (void *a, size_t n, int type, int root, comm_handle c, void *s), (a, n, type, root, c, s),
     " b%p %zu %d %d c%p s%p", a, n, type, root, c, s)
CALL(ncclSend, (const void *a, size_t n, int type, int peer, comm_handle c, void *s), (a, n, type, peer, c, s),
     " b%p %zu %d %d c%p s%p", a, n, type, peer, c, s)
CALL(ncclRecv, (void *a, size_t n, int type, int peer, comm_handle c, void *s), (a, n, type, peer, c, s),
     " b%p %zu %d %d c%p s%p", a, n, type, peer, c, s)
CALL(ncclRedOpCreatePreMulSum, (int *op, void *scalar, int type, int residence, comm_handle c),
     (op, scalar, type, residence, c), " %d %#x %d %d c%p", *op, *(unsigned *)scalar, type, residence, c)
CALL(ncclRedOpDestroy, (int op, comm_handle c), (op, c), " %d c%p", op, c)
/* The simulated libraries have neither. The handle is the memory's address. */
int ncclCommRegister(comm_handle c, void *p, size_t bytes, void **handle) {
  *handle = p;
  note("ncclCommRegister", 0, " c%p b%p %zu b%p", c, p, bytes, *handle);
  return 0;
}
int ncclCommDeregister(comm_handle c, void *handle) {
  note("ncclCommDeregister", 0, " c%p b%p", c, handle);
  return 0;
}
#endif
