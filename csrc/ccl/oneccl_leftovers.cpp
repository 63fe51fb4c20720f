#include "ccl/oneccl_leftovers.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace isthmus::ccl {
namespace {

namespace fs = std::filesystem;
constexpr const char *kFolder = "/dev/shm";
constexpr const char *kFirstNamespace = "pid:[4026531836]";  // the kernel's fixed number for the first namespace

// The process in "123:0:1"; -1: the name has another form.
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

// Calls see(path, process, file) for each file of the transport's that is this user's.
template <class See>
void each_file(See see) {
  std::error_code error;
  for (const auto &entry : fs::directory_iterator(kFolder, error)) {
    const std::string path = entry.path();
    const pid_t pid = process_of(entry.path().filename());
    struct stat file;
    if (pid <= 0 || ::lstat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode) || file.st_uid != ::geteuid()) continue;
    see(path, pid, file);
  }
}

// Calls see(path) for each of the folder's files that the process has mapped, by the name that the file still has.
template <class See>
void each_mapped(const fs::path &process, See see) {
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);)
    if (const size_t at = line.find(kFolder); at != std::string::npos) see(line.substr(at));
}

// Drops from `paths` what some process has mapped. Drops all where the mappings cannot be seen.
void keep_unmapped(std::vector<std::string> &paths) {
  std::error_code error;
  for (const auto &entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (paths.empty()) return;
    if (!std::isdigit(static_cast<unsigned char>(name[0]))) continue;
    each_mapped(entry.path(), [&](const std::string &mapped) { std::erase(paths, mapped); });
  }
  if (error) paths.clear();
}

// Drops from `paths` what this process has not mapped.
void keep_mapped_here(std::vector<std::string> &paths) {
  if (paths.empty()) return;
  std::vector<std::string> here;
  each_mapped("/proc/self", [&](const std::string &mapped) { here.push_back(mapped); });
  std::erase_if(paths, [&](const std::string &path) { return std::find(here.begin(), here.end(), path) == here.end(); });
}

// The files that had this process's number before the process opened the library. Written under the lock of open_oneccl(). Read when the process
// ends, so the array has no destructor. Where there were more files than the array holds, no file counts as ours.
constexpr size_t kMostEarlier = 64;
struct Earlier {
  dev_t device;
  ino_t number;
};
std::array<Earlier, kMostEarlier> the_earlier;
size_t the_earlier_count = 0;

bool was_there(const struct stat &file) {
  if (the_earlier_count > kMostEarlier) return true;
  const auto end = the_earlier.begin() + static_cast<std::ptrdiff_t>(the_earlier_count);
  return std::any_of(the_earlier.begin(), end,
                     [&](const Earlier &e) { return e.device == file.st_dev && e.number == file.st_ino; });
}

}  // namespace

void note_earlier_files() noexcept {
  try {
    each_file([](const std::string &, pid_t pid, const struct stat &file) {
      if (pid != ::getpid() || was_there(file)) return;
      if (the_earlier_count < kMostEarlier) the_earlier[the_earlier_count] = {file.st_dev, file.st_ino};
      ++the_earlier_count;
    });
  } catch (...) { the_earlier_count = kMostEarlier + 1; }  // nobody knows which files were there
}

void remove_leftovers_of_the_dead() noexcept {
  try {
    if (!in_first_namespace()) return;
    const auto dead = [](pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; };
    std::vector<std::string> gone;
    each_file([&](const std::string &path, pid_t pid, const struct stat &) {
      if (dead(pid)) gone.push_back(path);
    });
    if (!gone.empty()) keep_unmapped(gone);
    for (const std::string &path : gone)  // while we looked another process may have got the number, and the file
      if (dead(process_of(fs::path(path).filename()))) ::unlink(path.c_str());
  } catch (...) {}  // no memory: the next process tries again
}

void remove_own_leftovers() noexcept {
  try {
    std::vector<std::string> ours;
    each_file([&](const std::string &path, pid_t pid, const struct stat &file) {
      if (pid == ::getpid() && !was_there(file)) ours.push_back(path);
    });
    keep_mapped_here(ours);
    for (const std::string &path : ours) ::unlink(path.c_str());
  } catch (...) {}  // no memory: the files stay
}

}  // namespace isthmus::ccl
