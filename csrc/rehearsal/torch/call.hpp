// Call is a function of a simulated vendor's library, found by its name. fail() throws what a failed call has to say.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "api.hpp"

namespace rehearsal_torch {

template <class... Arguments>
class Call {
 public:
  Call(void *library, const char *name) : name_(name) {
    void *address = ::dlsym(library, name);
    if (!address) throw std::runtime_error(std::string("rehearsal: the simulated library has no ") + name);
    function_ = reinterpret_cast<int (*)(Arguments...)>(address);
  }
  int operator()(Arguments... arguments) const { return function_(arguments...); }
  const char *name() const { return name_; }

 private:
  const char *name_;
  int (*function_)(Arguments...);
};

[[noreturn]] inline void fail(const char *call, int code, const char *text) {
  if (in_forked_child())
    throw std::runtime_error("rehearsal: a forked child cannot use the simulated device; start processes by 'spawn'");
  throw std::runtime_error(std::string("rehearsal: ") + call + ": " + (text ? text : "unknown error") + " (" +
                           std::to_string(code) + ")");
}

Api *open_acl(void *library);  // Huawei's Api

}  // namespace rehearsal_torch
