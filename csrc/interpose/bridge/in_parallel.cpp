#include "in_parallel.hpp"

#include <algorithm>
#include <future>
#include <thread>

namespace isthmus::bridge {

using interpose::Result;

std::vector<Result> in_parallel(const interpose::FrontDoor &door, size_t count, const std::function<Result(size_t)> &act,
                                Result (*thrown)(const std::exception &) noexcept) {
  std::vector<Result> results(count);
  const auto guarded = [&](size_t i) noexcept {
    try {
      results[i] = act(i);
    } catch (const std::exception &e) { results[i] = thrown(e); }
  };
  if (count == 1) guarded(0);
  if (count < 2) return results;
  std::promise<bool> all;
  const std::shared_future<bool> begin = all.get_future().share();
  std::vector<std::thread> threads;
  bool enough = true;
  try {
    threads.reserve(count);
    for (size_t i = 0; i < count; ++i)
      threads.emplace_back([&guarded, &door, begin, i] {
        if (!begin.get()) return;
        interpose::Thread &t = *door.thread();
        ++t.inside;
        guarded(i);
        --t.inside;
      });
  } catch (const std::exception &e) {
    enough = false;
    std::fill(results.begin(), results.end(), thrown(e));
  }
  all.set_value(enough);
  for (std::thread &t : threads) t.join();
  return results;
}

std::string text_of_half(const interpose::FrontDoor &door, std::span<const Operations> ours) {
  std::vector<std::string> names;
  for (const Operations &operations : ours)
    for (const auto &[comm, operation] : operations) {
      const std::string name = "'" + comm->traits().name + "'";
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  std::string text = " (of the group nothing was launched on ";
  for (const std::string &name : names) text += (&name == &names.front() ? "" : ", ") + name;
  if (names.empty()) text += "communicators that span vendors";
  return text + "; what it has on communicators of " + door.name + "'s own was)";
}

}  // namespace isthmus::bridge
