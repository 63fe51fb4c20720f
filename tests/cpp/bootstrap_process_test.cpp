// The mesh and the rendezvous among real processes: killed, stopped, forked. A test starts copies of this program (exec, so
// that they are no forked children of a process that uses the library), which play one part each.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "bootstrap/rendezvous.hpp"
#include "bootstrap/tcp_rendezvous.hpp"
#include "bootstrap_support.hpp"
#include "net/socket.hpp"

extern char **environ;

namespace isthmus::bootstrap::testing {
namespace {

const Bytes16 kKey{3, 1, 4};

// A copy of this program: argv[1] is its part. Killed and reaped at the end.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) fail_system("pipe2", errno);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    std::vector<char *> argv{const_cast<char *>("isthmus-test")};
    for (auto &a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    const int error = ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    in_ = UniqueFd(in[1]);
    out_ = UniqueFd(out[0]);
    if (error != 0) fail_system("posix_spawn", error);
  }
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Process(const Process &) = delete;
  Process &operator=(const Process &) = delete;
  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  void say(const std::string &line) const {
    ASSERT_EQ(::write(in_.get(), (line + "\n").data(), line.size() + 1), static_cast<ssize_t>(line.size() + 1));
  }
  std::string line() const {  // "" at its end
    std::string out;
    char c;
    while (::read(out_.get(), &c, 1) == 1 && c != '\n') out += c;
    return out;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd in_, out_;
};

void print(const std::string &line) {
  const std::string l = line + "\n";
  [[maybe_unused]] const ssize_t n = ::write(1, l.data(), l.size());
}

std::string read_line() {
  std::string out;
  char c;
  while (::read(0, &c, 1) == 1 && c != '\n') out += c;
  return out;
}

std::string to_hex(std::span<const std::byte> b) {
  std::string out;
  for (const std::byte x : b) out += isthmus::formatted("{:02x}", std::to_integer<int>(x));
  return out;
}

std::vector<std::byte> from_hex(const std::string &text) {
  std::vector<std::byte> out;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return out;
}

// ---- parts

// A node that connects to the endpoint it is told, then waits to be killed. `kind`: "plain", "forks" (three sleeping
// children, forked the usual way), "holds" (a child that keeps every descriptor: made without the atfork handlers), "tcp".
int play_node(const std::string &kind) {
  Node node;
  node.mesh->add_key(kKey);
  print(to_hex(node.mesh->self().pack()));
  Endpoint other = Endpoint::unpack(from_hex(read_line()));
  if (kind == "tcp") other.host[0] ^= 1;
  Peer &peer = node.mesh->connect(other, kKey, true, 2, Deadline(soon()));
  std::string children;
  for (int i = 0; kind != "plain" && i < 3; ++i) {
    const pid_t child =
        kind == "holds" ? static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)) : ::fork();
    if (child == 0) {
      ::sleep(static_cast<unsigned>(10 * soon()));  // longer than any test looks for the death of its parent
      ::_exit(0);
    }
    children += std::to_string(child) + " ";
  }
  node.mesh->send(peer, 1, bytes("hello"));
  print(children);
  read_line();
  return 0;
}

// A rank of a rendezvous, which says how it ended. `seconds`: those of its second round; "stays": it does not come to that.
int play_rank(const std::string &address, int rank, int world, const std::string &seconds) {
  const Status s = error_of([&] {
    const auto e = tcp_exchange(address, rank, world, kKey, Settings(), Deadline(soon()));
    e->all_gather({}, Deadline(soon()));
    print("met");
    if (seconds == "stays") read_line();
    e->all_gather({}, Deadline(std::stod(seconds)));
  });
  print(isthmus::formatted("{} {}", static_cast<int>(s.code), s.text));
  return 0;
}

// A rank 0 that has one descriptor left for those that come.
int play_full_root(const std::string &address, int world) {
  const Status s = error_of([&] {
    const auto e = tcp_exchange(address, 0, world, kKey, Settings(), Deadline(soon()));
    const int next = ::dup(0);
    rlimit most{};
    ::getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = static_cast<rlim_t>(next) + 1;
    ::setrlimit(RLIMIT_NOFILE, &most);
    ::close(next);
    e->all_gather({}, Deadline(4 * soon()));
  });
  print(isthmus::formatted("{} {}", static_cast<int>(s.code), s.text));
  return 0;
}

