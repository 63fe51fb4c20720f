// A TCP port of this host that nobody has, for ranks that are about to begin.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>

namespace isthmus::bench {

// A port from 20000 to 31999 that is free on 127.0.0.1: the kernel gives higher ones to outgoing connections. It has a name in the abstract namespace
// of Unix sockets, as those of isthmus.launch.free_port() have: no other process that asks here or there gets the port while this process lives,
// and has not asked for 64 more. Any thread. Throws std::runtime_error where none is found.
inline uint16_t free_port() {
  static std::mutex mutex;
  static std::deque<int> reserved;
  const std::lock_guard lock(mutex);
  std::random_device random;
  for (int tries = 0; tries < 1024; ++tries) {
    const auto port = static_cast<uint16_t>(20000 + random() % 12000);
    const std::string text = "isthmus-port-" + std::to_string(port);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, text.data(), text.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    const int named = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0),
              tried = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool free = ::bind(named, reinterpret_cast<const sockaddr *>(&name), length) == 0 &&
                      ::bind(tried, reinterpret_cast<const sockaddr *>(&at), sizeof at) == 0;
    ::close(tried);
    if (!free) {
      ::close(named);
      continue;
    }
    reserved.push_back(named);
    if (reserved.size() > 64) {
      ::close(reserved.front());
      reserved.pop_front();
    }
    return port;
  }
  throw std::runtime_error("no free port from 20000 to 31999 on 127.0.0.1");
}

}  // namespace isthmus::bench
