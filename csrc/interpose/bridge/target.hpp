// Where the handle of a communicator goes. In a group, as at the vendors, a program gets its handle in the call. The program
// may copy the handle, and its variable may be gone, before the group ends and the census says whose the communicator is. So
// the program gets a handle of ours, and the communicator behind the handle is promised:
//
//   init in the group      promise(): a handle of ours, and nothing behind it yet
//   the group ends         the census says whose the communicator is
//       spans vendors      put(): a communicator of ours is behind the handle
//       one vendor's       vendors(): the handle becomes an alias of the vendor's handle
//       nobody's           withdraw(): the handle ends
//   after the group        settle(): the program's variable gets the vendor's own handle, or null
#pragma once

#include <string>

#include "comm.hpp"

namespace isthmus::bridge {

class Target {
 public:
  explicit Target(void **out) : out_(out) {}
  ~Target() { settle(); }
  Target(const Target &) = delete;
  Target &operator=(const Target &) = delete;

  // In a group: gives the program a handle now. False: there is no handle, or no memory.
  bool promise(const DevicePlace &place, bool blocking, const std::string &name);
  bool given_up() const;  // the program has aborted the promised communicator

  // One of these says, once, whose the communicator is.
  // put(): ours. False: there is no handle, or the program has given the communicator up.
  // vendors(): the vendor's. The result is the place where the library writes its own handle.
  // withdraw(): nobody's.
  bool put(const CommPtr &comm);
  void **vendors();
  void withdraw();
  void clear() noexcept {  // the variable gets null, where nothing was promised
    if (state_ == State::Empty) *out_ = nullptr;
  }
  bool promised() const { return state_ == State::Promised; }
  void *handle() const { return handle_; }  // that the program was given
  void **variable() const { return out_; }
  // When the group has ended. If the program's variable still has the promised handle, the variable gets the vendor's own
  // handle, or null.
  void settle() noexcept;
  // The same, of an init that does not block: the vendor's library has made the communicator `real`. Any thread.
  void resolve(void *real) noexcept { write(real); }

 private:
  enum class State { Empty, Promised, Ours, Vendors };
  void write(void *handle) const noexcept;

  void **const out_;
  State state_ = State::Empty;
  void *handle_ = nullptr;  // ours
  CommPtr promised_;        // behind the handle: in the group a Comm that stands for the one to come
};

}  // namespace isthmus::bridge
