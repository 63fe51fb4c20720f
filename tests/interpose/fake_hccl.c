/* A library that passes for an HCCL, made for one test: it says who it is, and calls public functions of its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

#include "hccl_like.h"

#ifndef VERSION
#define VERSION 7
#endif

#ifdef NOT_HCCL /* as Intel's library of that name: other functions */
int hcclAllReduce(void);
int hcclAllReduce(void) { return 0; }
#else
int HcclAllReduce(void *from, void *to, uint64_t count, int type, int op, void *comm, void *stream) {
  (void)from, (void)to, (void)count, (void)type, (void)op, (void)comm, (void)stream;
  return 3;
}
#ifndef SPLIT /* else it is in the other library */
uint32_t HcclGetCommConfigCapability(void) { return VERSION; }
#endif
const char *HcclGetErrorString(int result) { return result == 5 ? "not supported, says the fake" : "says the fake"; }

/* The file that answers this library's own call of its public function. */
int HcclGetCommName(void *comm, char *file) {
  Dl_info info;
  (void)comm;
  if (!dladdr((void *)&HcclGetErrorString, &info)) return 3;
  sprintf(file, "%.120s", info.dli_fname);
  return 0;
}

#ifdef SPLIT /* as the newest: what is not its own comes from the next library that has it */
int HcclBarrier(void *comm, void *stream) {
  __typeof__(&HcclBarrier) next = (__typeof__(&HcclBarrier))dlsym(RTLD_NEXT, "HcclBarrier");
  return next ? next(comm, stream) : 4;
}
#endif
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
  __typeof__(&HcclCommDestroy) get = (__typeof__(&HcclCommDestroy))dlsym(dlopen(NULL, RTLD_LAZY), "HcclCommDestroy");
  fprintf(stderr, "while loaded: %d\n", get ? get(NULL) : -1);
}
#endif
