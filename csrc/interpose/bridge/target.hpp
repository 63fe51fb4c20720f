// Where the handle of a communicator goes. In a group, as at the vendors, a program gets its handle in the call. The program
// may copy the handle, and its variable may be gone, before the group ends and the census says whose the communicator is. So
// the program gets a handle of ours, which is promised. When the group ends, the handle becomes one of our communicators, or
// an alias of the vendor's.
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
  bool given_up() const;  // the program has aborted what it was promised

  // One of these says, once, whose the communicator is: ours (false: there is no handle, or the program gave it up); the
  // vendor's (the result is where the library writes its own handle); nobody's.
  bool put(const CommPtr &comm);
  void **vendors();
  void withdraw();
  void clear() noexcept {  // the variable gets null, where nothing was promised
    if (state_ == State::Empty) *out_ = nullptr;
  }
  bool promised() const { return state_ == State::Promised; }
  void *handle() const { return handle_; }  // that the program was given
  void **variable() const { return out_; }
  // When the group has ended. If the program's variable still has the promised handle, it gets the vendor's own, or null.
  void settle() noexcept;

 private:
  enum class State { Empty, Promised, Ours, Vendors };
  void write(void *handle) noexcept;

  void **const out_;
  State state_ = State::Empty;
  void *handle_ = nullptr;  // ours
  CommPtr promised_;        // what is behind the handle: in the group a Comm that stands for the one to come
};

}  // namespace isthmus::bridge
