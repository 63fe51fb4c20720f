/* A library that passes for an NCCL, made for one test: it says who it is, and calls public functions of its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

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
int ncclGroupStart(void);
int ncclGroupStart(void) {
  last_error = "a group failed";
  return 3;
}
const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result) { return result == 5 ? "invalid usage, says the fake" : "says the fake"; }
const char *ncclGetLastError(void *comm);
const char *ncclGetLastError(void *comm) {
  (void)comm;
  return last_error;
}

/* The file that answers this library's own call of its public function. */
int ncclCommGetUniqueId(void *comm, char *file);
int ncclCommGetUniqueId(void *comm, char *file) {
  Dl_info info;
  (void)comm;
  if (!dladdr((void *)&ncclGetErrorString, &info)) return 3;
  sprintf(file, "%.120s", info.dli_fname);
  return 0;
}

#ifdef INIT_MULTI
struct id {
  unsigned char bytes[128];
};
int ncclGetUniqueId(struct id *id);
int ncclGetUniqueId(struct id *id) {
  memset(id, 0, sizeof *id);
  return 0;
}
int ncclCommInitRankMulti(void **comm, int ranks, struct id id, int rank, int number);
int ncclCommInitRankMulti(void **comm, int ranks, struct id id, int rank, int number) {
  static char text[64];
  *comm = (void *)77;
  snprintf(text, sizeof text, "rank %d of %d, and %d", rank, ranks, number);
  last_error = text;
  return id.bytes[0];
}
#endif

#ifdef CALLS_WHILE_LOADED
/* As a plug-in that the library loads would: by whatever answers in the whole process. */
__attribute__((constructor)) static void loaded(void) {
  int version = 0;
  int (*get)(int *) = (int (*)(int *))dlsym(dlopen(NULL, RTLD_LAZY), "ncclGetVersion");
  fprintf(stderr, "while loaded: %d\n", get ? get(&version) : -1);
}
#endif
