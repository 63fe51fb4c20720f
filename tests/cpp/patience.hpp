// How patient tests are: bounds and deadlines of tests are given for an idle machine, and are multiplied by one factor.
// scripts/test.py measures the machine and sets TEST_PATIENCE, at least 1; tests/patience.py is the same for Python.
#pragma once

#include <cstdlib>

namespace isthmus_test {

inline double patience() {
  static const double factor = [] {
    const char *text = std::getenv("TEST_PATIENCE");
    const double given = text ? std::atof(text) : 1;
    return given > 1 ? given : 1;
  }();
  return factor;
}

// These seconds of an idle machine, on this machine.
inline double patient(double seconds) { return seconds * patience(); }

// Seconds within which what must happen has happened. Only what hangs takes that long: no test passes by waiting for it.
inline double soon() { return patient(30); }

}  // namespace isthmus_test
