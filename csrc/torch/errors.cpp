#include "errors.hpp"

#include <c10/util/Exception.h>

#include "interpreter.hpp"

namespace isthmus::torch_face {

namespace {

template <class E>
std::exception_ptr make(const std::string &text) {
  return std::make_exception_ptr(E(c10::SourceLocation{__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
}

}  // namespace

std::exception_ptr failure(isthmus_result result, const std::string &text) {
  switch (result) {
    case ISTHMUS_ERR_ARGUMENT:
    case ISTHMUS_ERR_CONFIG: return make<c10::ValueError>("isthmus: " + text);
    case ISTHMUS_ERR_UNSUPPORTED: return make<c10::NotImplementedError>("isthmus: " + text);
    // " timeout " between spaces is what programs that tell a timeout from other failures look for.
    default: return make<c10::DistBackendError>(std::string("isthmus: ") + isthmus_result_name(result) + " - " + text);
  }
}

void raise(isthmus_result result, const std::string &text) {
  if (result == ISTHMUS_ERR_INTERRUPTED) interpreter::raise_interrupt();
  std::rethrow_exception(failure(result, text));
}

void bad_argument(const std::string &text) { raise(ISTHMUS_ERR_ARGUMENT, text); }

}  // namespace isthmus::torch_face
