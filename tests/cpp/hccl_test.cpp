// What island_ccl.hpp promises, of Huawei's library: on the simulated one, whose ranks are threads here, each with a device
// of its own.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "ccl/hccl.hpp"
#include "ccl_support.hpp"
#include "device/abandoned.hpp"
#include "device/acl.hpp"
#include "device/host.hpp"

namespace isthmus::ccl {

device::Runtime &runtime() { return device::acl_runtime(); }
std::shared_ptr<Library> library() { return open_hccl(""); }

namespace {

constexpr DType kNumbers[] = {DType::Int8, DType::Int16, DType::Int32, DType::Float16, DType::BFloat16, DType::Float32};
constexpr RedOp kOps[] = {RedOp::Sum, RedOp::Prod, RedOp::Min, RedOp::Max};
// Not all devices do these.
bool left_out(DType t, RedOp op) {
  return (t == DType::Int16 && op != RedOp::Sum) || (t == DType::BFloat16 && op == RedOp::Prod);
}

// ---- what it says ---------------------------------------------------------------------------------------------------------

TEST(Hccl, SaysWhatItIs) {
  const auto l = library();
  EXPECT_STREQ(l->family(), "hccl");
  EXPECT_NE(l->version(), "unknown");
  EXPECT_EQ(l->path(), rehearsal_file("ascend/libhccl.so"));
  const LibraryCapabilities can = l->capabilities();
  EXPECT_FALSE(can.blocking || can.one_stream || can.groups || can.abort);
  EXPECT_TRUE(can.thread_ranks);
  EXPECT_FALSE(can.host_memory);
  EXPECT_EQ(can.id_bytes, 4108u);
  EXPECT_TRUE(l->usable().ok());
  EXPECT_TRUE(serves_threads("hccl"));
  EXPECT_EQ(vendor_of("hccl"), "acl");
  EXPECT_EQ(family_for("acl"), "hccl");
  EXPECT_EQ(families(), (std::vector<std::string>{"oneccl", "nccl", "rccl", "hccl"}));
  EXPECT_EQ(library(), open_library("hccl", "/nowhere/libhccl.so", "")) << "it is opened once";
}

TEST(Hccl, SaysWhatItCan) {
  const auto l = library();
  for (int c = 0; c < kIslandCalls; ++c)
    for (int t = 0; t < kDTypeCount; ++t)
      for (int o = 0; o < kRedOpCount; ++o) {
        const auto call = static_cast<Call>(c);
        const auto dtype = static_cast<DType>(t);
        const auto op = static_cast<RedOp>(o);
        const bool number = std::find(std::begin(kNumbers), std::end(kNumbers), dtype) != std::end(kNumbers);
        const bool known = std::find(std::begin(kOps), std::end(kOps), op) != std::end(kOps);
        EXPECT_EQ(l->can(call, dtype, op), !reduces(call) || (number && known && !left_out(dtype, op)))
            << island_call_name(call) << " " << redop_name(op) << " of " << dtype_name(dtype);
      }
}

TEST(Hccl, EveryIdIsAnotherAndIsMadeOnThreadsWithoutADevice) {
  std::vector<std::byte> first;
  std::thread([&] { first = library()->make_id(1); }).join();
  const auto second = library()->make_id(0);
  EXPECT_EQ(first.size(), 4108u);
  EXPECT_NE(first, second);
}

// ---- collectives ----------------------------------------------------------------------------------------------------------

class Collectives : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Values(1, 2, 3),
                         [](const auto &p) { return "Of" + std::to_string(p.param); });

TEST_P(Collectives, Reduce) {
  ranks(GetParam(), [](Rank &r) {
    for (const DType t : kNumbers)
      for (const RedOp op : kOps)
        if (!left_out(t, op)) reductions(r, t, op, t == DType::Float32 && op == RedOp::Sum ? 60'001 : 333);
    reductions(r, DType::Int32, RedOp::Max, 1);
  });
}
TEST_P(Collectives, MoveBytesOfAnyType) { ranks(GetParam(), moves_bytes_of_any_type); }
TEST_P(Collectives, ExchangeBlocksOfAnySize) { ranks(GetParam(), exchanges_blocks); }
TEST_P(Collectives, PassMessages) { ranks(GetParam(), passes_messages); }

// They are one batch, which is empty where there is nothing to do, and then none. What is no message is made one by one.
TEST_P(Collectives, PassMessagesInABatch) {
  const auto world = static_cast<unsigned long>(GetParam());
  const unsigned long batches = calls("HcclBatchSendRecv"), alone = calls("HcclSend") + calls("HcclRecv");
  ranks(GetParam(), [](Rank &r) {
    auto &[rank, size, stream, c, done, value, pinned] = r;
    passes_messages_together(r);
    const Memory x(r, noise(rank, 100)), y(r, noise(rank, 100));
    together(r, [&] {
      c->broadcast(x.at(), 100, DType::Int8, 0);
      c->broadcast(y.at(), 100, DType::Int8, size - 1);
    });
    EXPECT_EQ(x.content(), noise(0, 100));
    EXPECT_EQ(y.content(), noise(size - 1, 100));
    expect_refused(Code::Argument, "hccl send: rank 7", [&] { together(r, [&] { c->send(x.at(), 100, DType::Int8, 7); }); });
    MUST(r.drained() && c->status().ok());
  });
  EXPECT_EQ(calls("HcclBatchSendRecv") - batches, world);
  EXPECT_EQ(calls("HcclSend") + calls("HcclRecv"), alone);
}

TEST_P(Collectives, OfNothingAreNothing) {
  ranks(GetParam(), [](Rank &r) {
    auto &[rank, size, stream, c, done, value, pinned] = r;
    const unsigned long before = calls("HcclAllReduce") + calls("HcclBroadcast") + calls("HcclAllGather");
    c->all_reduce(nullptr, nullptr, 0, DType::Float32, RedOp::Sum);
    c->broadcast(nullptr, 0, DType::Float32, 0);
    c->all_gather(nullptr, nullptr, 0, DType::Float32);
    c->all_to_all(nullptr, nullptr, 0, DType::Float32);
    MUST(r.drained() && c->status().ok());
    EXPECT_EQ(calls("HcclAllReduce") + calls("HcclBroadcast") + calls("HcclAllGather"), before);
  });
}

// The caller goes on, and the stream waits for the rank that comes late.
TEST(Hccl, ALateRankHoldsUpTheStreamAndNotTheCaller) {
  std::atomic<bool> seen{false};
  ranks(2, [&](Rank &r) {
    auto &[rank, size, stream, c, done, value, pinned] = r;
    const Memory x(r, packed(DType::Int32, 1000, [](size_t) { return 1; }));
    if (rank == 1) MUST(eventually([&] { return seen.load(); }));
    for (int i = 0; i < 5; ++i) c->all_reduce(x.at(), x.at(), 1000, DType::Int32, RedOp::Sum);
    if (rank == 0) {
      MUST(!r.drained(0.05));
      MUST(c->inside() == nullptr && !c->held_up() && !c->failed());
      seen.store(true);
    }
    EXPECT_EQ(x.content(), packed(DType::Int32, 1000, [](size_t) { return 32; }));
  });
}

TEST(Hccl, CommunicatorsOfOneDeviceAreIndependent) {
  const auto other = library()->make_id();
  ranks(2, [&](Rank &r) {
    auto &[rank, size, stream, c, done, value, pinned] = r;
    const auto second = library()->join({other, 1 - rank, 2, Deadline(2 * soon())}, stream);  // ranks the other way round
    EXPECT_EQ(second->rank(), 1 - rank);
    EXPECT_EQ(&second->stream(), stream.get());
    const Memory x(r, noise(rank, 100)), y(r, noise(rank, 100));
    for (int i = 0; i < 20; ++i) {
      c->broadcast(x.at(), 100, DType::Int8, i % 2);
      second->broadcast(y.at(), 100, DType::Int8, i % 2);
    }
    EXPECT_EQ(x.content(), noise(0, 100));
    EXPECT_EQ(y.content(), noise(1, 100));
    second->abort();  // the first works on
    c->broadcast(x.at(), 100, DType::Int8, 1);
    EXPECT_EQ(x.content(), noise(0, 100));
    MUST(c->status().ok() && !c->failed());
  });
}

// ---- refusals -------------------------------------------------------------------------------------------------------------

TEST(Hccl, RefusesWhatItCannotAndWorksOn) {
  ranks(2, [](Rank &r) {
    auto &[rank, size, stream, c, done, value, pinned] = r;
    const Memory x(r, packed(DType::Float32, 8, [&](size_t) { return 1 + r.rank; }));
    void *const p = x.at();
    expect_refused(Code::Unsupported, "hccl all_reduce: no avg of float32",
                   [&] { c->all_reduce(p, p, 8, DType::Float32, RedOp::Avg); });
    expect_refused(Code::Unsupported, "premul_sum of float32",
                   [&] { c->all_reduce(p, p, 8, DType::Float32, RedOp::PremulSum); });
    expect_refused(Code::Unsupported, "sum of int64", [&] { c->all_reduce(p, p, 4, DType::Int64, RedOp::Sum); });
    expect_refused(Code::Unsupported, "reduce: no max of int16", [&] { c->reduce(p, p, 8, DType::Int16, RedOp::Max, 0); });
    expect_refused(Code::Argument, "hccl broadcast: rank 2 is not of this island (0 to 1)",
                   [&] { c->broadcast(p, 8, DType::Float32, 2); });
    expect_refused(Code::Argument, "hccl reduce: rank -1", [&] { c->reduce(p, p, 8, DType::Float32, RedOp::Sum, -1); });
    expect_refused(Code::Argument, "hccl recv: rank -1", [&] { c->recv(p, 8, DType::Float32, -1); });
    c->all_reduce(p, p, 8, DType::Float32, RedOp::Max);
    EXPECT_EQ(x.content(), packed(DType::Float32, 8, [](size_t) { return 2; }));
    MUST(c->status().ok());
  });
}

TEST(Hccl, RefusesToJoinWhatCannotBe) {
  const auto id = library()->make_id();
  const auto join = [&](std::vector<std::byte> with, int rank, int size, std::shared_ptr<device::Stream> stream) {
    library()->join({with, rank, size, Deadline(5)}, std::move(stream));
  };
  const auto stream = new_stream(0);
  expect_refused(Code::Argument, "an id of 128 bytes; 4108 are needed",
                 [&] { join(std::vector<std::byte>(128), 0, 1, stream); });
  expect_refused(Code::Argument, "rank 2 of an island of 2", [&] { join(id, 2, 2, stream); });
  expect_refused(Code::Argument, "rank -1 of an island of 2", [&] { join(id, -1, 2, stream); });
  expect_refused(Code::Argument, "it needs a stream of its vendor's runtime", [&] { join(id, 0, 1, nullptr); });
  expect_refused(Code::Argument, "it needs a stream of its vendor's runtime",
                 [&] { join(id, 0, 1, device::host_runtime().make_stream(0, "host")); });
  expect_refused(Code::System, "hccl init: ", [&] { join(std::vector<std::byte>(4108), 0, 1, stream); });  // nobody's id
  EXPECT_EQ(live("communicator"), 0u);
}

TEST(Hccl, AbortMayComeAtAnyTime) {
  for (int round = 0; round < 5; ++round)
    ranks(1, [round](Rank &r) {
      auto &[rank, size, stream, c, done, value, pinned] = r;
      const Memory x(r, noise(0, 40'000));
      std::atomic<bool> stop{false};
      std::vector<std::thread> others;
      for (int i = 0; i < 2; ++i)
        others.emplace_back([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(round));
          c->abort();
        });
      others.emplace_back([&] {
        while (!stop) c->failed();
      });
      for (int i = 0; i < 200; ++i) c->all_reduce(x.at(), x.at(), 10'000, DType::Float32, RedOp::Max);
      EXPECT_TRUE(r.drained());
      stop = true;
      for (std::thread &t : others) t.join();
      const unsigned long before = calls("HcclAllReduce");
      c->all_reduce(x.at(), x.at(), 10'000, DType::Float32, RedOp::Max);
      EXPECT_EQ(calls("HcclAllReduce"), before) << "nothing is begun after it";
      const Status s = c->status();
      EXPECT_TRUE(s.ok() || s.code == Code::Aborted) << s.text;
    });
}

TEST(Hccl, LeavesNothing) {
  const auto count = [] {
    std::map<std::string, size_t> all;
    for (const char *what : {"allocation", "registration", "stream", "event", "communicator"}) all[what] = live(what);
    return all;
  };
  const auto body = [](Rank &r) {
    const Memory x(r, noise(r.rank, 4000));
    r.c->all_reduce(x.at(), x.at(), 1000, DType::Float32, RedOp::Max);
    EXPECT_TRUE(r.drained());
  };
  ranks(3, body);
  const auto before = count();
  for (int i = 0; i < 3; ++i) ranks(3, body);
  EXPECT_TRUE(eventually([&] { return count() == before; })) << testing::PrintToString(count());
}

// ---- in processes of their own --------------------------------------------------------------------------------------------

// The thread that waits for the others in the library is left there, and counted; it leaves when the library gives up.
void a_rank_never_joins() {
  const int64_t begin = now_ns();
  const Status s = thrown([] { library()->join({library()->make_id(), 1, 3, Deadline(0.5)}, new_stream(0)); });
  HOLDS(s.code == Code::Timeout && has(s, "hccl init: not all 3 ranks of the island joined in time (this is rank 1 of it)"),
        s.text);
  HOLDS(now_ns() - begin > 400'000'000, "before the deadline");
  HOLDS(device::abandoned_threads() == 1, "it is not counted");
  // Another communicator works beside it.
  Rank r(0, 1);
  r.join(library()->make_id());
  const Memory x(r, noise(0, 400));
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  HOLDS(x.content() == noise(0, 400), r.c->status().text);
}
// `then` for rank 0 of two, whose call on `memory` the other never makes.
void without_the_peer(void (*then)(std::unique_ptr<Rank> &r, void *memory)) {
  const auto id = library()->make_id();
  std::atomic<bool> over{false};
  std::thread other([&] {
    Rank r(1, 2);
    r.join(id);
    while (!over) std::this_thread::sleep_for(1ms);
    r.c->abort();
  });
  auto r = std::make_unique<Rank>(0, 2);
  r->join(id);
  void *const memory = runtime().allocate(0, 400'000);
  r->c->all_reduce(memory, memory, 100'000, DType::Float32, RedOp::Sum);
  then(r, memory);
  over = true;
  other.join();
  std::_Exit(fine ? 0 : 1);  // the device is as it is
}
// The peer never makes the call: nothing ends it on the device, and the rank leaves with its stream all the same.
void a_peer_never_calls(std::unique_ptr<Rank> &r, void *memory) {
  HOLDS(!r->drained(0.1) && !r->c->failed() && !r->c->inside(), r->c->status().text);
  r->c->abort();
  r->c->abort();
  r->c->all_reduce(memory, memory, 100'000, DType::Float32, RedOp::Sum);
  HOLDS(calls("HcclAllReduce") == 1, "a second call was made");
  r->c.reset();  // either would wait for ever for the peer
  r->stream.reset();
  HOLDS(device::abandoned_threads() == 0, "no thread is in the library");
}
// The peer never makes the call, and a thread that waits for the device has the driver locked: even a question about the stream stands.
void the_driver_is_locked(std::unique_ptr<Rank> &r, void *) {
  HOLDS(!r->drained(0.1), "");
  static const DriverLocked locked(0);  // for good
  r->c->abort();
  const int64_t begin = now_ns();
  r->c.reset();
  HOLDS(now_ns() - begin < static_cast<int64_t>(2 * isthmus_test::soon() * 1e9), "it waits for the driver");
  HOLDS(device::abandoned_threads() == 1, "the thread that asks is not counted");
  const char *const stuck = runtime().stuck(0);
  HOLDS(stuck && std::string(stuck).starts_with("aclrt"), stuck ? stuck : "the device does not count as stuck");
  HOLDS(!runtime().stuck(1), "so does another");
}
// What a pointer is, is asked in the context that the thread has, else in one of ours. No device is begun for the question.
void pointers_are_found() {
  const int device = 1;
  void *const memory = runtime().allocate(device, 4096);
  const auto found = [&] {
    const device::PointerInfo p = runtime().find(memory);
    return p.where == device::Where::Device && p.device == device;
  };
  const auto set = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_DEFAULT, "aclrtSetDevice"));
  const auto get = reinterpret_cast<int (*)(int *)>(::dlsym(RTLD_DEFAULT, "aclrtGetDevice"));
  const unsigned long begun = calls("aclrtSetDevice");
  const auto on_thread = [](const std::function<void()> &f) { std::thread(f).join(); };
  on_thread([&] { HOLDS(found(), "on a thread that has chosen no device"); });
  HOLDS(calls("aclrtSetDevice") == begun, "another device was begun");
  on_thread([&] {
    int here = -1;
    HOLDS(set(2) == 0 && found() && get(&here) == 0 && here == 2, "on a thread that has chosen another");
  });
  HOLDS(calls("aclrtSetDevice") == begun + 1, "another device was begun");
  runtime().release(device, memory);
}
void pointers_are_found_before_any_device_is_used() {
  int x = 0;
  std::thread([&] { HOLDS(runtime().find(&x).where == device::Where::Unknown, ""); }).join();
  HOLDS(calls("aclrtSetDevice") == 1, "the library tells a thread without a context nothing");
}
// Where no thread can be had for the functions that streams call, the call that needs one fails, and the next tries again.
void no_thread_can_be_had() {
  const auto stream = new_stream(0);
  const auto signal = runtime().make_signal(0);
  pthread_attr_t usual, huge;
  ::pthread_getattr_default_np(&usual);
  ::pthread_attr_init(&huge);
  ::pthread_attr_setstacksize(&huge, size_t{1} << 46);
  sigset_t before, after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  ::pthread_setattr_default_np(&huge);
  const Status s = thrown([&] { signal->arm(*stream, 1); });
  ::pthread_setattr_default_np(&usual);
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  HOLDS(s.code == Code::Resource && has(s, "Ascend ACL: no thread can be begun"), s.text);
  HOLDS(::sigismember(&after, SIGUSR1) == ::sigismember(&before, SIGUSR1), "the signals are blocked");
  signal->arm(*stream, 2);
  HOLDS(eventually([&] { return signal->value() == 2; }), "it does not come");
}
// The second call of an island of one fails at once; a third is not made.
void a_call_fails() {
  Rank r(0, 1);
  r.join(library()->make_id());
  const Memory x(r, noise(0, 400));
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  HOLDS(!r.c->failed() && r.c->status().ok(), r.c->status().text);
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  const Status s = r.c->status();
  HOLDS(r.c->failed() && s.code == Code::System && has(s, "hccl all_reduce: internal error (4)"), s.text);
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  HOLDS(calls("HcclAllReduce") == 2, "the third call was made");
  HOLDS(r.c->status().text == s.text, r.c->status().text);
  HOLDS(r.drained(), "");
}
void an_unsupported_call_fails() {
  Rank r(0, 1);
  r.join(library()->make_id());
  const Memory x(r, noise(0, 400));
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  const Status s = r.c->status();
  HOLDS(has(s, "hccl all_reduce: feature not supported (5)") && has(s, "ISTHMUS_CCL=none"), s.text);
}
void an_init_fails() {
  Rank r(0, 1);
  const Status s = thrown([&] { r.join(library()->make_id()); });
  HOLDS(s.code == Code::System && has(s, "hccl init: connection failed (11)"), s.text);
  HOLDS(device::abandoned_threads() == 0, "its thread has ended");
}
void an_id_fails() {
  const Status s = thrown([&] { library()->make_id(); });
  HOLDS(s.code == Code::System && has(s, "hccl root info: ") && has(s, "(19)"), s.text);
}
// What fails behind the call is seen by failed(), and told with its number; of a device with the word of its stream, too.
void fails_late(const char *number, bool of_device) {
  Rank r(0, 1);
  r.join(library()->make_id());
  const Memory x(r, noise(0, 400));
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  HOLDS(eventually([&] { return r.c->failed(); }), "not seen");
  const Status s = r.c->status();
  HOLDS(s.code == (of_device ? Code::Device : Code::System) && has(s, "hccl communicator: ") && has(s, number), s.text);
  HOLDS(has(s, "; its stream has failed: Ascend ACL: device 0 failed with error 507053") == of_device, s.text);
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  HOLDS(calls("HcclAllReduce") == 1, "a second call was made");
  if (of_device) {  // it can be left: a device that has failed does no more
    r.c.reset();
    HOLDS(calls("HcclCommDestroy") == 1 && device::abandoned_threads() == 0, "it was left behind");
  }
  std::_Exit(fine ? 0 : 1);
}
void the_network_fails_late() { fails_late("(21)", false); }
void the_device_fails_late() { fails_late("(15)", true); }
// The library calls it an error of its own. It is the device's, as the stream says.
void the_device_fails_before() {
  Rank r(0, 1);
  r.join(library()->make_id());
  const Memory x(r, noise(0, 400));
  runtime().copy(*r.stream, x.at(), x.at(200), 100);
  HOLDS(eventually([&] { return !r.stream->status().ok(); }), "it works");
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  const Status s = r.c->status();
  HOLDS(s.code == Code::Device && has(s, "hccl all_reduce: internal error (4)") && has(s, "; its stream has failed: "),
        s.text);
  std::_Exit(fine ? 0 : 1);
}
void nowhere() {
  const Status s = thrown([] { open_hccl("/nowhere/libhccl.so"); });
  HOLDS(s.code == Code::Unsupported && has(s, "hccl: /nowhere/libhccl.so cannot be opened") &&
            has(s, "install Huawei's CANN") && has(s, "ISTHMUS_CCL=none"),
        s.text);
  HOLDS(s.text.find('\n') == std::string::npos, s.text);
  HOLDS(std::string(library()->family()) == "hccl", "and what is here is still opened");
}
void another_library() {
  const std::string path = rehearsal_file("ascend/libascendcl.so");
  const Status s = thrown([&] { open_hccl(path); });
  HOLDS(s.code == Code::Unsupported && has(s, path.c_str()) && has(s, "has HcclGetRootInfo") && has(s, "libhcomm.so"),
        s.text);
  HOLDS(s.text.find('\n') == std::string::npos, s.text);
}

const std::map<std::string, void (*)()> kScenes{{"a rank never joins", a_rank_never_joins},
                                                {"a peer never calls", [] { without_the_peer(a_peer_never_calls); }},
                                                {"the driver is locked", [] { without_the_peer(the_driver_is_locked); }},
                                                {"pointers", pointers_are_found},
                                                {"pointers first", pointers_are_found_before_any_device_is_used},
                                                {"no thread", no_thread_can_be_had},
                                                {"a call fails", a_call_fails},
                                                {"an unsupported call", an_unsupported_call_fails},
                                                {"an init fails", an_init_fails},
                                                {"an id fails", an_id_fails},
                                                {"the network fails late", the_network_fails_late},
                                                {"the device fails late", the_device_fails_late},
                                                {"the device fails before", the_device_fails_before},
                                                {"nowhere", nowhere},
                                                {"another library", another_library}};

int play(const char *scene) {
  try {
    kScenes.at(scene)();
  } catch (const Error &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 3;
  }
  return fine ? 0 : 1;
}

TEST(HcclAlone, ARankThatNeverJoinsIsATimeout) { plays("a rank never joins", {"HCCL_CONNECT_TIMEOUT=10"}); }
TEST(HcclAlone, AProcessEndsWithAThreadInTheLibrary) { plays("a rank never joins", {"HCCL_CONNECT_TIMEOUT=100"}); }
TEST(HcclAlone, ARankLeavesACallWhosePeerIsMissing) { plays("a peer never calls"); }
TEST(HcclAlone, ARankLeavesADeviceWhoseDriverIsLocked) { plays("the driver is locked"); }
TEST(HcclAlone, WhatAPointerIsIsAskedInTheContextThatIsThere) { plays("pointers"); }
TEST(HcclAlone, WhatAPointerIsCanBeAskedFirst) { plays("pointers first"); }
TEST(HcclAlone, AThreadThatCannotBeHadIsTheCallsFailure) { plays("no thread", {"REHEARSAL_ACL_NO_HOST_FUNC=1"}); }
TEST(HcclAlone, ACallThatFailsIsToldWithItsNumber) { plays("a call fails", {"REHEARSAL_FAIL=HcclAllReduce:2:4"}); }
TEST(HcclAlone, WhatTheDeviceDoesNotReduceIsToldWithAWayOut) {
  plays("an unsupported call", {"REHEARSAL_FAIL=HcclAllReduce:1:5"});
}
TEST(HcclAlone, AnInitThatFailsIsToldWithItsNumber) { plays("an init fails", {"REHEARSAL_FAIL=HcclCommInitRootInfo:1:11"}); }
TEST(HcclAlone, AnIdThatFailsIsToldWithItsNumber) { plays("an id fails", {"REHEARSAL_FAIL=HcclGetRootInfo:1:19"}); }
TEST(HcclAlone, AFailureOfTheNetworkIsSeenLater) {
  plays("the network fails late", {"REHEARSAL_FAIL_LATE=HcclAllReduce:1:21"});
}
TEST(HcclAlone, AFailureOfTheDeviceIsSeenLater) {
  plays("the device fails late", {"REHEARSAL_FAIL_LATE=HcclAllReduce:1:15"});
}
TEST(HcclAlone, AnErrorOfACallOnADeviceThatHasFailedIsTheDevices) {
  plays("the device fails before", {"REHEARSAL_FAIL_LATE=aclrtMemcpyAsync:2:507015", "REHEARSAL_FAIL=HcclAllReduce:1:4"});
}
TEST(HcclAlone, AFileThatIsNotThereIsOneSentence) { plays("nowhere"); }
TEST(HcclAlone, AnotherLibraryIsOneSentence) { plays("another library"); }

}  // namespace
}  // namespace isthmus::ccl

int main(int argc, char **argv) {
  ::setenv("REHEARSAL_DEVICES", "4", 1);
  ::setenv("REHEARSAL_QUIET", "1", 1);
  for (const char *file : {rehearsal_file("ascend/libascendcl.so"), rehearsal_file("ascend/libhccl.so")})
    if (!::dlopen(file, RTLD_NOW | RTLD_GLOBAL)) {
      std::fprintf(stderr, "%s\n", ::dlerror());
      return 4;
    }
  if (argc == 2 && isthmus::ccl::kScenes.count(argv[1])) return isthmus::ccl::play(argv[1]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
