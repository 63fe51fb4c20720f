// The handles that programs hold of communicators that span vendors. The handles are addresses in a range of their own
// (front_door.hpp), and this file alone knows what the handles mean.
#pragma once

#include <cstdint>
#include <memory>

namespace isthmus::bridge {

class Comm;

// Where the range begins, always the same; 0: the system has no room for it.
uintptr_t reserve_handles() noexcept;
bool in_range(const void *handle) noexcept;  // whether it is, or was, a handle of ours
// A new handle. Null: all handles are in use, or there is no memory.
void *give_handle(std::shared_ptr<Comm> comm);
// The communicator behind a handle. Null: there is no communicator, or the handle was taken back.
std::shared_ptr<Comm> find(const void *handle);
// Takes the handle back, and gives the communicator that was behind the handle. From then on find() gives null.
std::shared_ptr<Comm> take_back(const void *handle);
// Takes the handle back, or puts `by` behind the handle, if `comm` is still behind the handle. False: `comm` is not.
bool take_back(const void *handle, const std::shared_ptr<Comm> &comm);
bool replace(const void *handle, const std::shared_ptr<Comm> &comm, std::shared_ptr<Comm> by);

// An alias is a handle that stands for a communicator of the vendor's. Makes an alias of a handle of `comm`. The result is
// the place where the vendor's library writes its own handle: at any time, until the alias is dropped. Null: `comm` is no
// longer behind the handle.
void **make_alias(const void *handle, const std::shared_ptr<Comm> &comm);
// The same for a communicator that the vendor's library has made already. At every moment the handle stands for `comm` or
// for `real`. False: `comm` is no longer behind the handle.
bool become_alias(const void *handle, const std::shared_ptr<Comm> &comm, void *real);
// The vendor's handle behind an alias. Null: the handle is no alias, the vendor's library has not written its handle, or the
// alias was dropped.
void *behind(const void *handle) noexcept;
void *alias_of(const void *real) noexcept;  // the alias of this handle of the vendor's; null: there is no alias
void drop_alias(const void *handle) noexcept;

// The end of an alias, for a thread that must live until then. Made before the alias can be dropped.
class AliasEnd {
 public:
  explicit AliasEnd(const void *handle) noexcept;
  void wait() const noexcept;  // until the alias is dropped

 private:
  const void *handle_;
  uint32_t drops_;
};

}  // namespace isthmus::bridge
