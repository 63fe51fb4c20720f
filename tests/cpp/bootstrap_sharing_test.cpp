// Memory is shared with whoever passes a descriptor and has read back, through ours, the nonce that we wrote: with nobody else. Processes that
// pass something else, that read something else, or that only claim to be on this host, are met over TCP; nothing of theirs is mapped.
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstring>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "bootstrap/arena_offer.hpp"
#include "bootstrap/control_wire.hpp"
#include "bootstrap_support.hpp"
#include "net/gate.hpp"
#include "net/socket.hpp"

// Under ThreadSanitizer, whose exits take a second each otherwise.
extern "C" __attribute__((visibility("default"))) const char *__tsan_default_options();
extern "C" const char *__tsan_default_options() { return "atexit_sleep_ms=20"; }

namespace isthmus::bootstrap::testing {
namespace {

const Bytes16 kKey{7, 7, 7};
constexpr int kEnd = 100;  // a rank's descriptor of the pair that its exchange goes over
constexpr const char *kForeign = "isthmus-test-foreign";

// Of the memory of that name, how much this process has mapped.
size_t mapped(const std::string &name) {
  std::ifstream maps("/proc/self/maps");
  size_t times = 0;
  for (std::string line; std::getline(maps, line);) times += contains(line, "memfd:" + name + " ") ? 1 : 0;
  return times;
}

// What a process offers as its memory, and what it says of it.
struct Offer {
  UniqueFd fd;
  uint64_t bytes = Node::kArena;
};
struct Lie {
  const char *name;
  Offer (*offer)(const Bytes16 &process);
  const char *why;  // what the other side says of it
};
Offer honest(const Bytes16 &process) {
  Offer o{sealed_memory(kForeign, Node::kArena)};
  offer_arena(o.fd.get(), o.bytes, process);
  return o;
}
const Lie kLies[] = {
    // Nobody could map this for writing: so it is looked at before it is mapped.
    {"AnotherObject",
     [](const Bytes16 &) {
       Offer o{sealed_memory(kForeign, Node::kArena)};
       if (::fcntl(o.fd.get(), F_ADD_SEALS, F_SEAL_WRITE) != 0) fail_system("F_ADD_SEALS", errno);
       return o;
     },
     "does not begin as that process's would"},
    {"TheMemoryOfAnotherProcess",
     [](const Bytes16 &) {
       return honest(Bytes16{9, 9});
     },
     "does not begin as that process's would"},
    {"MemoryThatIsTooSmall",
     [](const Bytes16 &process) {
       Offer o{sealed_memory(kForeign, 4096)};
       offer_arena(o.fd.get(), Node::kArena, process);
       return o;
     },
     "smaller than the 1048576 bytes announced"},
    {"MemoryOfAnotherSize",
     [](const Bytes16 &process) {
       Offer o = honest(process);
       o.bytes /= 2;
       return o;
     },
     "does not begin as that process's would"},
    {"LessThanItsHeader",
     [](const Bytes16 &process) {
       return Offer{honest(process).fd, 8};
     },
     "smaller than the 8 bytes announced"},
    {"MemoryThatCouldShrink",
     [](const Bytes16 &process) {
       Offer o{UniqueFd(::memfd_create(kForeign, MFD_CLOEXEC))};
       if (::ftruncate(o.fd.get(), Node::kArena) != 0) fail_system("ftruncate", errno);
       offer_arena(o.fd.get(), o.bytes, process);
       return o;
     },
     "could become smaller"},
    {"NoMemory",
     [](const Bytes16 &) {
       int ends[2];
       if (::pipe2(ends, O_CLOEXEC) != 0) fail_system("pipe2", errno);
       ::close(ends[1]);
       return Offer{UniqueFd(ends[0])};
     },
     "smaller than the 1048576 bytes announced"},
    {"Nothing", [](const Bytes16 &) { return Offer{}; }, "its descriptor did not arrive"},
};

// A process that says what a test wants it to. It stands for one whose memory is not what its peers take it for.
struct Stranger {
  Endpoint self;
  Offer offer;
  UniqueFd fd;

