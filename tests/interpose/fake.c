/* A library that passes for an NCCL, made for one test: it says who it is, and calls public functions of its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nccl_like.h"
#include "nccl_newer_like.h"
#include "rccl_alone_like.h"
#include "rccl_older_like.h"

#ifndef VERSION
#define VERSION 21903
#endif

static const char *last_error = "";

#ifndef NOT_NCCL
__attribute__((visibility("default"))) int ncclGetVersion(int *version) {
  *version = VERSION;
  return 0;
}
#endif
int ncclGroupStart(void) {
#ifdef KEEPS_CONFIGS
  return 0;
#endif
  last_error = "a group failed";
  return 3;
}
const char *ncclGetErrorString(int result) { return result == 5 ? "invalid usage, says the fake" : "says the fake"; }
const char *ncclGetLastError(void *comm) {
  (void)comm;
  return last_error;
}

/* The file that answers this library's own call of its public function. */
int ncclCommGetUniqueId(void *comm, unique_id *file) {
  Dl_info info;
  (void)comm;
  if (!dladdr((void *)&ncclGetErrorString, &info)) return 3;
  sprintf((char *)file->bytes, "%.120s", info.dli_fname);
  return 0;
}

#if defined(INIT_MULTI) || defined(KEEPS_CONFIGS)
int ncclGetUniqueId(unique_id *id) {
  memset(id, 0, sizeof *id);
#if defined(CALLS_BY_NAME) || defined(THREAD_BOUND)
  static unsigned char made;
  id->bytes[0] = ++made;
#endif
  return 0;
}
#endif

#ifdef THREAD_BOUND /* with KEEPS_CONFIGS */
/* As NCCL up to 2.26: an init that does not block leaves its job in the memory of the thread that calls, and the end of the communicator
 * looks there. Each communicator has a handle of its own. A maker is the thread that has called. */
enum { MAKERS = 8 };
int makers[MAKERS], makers_ended[MAKERS];
static int made;
static pthread_key_t job;
static void maker_ends(void *ended) { __atomic_store_n((int *)ended, 1, __ATOMIC_SEQ_CST); }
__attribute__((constructor)) static void begin(void) { pthread_key_create(&job, maker_ends); }
static void *new_handle(void) {
  const int n = __atomic_fetch_add(&made, 1, __ATOMIC_SEQ_CST);
  makers[n] = gettid();
  pthread_setspecific(job, &makers_ended[n]);
  return (void *)((intptr_t)77 + n);
}
static int knows(void *comm) { return (intptr_t)comm >= 77 && (intptr_t)comm < 77 + made; }
int ncclCommDestroy(void *comm) {
  if (!knows(comm)) return 4;
  if (!makers_ended[(intptr_t)comm - 77]) return 0;
  last_error = "the job of the init is gone with its thread";
  return 3;
}
int ncclCommAbort(void *comm) { return ncclCommDestroy(comm); }
#else
#define new_handle() ((void *)77)
#define knows(comm) ((comm) == (void *)77)
#endif

#ifdef KEEPS_CONFIGS
/* What the last configuration was, as long as it says that it is, and what its texts were if it is long enough for them. */
unsigned char kept_config[8192];
char kept_texts[2][64];
int configs;
static int keep(const void *config) {
  static const size_t places[] = {32, 48}; /* netName, commName */
  size_t size;
  int i;
  memcpy(&size, config, sizeof size);
  if (size > sizeof kept_config) return 4;
  memset(kept_config, 0, sizeof kept_config);
  memcpy(kept_config, config, size);
#ifdef CUTS_CONFIGS
  kept_config[size - 1] ^= 1;
#endif
  for (i = 0; i < 2; ++i) {
    const char *text = NULL;
    if (size >= 56) memcpy(&text, kept_config + places[i], sizeof text);
    snprintf(kept_texts[i], sizeof kept_texts[i], "%s", text ? text : "");
  }
  ++configs;
  return 0;
}
int ncclCommInitRankConfig(void **comm, int ranks, unique_id id, int rank, void *config) {
  (void)id;
  *comm = new_handle();
  return ranks == 1 && rank == 0 ? keep(config) : 4;
}
int ncclCommInitRankScalable(void **comm, int ranks, int rank, int count, unique_id *ids, void *config) {
  *comm = new_handle();
  return ranks == 1 && rank == 0 && count == 1 && ids ? keep(config) : 4;
}
int ncclCommSplit(void *comm, int color, int key, void **part, void *config) {
  *part = (void *)78;
  return comm == (void *)77 && color == 5 && key == 6 ? keep(config) : 4;
}
int ncclGroupEnd(void) { return 0; }
/* It knows the communicators that it made, and no other name of them. */
int ncclCommGetAsyncError(void *comm, int *state) {
  *state = 0;
  return knows(comm) ? 0 : 4;
}
int ncclCommCount(void *comm, int *count) {
  *count = 1;
  return knows(comm) ? 0 : 4;
}
#endif

#ifdef CALLS_BY_NAME /* with KEEPS_CONFIGS */
/* What a library does on its way by a public name of its own, and the file that answers to it. 1: makes an id. Else one half
 * of a group, and the other half stays inside: 2: begins one, 3: ends one, 4: asks how long one would take. */
unique_id inner_id;
char inner_file[128];
int ncclGroupSimulateEnd(void *info) {
  (void)info;
  return 0;
}
int ncclCommInitAll(comm_handle *comms, int what, const int *devices) {
  Dl_info info;
  (void)comms, (void)devices;
  if (!dladdr((void *)&ncclGetUniqueId, &info)) return 3;
  snprintf(inner_file, sizeof inner_file, "%s", info.dli_fname);
  if (what == 1) return ncclGetUniqueId(&inner_id);
  return what == 2 ? ncclGroupStart() : what == 3 ? ncclGroupEnd() : ncclGroupSimulateEnd(NULL);
}
#endif

#ifdef INIT_MULTI
int ncclCommInitRankMulti(void **comm, int ranks, unique_id id, int rank, int number) {
  static char text[64];
  *comm = (void *)77;
  snprintf(text, sizeof text, "rank %d of %d, and %d", rank, ranks, number);
  last_error = text;
  return id.bytes[0];
}
#endif

/* Nobody else has this name. */
extern int only_the_fake_has_this;
int only_the_fake_has_this = 1;

#ifdef LACKS_A_FUNCTION
int function_of_nobody(void);
int calls_it(void);
int calls_it(void) { return function_of_nobody(); }
#endif

#ifdef CALLS_WHILE_LOADED
/* As a plug-in that the library loads would: by whatever answers in the whole process. */
__attribute__((constructor)) static void loaded(void) {
  int version = 0;
  int (*get)(int *) = (__typeof__(&ncclGetVersion))dlsym(dlopen(NULL, RTLD_LAZY), "ncclGetVersion");
  fprintf(stderr, "while loaded: %d\n", get ? get(&version) : -1);
}
#endif