// ---- tests

std::vector<pid_t> pids_of(const std::string &line) {
  std::vector<pid_t> out;
  for (size_t at = 0; at < line.size(); at = line.find(' ', at) + 1) out.push_back(std::stoi(line.substr(at)));
  return out;
}

struct Couple {  // a node here and one in another process
  Node node;
  Process other;
  Peer *peer = nullptr;
  std::vector<pid_t> children;

  explicit Couple(const std::string &kind) : other({"node", kind}) {
    node.mesh->add_key(kKey);
    Endpoint e = Endpoint::unpack(from_hex(other.line()));
    other.say(to_hex(node.mesh->self().pack()));
    if (kind == "tcp") e.host[0] ^= 1;
    peer = &node.mesh->connect(e, kKey, true, 2, Deadline(soon()));
    children = pids_of(other.line());
    EXPECT_TRUE(eventually([&] { return node.events.messages().size() == 1; }));
  }
  ~Couple() {
    for (const pid_t child : children) ::kill(child, SIGKILL);
  }
};

// How soon is a figure of the machine, and only said.
TEST(Death, IsSeenAlsoWithSleepingForkedChildren) {
  for (const char *kind : {"plain", "forks", "holds", "tcp"}) {
    std::vector<int64_t> took;
    for (int i = 0; i < 3; ++i) {
      Couple c(kind);
      const int64_t start = now_ns();
      c.other.signal(SIGKILL);
      ASSERT_TRUE(eventually([&] { return !c.node.events.lost().empty(); })) << kind;
      took.push_back(c.node.events.lost_at()[0] - start);
      EXPECT_TRUE(contains(c.peer->lost_text(), "process " + std::to_string(c.other.pid()) + " on host "))
          << c.peer->lost_text();
      EXPECT_TRUE(contains(c.peer->lost_text(), "ended")) << c.peer->lost_text();
      for (const pid_t child : c.children) EXPECT_EQ(::kill(child, 0), 0) << "the children were to outlive their parent";
      EXPECT_LE(c.node.events.lost().size(), 2u);  // once when it does not answer, and once when it has surely ended
    }
    std::printf("%s: seen after %.3f ms\n", kind, 1e-6 * static_cast<double>(*std::min_element(took.begin(), took.end())));
  }
}

TEST(Death, DataConnectionsEndWithTheProcessAndNotWithItsForkedChildren) {
  Couple c("forks");
  c.other.signal(SIGKILL);
  std::byte one{};
  EXPECT_EQ(net::recv_exact(c.peer->data.at(0).get(), {&one, 1}, Deadline(soon())), net::Io::Closed);
}

