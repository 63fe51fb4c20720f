#include "base/handles.hpp"

#include <cerrno>

#include "base/error.hpp"

namespace isthmus {

Mapping::Mapping(int fd, size_t bytes) : bytes_(bytes) {
  base_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base_ == MAP_FAILED) {
    base_ = nullptr;
    bytes_ = 0;
    fail_system("mmap", errno);
  }
  ::madvise(base_, bytes, MADV_DONTFORK);
}

}  // namespace isthmus
