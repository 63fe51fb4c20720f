// The streams that a program need not make, and what they have to do with the others: NVIDIA's and AMD's are alike. With many hardware
// queues, so that nothing but these rules orders two streams.

#include <tuple>

#include "rehearsal_cuda_support.hpp"

namespace {

using namespace rehearsed;

const Handle kNull = nullptr, kLegacy = reinterpret_cast<Handle>(1), kThread = reinterpret_cast<Handle>(2);

// One vendor's calls in one form.
class Nvidia {
 public:
  static constexpr const char *kOwn = "_ptsz";
  static int query(Handle s, const char *suffix = "") { return cu((std::string("StreamQuery") + suffix).c_str(), s); }
  static void mark(Address to, unsigned char value, Handle s, const char *suffix = "") {
    IS(cu((std::string("MemsetD8Async") + suffix).c_str(), to, value, size_t{1}, s), 0);
  }
  static Handle stream(bool blocking) {
    Handle s = nullptr;
    IS(cu("StreamCreate", &s, blocking ? 0u : 1u), 0);
    return s;
  }
  static void begin() {
    use(0);
    stream(false);  // the first shares its queue with the null stream
  }
  static void begin_thread() { use(0); }
  static Address memory() { return allocate(64); }
  static void hold(Handle s, const char *suffix = "") {
    static Pinned *const gate = new Pinned;
    word() = static_cast<uint32_t *>(gate->host);
    IS(cu((std::string("StreamWaitValue32_v2") + suffix).c_str(), s, gate->device, 1u, 0u), 0);
  }
  static uint32_t *&word() {
    static uint32_t *the_word = nullptr;
    return the_word;
  }
};

class Amd {
 public:
  static constexpr const char *kOwn = "_spt";
  template <class... A>
  static int hip(const std::string &name, A... a) {
    return call("amd/libamdhip64.so.6", ("hip" + name).c_str(), a...);
  }
  static int query(Handle s, const char *suffix = "") { return hip(std::string("StreamQuery") + suffix, s); }
  static void mark(Address to, unsigned char value, Handle s, const char *suffix = "") {
    IS(hip(std::string("MemsetAsync") + suffix, reinterpret_cast<void *>(to), int{value}, size_t{1}, s), 0);
  }
  static Handle stream(bool blocking) {
    Handle s = nullptr;
    IS(hip("StreamCreateWithFlags", &s, blocking ? 0u : 1u), 0);
    return s;
  }
  static void begin() {
    IS(hip("Init", 0u), 0);
    stream(false);
  }
  static void begin_thread() {}
  static Address memory() {
    void *p = nullptr;
    IS(hip("Malloc", &p, size_t{64}), 0);
    return reinterpret_cast<Address>(p);
  }
  // AMD's has no function for each thread's of this one: there the stream is named.
  static void hold(Handle s, const char *suffix = "") {
    if (!word()) {
      void *signal = nullptr;
      IS(hip("ExtMallocWithFlags", &signal, size_t{8}, 2u), 0);
      word() = static_cast<uint32_t *>(signal);
    }
    const Handle named = *suffix && !s ? kThread : s;
    IS(hip("StreamWaitValue32", named, static_cast<void *>(word()), 1u, 0u, ~0u), 0);
  }
  static uint32_t *&word() {
    static uint32_t *the_word = nullptr;
    return the_word;
  }
};

constexpr int kReady = 0, kNotReady = 600;

template <class V>
void release_hold() {
  std::atomic_ref<uint32_t>(*V::word()).store(1, std::memory_order_release);
}

// Holds up one stream, and gives the other something: that waits, or it does not. Then both come to an end.
enum class Then { Waits, GoesOn };
template <class V>
bool holds(Then expected, Handle held, Handle other, const char *held_suffix = "", const char *other_suffix = "") {
  const Address to = V::memory();
  const auto ready = [&] { return V::query(other, other_suffix) == kReady; };
  V::hold(held, held_suffix);
  V::mark(to, 1, other, other_suffix);
  if (expected == Then::Waits) sleep_ms(60);
  const bool so = expected == Then::Waits ? !ready() : comes(ready);
  release_hold<V>();
  CHECK(comes([&] { return ready() && V::query(held, held_suffix) == kReady; }));
  std::atomic_ref<uint32_t>(*V::word()).store(0, std::memory_order_release);
  return so;
}
template <class V>
bool waits(Handle held, Handle other, const char *held_suffix = "", const char *other_suffix = "") {
  return holds<V>(Then::Waits, held, other, held_suffix, other_suffix);
}
template <class V>
bool goes_on(Handle held, Handle other, const char *held_suffix = "", const char *other_suffix = "") {
  return holds<V>(Then::GoesOn, held, other, held_suffix, other_suffix);
}

const Environment kManyQueues = {{"REHEARSAL_QUEUES", "16"}, {"REHEARSAL_JITTER_US", "0"}};

template <class V>
struct Streams : testing::Test {};
using Vendors = testing::Types<Nvidia, Amd>;
TYPED_TEST_SUITE(Streams, Vendors);

TYPED_TEST(Streams, TheNullStreamWaitsForBlockingOnesAndTheyForIt) {
  expect_clean(kManyQueues, [] {
    using V = TypeParam;
    V::begin();
    const Handle blocking = V::stream(true), apart = V::stream(false);
    for (const Handle null : {kNull, kLegacy}) {
      CHECK(waits<V>(blocking, null));
      CHECK(waits<V>(null, blocking));
      CHECK(goes_on<V>(apart, null));
      CHECK(goes_on<V>(null, apart));
    }
    CHECK(goes_on<V>(blocking, apart));
    CHECK(goes_on<V>(blocking, V::stream(true)));
  });
}

TYPED_TEST(Streams, TheStreamOfAThreadIsABlockingOne) {
  expect_clean(kManyQueues, [] {
    using V = TypeParam;
    V::begin();
    CHECK(waits<V>(kThread, kNull));
    CHECK(waits<V>(kNull, kThread));
    CHECK(goes_on<V>(kThread, V::stream(true)));
    CHECK(goes_on<V>(V::stream(true), kThread));
  });
}

TYPED_TEST(Streams, EachThreadHasOneOfItsOwn) {
  expect_clean(kManyQueues, [] {
    using V = TypeParam;
    V::begin();
    const Address to = V::memory();
    V::hold(kThread);
    IS(V::query(kThread), kNotReady);
    std::thread([to] {
      V::begin_thread();
      IS(V::query(kThread), kReady);
      V::mark(to, 1, kThread);
      CHECK(comes([] { return V::query(kThread) == kReady; }));
    }).join();
    IS(V::query(kThread), kNotReady);
    release_hold<V>();
    CHECK(comes([] { return V::query(kThread) == kReady; }));
  });
}

// What a thread has left in its stream is done, though the thread has ended.
TYPED_TEST(Streams, TheNullStreamWaitsForThatOfAThreadThatHasEnded) {
  expect_clean(kManyQueues, [] {
    using V = TypeParam;
    V::begin();
    const Address to = V::memory();
    std::thread([] {
      V::begin_thread();
      V::hold(kThread);
    }).join();
    V::mark(to, 1, kNull);
    sleep_ms(50);
    IS(V::query(kNull), kNotReady);
    release_hold<V>();
    CHECK(comes([] { return V::query(kNull) == kReady; }));
  });
}

// A program that is compiled so calls functions of other names, where null is the thread's stream; the device's keeps its number.
TYPED_TEST(Streams, NullIsTheThreadsInFunctionsOfItsForm) {
  expect_clean(kManyQueues, [] {
    using V = TypeParam;
    V::begin();
    const Handle blocking = V::stream(true);
    CHECK(goes_on<V>(blocking, kNull, "", V::kOwn));
    CHECK(goes_on<V>(kNull, blocking, V::kOwn));
    CHECK(waits<V>(kNull, kLegacy, V::kOwn, V::kOwn));
    CHECK(waits<V>(kNull, kThread, V::kOwn));
  });
}

TEST(StreamFunctions, TheDriverGivesThoseFunctionsToWhoAsksForThem) {
  expect_clean(kManyQueues, [] {
    use(0);
    void *plain = nullptr, *legacy = nullptr, *own = nullptr, *copy = nullptr, *none = nullptr;
    for (const auto &[name, flags, out] : {std::tuple{"cuStreamQuery", 0, &plain},
                                           {"cuStreamQuery", 1, &legacy},
                                           {"cuStreamQuery", 2, &own},
                                           {"cuMemcpyHtoD", 2, &copy},
                                           {"cuInit", 2, &none}})
      IS(cu("GetProcAddress_v2", name, out, 12000, static_cast<uint64_t>(flags), static_cast<int *>(nullptr)), 0);
    void *const driver = library("nvidia/libcuda.so.1");
    CHECK(plain == ::dlsym(driver, "cuStreamQuery") && legacy == plain);
    CHECK(own == ::dlsym(driver, "cuStreamQuery_ptsz") && copy == ::dlsym(driver, "cuMemcpyHtoD_v2_ptds"));
    CHECK(none == ::dlsym(driver, "cuInit"));
  });
}

}  // namespace
