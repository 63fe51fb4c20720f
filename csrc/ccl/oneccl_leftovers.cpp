#include "ccl/oneccl_leftovers.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace isthmus::ccl {
namespace {

namespace fs = std::filesystem;
constexpr const char *kFolder = "/dev/shm";
constexpr const char *kFirstNamespace = "pid:[4026531836]";  // the kernel's fixed number for it

// The process in "123:0:1", or -1 where the name is another.
pid_t process_of(const std::string &name) {
  pid_t pid = -1;
  const char *at = name.data(), *end = at + name.size();
  for (int part = 0; part < 3; ++part) {
    int number = -1;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc{} || next == at || number < 0) return -1;
    if (part == 0) pid = number;
    if (part == 2) return next == end ? pid : -1;
    if (next == end || *next != ':') return -1;
    at = next + 1;
  }
  return -1;
}

bool in_first_namespace() {
  std::error_code error;
  return fs::read_symlink("/proc/self/ns/pid", error).string() == kFirstNamespace && !error;
}

// Drops from `paths` what some process has mapped, and all where that cannot be seen.
void keep_unmapped(std::vector<std::string> &paths) {
  std::error_code error;
  for (const auto &entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (paths.empty()) return;
    if (!std::isdigit(static_cast<unsigned char>(name[0]))) continue;
    std::ifstream maps(entry.path() / "maps");
    for (std::string line; std::getline(maps, line);)
      if (line.find(kFolder) != std::string::npos)
        std::erase_if(paths, [&](const std::string &path) { return line.ends_with(path); });
  }
  if (error) paths.clear();
}

}  // namespace

void remove_leftovers(bool own) noexcept {
  try {
    std::vector<std::string> gone;
    const bool others = in_first_namespace();
    std::error_code error;
    for (const auto &entry : fs::directory_iterator(kFolder, error)) {
      const std::string path = entry.path();
      const pid_t pid = process_of(entry.path().filename());
      struct stat file;
      if (pid <= 0 || ::lstat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode) || file.st_uid != ::geteuid()) continue;
      if (pid == ::getpid()) {
        if (own) ::unlink(path.c_str());
      } else if (others && ::kill(pid, 0) != 0 && errno == ESRCH) {
        gone.push_back(path);
      }
    }
    if (!gone.empty()) keep_unmapped(gone);
    for (const std::string &path : gone) ::unlink(path.c_str());
  } catch (...) {}  // no memory: the next process tries again
}

}  // namespace isthmus::ccl
