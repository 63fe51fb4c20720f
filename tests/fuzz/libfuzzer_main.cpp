// libFuzzer's entry for the target that the build names in ISTHMUS_FUZZ_TARGET (cmake -DISTHMUS_FUZZ=ON with clang).
#include <cstring>

#include "targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const auto run = [] {
    for (const auto &t : isthmus::fuzz::targets())
      if (std::strcmp(t.name, ISTHMUS_FUZZ_TARGET) == 0) return t.run;
    __builtin_trap();
  }();
  run(data, size);
  return 0;
}
