// A thread that does not come back from the driver, to which it gives work of a communicator: who else uses the communicator goes on, and it comes
// back itself, with the communicator's error, when the driver lets it go. Then the device serves again.
#include "asleep.hpp"
#include "device_fleet.hpp"

namespace isthmus_test {
namespace {

using Begin = std::function<isthmus_result(const Rank &, void *, const isthmus_call *)>;

// The device stands, and its driver is locked by a thread that frees memory.
class Stands {
 public:
  explicit Stands(int device) {
    must_cu("MemAlloc_v2", &memory_, size_t{4096});
    user_.stand();
    std::atomic<pid_t> frees{0};
    thread_ = std::thread([this, device, &frees] {
      use(device);
      frees = this_thread();
      must_cu("MemFree_v2", memory_);
    });
    EXPECT_TRUE(eventually([&] { return frees != 0; }) && falls_asleep(frees));
  }
  ~Stands() { go_on(); }
  Stands(const Stands &) = delete;
  Stands &operator=(const Stands &) = delete;
  void go_on() {
    user_.open();
    if (thread_.joinable()) thread_.join();
  }

 private:
  UserStream user_;
  Address memory_ = 0;
  std::thread thread_;
};

// Rank 0 makes the call, and the other, on the host, the one that it needs.
void is_stuck(int device, const Begin &here, const Begin &there, bool on_stream) {
  const std::string fleet = std::to_string(device) + "a -b";
  fly(fleet, [&](Rank &r) {
    constexpr size_t kBytes = kLarge * sizeof(float);
    Memory memory(r, kBytes);
    OK(isthmus_barrier(r.comm, nullptr, nullptr));
    if (r.host()) {
      EXPECT_NE(there(r, memory.at(), nullptr), ISTHMUS_OK);
      return;
    }
    OK(isthmus_comm_set_timeout(r.comm, patient(1)));
    UserStream user;
    const isthmus_call how = on(user.stream);
    Stands stands(r.device);
    isthmus_result result = ISTHMUS_OK;
    std::string said;
    std::atomic<pid_t> calls{0};
    std::thread stuck([&] {
      use(r.device);
      calls = this_thread();
      result = here(r, memory.at(), on_stream ? &how : nullptr);
      said = isthmus_last_error();
    });
    EXPECT_TRUE(eventually([&] { return calls != 0; }) && falls_asleep(calls));
    // Each would wait for ever for the thread that is stuck.
    const isthmus_result other = isthmus_barrier(r.comm, nullptr, nullptr);
    EXPECT_EQ(other, ISTHMUS_ERR_TIMEOUT) << isthmus_last_error();
    EXPECT_NE(std::string(isthmus_last_error())
                  .find("(NVIDIA driver) on cuda:" + std::to_string(device) + ", which has not come back"),
              std::string::npos)
        << isthmus_last_error();
    isthmus_comm_abort(r.comm, "enough");
    EXPECT_EQ(isthmus_comm_destroy(std::exchange(r.comm, nullptr)), ISTHMUS_OK);
    stands.go_on();
    stuck.join();
    EXPECT_EQ(result, ISTHMUS_ERR_TIMEOUT);
    std::ostringstream late;
    late << "did not finish within " << patient(1) << " s";
    EXPECT_NE(said.find(late.str()), std::string::npos) << said;
  });
  fly(fleet, [](Rank &r) {  // now that everybody has come back
    Memory memory(r, kLarge * sizeof(float));
    OK(isthmus_all_reduce(r.comm, memory.at(), memory.at(), kLarge, ISTHMUS_FLOAT32, ISTHMUS_SUM, nullptr, nullptr));
  });
}

isthmus_result all_reduce(const Rank &r, void *at, const isthmus_call *how) {
  return isthmus_all_reduce(r.comm, at, at, kLarge, ISTHMUS_FLOAT32, ISTHMUS_SUM, how, nullptr);
}
isthmus_result send(const Rank &r, void *at, const isthmus_call *how) {
  return isthmus_send(r.comm, at, kLarge, ISTHMUS_FLOAT32, 1 - r.rank, 0, how, nullptr);
}
isthmus_result recv(const Rank &r, void *at, const isthmus_call *how) {
  return isthmus_recv(r.comm, at, kLarge, ISTHMUS_FLOAT32, 1 - r.rank, 0, nullptr, how, nullptr);
}

// A device each, so that all are stuck at the same time.
TEST(StuckCall, HoldsUpNobodyElse) {
  std::vector<std::thread> all;
  all.emplace_back([] { is_stuck(0, all_reduce, all_reduce, false); });
  all.emplace_back([] { is_stuck(1, all_reduce, all_reduce, true); });
  all.emplace_back([] { is_stuck(2, send, recv, false); });
  all.emplace_back([] { is_stuck(3, recv, send, true); });
  for (std::thread &one : all) one.join();
}

}  // namespace
}  // namespace isthmus_test
