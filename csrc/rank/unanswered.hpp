// The error of a wait for the word of other ranks. It says which ranks, as far as the waiting rank knows them.
#pragma once

#include <vector>

#include "base/error.hpp"

namespace isthmus::rank {

class Unanswered : public Error {
 public:
  Unanswered(Code code, std::string text, std::vector<int> ranks) : Error(code, std::move(text)), ranks_(std::move(ranks)) {}
  const std::vector<int> &ranks() const noexcept { return ranks_; }  // of the communicator, ascending

 private:
  std::vector<int> ranks_;
};

}  // namespace isthmus::rank
