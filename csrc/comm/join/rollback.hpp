// What a step of joining has taken, and how the step gives it back.
#pragma once

#include <functional>
#include <utility>

namespace isthmus::comm::join {

// Calls `undo` at its end, unless keep() was called before.
class Rollback {
 public:
  Rollback() = default;
  explicit Rollback(std::function<void()> undo) : undo_(std::move(undo)) {}
  Rollback(Rollback &&other) noexcept : undo_(std::exchange(other.undo_, nullptr)) {}
  Rollback &operator=(Rollback &&other) noexcept {
    std::swap(undo_, other.undo_);
    return *this;
  }
  ~Rollback() {
    if (undo_) undo_();
  }
  void keep() noexcept { undo_ = nullptr; }  // another owner gives back what was taken, from now on

 private:
  std::function<void()> undo_;
};

}  // namespace isthmus::comm::join
