/* A library that is linked against NCCL, as PyTorch's is. */
#define _GNU_SOURCE
#include <dlfcn.h>

int ncclGetVersion(int *version);

int version(void);
int version(void) {
  int v = 0;
  return ncclGetVersion(&v) ? -1 : v;
}
const char *whose(void);
const char *whose(void) {
  Dl_info info;
  return dladdr((void *)&ncclGetVersion, &info) ? info.dli_fname : "?";
}
