#include "bootstrap/listener_watch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "net/socket.hpp"

namespace isthmus::bootstrap {
namespace {

// A signal of our number that is the program's, and pends for the whole process, makes the descriptor readable too. Then a thread of the
// program's needs a moment to take it. Where none takes it, this thread would find nothing to hear for ever, so it stops.
constexpr int kInVainMs = 1, kMostInVain = 2000;

// Signals of real time are queued, one for each connection, in their order. The last but one is as rare in programs as any.
int signal_number() noexcept { return SIGRTMAX - 1; }

// Whether this thread has a signal of its own to read. A read would also take what somebody sends to the whole process, which is the
// program's.
bool has_own_signal() noexcept {
  const UniqueFd status(::open("/proc/thread-self/status", O_RDONLY | O_CLOEXEC));
  std::array<char, 8192> text;
  const ssize_t n = status ? ::read(status.get(), text.data(), text.size() - 1) : -1;
  if (n <= 0) return false;
  text[static_cast<size_t>(n)] = 0;
  const char *pending = std::strstr(text.data(), "\nSigPnd:");
  if (!pending) return false;
  return (std::strtoull(pending + std::strlen("\nSigPnd:"), nullptr, 16) >> (signal_number() - 1) & 1u) != 0;
}

UniqueFd signal_descriptor() noexcept {
  sigset_t ours;
  ::sigemptyset(&ours);
  ::sigaddset(&ours, signal_number());
  return UniqueFd(::signalfd(-1, &ours, SFD_NONBLOCK | SFD_CLOEXEC));
}

bool listens(int fd) noexcept {
  int on = 0;
  socklen_t size = sizeof on;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &size) == 0 && on != 0;
}

}  // namespace

ListenerWatch::ListenerWatch() : signals_(signal_descriptor()) {}

void ListenerWatch::begin(pthread_t thread, pid_t tid) noexcept {
  thread_ = thread;
  tid_ = tid;
}

// The owner may have closed another socket of this number, of which signals are still to be read. So a signal of ours goes first: what is
// read before it is of the old socket, and what is read behind it of the new one.
Status ListenerWatch::watch(int listener, uint64_t owner) {
  if (fd() < 0 || tid_ == 0) return {Code::Unsupported, "no thread hears the signals of connections"};
  if (!listens(listener)) return {Code::Argument, formatted("descriptor {} is no socket that listens", listener)};
  const int flags = ::fcntl(listener, F_GETFL);
  WatchedListener watched{owner, net::local_address(listener).text()};
  sigval mark{};
  {
    const auto told = told_.lock();
    mark.sival_int = told->next++;
    told->begun.emplace(mark.sival_int, std::pair(listener, std::move(watched)));
  }
  const auto not_watched = [&](const char *what, int error) {
    told_.lock()->begun.erase(mark.sival_int);
    return Status{Code::Unsupported, system_text(what, error)};
  };
  if (const int error = ::pthread_sigqueue(thread_, signal_number(), mark)) return not_watched("pthread_sigqueue", error);
  const f_owner_ex hears{F_OWNER_TID, tid_};
  if (flags < 0 || ::fcntl(listener, F_SETSIG, signal_number()) != 0 || ::fcntl(listener, F_SETOWN_EX, &hears) != 0 ||
      ::fcntl(listener, F_SETFL, flags | O_ASYNC) != 0)
    return not_watched("fcntl", errno);
  return {};
}

void ListenerWatch::hear(const std::function<void(const WatchedListener &)> &arrived) {
  bool own = false;
  for (; has_own_signal(); own = true) {
    signalfd_siginfo s;
    if (::read(signals_.get(), &s, sizeof s) != static_cast<ssize_t>(sizeof s)) break;
    if (s.ssi_code == SI_QUEUE) {
      const auto told = told_.lock();
      if (auto begun = told->begun.extract(s.ssi_int)) by_fd_[begun.mapped().first] = std::move(begun.mapped().second);
    } else if (s.ssi_code == POLL_IN) {
      const auto at = by_fd_.find(s.ssi_fd);
      if (at != by_fd_.end()) arrived(at->second);
    }
  }
  in_vain_ = own ? 0 : in_vain_ + 1;
  if (own) return;
  if (in_vain_ == kMostInVain) off_.store(true, std::memory_order_relaxed);
  ::poll(nullptr, 0, kInVainMs);
}

}  // namespace isthmus::bootstrap
