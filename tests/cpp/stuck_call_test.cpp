// A thread that does not come back from the driver, to which it gives work of a communicator: who else uses the communicator goes on, and it comes
// back itself, with the communicator's error, when the driver lets it go. Then the device serves again.
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
    thread_ = std::thread([this, device] {
      use(device);
      must_cu("MemFree_v2", memory_);
    });
    std::this_thread::sleep_for(200ms);
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
void is_stuck(const Begin &here, const Begin &there, bool on_stream) {
  Options options;
  options.timeout = 1;
  fly(
      "0a -b",
      [&](Rank &r) {
        constexpr size_t kBytes = kLarge * sizeof(float);
        Memory memory(r, kBytes);
        OK(isthmus_barrier(r.comm, nullptr, nullptr));
        if (r.host()) {
          EXPECT_NE(there(r, memory.at(), nullptr), ISTHMUS_OK);
          return;
        }
        UserStream user;
        const isthmus_call how = on(user.stream);
        Stands stands(r.device);
        isthmus_result result = ISTHMUS_OK;
        std::string said;
        std::thread stuck([&] {
          use(r.device);
          result = here(r, memory.at(), on_stream ? &how : nullptr);
          said = isthmus_last_error();
        });
        std::this_thread::sleep_for(200ms);
        isthmus_result other = ISTHMUS_OK;
        EXPECT_LT(seconds_of([&] { other = isthmus_barrier(r.comm, nullptr, nullptr); }), 6);
        EXPECT_EQ(other, ISTHMUS_ERR_TIMEOUT) << isthmus_last_error();
        EXPECT_NE(std::string(isthmus_last_error()).find("(NVIDIA driver) on cuda:0, which has not come back"),
                  std::string::npos)
            << isthmus_last_error();
        EXPECT_LT(seconds_of([&] { isthmus_comm_abort(r.comm, "enough"); }), 1);
        EXPECT_LT(seconds_of([&] { EXPECT_EQ(isthmus_comm_destroy(std::exchange(r.comm, nullptr)), ISTHMUS_OK); }), 8);
        stands.go_on();
        stuck.join();
        EXPECT_EQ(result, ISTHMUS_ERR_TIMEOUT);
        EXPECT_NE(said.find("did not finish within 1 s"), std::string::npos) << said;
      },
      options);
  fly("0a -b", [](Rank &r) {  // now that everybody has come back
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

TEST(StuckCall, OfACollectiveHoldsUpNobodyElse) { is_stuck(all_reduce, all_reduce, false); }
TEST(StuckCall, OfACollectiveOnAStreamHoldsUpNobodyElse) { is_stuck(all_reduce, all_reduce, true); }
TEST(StuckCall, OfASendHoldsUpNobodyElse) { is_stuck(send, recv, false); }
TEST(StuckCall, OfAReceiveOnAStreamHoldsUpNobodyElse) { is_stuck(recv, send, true); }

}  // namespace
}  // namespace isthmus_test
