/* A library that opens NCCL by the text that it is built with, takes a function from there, and says which file that is in. With -DPROGRAM
 * it is a program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

const char *whose(void);
int version(void);

static int (*get(void))(int *) {
  void *volatile handle = dlopen(ASKS_FOR, RTLD_NOW);
  return handle ? (int (*)(int *))dlsym(handle, "ncclGetVersion") : NULL;
}
int version(void) {
  int (*call)(int *) = get(), value = -1;
  return call && call(&value) == 0 ? value : -1;
}
const char *whose(void) {
  Dl_info info;
  return get() && dladdr((void *)get(), &info) ? info.dli_fname : "nobody";
}

#ifdef PROGRAM
int main(void) {
  printf("%d %s\n", version(), whose());
  return 0;
}
#endif
