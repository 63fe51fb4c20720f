/* A library that opens NCCL by the text that it is built with, or by one that it puts together, takes a function from there, and says which file that is in. With -DPROGRAM
 * it is a program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "nccl_like.h"

const char *whose(void);
int number(void);

#ifdef ASKS_FOR
static const char *name(void) { return ASKS_FOR; }
#else /* put together, as XLA does it, and with the names of functions in a table */
const char *const xla_functions[] = {"pncclGetUniqueId", "ncclGetUniqueId", "ncclAllReduce"};
static const char *name(void) {
  static char text[64];
  snprintf(text, sizeof text, "lib%s.so.%s", "nccl", "2");
  return text;
}
#endif

static int (*get(void))(int *) {
  void *volatile handle = dlopen(name(), RTLD_NOW);
  return handle ? (__typeof__(&ncclGetVersion))dlsym(handle, "ncclGetVersion") : NULL;
}
int number(void) {
  int (*call)(int *) = get(), value = -1;
  return call && call(&value) == 0 ? value : -1;
}
const char *whose(void) {
  Dl_info info;
  return get() && dladdr((void *)get(), &info) ? info.dli_fname : "nobody";
}

#ifdef PROGRAM
int main(void) {
  printf("%d %s\n", number(), whose());
  return 0;
}
#endif
