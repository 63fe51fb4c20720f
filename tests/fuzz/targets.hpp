// One function for each parser that reads bytes from the network or from a file. Each feeds it arbitrary input and checks what must hold
// whatever the input is (it aborts where it does not); libFuzzer and the replay test call the same functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace isthmus::fuzz {

using Bytes = std::vector<uint8_t>;

struct Target {
  const char *name;
  void (*run)(const uint8_t *data, size_t size);
  std::vector<Bytes> (*seeds)();  // valid inputs to mutate
  int replays = 40'000;           // how many mutations the replay test tries
};
const std::vector<Target> &targets();

}  // namespace isthmus::fuzz
