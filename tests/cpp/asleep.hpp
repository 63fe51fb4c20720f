// For orders of threads that are made by one of them waiting inside a call, where nothing but the thread itself can tell that it does.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "patience.hpp"

namespace isthmus_test {

inline pid_t this_thread() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

// Whether that thread of this process comes to wait: it sleeps whenever one looks, for a while. One that gets no processor is not asleep,
// however long that takes.
inline bool falls_asleep(pid_t thread) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(soon());
  for (int slept = 0; slept < 30;) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string text;
    std::getline(file, text);
    const size_t name_ends = text.rfind(") ");  // a name may hold anything
    slept = name_ends != std::string::npos && text[name_ends + 2] == 'S' ? slept + 1 : 0;
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace isthmus_test
