#include "core/rendezvous.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "core/queue.hpp"
#include "core/settings.hpp"

namespace rehearsal {
namespace {

struct Hello {
  uint64_t magic = 0x52454845'41525345;
  Token process{};  // a device of a process may have one rank
  Library library{};
  int32_t rank = 0, size = 0, device = 0;
};
struct Reply {
  int32_t met = 0;
};

struct Id {
  std::array<char, 4> ours{'r', 'e', 'h', ':'};
  Library library{};
  RootAddress root{};
  Token token{};
};
static_assert(sizeof(Id) == kIdBytes);

const Token &this_process() {
  static const Token token = [] {
    Token t{};
    if (::getrandom(t.data(), t.size(), 0) < 0) t[0] = 1;
    return t;
  }();
  return token;
}

socklen_t address_of(const Token &token, sockaddr_un *a) {
  *a = {};
  a->sun_family = AF_UNIX;
  std::string name = "rehearsal-";  // abstract: the first byte stays zero
  for (const unsigned char c : token) {
    name += "0123456789abcdef"[c >> 4];
    name += "0123456789abcdef"[c & 15];
  }
  std::memcpy(a->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

bool send_reply(int socket, Met met, int fd) {
  Reply reply{static_cast<int32_t>(met)};
  iovec part{&reply, sizeof reply};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  if (fd >= 0) {
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &m, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof reply);
}

bool receive_reply(int socket, Met *met, int *fd) {
  Reply reply;
  iovec part{&reply, sizeof reply};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof *fd)] = {};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  if (::recvmsg(socket, &m, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof reply)) return false;
  *met = static_cast<Met>(reply.met);
  for (cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) std::memcpy(fd, CMSG_DATA(c), sizeof *fd);
  return true;
}

// The thread of a token. Ends when all ranks have come, or one that does not fit.
void gather(int listener, Library library) {
  std::map<int, int> sockets;
  std::set<std::pair<Token, int>> devices;
  int size = 0;
  Met met = Met::Ok;
  int unfit = -1;
  while (met == Met::Ok && (size == 0 || static_cast<int>(sockets.size()) < size)) {
    const int s = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (s < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      met = Met::System;
      break;
    }
    Hello h;
    if (::recv(s, &h, sizeof h, MSG_WAITALL) != static_cast<ssize_t>(sizeof h) || h.magic != Hello{}.magic) {
      ::close(s);
      continue;
    }
    if (size == 0) size = h.size;
    if (h.library != library) met = Met::OtherLibrary;
    else if (h.size != size || h.rank < 0 || h.rank >= size || sockets.count(h.rank)) met = Met::Mismatch;
    else if (!devices.insert({h.process, h.device}).second) met = Met::DuplicateDevice;
    if (met == Met::Ok) sockets[h.rank] = s;
    else unfit = s;
  }
  int fd = -1;
  if (met == Met::Ok) {
    fd = ::memfd_create("rehearsal communicator", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(segment_bytes(size))) != 0) met = Met::System;
  }
  if (unfit >= 0) sockets[-1] = unfit;
  for (const auto &[rank, s] : sockets) {
    send_reply(s, met, met == Met::Ok ? fd : -1);
    ::close(s);
  }
  if (fd >= 0) ::close(fd);
  ::close(listener);
}

}  // namespace

int meeting_socket(int family) {
  const auto make = [family] { return ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0); };
  if (settings().meet.empty()) return make();
  const int own = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  const int there = ::open(settings().meet.c_str(), O_RDONLY | O_CLOEXEC);
  int made = -1;
  if (own >= 0 && there >= 0 && ::setns(there, CLONE_NEWNET) == 0) {
    made = make();
    if (::setns(own, CLONE_NEWNET) != 0) std::abort();
  }
  if (made < 0) std::fprintf(stderr, "rehearsal: REHEARSAL_MEET: cannot enter \"%s\"\n", settings().meet.c_str());
  for (const int fd : {own, there})
    if (fd >= 0) ::close(fd);
  return made;
}

