// The room that the kernel has for a process's descriptors.
#include "base/handles.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/error.hpp"
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

TEST(Mapping, ThatFindsNoRoomSaysHowMuchItWantsAndWhatLimitsIt) {
  in_child([] {
    const UniqueFd fd(::memfd_create("isthmus-test", MFD_CLOEXEC));
    constexpr size_t kBytes = size_t{1} << 30;
    if (::ftruncate(fd.get(), kBytes) != 0) return false;
    rlimit most{};
    ::getrlimit(RLIMIT_AS, &most);
    most.rlim_cur = kBytes / 2;
    ::setrlimit(RLIMIT_AS, &most);
    try {
      const Mapping mapping(fd.get(), kBytes);
    } catch (const Error &e) {
      return e.code() == Code::Resource && e.text().starts_with("mapping 1073741824 bytes of shared memory: ") &&
             e.text().find("ISTHMUS_STAGING_BYTES") != std::string::npos;
    }
    return false;
  });
}

}  // namespace
}  // namespace isthmus
