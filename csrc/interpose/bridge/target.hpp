// Where the handle of a communicator goes. In a group a program gets its handle in the call, as vendors have it, because it may copy it, and
// its variable may be gone, before the group ends and anybody knows whose the communicator is. So it is one of ours, which becomes one of our
// communicators, or another name of the one that the vendor's library makes.
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

  // In a group: gives the program a handle now. False: there is none, or no memory.
  bool promise(const Place &place, bool blocking, const std::string &name);
  bool given_up() const;  // the program has aborted what it was promised

  // What it is, once: ours (false: there is no handle, or it was given up), the vendor's (where the library writes its own handle), or nothing.
  bool put(const CommPtr &comm);
  void **vendors();
  void withdraw();
  void clear() {  // where nothing was promised
    if (state_ == State::Empty) *out_ = nullptr;
  }
  bool promised() const { return state_ == State::Promised; }
  void *handle() const { return handle_; }  // that it has given
  void **variable() const { return out_; }
  // Once it is known. The program's variable, if that still has the handle that was promised, gets the vendor's own, or null.
  void settle() noexcept;

 private:
  enum class State { Empty, Promised, Ours, Vendors };
  void write(void *handle) noexcept;

  void **const out_;
  State state_ = State::Empty;
  void *handle_ = nullptr;  // ours
  CommPtr promised_;        // what stands for it in the group
};

}  // namespace isthmus::bridge
