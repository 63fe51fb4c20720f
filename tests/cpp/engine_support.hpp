// Ranks as threads of this process.
#pragma once

#include <gtest/gtest.h>
#include <isthmus/isthmus.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "patience.hpp"

namespace isthmus::test {

struct Shape {
  const char *name;
  int world;
  std::vector<const char *> islands;  // empty: one island
  const char *bridge = nullptr;
  const char *settings = nullptr;
};

#define ISTHMUS_OK_OR_SAY(call)                                              \
  do {                                                                       \
    const isthmus_result result_ = (call);                                   \
    EXPECT_EQ(result_, ISTHMUS_OK) << #call << ": " << isthmus_last_error(); \
  } while (0)

// Runs body(comm, rank) on every rank of a new communicator. Destroying is the body's, or else ours.
inline void on_ranks(const Shape &shape, const std::function<void(isthmus_comm_t, int)> &body,
                     double timeout = 2 * isthmus_test::soon()) {
  isthmus_unique_id id;
  ASSERT_EQ(isthmus_unique_id_create(&id), ISTHMUS_OK) << isthmus_last_error();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shape.world; ++rank)
    threads.emplace_back([&, rank] {
      isthmus_options o{};
      o.size = sizeof o;
      o.rank = rank;
      o.world_size = shape.world;
      o.id = &id;
      o.timeout = timeout;
      o.name = shape.name;
      o.island = shape.islands.empty() ? nullptr : shape.islands[static_cast<size_t>(rank)];
      o.bridge = shape.bridge;
      o.settings = shape.settings;
      isthmus_comm_t comm = nullptr;
      const isthmus_result made = isthmus_init(&o, &comm);
      ASSERT_EQ(made, ISTHMUS_OK) << "rank " << rank << ": " << isthmus_last_error();
      body(comm, rank);
      isthmus_comm_destroy(comm);  // ISTHMUS_ERR_ARGUMENT where the body did it
    });
  for (auto &t : threads) t.join();
}

// The element i that rank r contributes: sums over few ranks are exact in int64.
inline int64_t value(int rank, uint64_t i) { return static_cast<int64_t>(i % 1009) * 8 + rank + 1; }

inline std::vector<int64_t> contribution(int rank, uint64_t count) {
  std::vector<int64_t> out(count);
  for (uint64_t i = 0; i < count; ++i) out[i] = value(rank, i);
  return out;
}

inline int64_t sum_of(int world, uint64_t i) {
  int64_t s = 0;
  for (int r = 0; r < world; ++r) s += value(r, i);
  return s;
}

// Wrong elements of got[0..count): expected(i) says what should be there.
template <class F>
uint64_t wrong(const int64_t *got, uint64_t count, F expected) {
  uint64_t n = 0;
  for (uint64_t i = 0; i < count; ++i) n += got[i] != expected(i);
  return n;
}

}  // namespace isthmus::test
