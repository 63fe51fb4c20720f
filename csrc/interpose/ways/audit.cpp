// An auditor of the loader (LD_AUDIT). A program, or a library that the program needs, names the vendor's library. The auditor
// replaces the name, whatever the name is, by the front door.
#include <link.h>
#include <string.h>

#include "ways/door.hpp"

extern "C" {
__attribute__((visibility("default"))) unsigned la_version(unsigned loaders);
__attribute__((visibility("default"))) char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag);

// The older of two versions of this interface: the loader's version, and the version that this file is built for. All
// versions have the functions of this file.
unsigned la_version(unsigned loaders) { return loaders < LAV_CURRENT ? loaders : LAV_CURRENT; }

// The loader asks first with the name as it stands in a program, then with every path where it is about to look.
char *la_objsearch(const char *name, uintptr_t *, unsigned) {
  using namespace isthmus::interpose;
  const char *door = door_for(name);
  if (!door) return const_cast<char *>(name);
  if (strcmp(door, name) != 0) say_given(name, door);
  return const_cast<char *>(door);
}
}
