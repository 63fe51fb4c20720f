#include "observe/report_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/handles.hpp"

namespace isthmus::observe {
namespace {

void write(const std::string &path, const std::string &text, int flags) {
  std::error_code ignored;  // opening the file fails then, and that error says enough
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty())
    std::filesystem::create_directories(folder, ignored);
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666));
  if (!fd) fail_system(path.c_str(), errno);
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_system(path.c_str(), n < 0 ? errno : EIO);
    done += static_cast<size_t>(n);
  }
}

}  // namespace

void write_file(const std::string &path, const std::string &text) {
  const std::string unfinished = formatted("{}.{}", path, ::getpid());
  write(unfinished, text, O_TRUNC);
  if (::rename(unfinished.c_str(), path.c_str()) != 0) fail_system(path.c_str(), errno);
}

void append_to_file(const std::string &path, const std::string &text, bool anew) {
  write(path, text, O_APPEND | (anew ? O_TRUNC : 0));
}

}  // namespace isthmus::observe
