#include "comm/profile.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.hpp"
#include "base/handles.hpp"
#include "topology/profile.hpp"

namespace isthmus::comm {

std::string read_profile(const std::string &path) {
  const auto broken = [&](const std::string &why) {
    fail(Code::Config, "ISTHMUS_PROFILE={}: {}; expected a file that `isthmus tune --output FILE` wrote", path, why);
  };
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe must not hold up init
  struct stat about {};
  if (!file || ::fstat(file.get(), &about) != 0) broken(system_text("it cannot be opened", errno));
  if (!S_ISREG(about.st_mode)) broken("it is no regular file");
  std::string text(topology::kMostProfileBytes + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = ::read(file.get(), text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) broken(system_text("it cannot be read", errno));
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  if (size == text.size()) broken(formatted("it has more than {} bytes", topology::kMostProfileBytes));
  text.resize(size);
  return text;
}

}  // namespace isthmus::comm
