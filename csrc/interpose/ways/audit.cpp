// An auditor of the loader (LD_AUDIT): whatever name a library is looked for by, the program's own or one that another library needs, the
// vendor's is replaced by a door.
#include <link.h>
#include <string.h>

#include "ways/door.hpp"

extern "C" {
__attribute__((visibility("default"))) unsigned la_version(unsigned loaders);
__attribute__((visibility("default"))) char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag);

// The older of the loader's version of this interface and the one that this is built for; the functions here are in all.
unsigned la_version(unsigned loaders) { return loaders < LAV_CURRENT ? loaders : LAV_CURRENT; }

// Asked first with the name as it stands in a program, and then with every place where the loader is about to look.
char *la_objsearch(const char *name, uintptr_t *, unsigned) {
  using namespace isthmus::interpose;
  const char *door = door_for(name);
  if (!door) return const_cast<char *>(name);
  if (strcmp(door, name) != 0) say_given(name, door);
  return const_cast<char *>(door);
}
}
