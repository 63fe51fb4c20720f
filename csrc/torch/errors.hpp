// From isthmus_result to torch's exceptions. A subclass of c10::Error reaches Python as ValueError, NotImplementedError or
// torch.distributed.DistBackendError (a RuntimeError).
#pragma once

#include <isthmus/isthmus.h>

#include <exception>
#include <string>

namespace isthmus::torch_face {

// The exception for a failed operation, to be stored or thrown.
std::exception_ptr failure(isthmus_result result, const std::string &text);

[[noreturn]] void raise(isthmus_result result, const std::string &text);

// Throws if `result` is a failure, with the calling thread's last error text.
inline void check(isthmus_result result) {
  if (result != ISTHMUS_OK) [[unlikely]]
    raise(result, isthmus_last_error());
}

[[noreturn]] void bad_argument(const std::string &text);  // ValueError

}  // namespace isthmus::torch_face
