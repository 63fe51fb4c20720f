#include "in_parallel.hpp"

#include <algorithm>
#include <exception>
#include <future>
#include <thread>

namespace isthmus::bridge {
namespace {

thread_local bool ends_with_its_act = false;

}  // namespace

bool on_parallel_thread() noexcept { return ends_with_its_act; }

std::vector<Result> in_parallel(Face &face, size_t count, const std::function<Result(size_t)> &act) {
  std::vector<Result> results(count);
  std::vector<const char *> texts(count);
  const auto guarded = [&](size_t i) noexcept {
    try {
      results[i] = act(i);
    } catch (const std::exception &e) { results[i] = face.thrown(e); }
    texts[i] = face.last_told();
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
      threads.emplace_back([&guarded, &face, begin, i] {
        if (!begin.get()) return;
        ends_with_its_act = true;
        interpose::ThreadState &t = *face.door().thread();
        ++t.inside;
        guarded(i);
        --t.inside;
      });
  } catch (const std::exception &e) {
    enough = false;
    std::fill(results.begin(), results.end(), face.thrown(e));
  }
  all.set_value(enough);
  for (std::thread &t : threads) t.join();
  const auto failed = std::find_if(results.begin(), results.end(), [&](Result r) { return face.failure(r); });
  if (enough && failed != results.end()) face.tell_again(texts[static_cast<size_t>(failed - results.begin())]);
  return results;
}

}  // namespace isthmus::bridge
