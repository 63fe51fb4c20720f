// A process's part in the tests of the mesh: an arena, a mesh, and a record of what its control thread said.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../../bench/free_port.hpp"
#include "base/error.hpp"
#include "bootstrap/mesh.hpp"
#include "eventually.hpp"
#include "net/socket.hpp"
#include "patience.hpp"

namespace isthmus::bootstrap::testing {

using isthmus_test::eventually, isthmus_test::patient, isthmus_test::soon;

struct Message {
  uint32_t peer;
  uint16_t type;
  std::string body;
};

class Recorder final : public MeshEvents {
 public:
  void on_message(Peer &peer, uint16_t type, std::span<const std::byte> body) override {
    const std::lock_guard lock(mutex_);
    messages_.push_back({peer.index, type, std::string(reinterpret_cast<const char *>(body.data()), body.size())});
  }
  void on_lost(Peer &, const std::string &why) override {
    const std::lock_guard lock(mutex_);
    lost_.push_back(why);
    lost_at_.push_back(now_ns());
  }
  void on_tick() override { ticks.fetch_add(1); }
  void on_stream(Peer &, uint32_t stream, uint32_t generation, UniqueFd socket) override {
    const std::lock_guard lock(mutex_);
    streams_.push_back({stream, generation, std::move(socket)});
  }
  struct Stream {
    uint32_t stream, generation;
    UniqueFd socket;
  };
  std::vector<Stream> take_streams() {
    const std::lock_guard lock(mutex_);
    return std::exchange(streams_, {});
  }

  std::vector<Message> messages() const {
    const std::lock_guard lock(mutex_);
    return messages_;
  }
  std::vector<std::string> lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
  }
  std::vector<int64_t> lost_at() const {
    const std::lock_guard lock(mutex_);
    return lost_at_;
  }
  // While it is held, the mesh's thread waits with what it has to say.
  std::unique_lock<std::mutex> hold() const { return std::unique_lock(mutex_); }
  std::atomic<int> ticks{0};

 private:
  mutable std::mutex mutex_;
  std::vector<Message> messages_;
  std::vector<std::string> lost_;
  std::vector<Stream> streams_;
  std::vector<int64_t> lost_at_;
};

// Shared memory that keeps its size.
inline UniqueFd sealed_memory(const char *name, size_t bytes) {
  UniqueFd memory(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) fail_system("ftruncate", errno);
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) fail_system("F_ADD_SEALS", errno);
  return memory;
}

struct Node {
  static constexpr size_t kArena = 1 << 20;
  UniqueFd arena;
  Mapping memory;
  Recorder events;
  std::unique_ptr<Mesh> mesh;

  explicit Node(const std::string &settings_text = "ISTHMUS_HEARTBEAT_MS=20", const std::string &hint = "127.0.0.1") {
    arena = sealed_memory("isthmus-test", kArena);
    memory = Mapping(arena.get(), kArena);
    Settings settings;
    settings.apply(settings_text);
    mesh = std::make_unique<Mesh>(settings, events, arena.get(), kArena, hint);
  }
};

inline const Bytes16 kKey{1, 2, 3}, kOtherKey{4, 5, 6};

struct Pair {  // two nodes, connected with each other
  Node a, b;
  Peer *of_a = nullptr, *of_b = nullptr;  // a's view of b, b's view of a

  void connect(bool shared = true, StreamCount streams = 0) {
    auto other = std::async(std::launch::async,
                            [&] { return &b.mesh->connect(a.mesh->self(), kKey, shared, streams, Deadline(soon())); });
    of_a = &a.mesh->connect(b.mesh->self(), kKey, shared, streams, Deadline(soon()));
    of_b = other.get();
  }
  void add_keys() {
    a.mesh->add_key(kKey);
    b.mesh->add_key(kKey);
  }
};

// A port of loopback that nobody listens at, and that no other test has.
inline std::string free_address(const char *host = "127.0.0.1:1") {
  for (;;) {
    const net::Address address = net::numeric_address(host).with_port(bench::free_port());
    try {
      net::listen_tcp(address);
      return address.text();
    } catch (const Error &) {}  // somebody has it
  }
}

inline std::span<const std::byte> bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte *>(text.data()), text.size()};
}

// The error that `work` throws; fails the test where there is none.
template <class Work>
Status error_of(Work work) {
  try {
    work();
  } catch (const Error &e) { return {e.code(), e.text()}; }
  return {};
}

inline bool contains(const std::string &text, std::string_view part) { return text.find(part) != std::string::npos; }

// Each side sees the other on another host, so only TCP is left.
inline void connect_as_hosts(Node &a, Node &b, Peer *&of_a, Peer *&of_b, bool shared, int streams) {
  const auto elsewhere = [](Endpoint e) {
    e.host[0] ^= 1;
    return e;
  };
  auto other = std::async(std::launch::async, [&] {
    return &b.mesh->connect(elsewhere(a.mesh->self()), kKey, shared, streams, Deadline(soon()));
  });
  of_a = &a.mesh->connect(elsewhere(b.mesh->self()), kKey, shared, streams, Deadline(soon()));
  of_b = other.get();
}

}  // namespace isthmus::bootstrap::testing
