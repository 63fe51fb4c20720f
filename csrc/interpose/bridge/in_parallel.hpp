// Calls that wait for each other, each on a thread of its own.
#pragma once

#include <functional>
#include <vector>

#include "face.hpp"

namespace isthmus::bridge {

// Runs act(0) to act(count - 1), and returns their results when all have ended. A single act runs on this thread. Where there
// are not enough threads, no act begins, and the result of each act is that failure. The text of the first failure becomes this
// thread's newest (Face::last_told).
std::vector<Result> in_parallel(Face &face, size_t count, const std::function<Result(size_t)> &act);
bool on_parallel_thread() noexcept;  // this thread is one of in_parallel()'s, and ends with its act

}  // namespace isthmus::bridge
