// The handles that programs hold of communicators which span vendors: addresses in a range of their own (front_door.hpp), that nobody but this
// file makes anything of.
#pragma once

#include <cstdint>
#include <memory>

namespace isthmus::bridge {

class Comm;

uintptr_t reserve_handles() noexcept;            // where the range begins, always the same; 0: the system has no room for it
void *give_handle(std::shared_ptr<Comm> comm);   // null: as many are in use as there are, or no memory
std::shared_ptr<Comm> find(const void *handle);  // null: of none that lives
std::shared_ptr<Comm> take_back(const void *handle);  // and nobody finds it any more
// The same where it is still that one's.
bool take_back(const void *handle, const std::shared_ptr<Comm> &comm);
bool replace(const void *handle, const std::shared_ptr<Comm> &comm, std::shared_ptr<Comm> by);

// A handle of that one becomes another name of a communicator of the vendor's: where the vendor's library writes its own handle, at any time
// until the alias is dropped. Null: it is no longer that one's.
void **make_alias(const void *handle, const std::shared_ptr<Comm> &comm);
// The same for one that the vendor's library has made; at every moment the handle is a name of one or the other. False: it is no longer that
// one's.
bool become_alias(const void *handle, const std::shared_ptr<Comm> &comm, void *real);
void *behind(const void *handle) noexcept;  // the vendor's handle; null: it is no alias, or not yet, or not any more
void *alias_of(const void *real) noexcept;  // the handle that stands for this one of the vendor's; null: none does
void drop_alias(const void *handle) noexcept;

}  // namespace isthmus::bridge
