// What ends a call that makes a communicator of another one before all ranks have come.
#pragma once

#include "base/error.hpp"
#include "rank/rank.hpp"

namespace isthmus::comm {

// Whether the program has aborted or destroyed a communicator since the watch began. A call that waits for other ranks looks now and then, and
// waits for none of them any more. What the program has done before does not count: a communicator that was aborted is what such calls are for.
class AbortWatch {
 public:
  explicit AbortWatch(rank::Rank &of) noexcept : of_(of), aborts_(of.exchange().aborts()) {}
  Status status() const {
    if (of_.core().left()) return {Code::Aborted, "the communicator was destroyed here meanwhile"};
    if (of_.exchange().aborts() != aborts_) return {Code::Aborted, "the communicator was aborted here meanwhile"};
    return {};
  }
  void look(const std::string &name) const {  // throws Error(Aborted)
    if (Status now = status(); !now.ok()) throw Error(now.code, formatted("{}: {}", name, now.text));
  }

 private:
  rank::Rank &of_;
  const uint64_t aborts_;
};

}  // namespace isthmus::comm