  Stranger(const Bytes16 &process, const Endpoint &neighbour) : self(neighbour) {
    self.process = process;
    self.unix_name = "isthmus-test-stranger-" + std::to_string(::getpid());
    self.tcp.clear();
  }
  void send(Own type, const net::ByteVector &body, int passed) {
    net::ByteVector message;
    net::append_frame(message, static_cast<uint16_t>(type), body);
    ASSERT_EQ(net::send_with_fd(fd.get(), message, passed, Deadline(soon())), net::Io::Ok);
  }
  // The next message, which must be of that type, and the descriptor that came with it.
  std::vector<std::byte> receive(Own wanted, UniqueFd &passed) {
    const Deadline deadline(soon());
    for (;;) {
      uint16_t type = 0;
      std::span<const std::byte> body;
      const auto r = reader_.next(type, body);
      if (r == net::FrameReader::Result::Frame && type == static_cast<uint16_t>(Own::Heartbeat)) continue;
      if (r == net::FrameReader::Result::Frame) {
        EXPECT_EQ(type, static_cast<uint16_t>(wanted));
        return {body.begin(), body.end()};
      }
      pollfd p{fd.get(), POLLIN, 0};
      if (deadline.passed() || r == net::FrameReader::Result::Bad || ::poll(&p, 1, deadline.left_ms()) <= 0) return {};
      const ssize_t n = net::recv_with_fd(fd.get(), reader_.space(), passed);
      if (n > 0) reader_.received(static_cast<size_t>(n));
      else if (n == 0) return {};
    }
  }

