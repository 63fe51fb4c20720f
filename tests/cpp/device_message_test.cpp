// Messages whose memory is a device's, on either side or both, through the C interface: with a user's stream, without, in groups,
// in parts, from any rank, where pinned memory is short, and at their ends.
#include "device_fleet.hpp"

#include <array>
#include <random>
#include <set>
#include <string>
#include <tuple>

namespace isthmus_test {
namespace {

// Every byte says who sent it, in which message, and where it belongs: the remainder by 251, and the page. Nobody else sees it yet, so no sanitizer
// need look.
__attribute__((no_sanitize("thread", "address"))) Bytes letter(int from, int message, size_t bytes) {
  constexpr size_t kPeriod = 251, kPage = 4096;
  static const auto periods = [] {
    std::array<unsigned char, kPeriod + kPage> of{};
    for (size_t i = 0; i < of.size(); ++i) of[i] = static_cast<unsigned char>(i % kPeriod);
    return of;
  }();
  Bytes b(bytes);
  for (size_t page = 0; page * kPage < bytes; ++page) {
    const auto begun = static_cast<unsigned char>(from * 89 + message * 31 + static_cast<int>(page));
    const unsigned char *const period = periods.data() + page * kPage % kPeriod;
    unsigned char *const at = b.data() + page * kPage;
    const size_t end = std::min(kPage, bytes - page * kPage);
    for (size_t i = 0; i < end; ++i) at[i] = static_cast<unsigned char>(begun + period[i]);
  }
  return b;
}

class DeviceMessages : public testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(Fleets, DeviceMessages, testing::Values("0a -a", "0a 1b", "0a 1a", "-a 0b 1b 2c -a"), title);

// Messages of several parts. ThreadSanitizer looks at every byte.
#if defined(__SANITIZE_THREAD__)
constexpr size_t kParts = 1'200'003, kManyParts = 4'000'000;
constexpr unsigned kTalks = 3;
#else
constexpr size_t kParts = 5'000'003, kManyParts = 12'000'000;
constexpr unsigned kTalks = 6;
#endif
constexpr const char *kLittleStaging = "STAGING_BYTES=16777216;CHUNK_BYTES=65536";  // without receive slots
constexpr const char *kFewSlots = "STAGING_BYTES=16777216;CHUNK_BYTES=8192";
constexpr size_t kSizes[] = {0, 1, 100, 16 * 1024, 16 * 1024 + 1, 100'001, kParts};

// Sends to the rank after this one and receives from the one before, `count` messages of a size, without streams.
void ring(const Rank &r, size_t bytes, int count, bool here_on_host, int tag) {
  const int next = (r.rank + 1) % r.size, before = (r.rank + r.size - 1) % r.size;
  std::vector<std::unique_ptr<Memory>> out, in;
  std::vector<Work> works;
  for (int i = 0; i < count; ++i) {
    out.push_back(std::make_unique<Memory>(r, bytes, here_on_host));
    in.push_back(std::make_unique<Memory>(r, bytes, here_on_host));
    out.back()->put(letter(r.rank, i, bytes));
  }
  // Receives first: on a device with one queue nothing of theirs may stand before the sends.
  for (int i = 0; i < count; ++i)
    OK(isthmus_recv(r.comm, in[static_cast<size_t>(i)]->at(), bytes, ISTHMUS_UINT8, before, tag, nullptr, nullptr,
                    &works.emplace_back().work));
  for (int i = 0; i < count; ++i)
    OK(isthmus_send(r.comm, out[static_cast<size_t>(i)]->at(), bytes, ISTHMUS_UINT8, next, tag, nullptr,
                    &works.emplace_back().work));
  for (const Work &work : works) OK(work.wait());
  for (int i = 0; i < count; ++i) MUST(in[static_cast<size_t>(i)]->get(bytes) == letter(before, i, bytes));
}
// By receive slots, which are for tag 0, and without.
void ring(const Rank &r, size_t bytes, int count, bool here_on_host) {
  for (const int tag : {0, 3}) ring(r, bytes, count, here_on_host, tag);
}

TEST_P(DeviceMessages, ArriveInOrder) {
  fly(GetParam(), [](Rank &r) {
    for (const size_t bytes : kSizes) {
      ring(r, bytes, 3, false);
      ring(r, bytes, 2, r.rank % 2 == 0);  // some ranks have theirs in host memory
    }
  });
}

TEST_P(DeviceMessages, ArriveOverTcpAndInManyParts) {
  Options options;
  options.settings = "CHUNK_BYTES=4096";
  options.bridge = "tcp";
  fly(
      GetParam(), [](Rank &r) { ring(r, 300'001, 2, false); }, options);
}

TEST_P(DeviceMessages, BlockingCallsWork) {
  fly(GetParam(), [](Rank &r) {
    for (const size_t bytes : kSizes) {
      Memory x(r, bytes);
      if (r.rank == 0) {
        x.put(letter(0, 1, bytes));
        for (int q = 1; q < r.size; ++q) OK(isthmus_send(r.comm, x.at(), bytes, ISTHMUS_UINT8, q, 0, nullptr, nullptr));
      } else {
        int source = -1;
        OK(isthmus_recv(r.comm, x.at(), bytes, ISTHMUS_UINT8, ISTHMUS_ANY_SOURCE, 0, &source, nullptr, nullptr));
        MUST(source == 0);
        MUST(x.get(bytes) == letter(0, 1, bytes));
      }
    }
  });
}

// The parts of a message from any rank come from one rank, also where several send such messages at once; without a stream, on one, and
// ordered on one later.
void from_any(const Rank &r, isthmus_stream_order on_stream, int tag) {
  constexpr size_t kBytes = 200'001;
  if (r.rank != 0) {
    Memory x(r, kBytes);
    x.put(letter(r.rank, 0, kBytes));
    OK(isthmus_send(r.comm, x.at(), kBytes, ISTHMUS_UINT8, 0, tag, nullptr, nullptr));
    return;
  }
  const std::unique_ptr<UserStream> user =
      r.host() || on_stream == ISTHMUS_STREAM_NONE ? nullptr : std::make_unique<UserStream>();
  isthmus_call how = user ? on(user->stream) : isthmus_call{};
  how.on_stream = on_stream;
  std::vector<std::unique_ptr<Memory>> in;
  std::vector<Work> works;
  for (int q = 1; q < r.size; ++q) {
    in.push_back(std::make_unique<Memory>(r, kBytes));
    OK(isthmus_recv(r.comm, in.back()->at(), kBytes, ISTHMUS_UINT8, ISTHMUS_ANY_SOURCE, tag, nullptr, user ? &how : nullptr,
                    &works.emplace_back().work));
  }
  if (on_stream == ISTHMUS_STREAM_BEFORE)
    for (const Work &work : works) OK(isthmus_work_order(work.work, user ? user->stream : nullptr));
  if (user) must_cu("StreamSynchronize", user->stream);
  std::vector<int> sources;
  for (size_t i = 0; i < works.size(); ++i) {
    OK(works[i].wait());
    const int source = isthmus_work_source(works[i].work);
    MUST(in[i]->get(kBytes) == letter(source, 0, kBytes));
    sources.push_back(source);
  }
  std::sort(sources.begin(), sources.end());
  for (int q = 1; q < r.size; ++q) MUST(sources[static_cast<size_t>(q) - 1] == q);
}

TEST_P(DeviceMessages, FromAnyRankAreNotMixed) {
  Options options;
  options.settings = "CHUNK_BYTES=4096";
  fly(
      GetParam(),
      [](Rank &r) {
        for (const auto on_stream : {ISTHMUS_STREAM_NONE, ISTHMUS_STREAM_BOTH, ISTHMUS_STREAM_BEFORE})
          for (const int tag : {0, 5}) {
            from_any(r, on_stream, tag);
            OK(isthmus_barrier(r.comm, nullptr, nullptr));
          }
      },
      options);
}

// In a group their order is nobody's concern.
TEST_P(DeviceMessages, GroupsExchangeOnAStream) {
  fly(GetParam(), [](Rank &r) {
    for (const size_t bytes : {size_t{1}, size_t{40'000}, size_t{3'000'001}}) {
      const std::unique_ptr<UserStream> user = r.host() ? nullptr : std::make_unique<UserStream>();
      const isthmus_call how = user ? on(user->stream) : isthmus_call{};
      const isthmus_call *const call = user ? &how : nullptr;
      std::vector<std::unique_ptr<Memory>> out, in;
      for (int q = 0; q < r.size; ++q) {
        out.push_back(std::make_unique<Memory>(r, bytes));
        in.push_back(std::make_unique<Memory>(r, bytes));
        out.back()->put(letter(r.rank, q, bytes));
      }
      OK(isthmus_group_begin());
      for (int q = r.size - 1; q >= 0; --q)
        OK(isthmus_recv(r.comm, in[static_cast<size_t>(q)]->at(), bytes, ISTHMUS_UINT8, q, 0, nullptr, call, nullptr));
      for (int q = 0; q < r.size; ++q)
        OK(isthmus_send(r.comm, out[static_cast<size_t>(q)]->at(), bytes, ISTHMUS_UINT8, q, 0, call, nullptr));
      Work work;
      OK(isthmus_group_end(&work.work));
      OK(work.wait());
      if (user) must_cu("StreamSynchronize", user->stream);
      for (int q = 0; q < r.size; ++q) MUST(in[static_cast<size_t>(q)]->get(bytes) == letter(q, r.rank, bytes));
    }
  });
}

// What the stream holds at the call is sent, and what comes behind a receive on its stream finds the message; the host waits for nothing.
TEST(DeviceMessage, TheUsersStreamOrdersThem) {
  const auto messages = [](const char *fleet, size_t bytes, OfKind kind) {
    fly(fleet, [bytes, kind](Rank &r) {
      ring(r, 100, 1, false);
      Memory x(r, bytes);
      if (r.rank == 1) {
        OK(isthmus_recv(r.comm, x.at(), bytes, ISTHMUS_UINT8, 0, 0, nullptr, nullptr, nullptr));
        MUST(x.get(bytes) == letter(0, 0, bytes));
        OK(isthmus_send(r.comm, x.at(), bytes, ISTHMUS_UINT8, 0, 1, nullptr, nullptr));
        return;
      }
      UserStream user(kind);
      Pinned data(bytes), result(bytes);
      const Bytes sent = letter(0, 0, bytes);
      std::memcpy(data.host, sent.data(), bytes);
      const isthmus_call how = on(user.stream);
      Work send, recv;
      user.stand();
      must_cu("MemcpyAsync", number(x.at()), data.device, bytes, user.stream);
      Watch watch(user);
      OK(isthmus_send(r.comm, x.at(), bytes, ISTHMUS_UINT8, 1, 0, &how, &send.work));
      must_cu("MemsetD8Async", number(x.at()), static_cast<unsigned char>(0xdd), bytes, user.stream);
      OK(isthmus_recv(r.comm, x.at(), bytes, ISTHMUS_UINT8, 1, 1, nullptr, &how, &recv.work));
      must_cu("MemcpyAsync", result.device, number(x.at()), bytes, user.stream);
      EXPECT_TRUE(watch.returned_in_time()) << "the calls have waited for the user's stream";
      std::this_thread::sleep_for(20ms);
      EXPECT_EQ(isthmus_work_test(send.work), ISTHMUS_IN_PROGRESS);
      user.open();
      MUST(eventually([&] { return cu("StreamQuery", user.stream) == 0; }));
      MUST(std::memcmp(result.host, sent.data(), bytes) == 0);
      OK(send.wait());
      OK(recv.wait());
    });
  };
  for (const char *fleet : {"0a 1b", "0a 1a", "0a -b"})
    for (const size_t bytes : {size_t{8}, size_t{100'000}, size_t{2'500'000}}) messages(fleet, bytes, OfKind::NonBlocking);
  for (const OfKind kind : {OfKind::Null, OfKind::Legacy, OfKind::Thread, OfKind::Blocking})
    messages("0a 1b", 100'000, kind);
}

// A receive that is ordered later: made before the send that its peer waits for, on a device with one queue; what the stream held at the call
// comes before it, and what it is given after isthmus_work_order() behind it.
TEST(DeviceMessage, MayBeOrderedLater) {
  for (const char *fleet : {"0a 1b", "0a 1a"})
    for (const size_t bytes : {size_t{8}, size_t{100'000}, size_t{2'500'000}})
      for (const int pause : {0, 50})  // the message has not come when it is ordered, or has
        fly(fleet, [&](Rank &r) {
          ring(r, 100, 1, false);
          const int peer = 1 - r.rank;
          Memory in(r, bytes), out(r, bytes);
          out.put(letter(r.rank, 0, bytes));
          Pinned result(bytes), junk(bytes);
          UserStream user, other;
          isthmus_call how = on(user.stream);
          how.on_stream = ISTHMUS_STREAM_BEFORE;
          Work recv, send;
          std::memset(junk.host, 0x5a, bytes);
          must_cu("MemcpyAsync", number(in.at()), junk.device, bytes, user.stream);
          OK(isthmus_recv(r.comm, in.at(), bytes, ISTHMUS_UINT8, peer, 0, nullptr, &how, &recv.work));
          how.on_stream = ISTHMUS_STREAM_BOTH;
          if (r.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(pause));
          OK(isthmus_send(r.comm, out.at(), bytes, ISTHMUS_UINT8, peer, 0, &how, &send.work));
          std::this_thread::sleep_for(std::chrono::milliseconds(r.rank == 1 ? pause : 0));
          OK(isthmus_work_order(recv.work, other.stream));
          must_cu("MemcpyAsync", result.device, number(in.at()), bytes, other.stream);
          MUST(eventually([&] { return cu("StreamQuery", other.stream) == 0; }));
          const Bytes sent = letter(peer, 0, bytes);
          MUST(std::memcmp(result.host, sent.data(), bytes) == 0);
          OK(recv.wait());
          OK(send.wait());
          OK(isthmus_work_order(recv.work, user.stream));  // another one; it may be over
          must_cu("StreamSynchronize", user.stream);
          MUST(in.get(bytes) == sent);
          refused(r, ISTHMUS_ERR_UNSUPPORTED, "a send cannot be ordered later", [&] {
            how.on_stream = ISTHMUS_STREAM_BEFORE;
            return isthmus_send(r.comm, in.at(), 1, ISTHMUS_UINT8, peer, 0, &how, nullptr);
          }());
        });
}

// Pairs, and how much pinned memory they have.
class PinnedMemory : public testing::TestWithParam<std::tuple<const char *, const char *>> {
 protected:
  void fly_pair(const std::function<void(Rank &)> &body) {
    Options options;
    options.settings = std::get<0>(GetParam());
    fly(std::get<1>(GetParam()), body, options);
  }
};
std::string title_of(const testing::TestParamInfo<PinnedMemory::ParamType> &p) {
  const std::string settings = std::get<0>(p.param);
  return (settings == kLittleStaging ? "LittleStaging"
          : settings == kFewSlots    ? "FewSlots"
                                     : "Enough") +
         title({std::get<1>(p.param), 0});
}
constexpr const char *kPairs[] = {"0a 1b", "0a -b", "0a 1a"};
INSTANTIATE_TEST_SUITE_P(Fleets, PinnedMemory,
                         testing::Combine(testing::Values(kLittleStaging, kFewSlots), testing::ValuesIn(kPairs)), title_of);
class Talks : public PinnedMemory {};
INSTANTIATE_TEST_SUITE_P(Fleets, Talks,
                         testing::Combine(testing::Values(kLittleStaging, kFewSlots, "STAGING_BYTES=67108864"),
                                          testing::ValuesIn(kPairs)),
                         title_of);

// More than it holds, both ways at once, in a group on a stream and without one.
TEST_P(PinnedMemory, PassesMoreThanItHolds) {
  fly_pair([](Rank &r) {
    constexpr size_t kBytes = kManyParts;
    ring(r, kBytes, 2, false);
    if (r.host()) return ring(r, kBytes, 1, false);
    const UserStream user;
    const isthmus_call how = on(user.stream);
    Memory out(r, kBytes), in(r, kBytes);
    out.put(letter(r.rank, 0, kBytes));
    const int peer = 1 - r.rank;
    for (const int tag : {0, 3}) {
      OK(isthmus_group_begin());
      OK(isthmus_recv(r.comm, in.at(), kBytes, ISTHMUS_UINT8, peer, tag, nullptr, &how, nullptr));
      OK(isthmus_send(r.comm, out.at(), kBytes, ISTHMUS_UINT8, peer, tag, &how, nullptr));
      OK(isthmus_group_end(nullptr));
      must_cu("StreamSynchronize", user.stream);
      MUST(in.get(kBytes) == letter(peer, 0, kBytes));
      in.put(Bytes(kBytes));
    }
  });
}

// Many small messages at once, of more bytes together than all staging memory has.
class ManySmall : public testing::TestWithParam<std::tuple<const char *, const char *, bool>> {
 protected:
#if defined(__SANITIZE_THREAD__)
  static constexpr size_t kCount = 400;
#else
  static constexpr size_t kCount = 1500;
#endif
  static constexpr size_t kBytes = 16 * 1024;
  static constexpr int kTag = 3, kGo = 4;
  // Of one rank: a place for each message, and how it is called.
  struct Letters {
    explicit Letters(Rank &rank)
        : r(rank), all(rank, kBytes * kCount), user(rank.host() ? nullptr : std::make_unique<UserStream>()) {
      if (user) how = on(user->stream);
    }
    void write(int from) { all.put(letter(from, 0, kBytes * kCount)); }
    bool written(int from) { return all.get(kBytes * kCount) == letter(from, 0, kBytes * kCount); }
    void send(size_t i, size_t bytes = kBytes, int tag = kTag) {
      OK(isthmus_send(r.comm, all.at(i * kBytes), bytes, ISTHMUS_UINT8, 1 - r.rank, tag, call(),
                      &works.emplace_back().work));
    }
    void recv(size_t i, size_t bytes = kBytes, int tag = kTag) {
      OK(isthmus_recv(r.comm, all.at(i * kBytes), bytes, ISTHMUS_UINT8, 1 - r.rank, tag, nullptr, call(),
                      &works.emplace_back().work));
    }
    void end() {
      for (const Work &work : works) OK(work.wait());
      works.clear();
      if (user) must_cu("StreamSynchronize", user->stream);
    }
    void tell() { OK(isthmus_send(r.comm, nullptr, 0, ISTHMUS_UINT8, 1 - r.rank, kGo, nullptr, nullptr)); }
    void hear() { OK(isthmus_recv(r.comm, nullptr, 0, ISTHMUS_UINT8, 1 - r.rank, kGo, nullptr, nullptr, nullptr)); }
    const isthmus_call *call() const { return user && streamed ? &how : nullptr; }
    Rank &r;
    bool streamed = std::get<2>(GetParam());
    Memory all;
    std::unique_ptr<UserStream> user;
    isthmus_call how{};
    std::vector<Work> works;
  };
  void fly_pair(const std::function<void(Rank &)> &body) {
    Options options;
    options.settings = std::get<0>(GetParam());
    fly(std::get<1>(GetParam()), body, options);
  }
};
INSTANTIATE_TEST_SUITE_P(Fleets, ManySmall,
                         testing::Combine(testing::Values("STAGING_BYTES=4194304;CHUNK_BYTES=4096", kLittleStaging),
                                          testing::Values("0a 1b", "0a -b", "-a 0b"), testing::Bool()),
                         [](const auto &p) {
                           return std::string(std::get<0>(p.param) == kLittleStaging ? "Little" : "Least") + "Staging" +
                                  title({std::get<1>(p.param), 0}) + (std::get<2>(p.param) ? "OnAStream" : "");
                         });

// No call waits for pinned memory, also where receives that were called before have it all: the peer sends when so many have been called as
// the queue of the device has room for.
TEST_P(ManySmall, ReceivesAreCalledBeforeTheFirstIsSent) {
  fly_pair([](Rank &r) {
    Letters letters(r), last(r);
    last.streamed = false;
    constexpr size_t kLast = 200;
    const size_t first = letters.streamed ? 16 : kCount;
    if (r.rank == 0) letters.write(0);
    else
      for (size_t i = 0; i < kLast; ++i) last.recv(i, kBytes, 5);
    if (r.rank == 0) letters.hear();
    for (size_t i = 0; i < kCount; ++i) {
      r.rank == 0 ? letters.send(i) : letters.recv(i);
      if (r.rank == 1 && i + 1 == first) letters.tell();
    }
    letters.end();
    if (r.rank == 1) MUST(letters.written(0));
    if (r.rank == 0) last.write(7);
    for (size_t i = 0; r.rank == 0 && i < kLast; ++i) last.send(i, kBytes, 5);
    last.end();
    if (r.rank == 1) MUST(last.all.get(kBytes * kLast) == letter(7, 0, kBytes * kLast));
  });
}

TEST_P(ManySmall, SendsAreCalledBeforeTheFirstIsReceived) {
  fly_pair([](Rank &r) {
    Letters letters(r);
    if (r.rank == 0) letters.write(0);
    else letters.hear();
    for (size_t i = 0; i < kCount; ++i) r.rank == 0 ? letters.send(i) : letters.recv(i);
    if (r.rank == 0) letters.tell();
    letters.end();
    if (r.rank == 1) MUST(letters.written(0));
  });
}

// Neither the receives of a rank nor its sends take what the others need.
TEST_P(ManySmall, GoBothWaysAtOnce) {
  fly_pair([](Rank &r) {
    Letters in(r), out(r);
    in.streamed = false;
    out.write(r.rank);
    for (size_t i = 0; i < kCount; ++i) in.recv(i);
    for (size_t i = 0; i < kCount; ++i) out.send(i);
    out.end();
    in.end();
    MUST(in.written(1 - r.rank));
  });
}

TEST_P(ManySmall, GoBothWaysInOneGroup) {
  fly_pair([](Rank &r) {
    Letters in(r), out(r);
    out.write(r.rank);
    Work work;
    OK(isthmus_group_begin());
    for (size_t i = 0; i < kCount; ++i) {
      in.recv(i);
      out.send(i);
    }
    OK(isthmus_group_end(&work.work));
    OK(work.wait());
    out.end();
    in.end();
    MUST(in.written(1 - r.rank));
  });
}

// Nor do the tiny ones, which are the first, take what the others need.
TEST_P(ManySmall, OfSeveralSizesComeInAnyOrderOfCalls) {
  fly_pair([](Rank &r) {
    Letters letters(r);
    const auto bytes = [](size_t i) { return i < kCount / 2 ? size_t{8} : i % 3 == 0 ? size_t{5000} : kBytes; };
    if (r.rank == 0) letters.write(0);
    if (r.rank == 0 && !letters.streamed) letters.hear();
    for (size_t i = 0; i < kCount; ++i) r.rank == 0 ? letters.send(i, bytes(i)) : letters.recv(i, bytes(i));
    if (r.rank == 1 && !letters.streamed) letters.tell();
    letters.end();
    if (r.rank == 0) return;
    const Bytes sent = letter(0, 0, kBytes * kCount), got = letters.all.get(kBytes * kCount);
    for (size_t i = 0; i < kCount; ++i)
      MUST(std::equal(got.begin() + static_cast<long>(i * kBytes), got.begin() + static_cast<long>(i * kBytes + bytes(i)),
                      sent.begin() + static_cast<long>(i * kBytes)));
  });
}

// Once the first of a size have passed, a message costs no synchronization, allocation, registration, stream or event. What is made for
// the most that is ever under way at once depends on how the ranks meet, so of several rounds one has to make nothing.
TEST(DeviceMessage, SteadyStateMakesNothing) {
  fly("0a 1b", [](Rank &r) {
    constexpr const char *kNever[] = {
        "cuMemAlloc_v2", "cuMemFree_v2",     "cuMemHostRegister_v2", "cuStreamCreate",     "cuStreamCreateWithPriority",
        "cuEventCreate", "cuCtxSynchronize", "cuStreamSynchronize",  "cuEventSynchronize", "cuLaunchHostFunc"};
    Memory out(r, 200'000), in(r, 200'000);
    const UserStream user;
    const auto exchange = [&](bool streamed) {
      const isthmus_call how = on(user.stream);
      const isthmus_call *const call = streamed ? &how : nullptr;
      OK(isthmus_group_begin());
      OK(isthmus_send(r.comm, out.at(), 200'000, ISTHMUS_UINT8, 1 - r.rank, 0, call, nullptr));
      OK(isthmus_recv(r.comm, in.at(), 200'000, ISTHMUS_UINT8, 1 - r.rank, 0, nullptr, call, nullptr));
      OK(isthmus_group_end(nullptr));
    };
    const auto count = [&] {
      std::map<std::string, unsigned long> made;
      for (const char *name : kNever) made[name] = calls(name);
      return made;
    };
    for (const bool streamed : {true, false}) {
      for (int i = 0; i < 3; ++i) exchange(streamed);
      std::map<std::string, unsigned long> before, after;
      bool steady = false;
      for (int round = 0; round < 5; ++round) {
        OK(isthmus_barrier(r.comm, nullptr, nullptr));
        before = count();
        const unsigned long copies = calls("cuMemcpyAsync");
        OK(isthmus_barrier(r.comm, nullptr, nullptr));
        for (int i = 0; i < 5; ++i) exchange(streamed);
        OK(isthmus_barrier(r.comm, nullptr, nullptr));
        after = count();
        steady = steady || after == before;
        EXPECT_GE(calls("cuMemcpyAsync"), copies + 20);
      }
      EXPECT_TRUE(steady) << testing::PrintToString(after) << " and before " << testing::PrintToString(before);
    }
  });
}

TEST(DeviceMessage, OfAnotherSizeNameBothAndTheWholeMessage) {  // more than all slots take, with which a send would be done
  for (const char *fleet : {"0a 1b", "0a -b"})
    fly(fleet, [](Rank &r) {
      Memory x(r, 40'000'000);
      const size_t mine = r.rank == 0 ? 40'000'000 : 39'999'999;
      const isthmus_result result = r.rank == 0
                                        ? isthmus_send(r.comm, x.at(), mine, ISTHMUS_UINT8, 1, 0, nullptr, nullptr)
                                        : isthmus_recv(r.comm, x.at(), mine, ISTHMUS_UINT8, 0, 0, nullptr, nullptr, nullptr);
      const std::string text = isthmus_last_error();
      EXPECT_EQ(result, ISTHMUS_ERR_MISMATCH) << text;
      EXPECT_NE(text.find("sent 40000000 bytes"), std::string::npos) << text;
      EXPECT_NE(text.find("asked for 39999999 bytes"), std::string::npos) << text;
    });
}

// The user's stream gets through, and nothing is left standing on the device, also where the receive was on a stream.
TEST(DeviceMessage, OfAnotherSizeOnAStreamLetTheStreamGoOn) {
  for (const auto on_stream : {ISTHMUS_STREAM_BOTH, ISTHMUS_STREAM_BEFORE})
    fly("0a 1b", [&](Rank &r) {
      ring(r, 100, 1, false);
      Memory x(r, 50'000);
      UserStream user;
      isthmus_call how = on(user.stream);
      Work work;
      if (r.rank == 0) {
        OK(isthmus_send(r.comm, x.at(), 40'000, ISTHMUS_UINT8, 1, 0, nullptr, &work.work));
      } else {
        how.on_stream = on_stream;
        OK(isthmus_recv(r.comm, x.at(), 50'000, ISTHMUS_UINT8, 0, 0, nullptr, &how, &work.work));
        const isthmus_result ordered = isthmus_work_order(work.work, user.stream);
        MUST(ordered == ISTHMUS_OK || ordered == ISTHMUS_ERR_MISMATCH);
        MUST(work.wait() == ISTHMUS_ERR_MISMATCH);
      }
      MUST(eventually([&] { return cu("StreamQuery", user.stream) == 0; }));
    });
}

// Messages to one rank, or with one tag, do not stand behind those to another: S waits for R on the stream, R's sender waits for H.
TEST(DeviceMessage, DoNotWaitForThoseToOthers) {
  fly("0a 1b -c", [](Rank &r) {
    ring(r, 100, 1, false);
    Memory first(r, 50'000), second(r, 50'000);
    int word = r.rank;
    if (r.rank == 0) {
      UserStream user;
      const isthmus_call how = on(user.stream);
      Work s, t;
      OK(isthmus_recv(r.comm, first.at(), 50'000, ISTHMUS_UINT8, 1, 0, nullptr, &how, &t.work));
      OK(isthmus_send(r.comm, first.at(), 50'000, ISTHMUS_UINT8, 2, 0, &how, &s.work));
      OK(isthmus_send(r.comm, &word, 1, ISTHMUS_INT32, 1, 0, nullptr, nullptr));
      OK(s.wait());
      OK(t.wait());
    } else if (r.rank == 1) {
      first.put(letter(1, 7, 50'000));
      OK(isthmus_recv(r.comm, &word, 1, ISTHMUS_INT32, 0, 0, nullptr, nullptr, nullptr));
      OK(isthmus_send(r.comm, first.at(), 50'000, ISTHMUS_UINT8, 0, 0, nullptr, nullptr));
    } else {
      OK(isthmus_recv(r.comm, second.at(), 50'000, ISTHMUS_UINT8, 0, 0, nullptr, nullptr, nullptr));
      MUST(second.get(50'000) == letter(1, 7, 50'000));
    }
  });
}

// A receive from any rank before one from a certain rank: each gets one message whole.
TEST(DeviceMessage, FromAnyRankComeBeforeLaterOnesFromOne) {
  Options options;
  options.settings = "CHUNK_BYTES=4096";
  for (const char *fleet : {"0a 1b", "0a -b", "-a 0b"})
    fly(
        fleet,
        [](Rank &r) {
          constexpr size_t kBytes = 300'000;
          Memory one(r, kBytes), two(r, kBytes);
          if (r.rank == 1) {
            one.put(letter(1, 1, kBytes));
            two.put(letter(1, 2, kBytes));
            OK(isthmus_barrier(r.comm, nullptr, nullptr));
            OK(isthmus_send(r.comm, one.at(), kBytes, ISTHMUS_UINT8, 0, 0, nullptr, nullptr));
            OK(isthmus_send(r.comm, two.at(), kBytes, ISTHMUS_UINT8, 0, 0, nullptr, nullptr));
            return;
          }
          Work a, b;
          OK(isthmus_recv(r.comm, one.at(), kBytes, ISTHMUS_UINT8, ISTHMUS_ANY_SOURCE, 0, nullptr, nullptr, &a.work));
          OK(isthmus_recv(r.comm, two.at(), kBytes, ISTHMUS_UINT8, 1, 0, nullptr, nullptr, &b.work));
          OK(isthmus_barrier(r.comm, nullptr, nullptr));
          OK(a.wait());
          OK(b.wait());
          MUST(one.get(kBytes) == letter(1, 1, kBytes));
          MUST(two.get(kBytes) == letter(1, 2, kBytes));
        },
        options);
}

// What a stream waits for may have to come while the copy behind it is being submitted.
TEST(DeviceMessage, AThreadThatFreesMemoryHoldsNothingUpForGood) {
  constexpr size_t kBytes = 50'000;
  Options options;
  fly(
      "0a 1b",
      [](Rank &r) {
        Memory x(r, kBytes);
        if (r.rank == 1) x.put(letter(1, 0, kBytes));
        if (r.rank == 1) {
          for (int round = 0; round < 100; ++round) {
            std::this_thread::sleep_for(1ms);
            OK(isthmus_send(r.comm, x.at(), kBytes, ISTHMUS_UINT8, 0, 0, nullptr, nullptr));
          }
          return;
        }
        UserStream user;
        const isthmus_call how = on(user.stream);
        const Frees frees(r.device);
        for (int round = 0; round < 100; ++round) {
          Work work;
          OK(isthmus_recv(r.comm, x.at(), kBytes, ISTHMUS_UINT8, 1, 0, nullptr, &how, &work.work));
          OK(work.wait());
        }
        MUST(x.get(kBytes) == letter(1, 0, kBytes));
      },
      options);
}

// Nobody answers: the deadline names the rank, an abort ends it, and the user's stream gets through.
TEST(DeviceMessage, WithoutAnotherSideEnd) {
  for (const bool send : {true, false})
    for (const bool streamed : {false, true})
      fly("0a 1b", [&](Rank &r) {
        if (r.rank == 1) {
          MUST(eventually([&] { return isthmus_comm_error(r.comm) != ISTHMUS_OK; }));
          return;
        }
        OK(isthmus_comm_set_timeout(r.comm, isthmus_test::patient(6)));
        UserStream user;
        const isthmus_call how = on(user.stream);
        const isthmus_call *const call = streamed ? &how : nullptr;
        Memory x(r, 100'000);
        Work work;
        const isthmus_result begun =
            send ? isthmus_send(r.comm, x.at(), 100'000, ISTHMUS_UINT8, 1, 3, call, &work.work)
                 : isthmus_recv(r.comm, x.at(), 100'000, ISTHMUS_UINT8, 1, 3, nullptr, call, &work.work);
        OK(begun);
        MUST(work.wait() == ISTHMUS_ERR_TIMEOUT);
        const std::string text = isthmus_last_error();
        EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
        MUST(eventually([&] { return cu("StreamQuery", user.stream) == 0; }));
      });
}

// Receive slots take messages before anybody asks for them, and their sender is done with them; what finds no slot waits.
TEST(DeviceMessage, WaitInReceiveSlotsForTheirReceives) {
  static constexpr int kMessages = 24;
  static constexpr size_t kBytes = 100'000;
  for (const char *fleet : {"0a 1b", "0a 1a", "0a -b", "-a 0b"})
    for (const bool streamed : {false, true})
      fly(fleet, [streamed, ended = std::make_shared<std::atomic<int>>(0)](Rank &r) {
        const std::unique_ptr<UserStream> user = r.host() || !streamed ? nullptr : std::make_unique<UserStream>();
        const isthmus_call how = user ? on(user->stream) : isthmus_call{};
        const isthmus_call *const call = user ? &how : nullptr;
        std::vector<std::unique_ptr<Memory>> memory;
        std::vector<Work> works;
        for (int i = 0; i < kMessages; ++i) memory.push_back(std::make_unique<Memory>(r, kBytes));
        if (r.rank == 0) {
          for (int i = 0; i < kMessages; ++i) {
            memory[static_cast<size_t>(i)]->put(letter(0, i, kBytes));
            OK(isthmus_send(r.comm, memory[static_cast<size_t>(i)]->at(), kBytes, ISTHMUS_UINT8, 1, 0, call,
                            &works.emplace_back().work));
          }
          if (!r.host()) {  // the processor of a host rank does not write there
            OK(works[0].wait());
            OK(works[3].wait());
          }
          EXPECT_EQ(isthmus_work_test(works.back().work), ISTHMUS_IN_PROGRESS) << "so many do not fit";
          ++*ended;
        } else {
          MUST(eventually([&] { return ended->load() == 1; }));
          for (int i = 0; i < kMessages; ++i)
            OK(isthmus_recv(r.comm, memory[static_cast<size_t>(i)]->at(), kBytes, ISTHMUS_UINT8,
                            i % 5 == 4 ? ISTHMUS_ANY_SOURCE : 0, 0, nullptr, call, &works.emplace_back().work));
        }
        for (const Work &work : works) OK(work.wait());
        if (r.rank == 1)
          for (int i = 0; i < kMessages; ++i) MUST(memory[static_cast<size_t>(i)]->get(kBytes) == letter(0, i, kBytes));
      });
}

// Two ranks go through one list of messages, each in its own way: sizes, tags and directions are the list's; streams, none, order to be
// given later, host memory, any source and groups are each rank's, as is how soon it calls.
void talk(const Rank &r, unsigned seed) {
  std::mt19937 list(seed), own(seed * 31 + static_cast<unsigned>(r.rank));
  const auto pick = [](std::mt19937 &from, int below) { return static_cast<int>(from() % static_cast<unsigned>(below)); };
  const std::unique_ptr<UserStream> user = r.host() ? nullptr : std::make_unique<UserStream>();
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<Work> works;
  std::vector<int> incoming;
  std::vector<size_t> sizes;
  int grouped = 0;  // so many more are in the group that is open
  for (int i = 0; i < 40; ++i) {
    if (grouped == 0 && pick(own, 8) == 0) {
      grouped = 2 + pick(own, 6);
      OK(isthmus_group_begin());
    }
    const size_t bytes =
        std::array<size_t, 7>{1, 200, 16'384, 16'385, 60'000, 120'000, 700'001}[static_cast<size_t>(pick(list, 7))];
    const int from = pick(list, 2), tag = pick(list, 4) == 0 ? 7 : 0;
    const int mode = r.host() ? 3 : pick(own, 4);  // no stream, on one, ordered later (a send: on one), host memory
    memory.push_back(std::make_unique<Memory>(r, bytes, mode == 3));
    Memory &m = *memory.back();
    sizes.push_back(bytes);
    isthmus_call how = user ? on(user->stream) : isthmus_call{};
    how.on_stream = mode == 2 && from != r.rank && grouped == 0 ? ISTHMUS_STREAM_BEFORE : ISTHMUS_STREAM_BOTH;
    const isthmus_call *const call = mode == 1 || mode == 2 ? &how : nullptr;
    Work &work = works.emplace_back();
    incoming.push_back(from == r.rank ? 0 : how.on_stream == ISTHMUS_STREAM_BEFORE && call ? 2 : 1);
    if (from == r.rank) {
      m.put(letter(from, i, bytes));
      OK(isthmus_send(r.comm, m.at(), bytes, ISTHMUS_UINT8, 1 - from, tag, call, &work.work));
    } else {
      const int source = pick(own, 4) == 0 ? ISTHMUS_ANY_SOURCE : from;
      OK(isthmus_recv(r.comm, m.at(), bytes, ISTHMUS_UINT8, source, tag, nullptr, call, &work.work));
    }
    if (pick(own, 6) == 0) std::this_thread::sleep_for(std::chrono::microseconds(pick(own, 3000)));
    if (grouped != 0 && (--grouped == 0 || i == 39)) {
      OK(isthmus_group_end(nullptr));
      grouped = 0;
    }
    if (grouped != 0) continue;
    if (incoming.back() == 2 && pick(own, 2) == 0) OK(isthmus_work_order(work.work, user->stream));
    // Now and then all before is waited for: on a device with one queue no rank may be more than that ahead of itself.
    if (pick(own, 5) == 0)
      for (const Work &w : works) OK(w.wait());
  }
  for (const Work &work : works) OK(work.wait());
  if (user) must_cu("StreamSynchronize", user->stream);
  for (size_t i = 0; i < works.size(); ++i)
    if (incoming[i] != 0) MUST(memory[i]->get(sizes[i]) == letter(1 - r.rank, static_cast<int>(i), sizes[i]));
  OK(isthmus_barrier(r.comm, nullptr, nullptr));
}

TEST_P(Talks, ArriveAsTheyWereSentHoweverEachSideCalls) {
  fly_pair([](Rank &r) {
    for (unsigned seed = 1; seed <= kTalks; ++seed) talk(r, seed);
  });
}

// Messages of one rank with one tag come to the receives in the order in which a group holds both, whatever memory they are in.
TEST(DeviceMessage, OfAGroupKeepTheirOrderInAnyMemory) {
  for (const char *fleet : {"0a 1b", "0a 1a", "0a -b"})
    for (const size_t bytes : {size_t{1000}, size_t{100'001}, kParts})
      fly(fleet, [bytes](Rank &r) {
        constexpr int kMessages = 4;
        std::vector<std::unique_ptr<Memory>> out, in;
        for (int i = 0; i < kMessages; ++i) {
          out.push_back(std::make_unique<Memory>(r, bytes, i % 2 == 0));
          in.push_back(std::make_unique<Memory>(r, bytes, i % 2 == r.rank));
          out.back()->put(letter(r.rank, i, bytes));
        }
        OK(isthmus_group_begin());
        for (int i = 0; i < kMessages; ++i) {
          const auto at = static_cast<size_t>(i);
          OK(isthmus_recv(r.comm, in[at]->at(), bytes, ISTHMUS_UINT8, 1 - r.rank, 0, nullptr, nullptr, nullptr));
          OK(isthmus_send(r.comm, out[at]->at(), bytes, ISTHMUS_UINT8, 1 - r.rank, 0, nullptr, nullptr));
        }
        OK(isthmus_group_end(nullptr));
        for (int i = 0; i < kMessages; ++i) MUST(in[static_cast<size_t>(i)]->get(bytes) == letter(1 - r.rank, i, bytes));
      });
}

// Two communicators in one group, each with more than its receive slots hold, one way each on one rank and the other way on the other: no copy of
// a send stands behind a gate that waits for it.
TEST(DeviceMessage, OfTwoCommunicatorsInOneGroupDoNotWaitForEachOther) {
  Options options;
  options.settings = kFewSlots;
  for (const char *fleet : {"0a 1b", "0a 1a"})
    fly(
        fleet,
        [](Rank &r) {
          isthmus_comm_t other = nullptr;
          OK(isthmus_comm_split(r.comm, 0, r.rank, nullptr, &other));
          const UserStream user;
          const isthmus_call how = on(user.stream);
          Memory out(r, kManyParts), in(r, kManyParts);
          for (int turn = 0; turn < 3; ++turn) {
            out.put(letter(r.rank, turn, kManyParts));
            OK(isthmus_group_begin());
            OK(isthmus_recv(r.rank == 0 ? r.comm : other, in.at(), kManyParts, ISTHMUS_UINT8, 1 - r.rank, 0, nullptr, &how,
                            nullptr));
            OK(isthmus_send(r.rank == 0 ? other : r.comm, out.at(), kManyParts, ISTHMUS_UINT8, 1 - r.rank, 0, &how,
                            nullptr));
            OK(isthmus_group_end(nullptr));
            must_cu("StreamSynchronize", user.stream);
            MUST(in.get(kManyParts) == letter(1 - r.rank, turn, kManyParts));
          }
          OK(isthmus_comm_destroy(other));
        },
        options);
}

// A send that waits for its slots, and a collective behind it on the same stream, which the receiver comes to only when it has it all.
TEST(DeviceMessage, OfAGroupAreOutBeforeItsCollectives) {
  Options options;
  options.settings = kFewSlots;
  for (const char *fleet : {"0a 1b", "0a 1a", "0a -b"})
    fly(
        fleet,
        [](Rank &r) {
          const std::unique_ptr<UserStream> user = r.host() ? nullptr : std::make_unique<UserStream>();
          const isthmus_call how = user ? on(user->stream) : isthmus_call{};
          const isthmus_call *const call = user ? &how : nullptr;
          Memory x(r, kManyParts), sum(r, 100'000);
          for (int sender = 0; sender < 2; ++sender) {
            x.put(letter(sender, r.rank == sender ? 0 : 7, kManyParts));
            sum.put(Bytes(100'000, static_cast<unsigned char>(r.rank + 1)));
            Work work;
            OK(isthmus_group_begin());
            OK(isthmus_all_reduce(r.comm, sum.at(), sum.at(), 100'000, ISTHMUS_UINT8, ISTHMUS_SUM, call, nullptr));
            if (r.rank == sender) OK(isthmus_send(r.comm, x.at(), kManyParts, ISTHMUS_UINT8, 1 - r.rank, 0, call, nullptr));
            else OK(isthmus_recv(r.comm, x.at(), kManyParts, ISTHMUS_UINT8, 1 - r.rank, 0, nullptr, call, nullptr));
            OK(isthmus_group_end(&work.work));
            OK(work.wait());
            if (user) must_cu("StreamSynchronize", user->stream);
            MUST(x.get(kManyParts) == letter(sender, 0, kManyParts));
            MUST(sum.get(100'000) == Bytes(100'000, 3));
          }
        },
        options);
}

// Sends that wait for their slots, without a stream, and a collective on one: on a device with one queue they come before its gates.
TEST(DeviceMessage, ThatWaitForTheirSlotsComeBeforeACollective) {
  Options options;
  for (const char *fleet : {"0a 1b", "0a 1a"})
    fly(
        fleet,
        [](Rank &r) {
          constexpr size_t kBytes =
              24'000'000;  // more than receive slots hold, and less than sends may have in pinned memory
          const UserStream user;
          const isthmus_call how = on(user.stream);
          Memory x(r, kBytes), sum(r, 100'000);
          for (int turn = 0; turn < 3; ++turn) {
            sum.put(Bytes(100'000, static_cast<unsigned char>(r.rank + 1)));
            Work work;
            if (r.rank == 0) {
              x.put(letter(0, turn, kBytes));
              std::this_thread::sleep_for(5ms);  // it has been asked for
              OK(isthmus_send(r.comm, x.at(), kBytes, ISTHMUS_UINT8, 1, 0, nullptr, &work.work));
            } else {
              OK(isthmus_recv(r.comm, x.at(), kBytes, ISTHMUS_UINT8, 0, 0, nullptr, &how, &work.work));
            }
            OK(isthmus_all_reduce(r.comm, sum.at(), sum.at(), 100'000, ISTHMUS_UINT8, ISTHMUS_SUM, &how, nullptr));
            OK(work.wait());
            must_cu("StreamSynchronize", user.stream);
            MUST(x.get(kBytes) == letter(0, turn, kBytes));
            MUST(sum.get(100'000) == Bytes(100'000, 3));
          }
        },
        options);
}

// A receive on a stream waits inside the call for a send of another communicator, which has no stream: both communicators go on.
TEST(DeviceMessage, OfAGroupThatWaitsForAllItsCommunicatorsGoOn) {
  Options options;
  options.settings = kFewSlots;
  fly(
      "0a 1b",
      [](Rank &r) {
        isthmus_comm_t other = nullptr;
        OK(isthmus_comm_split(r.comm, 0, r.rank, nullptr, &other));
        Memory out(r, kManyParts), in(r, kManyParts);
        out.put(letter(r.rank, 0, kManyParts));
        if (r.rank == 0) {
          const UserStream user;
          const isthmus_call how = on(user.stream);
          OK(isthmus_group_begin());
          OK(isthmus_send(r.comm, out.at(), kManyParts, ISTHMUS_UINT8, 1, 0, nullptr, nullptr));
          OK(isthmus_recv(other, in.at(), kManyParts, ISTHMUS_UINT8, 1, 0, nullptr, &how, nullptr));
          OK(isthmus_group_end(nullptr));
          must_cu("StreamSynchronize", user.stream);
        } else {
          OK(isthmus_recv(r.comm, in.at(), kManyParts, ISTHMUS_UINT8, 0, 0, nullptr, nullptr, nullptr));
          OK(isthmus_send(other, out.at(), kManyParts, ISTHMUS_UINT8, 0, 0, nullptr, nullptr));
        }
        MUST(in.get(kManyParts) == letter(1 - r.rank, 0, kManyParts));
        OK(isthmus_comm_destroy(other));
      },
      options);
}

// Messages to a rank that comes late fill the pinned memory; those to another one, which has called, go through its receive slots all the same.
TEST(DeviceMessage, OfAGroupToOneRankDoNotHoldUpThoseToAnother) {
  Options options;
  options.settings = kFewSlots;
  for (const char *fleet : {"0a 1b 2c", "0a 1a 2a"})
    fly(
        fleet,
        [](Rank &r) {
          constexpr size_t kMuch = 8'000'000;  // more than sends may have
          const UserStream user;
          const isthmus_call how = on(user.stream);
          Memory x(r, kMuch), y(r, kParts);
          if (r.rank == 0) {
            x.put(letter(0, 1, kMuch));
            y.put(letter(0, 2, kParts));
            OK(isthmus_group_begin());
            OK(isthmus_send(r.comm, x.at(), kMuch, ISTHMUS_UINT8, 1, 0, &how, nullptr));
            OK(isthmus_send(r.comm, y.at(), kParts, ISTHMUS_UINT8, 2, 0, &how, nullptr));
            OK(isthmus_group_end(nullptr));
          } else if (r.rank == 2) {
            OK(isthmus_recv(r.comm, y.at(), kParts, ISTHMUS_UINT8, 0, 0, nullptr, nullptr, nullptr));
            MUST(y.get(kParts) == letter(0, 2, kParts));
            OK(isthmus_send(r.comm, y.at(), 100, ISTHMUS_UINT8, 1, 0, nullptr, nullptr));
          } else {
            OK(isthmus_recv(r.comm, y.at(), 100, ISTHMUS_UINT8, 2, 0, nullptr, nullptr, nullptr));
            OK(isthmus_recv(r.comm, x.at(), kMuch, ISTHMUS_UINT8, 0, 0, nullptr, nullptr, nullptr));
            MUST(x.get(kMuch) == letter(0, 1, kMuch));
          }
          OK(isthmus_barrier(r.comm, nullptr, nullptr));
        },
        options);
}

// Two threads of each rank call for messages of several parts that are alike but for what is in them.
TEST(DeviceMessage, OfSeveralThreadsStayWhole) {
  static constexpr int kEach = 25;
  static constexpr size_t kBytes = 200'001;
  Options options;
  options.settings = kFewSlots;
  for (const char *fleet : {"0a 1b", "0a -b", "-a 0b"})
    fly(
        fleet,
        [](Rank &r) {
          std::vector<std::unique_ptr<Memory>> memory;
          for (int i = 0; i < 2 * kEach; ++i) {
            memory.push_back(std::make_unique<Memory>(r, kBytes));
            if (r.rank == 0) memory.back()->put(letter(0, i, kBytes));
          }
          const auto half = [&](int first) {
            for (int i = first; i < 2 * kEach; i += 2) {
              void *const at = memory[static_cast<size_t>(i)]->at();
              if (r.rank == 0) OK(isthmus_send(r.comm, at, kBytes, ISTHMUS_UINT8, 1, 0, nullptr, nullptr));
              else OK(isthmus_recv(r.comm, at, kBytes, ISTHMUS_UINT8, 0, 0, nullptr, nullptr, nullptr));
            }
          };
          std::thread other([&] { half(1); });
          half(0);
          other.join();
          if (r.rank == 0) return;
          std::set<std::string> sent, came;
          for (int i = 0; i < 2 * kEach; ++i) {
            const Bytes one = letter(0, i, kBytes), got = memory[static_cast<size_t>(i)]->get(kBytes);
            sent.emplace(one.begin(), one.end());
            came.emplace(got.begin(), got.end());
          }
          MUST(sent.size() == 2 * kEach && came == sent);
        },
        options);
}

// A callback may send on a stream, though all slots are taken and its receives have been called.
TEST(DeviceMessage, ACallbackSendsWhereAllSlotsAreTaken) {
  static constexpr int kMessages = 20;
  static constexpr size_t kBytes = 100'000;
  struct Chain {
    Rank *r;
    std::unique_ptr<Memory> memory;
    isthmus_call how;
    std::vector<Work> works{kMessages};
    std::atomic<int> sent{0};
    std::atomic<int> failed{ISTHMUS_OK};
    void send() {
      const int i = sent.load();
      if (const int code =
              isthmus_send(r->comm, memory->at(), kBytes, ISTHMUS_UINT8, 1, 0, &how, &works[static_cast<size_t>(i)].work))
        failed = code;
      else if (isthmus_work_on_done(works[static_cast<size_t>(i)].work, &Chain::done, this) != ISTHMUS_OK) failed = -1;
    }
    static void done(void *context, isthmus_result result, const char *) {
      auto *chain = static_cast<Chain *>(context);
      if (result != ISTHMUS_OK) chain->failed = result;
      else if (++chain->sent < kMessages) chain->send();
    }
  };
  fly("0a 1b", [called = std::make_shared<std::atomic<int>>(0), ended = std::make_shared<std::atomic<int>>(0)](Rank &r) {
    ring(r, 100'000, 1, false);
    UserStream user;
    if (r.rank == 0) {
      MUST(eventually([&] { return called->load() == 1; }));
      Chain chain{&r, std::make_unique<Memory>(r, kBytes), on(user.stream)};
      chain.memory->put(letter(0, 0, kBytes));
      chain.send();
      MUST(eventually([&] { return chain.sent == kMessages || chain.failed != ISTHMUS_OK; }));
      ++*ended;
      MUST(chain.failed == ISTHMUS_OK);
    } else {
      std::vector<std::unique_ptr<Memory>> memory;
      std::vector<Work> works;
      for (int i = 0; i < kMessages; ++i) {
        memory.push_back(std::make_unique<Memory>(r, kBytes));
        OK(isthmus_recv(r.comm, memory.back()->at(), kBytes, ISTHMUS_UINT8, 0, 0, nullptr, nullptr,
                        &works.emplace_back().work));
      }
      user.stand();  // and with it the device's one queue
      ++*called;
      MUST(eventually([&] { return ended->load() == 1; }));
      user.open();
      for (const Work &work : works) OK(work.wait());
      for (const auto &m : memory) MUST(m->get(kBytes) == letter(0, 0, kBytes));
    }
  });
}

// A message from rank 1 runs `call` in a callback of rank 0's; what the call gave is returned once it is over.
struct Called {
  std::function<isthmus_result()> call;
  std::atomic<int> result{-1};
  std::string text;
  static void done(void *context, isthmus_result, const char *) {
    auto *called = static_cast<Called *>(context);
    const isthmus_result got = called->call();
    called->text = isthmus_last_error();
    called->result.store(got);
  }
};
constexpr int kAsk = 77, kTrigger = 78;
void trigger(const Rank &r) {  // rank 1's part
  char byte = 0;
  OK(isthmus_recv(r.comm, &byte, 1, ISTHMUS_UINT8, 0, kAsk, nullptr, nullptr, nullptr));
  OK(isthmus_send(r.comm, &byte, 1, ISTHMUS_UINT8, 0, kTrigger, nullptr, nullptr));
}
isthmus_result in_a_callback(const Rank &r, std::string &text, std::function<isthmus_result()> call) {
  Called called{std::move(call), -1, {}};
  char byte = 0;
  Work work;
  OK(isthmus_recv(r.comm, &byte, 1, ISTHMUS_UINT8, 1, kTrigger, nullptr, nullptr, &work.work));
  OK(isthmus_work_on_done(work.work, &Called::done, &called));
  OK(isthmus_send(r.comm, &byte, 1, ISTHMUS_UINT8, 1, kAsk, nullptr, nullptr));
  MUST(eventually([&] { return called.result.load() != -1; }));
  OK(work.wait());
  text = called.text;
  return static_cast<isthmus_result>(called.result.load());
}

// A send on a stream that finds no pinned memory waits inside the call, in a callback too.
TEST(DeviceMessage, ACallbackWaitsUntilItsSendFindsPinnedMemory) {
  Options options;
  options.settings = kLittleStaging;
  fly(
      "0a 1b",
      [](Rank &r) {
        constexpr int kTag = 3;
        constexpr size_t kBytes = 100'000;
        Memory large(r, kManyParts), x(r, kParts), y(r, kBytes);
        if (r.rank == 1) {
          trigger(r);
          OK(isthmus_recv(r.comm, large.at(), kManyParts, ISTHMUS_UINT8, 0, kTag, nullptr, nullptr, nullptr));
          OK(isthmus_recv(r.comm, y.at(), kBytes, ISTHMUS_UINT8, 0, kTag, nullptr, nullptr, nullptr));
          MUST(large.get(kManyParts) == letter(0, 1, kManyParts));
          MUST(y.get(kBytes) == letter(0, 3, kBytes));
          trigger(r);
          OK(isthmus_recv(r.comm, x.at(), kParts, ISTHMUS_UINT8, 0, kTag, nullptr, nullptr, nullptr));
          MUST(x.get(kParts) == letter(0, 2, kParts));
        } else {
          UserStream user;
          const isthmus_call how = on(user.stream);
          large.put(letter(0, 1, kManyParts));
          x.put(letter(0, 2, kParts));
          y.put(letter(0, 3, kBytes));
          Work works[3];
          OK(isthmus_send(r.comm, large.at(), kManyParts, ISTHMUS_UINT8, 1, kTag, nullptr, &works[0].work));  // has it all
          std::string text;
          for (const auto &[memory, bytes, work] : {std::tuple{&y, kBytes, &works[1]}, std::tuple{&x, kParts, &works[2]}})
            MUST(in_a_callback(r, text, [&] {
                   return isthmus_send(r.comm, memory->at(), bytes, ISTHMUS_UINT8, 1, kTag, &how, &work->work);
                 }) == ISTHMUS_OK);
          for (const Work &work : works) OK(work.wait());
        }
        OK(isthmus_barrier(r.comm, nullptr, nullptr));
      },
      options);
}

// What waits for pinned memory until its deadline is not blamed on the device.
TEST(DeviceMessage, ThatFindsNoPinnedMemoryByItsDeadlineSaysSo) {
  Options options;
  options.settings = kLittleStaging;
  fly(
      "0a 1b",
      [](Rank &r) {
        if (r.rank == 1) {
          MUST(eventually([&] { return isthmus_comm_error(r.comm) != ISTHMUS_OK; }));
          return;
        }
        Memory x(r, kManyParts), y(r, 100'000);
        isthmus_call soon_late = on(nullptr);
        soon_late.on_stream = ISTHMUS_STREAM_NONE;
        soon_late.timeout = isthmus_test::patient(6);
        Work all;
        OK(isthmus_send(r.comm, x.at(), kManyParts, ISTHMUS_UINT8, 1, 3, nullptr, &all.work));  // more than sends may have
        MUST(isthmus_send(r.comm, y.at(), 100'000, ISTHMUS_UINT8, 1, 4, &soon_late, nullptr) == ISTHMUS_ERR_TIMEOUT);
        const std::string text = isthmus_last_error();
        for (const char *words : {"no pinned memory of rank 0", "ISTHMUS_STAGING_BYTES", "tag 4"})
          EXPECT_NE(text.find(words), std::string::npos) << text;
        MUST(all.wait() != ISTHMUS_OK);
      },
      options);
}

TEST(DeviceMessage, AbortLeavesNothing) {
  fly("0a 1b", [](Rank &r) { ring(r, 300'000, 1, false); });
  const auto before = settled();
  EXPECT_EQ(before.at("event"), 0u);
  for (const bool streamed : {true, false})
    fly("0a 1b", [streamed, rung = std::make_shared<std::atomic<int>>(0)](Rank &r) {
      ring(r, 300'000, 1, false);
      ++*rung;
      MUST(eventually([&] { return rung->load() == r.size; }));
      UserStream user;
      const isthmus_call how = on(user.stream);
      Memory x(r, 300'000);
      Work work;
      if (r.rank == 0) {
        OK(isthmus_recv(r.comm, x.at(), 300'000, ISTHMUS_UINT8, 1, 9, nullptr, streamed ? &how : nullptr, &work.work));
        std::this_thread::sleep_for(20ms);
        isthmus_comm_abort(r.comm, "enough");
        MUST(work.wait() == ISTHMUS_ERR_ABORTED);
      } else {
        MUST(eventually([&] { return isthmus_comm_error(r.comm) == ISTHMUS_ERR_ABORTED; }));
      }
    });
  EXPECT_TRUE(is_left_again(before)) << testing::PrintToString(live()) << " and before " << testing::PrintToString(before);
}

}  // namespace
}  // namespace isthmus_test
