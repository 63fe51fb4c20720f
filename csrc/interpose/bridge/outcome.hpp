// What became of a call, as a code of Isthmus and a text. A face gives the outcome the vendor's number.
#pragma once

#include <isthmus/isthmus.h>

#include <string>

namespace isthmus::bridge {

struct Outcome {
  isthmus_result code = ISTHMUS_OK;
  std::string text;
  int vendors = 0;  // the vendor's own number, where its library has failed; 0: the code decides
  bool ok() const noexcept { return code == ISTHMUS_OK; }
};

inline Outcome outcome(isthmus_result r) {
  return {r, r == ISTHMUS_OK || r == ISTHMUS_IN_PROGRESS ? std::string() : std::string(isthmus_last_error())};
}

}  // namespace isthmus::bridge
