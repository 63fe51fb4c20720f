// Threads that may help a link to move bytes. A floor above has them (process/helpers.hpp).
#pragma once

#include <cstddef>

namespace isthmus::link {

class Hands {
 public:
  virtual ~Hands() = default;
  virtual bool any() const noexcept = 0;  // whether a thread beside the caller's may come
  // Calls work(job, i) once for each i below `count`: the caller's thread does, and those that come. Returns when all calls have returned, and what
  // they have written is then the caller's. Allocates nothing. Any thread, any number at a time.
  virtual void share(void (*work)(void *job, size_t i), void *job, size_t count) noexcept = 0;
};

}  // namespace isthmus::link
