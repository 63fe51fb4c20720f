// How a front door spells the path of the real library, where a hook or an auditor would replace the path by the front door:
// with "/.//" before the file's own name. Neither the hook nor the auditor can see who asks:
// - The loader does not tell an auditor who opens a path.
// - The hook before dlopen may be called by a sanitizer's dlopen.
// With this spelling $ORIGIN stays the library's folder.
#pragma once

#include <string.h>

namespace isthmus::interpose {

inline constexpr char kAsItIs[] = "/.//";

// `path` is absolute, and its buffer has room for sizeof kAsItIs bytes more.
inline void spell_as_it_is(char *path) noexcept {
  char *slash = strrchr(path, '/');
  if (!slash) return;
  memmove(slash + sizeof kAsItIs - 1, slash + 1, strlen(slash + 1) + 1);
  memcpy(slash, kAsItIs, sizeof kAsItIs - 1);
}

}  // namespace isthmus::interpose
