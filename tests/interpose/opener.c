/* Opens the libraries that it is told of, and says which file answers a function of each, and what the call gives.
 *   opener FUNCTION NAME...      NAME may have a mode before it: "lazy:", "noload:", "apart:" (dlmopen, a namespace of its own)
 * As a library, -DLIBRARY, it has `open_from_here` alone. With -DEARLY a program does it before any constructor has run. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

void *open_from_here(const char *name);
void *open_from_here(const char *name) {
  void *volatile handle; /* no jump: the call returns to here, by which the loader knows who asks */
  if (strncmp(name, "noload:", 7) == 0) handle = dlopen(name + 7, RTLD_LAZY | RTLD_NOLOAD);
  else if (strncmp(name, "apart:", 6) == 0) handle = dlmopen(LM_ID_NEWLM, name + 6, RTLD_NOW);
  else if (strncmp(name, "lazy:", 5) == 0) handle = dlopen(name + 5, RTLD_LAZY);
  else handle = dlopen(name, RTLD_NOW);
  return handle;
}

#ifndef LIBRARY
static int show(const char *function, const char *name) {
  void *handle = open_from_here(name);
  struct link_map *map;
  int (*call)(int *), result, value = -1;
  if (!handle) {
    const char *why = dlerror();
    printf("not opened: %s\n", why ? why : "no reason");
    return 0;
  }
  call = (int (*)(int *))dlsym(handle, function);
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map)) return 4;
  if (!call) {
    printf("%s has no such function\n", map->l_name);
    return 0;
  }
  result = call(&value);
  printf("%s gives %d, %d\n", map->l_name, result, value);
  return 0;
}

#ifdef EARLY
static void early(int argc, char **argv, char **environment) {
  (void)environment;
  if (argc > 2) show(argv[1], argv[2]);
}
__attribute__((section(".preinit_array"), used)) static void (*const first)(int, char **, char **) = early;
int main(void) { return 0; }
#else
int main(int argc, char **argv) {
  int i;
  for (i = 2; i < argc; ++i)
    if (show(argv[1], argv[i])) return 4;
  return 0;
}
#endif
#endif
