// The handles that programs hold of communicators which span vendors: addresses in a range of their own (door.hpp), that nobody but this
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

}  // namespace isthmus::bridge
