// The end of a process's context as the process itself ends.
#include "process/context.hpp"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <semaphore>
#include <thread>

#include "patience.hpp"
#include "process/context_threads.hpp"

namespace isthmus::process {
namespace {

// Whether the process has a thread of that name.
bool has_thread(const std::string &name) {
  for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string its;
    std::ifstream(task.path() / "comm") >> its;
    if (its == name) return true;
  }
  return false;
}

// A thread gets its name as it begins, and the kernel lists it for a moment after it was joined.
bool comes(bool there, double seconds) {
  for (const Deadline deadline(seconds); has_thread("isthmus-control") != there;) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}
bool has_come() { return comes(true, isthmus_test::soon()); }
bool has_gone() { return comes(false, isthmus_test::soon()); }
bool stays() { return !comes(false, 0.2); }

// How the child ends that does this.
int status_of(void (*does)()) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    does();
    std::exit(1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A thread of the context that has the last reference, until it is told to let go of it.
struct Holder {
  std::binary_semaphore let_go{0}, has_let_go{0};
  void begin() {
    Context::Lease lease = Context::acquire(Settings(), "127.0.0.1");
    std::thread([this, held = lease.context()]() mutable {
      enter_context_thread();
      let_go.acquire();
      held.reset();
      has_let_go.release();
    }).detach();
    lease.end();
  }
  void end() {
    let_go.release();
    has_let_go.acquire();
  }
} holder;

TEST(ContextLease, ThatAnotherThreadHasEndedGivesNoOther) {
  EXPECT_EQ(status_of([] {
              Context::Lease lease = Context::acquire(Settings(), "127.0.0.1");
              lease.end();
              try {
                lease.again();
              } catch (const Error &e) { std::exit(e.code() == Code::Aborted ? 0 : 2); }
            }),
            0);
}

TEST(ContextEnd, TheLastReferenceOnAThreadOfItsOwnEndsTheContext) {
  EXPECT_EQ(status_of([] {
              holder.begin();
              const bool was_there = has_come();
              holder.end();
              ::_exit(was_there && has_gone() ? 0 : 2);
            }),
            0);
}

TEST(ContextEnd, ExitWaitsForAContextThatIsBeingDeletedAndBehindThatNoOtherThreadDeletesOne) {
  EXPECT_EQ(status_of([] {
              // Behind the context's own part of exit(), since it is registered before.
              std::atexit([] {
                const bool was_there = has_come();
                holder.end();
                ::_exit(was_there && stays() ? 0 : 2);
              });
              holder.begin();
              std::exit(3);
            }),
            0);
  EXPECT_EQ(status_of([] {
              std::atexit([] { ::_exit(has_gone() ? 0 : 2); });
              holder.begin();
              if (!has_come()) ::_exit(4);
              holder.end();
              std::exit(3);
            }),
            0);
}

TEST(ContextEnd, TheThreadThatEndsTheProcessMayStillEndIt) {
  EXPECT_EQ(status_of([] {
              static Context::Lease lease;
              std::atexit([] {
                const bool was_there = has_come();
                lease.end();
                ::_exit(was_there && has_gone() ? 0 : 2);
              });
              lease = Context::acquire(Settings(), "127.0.0.1");
              std::exit(3);
            }),
            0);
}

}  // namespace
}  // namespace isthmus::process