bool new_rendezvous(const Library &library, Token *token) {
  if (::getrandom(token->data(), token->size(), 0) != static_cast<ssize_t>(token->size())) return false;
  return open_rendezvous(library, *token);
}

bool end_rendezvous(const Library &library, const Token &token) {
  int fd = -1;
  const Met met = meet(
      library, token, 0, 1, 0, [] { return false; }, &fd, false);
  if (fd >= 0) ::close(fd);
  return met == Met::Ok;
}

void write_id(const Library &library, const RootAddress &root, const Token &token, unsigned char *id) {
  const Id made{Id{}.ours, library, root, token};
  std::memcpy(id, &made, sizeof made);
}

bool read_id(const char *call, const Library &library, const unsigned char *id, Token *token, std::string *why,
             RootAddress *root) {
  Id read;
  std::memcpy(&read, id, sizeof read);
  *token = read.token;
  if (root) *root = read.root;
  const bool simulated = read.ours == Id{}.ours;
  if (simulated && read.library == library) return true;
  const std::string mine(library.data(), library.size()), other(read.library.data(), read.library.size());
  *why = simulated ? "the id was made by " + other + ", and no rank of " + mine + " can meet its ranks"
                   : "not an id of " + mine;
  std::fprintf(stderr, "rehearsal: %s: %s\n", call, why->c_str());
  std::fflush(stderr);
  int fd = -1;
  if (simulated)  // comes as a rank of this library, so the ranks that wait there end with OtherLibrary. The answer does not matter.
    meet(
        library, read.token, 0, 1, 0, [] { return true; }, &fd, false);
  return false;
}

Token token_of_part(const Token &whole, const std::vector<uint64_t> &more) {
  uint64_t words[2] = {0xcbf29ce484222325, 0x84222325cbf29ce4};
  const auto mix = [&](uint64_t v) {
    for (uint64_t &w : words) w = (w ^ v ^ (w >> 29)) * 0x100000001b3 + 0x9e3779b97f4a7c15;
  };
  for (const unsigned char b : whole) mix(b);
  for (const uint64_t v : more) mix(v);
  Token token;
  static_assert(sizeof words >= sizeof token);
  std::memcpy(token.data(), words, sizeof token);
  return token;
}

bool open_rendezvous(const Library &library, const Token &token) {
  const int listener = meeting_socket(AF_UNIX);
  sockaddr_un a;
  const socklen_t length = address_of(token, &a);
  if (listener < 0) return false;
  if (::bind(listener, reinterpret_cast<sockaddr *>(&a), length) != 0 || ::listen(listener, 1024) != 0) {
    ::close(listener);
    return false;
  }
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(gather, listener, library).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return true;
}

Met meet(const Library &library, const Token &token, int rank, int size, int device, const std::function<bool()> &stop,
         int *fd, bool patient) {
  *fd = -1;
  const int s = meeting_socket(AF_UNIX);
  if (s < 0) return Met::System;
  sockaddr_un a;
  const socklen_t length = address_of(token, &a);
  Hello h;
  h.process = this_process();
  h.library = library;
  h.rank = rank;
  h.size = size;
  h.device = device;
  Met met = Met::System;
  bool there = ::connect(s, reinterpret_cast<sockaddr *>(&a), length) == 0;
  while (!there && patient && !stop()) {
    sleep_us(1000);
    there = ::connect(s, reinterpret_cast<sockaddr *>(&a), length) == 0;
  }
  if (!there && patient) met = Met::Stopped;
  if (there && ::send(s, &h, sizeof h, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof h)) {
    while (true) {
      if (stop()) {
        met = Met::Stopped;
        break;
      }
      pollfd p{s, POLLIN, 0};
      if (::poll(&p, 1, 20) <= 0) continue;
      if (!receive_reply(s, &met, fd)) met = Met::System;
      break;
    }
  }
  ::close(s);
  return met;
}

}  // namespace rehearsal
