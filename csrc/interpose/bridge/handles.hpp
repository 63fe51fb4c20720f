// The handles that programs hold of communicators which span vendors. They are addresses in a range of their own
// (front_door.hpp), and this file alone knows what they mean.
#pragma once

#include <cstdint>
#include <memory>

namespace isthmus::bridge {

class Comm;

// Where the range begins, always the same; 0: the system has no room for it.
uintptr_t reserve_handles() noexcept;
// A new handle. Null: all handles are in use, or there is no memory.
void *give_handle(std::shared_ptr<Comm> comm);
// The communicator behind a handle. Null: there is none, or the handle was taken back.
std::shared_ptr<Comm> find(const void *handle);
// Takes the handle back, and gives what was behind it. From then on find() gives null.
std::shared_ptr<Comm> take_back(const void *handle);
// Takes the handle back, or puts `by` behind it, if `comm` is still behind it. False: it is not.
bool take_back(const void *handle, const std::shared_ptr<Comm> &comm);
bool replace(const void *handle, const std::shared_ptr<Comm> &comm, std::shared_ptr<Comm> by);

// An alias is a handle that stands for a communicator of the vendor's. Makes an alias of a handle of `comm`. The result is
// where the vendor's library writes its own handle: at any time, until the alias is dropped. Null: `comm` is no longer
// behind the handle.
void **make_alias(const void *handle, const std::shared_ptr<Comm> &comm);
// The same for a communicator that the vendor's library has made already. At every moment the handle stands for `comm` or
// for `real`. False: `comm` is no longer behind the handle.
bool become_alias(const void *handle, const std::shared_ptr<Comm> &comm, void *real);
// The vendor's handle behind an alias. Null: the handle is no alias, or the vendor's library has not written there, or it
// was dropped.
void *behind(const void *handle) noexcept;
void *alias_of(const void *real) noexcept;  // the alias of this handle of the vendor's; null: there is none
void drop_alias(const void *handle) noexcept;

}  // namespace isthmus::bridge
