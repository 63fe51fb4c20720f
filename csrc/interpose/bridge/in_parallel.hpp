// Calls that wait for each other, each on a thread of its own.
#pragma once

#include <functional>
#include <vector>

#include "face.hpp"

namespace isthmus::bridge {

// Runs act(0) to act(count - 1), and returns when all have ended: their results. A single one runs on this thread. Where
// there are not enough threads, none of them begins, and each has the result of that failure.
std::vector<Result> in_parallel(Face &face, size_t count, const std::function<Result(size_t)> &act);

}  // namespace isthmus::bridge
