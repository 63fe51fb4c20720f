// How the tests of the simulated vendors look at them: libraries opened by name in a child of the test, whose end and last words the test
// sees. Every test runs in a process of its own, since the environment is read once.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "patience.hpp"
#include "rehearsal_file.hpp"

// Under ThreadSanitizer, whose exits take a second each otherwise.
extern "C" __attribute__((visibility("default"), weak)) const char *__tsan_default_options();
extern "C" const char *__tsan_default_options() { return "atexit_sleep_ms=20"; }

namespace rehearsed {

using Handle = void *;
struct UniqueId {
  unsigned char bytes[128];
};

inline void *library(const char *name) {
  void *l = ::dlopen(rehearsal_file(name), RTLD_NOW | RTLD_LOCAL);
  if (!l) {
    std::fprintf(stderr, "%s\n", ::dlerror());
    ::_exit(4);
  }
  return l;
}

// Calls by name; the types of the arguments are the caller's word.
template <class... A>
int call(const char *library_name, const char *name, A... a) {
  const auto f = reinterpret_cast<int (*)(A...)>(::dlsym(library(library_name), name));
  if (!f) {
    std::fprintf(stderr, "no %s\n", name);
    ::_exit(4);
  }
  return f(a...);
}
inline size_t live(const char *what) {
  return reinterpret_cast<size_t (*)(const char *)>(::dlsym(library("librehearsal.so"), "rehearsal_live"))(what);
}
inline unsigned long number_of(const char *name, const char *argument = nullptr) {
  return reinterpret_cast<unsigned long (*)(const char *)>(::dlsym(library("librehearsal.so"), name))(argument);
}

#define CHECK(x)                                                           \
  do {                                                                     \
    if (!(x)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); \
      std::fflush(stderr);                                                 \
      ::_exit(3);                                                          \
    }                                                                      \
  } while (0)
#define IS(x, y)                                                                                        \
  do {                                                                                                  \
    const auto is_ = (x);                                                                               \
    if (is_ != (y)) {                                                                                   \
      std::fprintf(stderr, "%s:%d: %s is %lld\n", __FILE__, __LINE__, #x, static_cast<long long>(is_)); \
      std::fflush(stderr);                                                                              \
      ::_exit(3);                                                                                       \
    }                                                                                                   \
  } while (0)

using Environment = std::vector<std::pair<std::string, std::string>>;
struct End {
  int status = 0;
  std::string said;
  bool clean() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
  bool has(const char *text) const { return said.find(text) != std::string::npos; }
};

// Runs it in a child, which ends by itself or is ended.
inline End run(const Environment &environment, const std::function<void()> &body) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], 2);
    ::close(ends[0]);
    ::close(ends[1]);
    ::setenv("REHEARSAL_QUIET", "1", 1);
    for (const auto &[name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    body();
    std::exit(0);
  }
  ::close(ends[1]);
  End end;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(5 * isthmus_test::soon());
  while (true) {
    pollfd p{ends[0], POLLIN, 0};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) {
      ::kill(child, SIGKILL);
      end.said += "(took too long)";
      break;
    }
    if (::poll(&p, 1, static_cast<int>(left)) <= 0) continue;
    char part[4096];
    const ssize_t n = ::read(ends[0], part, sizeof part);
    if (n <= 0) break;
    end.said.append(part, static_cast<size_t>(n));
  }
  ::close(ends[0]);
  ::waitpid(child, &end.status, 0);
  return end;
}
inline void expect_clean(const Environment &environment, const std::function<void()> &body) {
  const End end = run(environment, body);
  EXPECT_TRUE(end.clean()) << "status " << end.status << "\n" << end.said;
}

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
// Whether it comes to hold. Only what never does takes the whole time.
inline bool comes(const std::function<bool()> &holds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(isthmus_test::soon());
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    sleep_ms(1);
  }
  return true;
}

}  // namespace rehearsed