 private:
  net::FrameReader reader_;
};

struct Met {
  Peer *peer = nullptr;
  std::string said;    // of the memory that it was offered
  bool right = false;  // what it read in ours is what was there
};
// A stranger that comes to `node`, whose process is the larger one.
Met comes(Node &node, Stranger &s, bool reads_right) {
  UniqueFd listening = net::listen_unix(s.self.unix_name);  // somebody who looks for it finds it
  node.mesh->add_key(kKey);
  auto other = std::async(std::launch::async, [&] { return &node.mesh->connect(s.self, kKey, true, 0, Deadline(soon())); });
  Met met;
  EXPECT_EQ(net::connect_unix(node.mesh->self().unix_name, Deadline(soon()), s.fd), 0);
  net::Hello hello;
  hello.process = s.self.process;
  net::dial(s.fd.get(), hello, kKey, "the node", Deadline(soon()));
  s.send(Own::Intro, encode(Intro{s.offer.bytes, {}, s.self}), s.offer.fd.get());
  UniqueFd passed;
  const auto attach = parse_attach(s.receive(Own::Attach, passed));
  if (!attach) throw Error(Code::Mismatch, "no answer");
  met.said = attach->why;
  PeerArena theirs = map_peer_arena(passed, attach->arena_bytes, node.mesh->self().process);
  met.right = static_cast<bool>(theirs.mapping) && s.offer.fd &&
              attach->nonce == map_peer_arena(s.offer.fd, s.offer.bytes, s.self.process).nonce;
  if (!reads_right) theirs.nonce[3] ^= 1;
  s.send(Own::Ready, encode(Ready{theirs.nonce, {}}), -1);
  met.peer = other.get();
  return met;
}
// A stranger that `node`, whose process is the smaller one, comes to.
Met is_met(Node &node, Stranger &s, bool reads_right) {
  net::Gate gate(s.self.process, net::Gate::UnknownKey::Refuse);
  gate.add_key(kKey);
  gate.add_listener(net::listen_unix(s.self.unix_name));
  auto other = std::async(std::launch::async, [&] { return &node.mesh->connect(s.self, kKey, true, 0, Deadline(soon())); });
  std::vector<net::Guest> guests;
  EXPECT_TRUE(eventually([&] {
    gate.service(guests);
    return !guests.empty();
  }));
  s.fd = std::move(guests.at(0).fd);
  UniqueFd passed;
  const auto intro = parse_intro(s.receive(Own::Intro, passed));
  if (!intro) throw Error(Code::Mismatch, "no introduction");
  PeerArena theirs = map_peer_arena(passed, intro->arena_bytes, node.mesh->self().process);
  if (!reads_right) theirs.nonce[3] ^= 1;
  s.send(Own::Attach, encode(Attach{s.offer.bytes, theirs.nonce, {}}), s.offer.fd.get());
  const auto ready = parse_ready(s.receive(Own::Ready, passed));
  if (!ready) throw Error(Code::Mismatch, "no answer");
  Met met{other.get(), ready->why, false};
  met.right = s.offer.fd && ready->nonce == map_peer_arena(s.offer.fd, s.offer.bytes, s.self.process).nonce;
  return met;
}

struct Way {
  const char *name;
  uint8_t first;  // of the stranger's process: below or above every other
  Met (*meet)(Node &, Stranger &, bool);
};
const Way kWays[] = {{"WhoComes", 0, comes}, {"WhoIsMet", 255, is_met}};

class Strangers : public ::testing::TestWithParam<Way> {
 protected:
  Node node_;
  Bytes16 process_ = [] {
    Bytes16 p;
    p.fill(GetParam().first);
    return p;
  }();
  Stranger stranger_{process_, node_.mesh->self()};
};
INSTANTIATE_TEST_SUITE_P(, Strangers, ::testing::ValuesIn(kWays), [](const auto &p) { return std::string(p.param.name); });

TEST_P(Strangers, AreSharedWithWhereEverythingIsTrue) {
  stranger_.offer = honest(process_);
  const Met met = GetParam().meet(node_, stranger_, true);
  EXPECT_EQ(met.said, "");
  EXPECT_TRUE(met.right);
  ASSERT_TRUE(met.peer->arena);
  EXPECT_EQ(mapped(kForeign), 1u);
  EXPECT_TRUE(node_.mesh->send(*met.peer, 1, bytes("hello")));
}

TEST_P(Strangers, AreNotSharedWithWhereTheyReadAnotherNonce) {
  stranger_.offer = honest(process_);
  const Met met = GetParam().meet(node_, stranger_, false);
  EXPECT_FALSE(met.peer->arena);
  EXPECT_EQ(mapped(kForeign), 0u);
  EXPECT_TRUE(node_.mesh->send(*met.peer, 1, bytes("hello"))) << "they are connected all the same";
}

TEST_P(Strangers, AreNotSharedWithWhereTheyPassSomethingElse) {
  for (const Lie &lie : kLies) {
    SCOPED_TRACE(lie.name);
    Node node;
    Stranger stranger(process_, node.mesh->self());
    stranger.offer = lie.offer(process_);
    const Met met = GetParam().meet(node, stranger, true);
    EXPECT_TRUE(contains(met.said, lie.why)) << met.said;
    EXPECT_FALSE(met.peer->arena);
    EXPECT_EQ(mapped(kForeign), 0u);
    EXPECT_TRUE(node.mesh->send(*met.peer, 1, bytes("hello"))) << "they are connected all the same";
  }
}

// ---- who claims to be on this host ----------------------------------------------------------------------------------------------------

Endpoint elsewhere_of_one_identity(Endpoint e) {
  e.unix_name = "isthmus-test-nobody";
  return e;
}

// Each believes of the other that it is on its host, and its socket is not there. The one that waits looks for it meanwhile.
TEST(Claims, OfBeingOnThisHostEndInTcp) {
  for (const bool late : {false, true}) {
    Node a, b;
    Node &dials = a.mesh->self().process < b.mesh->self().process ? a : b, &waits = &dials == &a ? b : a;
    for (Node *n : {&a, &b}) n->mesh->add_key(kKey);
    const auto connect = [&](Node &from, Node &to) {
      return &from.mesh->connect(elsewhere_of_one_identity(to.mesh->self()), kKey, true, 2, Deadline(soon()));
    };
    auto other = std::async(std::launch::async, [&] { return connect(waits, dials); });
    if (late) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    Peer *const peer = connect(dials, waits);
    Peer *const back = other.get();
    for (const Peer *p : {peer, back}) {
      EXPECT_FALSE(p->arena);
      EXPECT_EQ(p->data.size(), 2u);
    }
    EXPECT_TRUE(dials.mesh->send(*peer, 3, bytes("by TCP")));
    EXPECT_TRUE(eventually([&] { return waits.events.messages().size() == 1; }));
  }
}

TEST(Claims, OfAProcessThatHasEndedAreSeenBeforeTheDeadline) {
  Node a;
  a.mesh->add_key(kKey);
  Endpoint gone;
  {
    Node b;
    gone = b.mesh->self();
  }
  for (const uint8_t first : {uint8_t{0}, uint8_t{255}}) {  // a waits for it, and dials it
    gone.process.fill(first);
    const Status s = error_of([&] { a.mesh->connect(gone, kKey, true, 0, Deadline(soon())); });
    EXPECT_EQ(s.code, Code::PeerLost) << s.text;
  }
}

// ---- whole communicators --------------------------------------------------------------------------------------------------------------

// Two ranks in processes of their own, who hear of each other what the test wants: an exchange that changes the name of the socket.
struct Exchange {
  int fd, rank;
  static int all_gather(void *context, const void *send, void *recv, size_t bytes) {
    const auto &e = *static_cast<const Exchange *>(context);
    auto *const mine = static_cast<char *>(recv) + static_cast<size_t>(e.rank) * bytes;
    auto *const theirs = static_cast<char *>(recv) + static_cast<size_t>(1 - e.rank) * bytes;
    std::memcpy(mine, send, bytes);
    const Deadline deadline(soon());
    auto both = std::async(std::launch::async, [&] {
      return net::send_all(e.fd, {static_cast<const std::byte *>(send), bytes}, deadline);
    });
    const bool came = net::recv_exact(e.fd, {reinterpret_cast<std::byte *>(theirs), bytes}, deadline) == net::Io::Ok;
    if (both.get() != net::Io::Ok || !came) return 1;
    constexpr std::string_view kSocket = "isthmus-";
    for (auto at = std::search(theirs, theirs + bytes, kSocket.begin(), kSocket.end()); at != theirs + bytes;
         at = std::search(at + 1, theirs + bytes, kSocket.begin(), kSocket.end()))
      *at = 'x';
    return 0;
  }
};

// The rank's part: its exit status.
int rank_of_two(int fd, int rank, const char *bridge) {
  Exchange exchange{fd, rank};
  isthmus_options o{};
  o.size = sizeof o;
  o.rank = rank;
  o.world_size = 2;
  o.exchange = Exchange::all_gather;
  o.exchange_context = &exchange;
  o.timeout = soon();
  o.bridge = bridge;
  isthmus_comm_t comm = nullptr;
  const isthmus_result made = isthmus_init(&o, &comm);
  if (std::string(bridge) == "shm") {
    const std::string text = isthmus_last_error();
    const bool clear = contains(text, "ISTHMUS_BRIDGE=shm") && contains(text, "cannot share memory");
    if (!clear) std::fprintf(stderr, "%s\n", text.c_str());
    return made == ISTHMUS_ERR_CONFIG && clear ? 0 : 1;
  }
  if (made != ISTHMUS_OK) {
    std::fprintf(stderr, "rank %d: %s\n", rank, isthmus_last_error());
    return 2;
  }
  std::vector<float> x(50'000, static_cast<float>(rank + 1));
  if (isthmus_all_reduce(comm, x.data(), x.data(), x.size(), ISTHMUS_FLOAT32, ISTHMUS_SUM, nullptr, nullptr) != ISTHMUS_OK)
    return 3;
  if (x.front() != 3 || x.back() != 3) return 4;
  char *json = nullptr;
  if (isthmus_comm_topology(comm, &json) != ISTHMUS_OK) return 5;
  const auto topology = nlohmann::json::parse(json);
  isthmus_free(json);
  if (topology["links"][static_cast<size_t>(1 - rank)]["kind"] != "tcp") return 6;
  return isthmus_comm_destroy(comm) == ISTHMUS_OK ? 0 : 7;
}

class Bridges : public ::testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(, Bridges, ::testing::Values("auto", "shm"), [](const auto &p) { return std::string(p.param); });

// "auto" goes by TCP; "shm" is an error on both ranks, and neither hangs. The ranks are this program again.
TEST_P(Bridges, OfRanksThatOnlyClaimToShareAHost) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  pid_t ranks[2];
  for (int r = 0; r < 2; ++r) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[r], kEnd);
    const std::string rank = std::to_string(r);
    const char *const arguments[] = {"test_bootstrap_sharing", "rank", rank.c_str(), GetParam(), nullptr};
    ASSERT_EQ(::posix_spawn(&ranks[r], "/proc/self/exe", &actions, nullptr, const_cast<char **>(arguments), environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  for (const int end : ends) ::close(end);
  for (int r = 0; r < 2; ++r) {
    int status = 0;
    ASSERT_EQ(::waitpid(ranks[r], &status, 0), ranks[r]);
    EXPECT_EQ(status, 0) << "rank " << r;
  }
}

}  // namespace
}  // namespace isthmus::bootstrap::testing

int main(int argc, char **argv) {
  using namespace isthmus::bootstrap::testing;
  if (argc == 4 && std::string(argv[1]) == "rank") {
    ::alarm(static_cast<unsigned>(4 * soon()));
    return rank_of_two(kEnd, std::stoi(argv[2]), argv[3]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
