// What the end of a group is made of, for every face: calls that wait for each other, and the real library's own group around them.
#pragma once

#include <exception>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm.hpp"
#include "front_door.hpp"

namespace isthmus::interpose {
enum Result : int;  // its numbers are each vendor's own
}

namespace isthmus::bridge {

// Each on a thread of its own, or one alone on this thread: what became of each. Where there are not enough threads none of them begins, and
// that is what all have become, as `thrown` says it.
std::vector<interpose::Result> in_parallel(const interpose::FrontDoor &door, size_t count,
                                           const std::function<interpose::Result(size_t)> &act,
                                           interpose::Result (*thrown)(const std::exception &) noexcept);

// What to say where the real library's part is on its way, and ours, which is all of these, is not.
std::string text_of_half(const interpose::FrontDoor &door, std::span<const Operations> ours);

// The real library's group: it ends in any case.
class RealGroup {
 public:
  explicit RealGroup(interpose::Result (*function)()) : end_(function) {}
  ~RealGroup() { end(); }
  RealGroup(const RealGroup &) = delete;
  RealGroup &operator=(const RealGroup &) = delete;
  bool open() const { return end_ != nullptr; }
  interpose::Result end() {
    auto *f = std::exchange(end_, nullptr);
    return f ? f() : interpose::Result{0};
  }

 private:
  interpose::Result (*end_)();
};

}  // namespace isthmus::bridge
