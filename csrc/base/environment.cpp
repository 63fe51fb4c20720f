#include "base/environment.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace isthmus {

void add_to_environment(std::span<const std::pair<std::string, std::string>> variables) {
  const std::atomic_ref<char **> list(environ);
  std::vector<char *> all;
  for (char **at = list.load(std::memory_order_acquire); at && *at; ++at) all.push_back(*at);
  const size_t before = all.size();
  for (const auto &[name, value] : variables) {
    if (std::getenv(name.c_str())) continue;
    if (char *const text = ::strdup((name + "=" + value).c_str())) all.push_back(text);
  }
  if (all.size() == before) return;
  all.push_back(nullptr);
  // Another thread may read any list there has been, so none is freed. Each begins with the one before it.
  static std::atomic<char **> last{nullptr};
  auto **const made = static_cast<char **>(std::malloc((1 + all.size()) * sizeof(char *)));
  if (!made) return;
  std::memcpy(made + 1, all.data(), all.size() * sizeof(char *));
  char **kept = last.load(std::memory_order_relaxed);
  do made[0] = reinterpret_cast<char *>(kept);
  while (!last.compare_exchange_weak(kept, made, std::memory_order_release, std::memory_order_relaxed));
  list.store(made + 1, std::memory_order_release);
}

}  // namespace isthmus
