#include "rehearsal_file.hpp"

#include <mutex>
#include <set>
#include <string>

const char *rehearsal_file(const char *name) {
  static std::mutex mutex;
  static auto *const paths = new std::set<std::string>;  // outlives static destruction
  const std::lock_guard lock(mutex);
  return paths->insert(std::string(REHEARSAL "/") + name).first->c_str();
}
