// What a test does in a child of its process, which it forks.
#pragma once

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace isthmus_test {

inline void in_child(const std::function<bool()> &holds) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(holds() ? 0 : 1);
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

}  // namespace isthmus_test
