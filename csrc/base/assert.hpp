// ISTHMUS_ASSERT(condition, "what holds, as a sentence"): states an invariant. The tests and sanitizer builds check it and end the
// process where it does not hold; the library that is installed for users does not contain the check (CMake: ISTHMUS_ASSERTIONS).
// The condition must have no side effect. A wrong input of a user or a peer is an Error, never an assertion.
#pragma once

#if ISTHMUS_ASSERTIONS
#include <cstdio>
#include <cstdlib>

namespace isthmus {
[[noreturn]] inline void assertion_failed(const char *sentence, const char *condition, const char *file, int line) noexcept {
  std::fprintf(stderr, "isthmus: this does not hold: %s (%s, %s:%d)\n", sentence, condition, file, line);
  std::abort();
}
}  // namespace isthmus
#define ISTHMUS_ASSERT(condition, sentence) \
  ((condition) ? static_cast<void>(0) : ::isthmus::assertion_failed(sentence, #condition, __FILE__, __LINE__))
#else
#define ISTHMUS_ASSERT(condition, sentence) static_cast<void>(sizeof((condition) ? 1 : 0))
#endif
