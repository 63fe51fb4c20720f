// How a door spells the path of the real library where the hook before dlopen or the auditor would give it the door again: with this before
// the file's own name. Neither can see who asks: the loader tells an auditor nothing of who opens a path, and behind a sanitizer the hook is
// called by the sanitizer's own dlopen. $ORIGIN stays the library's folder.
#pragma once

#include <string.h>

namespace isthmus::interpose {

inline constexpr char kAsItIs[] = "/.//";

// `path` is absolute, with room for as much more.
inline void spell_as_it_is(char *path) noexcept {
  char *slash = strrchr(path, '/');
  if (!slash) return;
  memmove(slash + sizeof kAsItIs - 1, slash + 1, strlen(slash + 1) + 1);
  memcpy(slash, kAsItIs, sizeof kAsItIs - 1);
}

}  // namespace isthmus::interpose
