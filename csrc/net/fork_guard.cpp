#include "net/fork_guard.hpp"

#include <pthread.h>
#include <sys/stat.h>

#include <vector>

#include "base/lock.hpp"

namespace isthmus::net {
namespace {

struct FileIdentity {
  bool set = false;
  dev_t device = 0;
  ino_t inode = 0;
};

struct Registry {
  Mutex mutex;
  std::vector<FileIdentity> by_fd ISTHMUS_GUARDED_BY(mutex);
};

Registry &the_registry = *new Registry;  // never destroyed: a fork may come during static destruction

// The forking thread holds the mutex across the fork, so the child sees a whole registry.
void before_fork() ISTHMUS_ACQUIRE(the_registry.mutex) { the_registry.mutex.lock(); }
void in_parent() ISTHMUS_RELEASE(the_registry.mutex) { the_registry.mutex.unlock(); }
void in_child() ISTHMUS_RELEASE(the_registry.mutex) {
  std::vector<FileIdentity> &by_fd = the_registry.by_fd;
  for (size_t fd = 0; fd < by_fd.size(); ++fd) {
    struct stat s;
    const FileIdentity &e = by_fd[fd];
    if (e.set && ::fstat(static_cast<int>(fd), &s) == 0 && s.st_dev == e.device && s.st_ino == e.inode)
      ::close(static_cast<int>(fd));
  }
  for (FileIdentity &e : by_fd) e.set = false;
  the_registry.mutex.unlock();
}

// Registered when the library is loaded: no fork comes between that moment and the first descriptor.
[[maybe_unused]] const int installed = ::pthread_atfork(before_fork, in_parent, in_child);

void forget(int fd) noexcept {
  Registry &r = the_registry;
  const Lock lock(r.mutex);
  if (static_cast<size_t>(fd) < r.by_fd.size()) r.by_fd[static_cast<size_t>(fd)].set = false;
}

}  // namespace

void close_in_child(int fd) {
  struct stat s;
  if (fd < 0 || ::fstat(fd, &s) != 0) return;
  Registry &r = the_registry;
  const Lock lock(r.mutex);
  if (r.by_fd.size() <= static_cast<size_t>(fd)) r.by_fd.resize(static_cast<size_t>(fd) + 1);
  r.by_fd[static_cast<size_t>(fd)] = {true, s.st_dev, s.st_ino};
}

GuardedFd::GuardedFd(UniqueFd fd) : fd_(std::move(fd)) { close_in_child(fd_.get()); }

GuardedFd &GuardedFd::operator=(GuardedFd &&other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::move(other.fd_);
  }
  return *this;
}

void GuardedFd::reset() noexcept {
  if (!fd_) return;
  forget(fd_.get());  // before the close: after the close the number may be another's
  fd_.reset();
}

}  // namespace isthmus::net
