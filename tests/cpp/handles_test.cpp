// The room that the kernel has for a process's descriptors.
#include "base/handles.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "in_child.hpp"

namespace isthmus {
namespace {

using isthmus_test::in_child;

// For how many descriptors the kernel has room for this process.
int room_for_descriptors() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (int slots = 0; word == "FDSize:" && status >> slots) return slots;
  return -1;
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST(Descriptors, HaveRoomOnceAndForAllAndNoneIsLeftOpen) {
  in_child([] {
    const size_t open = open_descriptors();
    const int before = room_for_descriptors();
    make_room_for_descriptors(700);
    const int once = room_for_descriptors();
    make_room_for_descriptors(700);
    return before < 700 && once >= 700 && room_for_descriptors() == once && open_descriptors() == open;
  });
}

TEST(Descriptors, HaveRoomForAsManyAsTheProcessMayHave) {
  in_child([] {
    rlimit most{};
    ::getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = 200;
    ::setrlimit(RLIMIT_NOFILE, &most);
    make_room_for_descriptors(700);
    const int room = room_for_descriptors();
    return room >= 200 && room < 700;
  });
}

}  // namespace
}  // namespace isthmus