TEST(Stop, OfAPeerIsVisibleButNoDeath) {
  Couple c("plain");
  c.other.signal(SIGSTOP);
  EXPECT_TRUE(eventually([&] { return now_ns() - c.peer->last_heard_ns.load() > 400'000'000; }));
  EXPECT_TRUE(c.node.events.lost().empty());
  // Whoever waited for it here would wait for ever.
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(c.node.mesh->send(*c.peer, 2, bytes(std::string(10'000, 'z'))));
  c.other.signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return now_ns() - c.peer->last_heard_ns.load() < 100'000'000; }));
}

TEST(Stop, OfAPeerDoesNotHoldUpTheDestructor) {
  Process other({"node", "plain"});
  auto node = std::make_unique<Node>();
  node->mesh->add_key(kKey);
  const Endpoint e = Endpoint::unpack(from_hex(other.line()));
  other.say(to_hex(node->mesh->self().pack()));
  Peer &peer = node->mesh->connect(e, kKey, true, 2, Deadline(soon()));
  other.line();
  other.signal(SIGSTOP);
  for (int i = 0; i < 100; ++i) node->mesh->send(peer, 2, bytes(std::string(60'000, 'z')));  // more than the sockets take
  node.reset();  // were it to wait for the peer, it would be for ever
}

TEST(Fork, ClosesEveryDescriptorInTheChildWhichCannotUseTheMesh) {
  Couple c("plain");
  std::vector<ino_t> ours;  // sockets and the arena, by inode
  const auto inode = [](int fd) {
    struct stat s {};
    return ::fstat(fd, &s) == 0 ? s.st_ino : 0;
  };
  const int arena = c.node.arena.get();
  const std::vector<int> data{c.peer->data[0].get(), c.peer->data[1].get()};
  const pid_t child = ::fork();
  if (child == 0) {
    int bad = 0;
    if (inode(arena) != 0) bad |= 2;
    for (const int fd : data)
      if (inode(fd) != 0) bad |= 4;
    for (int fd = 3; fd < 256; ++fd) {
      struct stat s {};
      if (::fstat(fd, &s) == 0 && S_ISSOCK(s.st_mode)) bad |= 8;
    }
    if (error_of([&] { c.node.mesh->connect(c.peer->endpoint, kKey, true, 0, Deadline(1)); }).code != Code::Forked)
      bad |= 16;
    c.node.mesh.reset();  // as a child's exit might; the parent is not to notice
    ::_exit(bad);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(c.node.mesh->send(*c.peer, 3, bytes("the parent goes on")));
  EXPECT_TRUE(c.node.events.lost().empty());
}

TEST(Fork, AChildMakesAMeshOfItsOwn) {
  Couple c("plain");
  const Process other({"node", "plain"});
  const pid_t child = ::fork();
  if (child == 0) {
    const Status s = error_of([&] {
      Node own;
      own.mesh->add_key(kKey);
      const Endpoint e = Endpoint::unpack(from_hex(other.line()));
      other.say(to_hex(own.mesh->self().pack()));
      Peer &peer = own.mesh->connect(e, kKey, true, 2, Deadline(soon()));
      if (!eventually([&] { return own.events.messages().size() == 1; })) fail(Code::Timeout, "no message came");
      if (!own.mesh->send(peer, 3, bytes("the child"))) fail(Code::PeerLost, "the connection has ended");
      if (own.mesh->self().process == c.node.mesh->self().process) fail(Code::Internal, "it has its parent's name");
    });
    if (!s.ok()) std::fprintf(stderr, "%s\n", s.text.c_str());
    ::_exit(s.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(c.node.mesh->send(*c.peer, 3, bytes("the parent goes on")));
  EXPECT_TRUE(c.node.events.lost().empty());
}

TEST(Fork, AChildTakesPartInARendezvousUnderANameOfItsOwn) {
  const std::string address = free_address();
  const auto meet = [&](int rank) {
    return error_of(
        [&] { tcp_exchange(address, rank, 2, kKey, Settings(), Deadline(soon()))->all_gather({}, Deadline(soon())); });
  };
  rendezvous_process();  // the parent's
  const pid_t child = ::fork();
  if (child == 0) ::_exit(meet(1).ok() ? 0 : 1);
  const Status s = meet(0);
  EXPECT_TRUE(s.ok()) << s.text;
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Fork, AChildMakesTicketsOfItsOwnAndTheParentsTicketsServeOn) {
  Settings settings;
  settings.set("ISTHMUS_INTERFACE", "127.0.0.1");
  const auto make = [&] {
    std::array<std::byte, kTicketBytes> ticket{};
    create_ticket(settings, ticket);
    return ticket;
  };
  const auto meet_alone = [](const std::array<std::byte, kTicketBytes> &ticket) {
    return error_of([&] { ticket_exchange(ticket, 0, 1)->all_gather({}, Deadline(soon())); });
  };
  const auto first = make(), second = make();
  const pid_t child = ::fork();
  if (child == 0) {
    const Status own = meet_alone(make()), parents = meet_alone(first);
    for (const Status &s : {own, parents})
      if (!s.ok()) std::fprintf(stderr, "%s\n", s.text.c_str());
    ::_exit(own.ok() && parents.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  const Status s = meet_alone(second);
  EXPECT_TRUE(s.ok()) << s.text;
}

const std::string kLong = std::to_string(2 * soon());

TEST(KillDuringRendezvous, OfAWaitingRankIsNamedOnAllOthers) {
  const std::string address = free_address();
  const Process zero({"rank", address, "0", "4", kLong}), two({"rank", address, "2", "4", kLong});
  const Process one({"rank", address, "1", "4", kLong}), three({"rank", address, "3", "4", "stays"});
  for (const Process *p : {&zero, &one, &two, &three}) EXPECT_EQ(p->line(), "met");  // now they wait for rank 3
  one.signal(SIGKILL);
  for (const Process *p : {&zero, &two}) {
    const std::string end = p->line();
    EXPECT_TRUE(end.starts_with("5 rank 1 (process " + std::to_string(one.pid()) + " on host ")) << end;
  }
}

TEST(KillDuringRendezvous, OfTheRootIsSeenByAll) {
  const std::string address = free_address();
  const Process zero({"rank", address, "0", "3", kLong}), one({"rank", address, "1", "3", kLong});
  const Process two({"rank", address, "2", "3", "stays"});
  for (const Process *p : {&zero, &one, &two}) EXPECT_EQ(p->line(), "met");
  zero.signal(SIGKILL);
  const std::string end = one.line();
  EXPECT_TRUE(end.starts_with("5 rank 0 at " + address + " left the rendezvous")) << end;
}

TEST(KillDuringRendezvous, BetweenRoundsIsNamed) {
  const std::string address = free_address();
  const Process zero({"rank", address, "0", "3", kLong}), two({"rank", address, "2", "3", kLong});
  const Process one({"rank", address, "1", "3", "stays"});
  for (const Process *p : {&zero, &one, &two}) EXPECT_EQ(p->line(), "met");
  one.signal(SIGKILL);
  for (const Process *p : {&zero, &two}) {
    const std::string end = p->line();
    EXPECT_TRUE(end.starts_with("5 rank 1 (process " + std::to_string(one.pid()))) << end;
  }
}

TEST(KillDuringRendezvous, AStoppedRankIsNamedAtTheDeadline) {
  const std::string address = free_address();
  const Process zero({"rank", address, "0", "3", kLong}), two({"rank", address, "2", "3", std::to_string(patient(1.5))});
  const Process one({"rank", address, "1", "3", "stays"});
  for (const Process *p : {&zero, &one, &two}) EXPECT_EQ(p->line(), "met");
  one.signal(SIGSTOP);
  for (const Process *p : {&zero, &two}) {
    const std::string end = p->line();
    EXPECT_TRUE(end.starts_with("4 rank 1 of 3 did not take part in exchange 1")) << end;
  }
}

TEST(Descriptors, ThatRankZeroLacksAreTheCauseThatAllRanksHearBeforeTheDeadline) {
  const std::string address = free_address();
  const Process zero({"full", address, "3"});
  const Process one({"rank", address, "1", "3", kLong}), two({"rank", address, "2", "3", kLong});
  for (const Process *p : {&zero, &one, &two}) {
    const std::string end = p->line();
    EXPECT_TRUE(end.starts_with("7 rank 0 is out of descriptors (ulimit -n ")) << end;
  }
}

TEST(KillDuringConnect, IsSeenByTheSideThatWaits) {
  // The other process says where it is and is killed before it dials (or is dialled).
  Node node;
  node.mesh->add_key(kKey);
  for (int i = 0; i < 4; ++i) {
    const Process other({"node", "plain"});
    const Endpoint e = Endpoint::unpack(from_hex(other.line()));
    other.signal(SIGKILL);
    const Status s = error_of([&] { node.mesh->connect(e, kKey, true, 0, Deadline(soon())); });
    EXPECT_EQ(s.code, Code::PeerLost) << s.text;
    EXPECT_TRUE(contains(s.text, "process " + std::to_string(other.pid()))) << s.text;
  }
}

}  // namespace

int play(const std::vector<std::string> &a) {
  if (a.at(0) == "node") return play_node(a.at(1));
  if (a.at(0) == "rank") return play_rank(a.at(1), std::stoi(a.at(2)), std::stoi(a.at(3)), a.at(4));
  if (a.at(0) == "full") return play_full_root(a.at(1), std::stoi(a.at(2)));
  return 2;
}

}  // namespace isthmus::bootstrap::testing

int main(int argc, char **argv) {
  ::signal(SIGPIPE, SIG_IGN);
  if (argc > 1 && argv[1][0] != '-') return isthmus::bootstrap::testing::play({argv + 1, argv + argc});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
