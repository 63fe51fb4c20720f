// What a short file of the kernel's says.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "base/handles.hpp"

namespace isthmus {

// At most 1 KiB, without the newline at its end; empty: the file cannot be read.
inline std::string read_small_file(const char *path) {
  const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t n = fd ? ::read(fd.get(), text, sizeof text) : 0;
  std::string out(text, n > 0 ? static_cast<size_t>(n) : 0);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

}  // namespace isthmus
