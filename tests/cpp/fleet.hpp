// Fleets of every vendor's simulated devices, for tests of whole communicators through the C interface. The ranks of a vendor share
// processes, two a process, as threads. So ranks meet as threads, through shared memory and over TCP, and ThreadSanitizer sees what those
// of one process do to each other. (The simulation knows one register of pinned memory a process, whatever the vendor.)
#pragma once

#include <gtest/gtest.h>
#include <isthmus/isthmus.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "patience.hpp"
#include "vendor_driver.hpp"

namespace isthmus_test {

struct FleetRank {
  int rank = 0, size = 1;
  int process = 0, device = -1;    // the latter is its number among the devices of the process
  int host = 0;                    // where a test says that it stands
  const Vendor *vendor = nullptr;  // null: the host
  std::string island;
  Driver *driver = nullptr;
  isthmus_comm_t comm = nullptr;
};

// "nvidia:2@a,cpu:1", as in `isthmus rehearse --fleet`: vendor, ranks, island (else named like the vendor).
// `hosts`: by rank, where a test says that it stands; ranks of two hosts share no process. Empty: all on one.
inline std::vector<FleetRank> ranks_of(const std::string &fleet, const std::vector<int> &hosts = {}) {
  std::vector<FleetRank> ranks;
  std::map<std::pair<std::string, int>, int> seen;
  std::map<std::tuple<std::string, int, int>, int> processes;
  std::istringstream parts(fleet);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t colon = part.find(':'), at = part.find('@');
    const std::string name = part.substr(0, colon);
    for (int i = std::stoi(part.substr(colon + 1)); i > 0; --i) {
      FleetRank r;
      r.rank = static_cast<int>(ranks.size());
      r.vendor = vendor_named(name);
      r.island = at == std::string::npos ? name : part.substr(at + 1);
      if (!hosts.empty()) r.host = hosts.at(ranks.size());
      const int number = seen[{name, r.host}]++;
      r.process = processes.try_emplace({name, r.host, number / 2}, static_cast<int>(processes.size())).first->second;
      if (r.vendor) r.device = number % 2;
      ranks.push_back(r);
    }
  }
  for (FleetRank &r : ranks) r.size = static_cast<int>(ranks.size());
  return ranks;
}

struct Broken {};

// In a rank: what does not hold ends the test on all of them.
#define FLEET_MUST(r, condition)                                                                                      \
  do {                                                                                                                \
    if (!(condition)) {                                                                                               \
      ADD_FAILURE() << "rank " << (r).rank << ": " << #condition << " does not hold; last: " << isthmus_last_error(); \
      throw isthmus_test::Broken();                                                                                   \
    }                                                                                                                 \
  } while (0)

struct FleetOptions {
  const char *bridge = nullptr;
  std::string settings;
  double timeout = 2 * soon();
  std::vector<int> hosts;                                                // as in ranks_of()
  std::function<void(const FleetRank &, isthmus_options &)> rendezvous;  // of the test's own, in place of the id
};

// Makes r.comm.
inline isthmus_result init_rank(FleetRank &r, const isthmus_unique_id *id, const FleetOptions &options,
                                const char *name = nullptr) {
  const std::string settings =
      "DEVICE=" + (r.vendor ? std::string(r.vendor->device) + ":" + std::to_string(r.device) : std::string("host")) + ";" +
      options.settings;
  isthmus_options o{};
  o.size = sizeof o;
  o.rank = r.rank;
  o.world_size = r.size;
  o.id = id;
  o.name = name;
  o.island = r.island.c_str();
  o.bridge = options.bridge;
  o.timeout = options.timeout;
  o.settings = settings.c_str();
  if (options.rendezvous) options.rendezvous(r, o);
  return isthmus_init(&o, &r.comm);
}

