/* A library that is linked against NCCL, as PyTorch's is, or with -DASCEND against HCCL. */
#define _GNU_SOURCE
#include <dlfcn.h>

#ifdef ASCEND
#include "hccl_like.h"
#define FUNCTION HcclGetCommConfigCapability
#else
#include "nccl_like.h"
#define FUNCTION ncclGetVersion
#endif

int number(void);
int number(void) {
#ifdef ASCEND
  return (int)HcclGetCommConfigCapability();
#else
  int v = 0;
  return ncclGetVersion(&v) ? -1 : v;
#endif
}
const char *whose(void);
const char *whose(void) {
  Dl_info info;
  return dladdr((void *)&FUNCTION, &info) ? info.dli_fname : "?";
}
