#include "base/handles.hpp"

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdint>

#include "base/error.hpp"

namespace isthmus {

Mapping::Mapping(int fd, size_t bytes) : bytes_(bytes) {
  base_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base_ == MAP_FAILED) {
    const int error = errno;
    base_ = nullptr;
    bytes_ = 0;
    fail(system_code(error), "{}{}", system_text(formatted("mapping {} bytes of shared memory", bytes).c_str(), error),
         error == ENOMEM ? "; fewer are wanted with a smaller ISTHMUS_STAGING_BYTES, and `ulimit -v` may limit them" : "");
  }
  ::madvise(base_, bytes, MADV_DONTFORK);
}

void Mapping::vacate() noexcept {
  if (!base_ || kept_) return;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
  if (::mmap(base_, bytes_, PROT_READ | PROT_WRITE, kFlags, -1, 0) != MAP_FAILED) ::madvise(base_, bytes_, MADV_DONTFORK);
}

void make_room_for_descriptors(int count) noexcept {
  rlimit most{};
  if (::getrlimit(RLIMIT_NOFILE, &most) == 0 && most.rlim_cur < static_cast<rlim_t>(count))
    count = static_cast<int>(most.rlim_cur);
  const UniqueFd any(::memfd_create("isthmus-room", MFD_CLOEXEC));
  if (any && count > 0) UniqueFd(::fcntl(any.get(), F_DUPFD_CLOEXEC, count - 1)).reset();
}

void prefault(const std::byte *data, size_t bytes) noexcept {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
  const auto begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes + page - 1) / page * page;
  ::madvise(reinterpret_cast<void *>(begin), end - begin, kPopulateWrite);
}

}  // namespace isthmus