// One process of a fleet: its ranks are threads.
inline void fly_here(const std::string &fleet, int process, const isthmus_unique_id &id, const FleetOptions &options,
                     const std::function<void(FleetRank &)> &body) {
  std::vector<std::thread> threads;
  std::vector<FleetRank> mine;
  for (FleetRank r : ranks_of(fleet, options.hosts)) {
    if (r.process != process) continue;
    if (r.vendor) r.driver = driver_of(*r.vendor);
    mine.push_back(r);
  }
  for (FleetRank &r : mine)
    threads.emplace_back([&] {
      if (r.driver) r.driver->here(r.device);
      if (init_rank(r, &id, options) != ISTHMUS_OK) {
        ADD_FAILURE() << "init of rank " << r.rank << ": " << isthmus_last_error();
        return;
      }
      try {
        body(r);
      } catch (const Broken &) { isthmus_comm_abort(r.comm, "the test has failed"); }
      isthmus_comm_destroy(r.comm);
    });
  for (std::thread &t : threads) t.join();
}

// Runs `body` on every rank of the fleet. `before`: in each process first, while it has one thread.
inline void fly(
    const std::string &fleet, const FleetOptions &options, const std::function<void(FleetRank &)> &body,
    const std::function<void()> &before = [] {}) {
  SCOPED_TRACE("fleet " + fleet);
  int id_pipe[2];
  ASSERT_EQ(::pipe(id_pipe), 0);
  std::fflush(nullptr);
  int processes = 0;
  for (const FleetRank &r : ranks_of(fleet, options.hosts)) processes = std::max(processes, r.process + 1);
  std::vector<pid_t> children;
  for (int process = 0; process < processes; ++process) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    ::alarm(static_cast<unsigned>(10 * soon()));  // nothing hangs
    before();
    isthmus_unique_id id;
    if (process == 0) {
      EXPECT_EQ(isthmus_unique_id_create(&id), ISTHMUS_OK) << isthmus_last_error();
      for (int other = 1; other < processes; ++other)
        EXPECT_EQ(::write(id_pipe[1], &id, sizeof id), static_cast<ssize_t>(sizeof id));
    } else {
      ::close(id_pipe[1]);  // so that the end of the first process is the end of the pipe
      EXPECT_EQ(::read(id_pipe[0], &id, sizeof id), static_cast<ssize_t>(sizeof id));
    }
    if (!testing::Test::HasFailure()) fly_here(fleet, process, id, options, body);
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  }
  ::close(id_pipe[1]);
  for (size_t process = 0; process < children.size(); ++process) {
    int status = 0;
    EXPECT_EQ(::waitpid(children[process], &status, 0), children[process]);
    EXPECT_EQ(status, 0) << "process " << process << " of the fleet; what it said stands above";
  }
  ::close(id_pipe[0]);
}

// Where a test's memory lies. On a rank of the host all three are the host's.
enum class Place { Device, Host, Pinned };

// Memory of every place; pinned only where that is asked for.
class FleetMemory {
 public:
  FleetMemory(const FleetRank &r, size_t bytes, bool pinned = false) : driver_(r.driver), host_(bytes) {
    if (!driver_) return;
    device_ = static_cast<char *>(driver_->allocate(bytes));
    if (pinned) pinned_ = static_cast<char *>(driver_->allocate_pinned(bytes));
  }
  ~FleetMemory() {
    if (!driver_) return;
    driver_->release(device_);
    if (pinned_) driver_->release_pinned(pinned_);
  }
  FleetMemory(const FleetMemory &) = delete;
  FleetMemory &operator=(const FleetMemory &) = delete;
  void *at(Place place, size_t offset) {
    return (!driver_ || place == Place::Host ? host_.data() : place == Place::Device ? device_ : pinned_) + offset;
  }
  void put(Place place, const void *from, size_t bytes) {
    if (driver_ && place == Place::Device) driver_->put(device_, from, bytes);
    else std::memcpy(at(place, 0), from, bytes);
  }
  void get(Place place, void *to, size_t bytes) {
    if (driver_ && place == Place::Device) driver_->get(to, device_, bytes);
    else std::memcpy(to, at(place, 0), bytes);
  }
  void *at(size_t offset) { return at(Place::Device, offset); }
  void put(const void *from, size_t bytes) { put(Place::Device, from, bytes); }
  void get(void *to, size_t bytes) { get(Place::Device, to, bytes); }

 private:
  Driver *const driver_;
  std::vector<char> host_;
  char *device_ = nullptr, *pinned_ = nullptr;
};

}  // namespace isthmus_test
