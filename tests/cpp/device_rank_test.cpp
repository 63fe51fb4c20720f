// Ranks that work on a device's memory (ISTHMUS_DEVICE), in whole communicators through the C interface: alone, in islands that a
// vendor's library serves, beside ranks of the host. Ranks are threads here, on the simulated driver and library, whose memory the host
// cannot touch and whose devices have one queue. All that passes is compared with a plain computation.
#include "device_fleet.hpp"

// Under ThreadSanitizer, whose exits take a second each otherwise.
extern "C" __attribute__((visibility("default"))) const char *__tsan_default_options();
extern "C" const char *__tsan_default_options() { return "atexit_sleep_ms=20"; }

namespace isthmus_test {
namespace {

// ---- numbers and collectives ----------------------------------------------------------------------------------------------

void put_number(isthmus_dtype type, double v, unsigned char *to) {
  switch (type) {
    case ISTHMUS_FLOAT32: {
      const auto f = static_cast<float>(v);
      std::memcpy(to, &f, 4);
      return;
    }
    case ISTHMUS_BFLOAT16: {
      const auto f = static_cast<float>(v);
      uint32_t bits;
      std::memcpy(&bits, &f, 4);
      const auto half = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
      std::memcpy(to, &half, 2);
      return;
    }
    case ISTHMUS_FLOAT64: std::memcpy(to, &v, 8); return;
    default: {
      const auto i = static_cast<int64_t>(v);
      std::memcpy(to, &i, isthmus_dtype_size(type));
    }
  }
}
template <class F>
Bytes packed(isthmus_dtype type, size_t count, F value) {
  const size_t size = isthmus_dtype_size(type);
  Bytes out(count * size);
  for (size_t i = 0; i < count; ++i) put_number(type, value(i), out.data() + i * size);
  return out;
}

// What rank `rank` gives, element `i` of all it gives: small numbers, so that every type holds every sum and product.
double contribution(int rank, size_t i) {
  return static_cast<double>(static_cast<unsigned>(i / 64 * 7 + i + 3 * static_cast<size_t>(rank)) % 5u);
}

double reduced(isthmus_redop op, int size, size_t i) {
  double x = contribution(0, i);
  for (int q = 1; q < size; ++q) {
    const double y = contribution(q, i);
    x = op == ISTHMUS_PROD   ? x * y
        : op == ISTHMUS_MIN  ? std::min(x, y)
        : op == ISTHMUS_MAX  ? std::max(x, y)
        : op == ISTHMUS_BXOR ? static_cast<double>(static_cast<int>(x) ^ static_cast<int>(y))
                             : x + y;
  }
  return op == ISTHMUS_AVG ? static_cast<double>(static_cast<float>(x) / static_cast<float>(size)) : x;
}

enum Kind { AllReduce, Reduce, Broadcast, AllGather, ReduceScatter, AllToAll, Gather, Scatter, AllGatherV };
const char *const kKinds[] = {"all_reduce", "reduce", "broadcast", "all_gather",  "reduce_scatter",
                              "all_to_all", "gather", "scatter",   "all_gather_v"};
enum Place { Apart, InPlace };
enum Where { Device, Host };

// One collective of a rank: its memory, the call, and what it must have done.
class Collective {
 public:
  Collective(const Rank &rank, Kind kind, isthmus_dtype dtype, isthmus_redop op, size_t count, Place place = Apart,
             Where where = Device, int root = 0)
      : r(rank), kind_(kind), dtype_(dtype), op_(op), count_(count), in_place_(place == InPlace), root_(root) {
    const auto world = static_cast<size_t>(r.size), me = static_cast<size_t>(r.rank);
    const bool is_root = r.rank == root;
    size_t end = 0;
    for (size_t q = 0; q < world; ++q) {  // of all_gather_v: unequal, one is empty, a gap behind each
      counts_.push_back(q == 1 ? 0 : count + 5 * q);
      displs_.push_back(end);
      end += counts_.back() + 1;
    }
    reads_ = kind == Broadcast || kind == Scatter ? is_root : true;
    writes_ = kind == Reduce || kind == Gather ? is_root : true;
    in_ = kind == ReduceScatter || kind == AllToAll || kind == Scatter ? world * count
          : kind == AllGatherV                                         ? counts_[me]
                                                                       : count;
    out_ = kind == AllGather || kind == AllToAll || kind == Gather ? world * count : kind == AllGatherV ? end : count;
    in_place_ = in_place_ && reads_ && writes_;
    // Where in the memory both begin: not at the beginning of it, and apart there is something in between.
    if (!in_place_) {
      send_ = 1;
      recv_ = 1 + in_ + 3;
    } else {
      send_ = recv_ = 1;
      if (kind == AllGather || kind == Gather) send_ += me * count;
      if (kind == AllGatherV) send_ += displs_[me];
      if (kind == ReduceScatter || kind == Scatter) recv_ += me * count;
    }
    before_ =
        packed(dtype, std::max(send_ + in_, recv_ + out_) + 1, [](size_t i) { return static_cast<double>(90 + i % 7); });
    const Bytes mine = packed(dtype, in_, [&](size_t i) { return contribution(r.rank, i); });
    if (reads_) std::copy(mine.begin(), mine.end(), before_.begin() + static_cast<long>(send_ * size()));
    memory_ = std::make_unique<Memory>(r, before_.size(), where == Host);
    memory_->put(before_);
  }

  isthmus_result call(const isthmus_call *how = nullptr, isthmus_work_t *work = nullptr) {
    const isthmus_comm_t c = r.comm;
    const void *const in = reads_ ? memory_->at(send_ * size()) : nullptr;
    void *const out = writes_ ? memory_->at(recv_ * size()) : nullptr;
    switch (kind_) {
      case AllReduce: return isthmus_all_reduce(c, in, out, count_, dtype_, op_, how, work);
      case Reduce: return isthmus_reduce(c, in, out, count_, dtype_, op_, root_, how, work);
      case Broadcast: return isthmus_broadcast(c, in, out, count_, dtype_, root_, how, work);
      case AllGather: return isthmus_all_gather(c, in, out, count_, dtype_, how, work);
      case ReduceScatter: return isthmus_reduce_scatter(c, in, out, count_, dtype_, op_, how, work);
      case AllToAll: return isthmus_all_to_all(c, in, out, count_, dtype_, how, work);
      case Gather: return isthmus_gather(c, in, out, count_, dtype_, root_, how, work);
      case Scatter: return isthmus_scatter(c, in, out, count_, dtype_, root_, how, work);
      case AllGatherV: return isthmus_all_gather_v(c, in, out, counts_.data(), displs_.data(), dtype_, how, work);
    }
    return ISTHMUS_ERR_INTERNAL;
  }

  // The memory, all of it: what was to be written, and that nothing else was.
  Bytes expected() const {
    Bytes all = before_;
    const auto write = [&](size_t at, const Bytes &what) {
      std::copy(what.begin(), what.end(), all.begin() + static_cast<long>((recv_ + at) * size()));
    };
    const size_t me = static_cast<size_t>(r.rank) * count_;
    const auto given = [&](int by, size_t from, size_t elements) {
      return packed(dtype_, elements, [&](size_t i) { return contribution(by, from + i); });
    };
    const auto sums = [&](size_t from) {
      return packed(dtype_, count_, [&](size_t i) { return reduced(op_, r.size, from + i); });
    };
    if (writes_) switch (kind_) {
        case AllReduce:
        case Reduce: write(0, sums(0)); break;
        case ReduceScatter: write(0, sums(me)); break;
        case Broadcast: write(0, given(root_, 0, count_)); break;
        case Scatter: write(0, given(root_, me, count_)); break;
        case AllGather:
        case Gather:
          for (int q = 0; q < r.size; ++q) write(static_cast<size_t>(q) * count_, given(q, 0, count_));
          break;
        case AllToAll:
          for (int q = 0; q < r.size; ++q) write(static_cast<size_t>(q) * count_, given(q, me, count_));
          break;
        case AllGatherV:
          for (int q = 0; q < r.size; ++q)
            write(displs_[static_cast<size_t>(q)], given(q, 0, counts_[static_cast<size_t>(q)]));
          break;
      }
    return all;
  }
  // The first element that is wrong, in words.
  std::string wrong() const { return difference(memory_->get(before_.size())); }
  std::string difference(const Bytes &got) const {
    const Bytes want = expected();
    if (got == want) return {};
    // In place, the blocks that other ranks get are free to change.
    const bool free = in_place_ && (kind_ == ReduceScatter || kind_ == Scatter);
    for (size_t i = 0; i < want.size(); ++i) {
      const size_t e = i / size();
      if (got[i] == want[i] || (free && e >= 1 && e < 1 + in_ && (e < recv_ || e >= recv_ + out_))) continue;
      std::ostringstream text;
      text << *this << ": element " << e << " of the memory is wrong (in at " << send_ << ", out at " << recv_ << ": "
           << out_ << " elements; byte " << i << " is " << int{got[i]} << ", not " << int{want[i]} << ")";
      return text.str();
    }
    return {};
  }
  friend std::ostream &operator<<(std::ostream &s, const Collective &c) {
    s << "rank " << c.r.rank << " of " << c.r.size << ", " << kKinds[c.kind_] << " of " << c.count_ << " "
      << isthmus_dtype_name(c.dtype_);
    if (c.kind_ == AllReduce || c.kind_ == Reduce || c.kind_ == ReduceScatter) s << " " << isthmus_redop_name(c.op_);
    return s << (c.in_place_ ? ", in place" : "") << ", root " << c.root_;
  }
  Memory &memory() { return *memory_; }
  size_t bytes() const { return before_.size(); }
  const Bytes &before() const { return before_; }

  // Calls it, waits, and compares.
  void run(const isthmus_call *how = nullptr) {
    const isthmus_result result = call(how);
    if (result != ISTHMUS_OK) {
      ADD_FAILURE() << *this << ": " << isthmus_result_name(result) << ": " << isthmus_last_error();
      throw Broken();
    }
    check();
  }
  void check() const {
    if (const std::string text = wrong(); !text.empty()) {
      ADD_FAILURE() << text;
      throw Broken();
    }
  }

 private:
  size_t size() const { return isthmus_dtype_size(dtype_); }

  const Rank &r;
  const Kind kind_;
  const isthmus_dtype dtype_;
  const isthmus_redop op_;
  const size_t count_;
  bool in_place_, reads_ = true, writes_ = true;
  const int root_;
  size_t in_ = 0, out_ = 0, send_ = 0, recv_ = 0;
  std::vector<uint64_t> counts_, displs_;
  Bytes before_;
  std::unique_ptr<Memory> memory_;
};

constexpr Kind kAll[] = {AllReduce, Reduce, Broadcast, AllGather, ReduceScatter, AllToAll, Gather, Scatter, AllGatherV};

void every_collective(const Rank &r, size_t count, Place place, Where where) {
  const int last = r.size - 1;
  for (const Kind kind : kAll) Collective(r, kind, ISTHMUS_FLOAT32, ISTHMUS_SUM, count, place, where, last).run();
  for (const Kind kind : {AllReduce, Reduce, ReduceScatter})
    Collective(r, kind, ISTHMUS_BFLOAT16, ISTHMUS_AVG, count, place, where, 0).run();
}

// ---- the results ----------------------------------------------------------------------------------------------------------

class DeviceRanks : public testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(Fleets, DeviceRanks, testing::ValuesIn(kFleets), title);

TEST_P(DeviceRanks, EveryCollectiveIsRight) {
  fly(GetParam(), [](Rank &r) {
    MUST(isthmus_comm_device(r.comm) == r.device);
    MUST(isthmus_comm_blocks(r.comm) == (!r.host() && std::getenv("REHEARSAL_CUDA_NO_STREAM_VALUES") ? 1 : 0));
    for (const Place place : {Apart, InPlace})
      for (const size_t count : {size_t{1}, size_t{1000}, kLarge}) every_collective(r, count, place, Device);
  });
}

// What libraries have and what they have not.
TEST_P(DeviceRanks, EveryReductionIsRight) {
  fly(GetParam(), [](Rank &r) {
    for (const Kind kind : {AllReduce, Reduce, ReduceScatter})
      for (const size_t count : {size_t{7}, kLarge / 15}) {
        for (const isthmus_dtype t : {ISTHMUS_FLOAT32, ISTHMUS_FLOAT64, ISTHMUS_BFLOAT16, ISTHMUS_INT32, ISTHMUS_INT16})
          for (const isthmus_redop op : {ISTHMUS_SUM, ISTHMUS_PROD, ISTHMUS_MIN, ISTHMUS_MAX})
            Collective(r, kind, t, op, count, Apart, Device, r.size / 2).run();
        Collective(r, kind, ISTHMUS_FLOAT32, ISTHMUS_AVG, count).run();
        Collective(r, kind, ISTHMUS_INT32, ISTHMUS_BXOR, count).run();
        Collective(r, kind, ISTHMUS_UINT8, ISTHMUS_BXOR, count, InPlace).run();
      }
  });
}

// Each rank has a factor of its own.
TEST_P(DeviceRanks, FactorsAreMultipliedIn) {
  fly(GetParam(), [](Rank &r) {
    for (const size_t count : {size_t{5}, kLarge / 3}) {
      Memory x(r, count * 4);
      x.put(packed(ISTHMUS_FLOAT32, count, [&](size_t i) { return contribution(r.rank, i); }));
      isthmus_call how = ISTHMUS_CALL_INIT;
      how.scale = 0.5 + r.rank;
      OK(isthmus_all_reduce(r.comm, x.at(), x.at(), count, ISTHMUS_FLOAT32, ISTHMUS_PREMUL_SUM, &how, nullptr));
      const Bytes want = packed(ISTHMUS_FLOAT32, count, [&](size_t i) {
        double sum = 0;
        for (int q = 0; q < r.size; ++q) sum += contribution(q, i) * (0.5 + q);
        return sum;
      });
      MUST(x.get(count * 4) == want);
    }
  });
}

// Where a library serves the rank they go by way of pinned memory; else they are taken where they are.
TEST_P(DeviceRanks, TakeBuffersOfTheHostToo) {
  fly(GetParam(), [](Rank &r) {
    for (const Place place : {Apart, InPlace})
      for (const size_t count : {size_t{1}, size_t{1000}, kLarge / 5}) every_collective(r, count, place, Host);
  });
}

// One rank gives memory of its device, its neighbour memory of the host.
TEST_P(DeviceRanks, NeedNotAgreeOnWhereTheirBuffersAre) {
  fly(GetParam(), [](Rank &r) {
    for (int turn = 0; turn < 2; ++turn)
      for (const size_t count : {size_t{3}, kLarge / 6})
        for (const Place place : {Apart, InPlace}) every_collective(r, count, place, r.rank % 2 == turn ? Host : Device);
  });
}

TEST_P(DeviceRanks, NothingIsDoneForNothing) {
  fly(GetParam(), [](Rank &r) {
    for (const Kind kind : kAll)
      if (kind != AllGatherV) Collective(r, kind, ISTHMUS_FLOAT32, ISTHMUS_SUM, 0).run();
    OK(isthmus_all_reduce(r.comm, nullptr, nullptr, 0, ISTHMUS_FLOAT32, ISTHMUS_SUM, nullptr, nullptr));
    OK(isthmus_barrier(r.comm, nullptr, nullptr));
    Collective(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 100).run();
  });
}

// Small chunks, so that all goes round many times; everything between the islands by TCP.
TEST_P(DeviceRanks, AreRightInManyChunksAndOverTcp) {
  Options options;
  options.settings = "CHUNK_BYTES=4096;EAGER_BYTES=0";
  options.bridge = "tcp";
  fly(
      GetParam(),
      [](Rank &r) {
        for (const size_t count : {size_t{1}, size_t{999}, kLarge / 8}) every_collective(r, count, Apart, Device);
      },
      options);
}

// Without the library: every island is taken apart.
TEST_P(DeviceRanks, AreRightWithoutALibrary) {
  Options options;
  options.settings = "CCL=none";
  const unsigned long before = calls("ncclCommInitRankConfig");
  fly(
      GetParam(),
      [](Rank &r) {
        for (const Place place : {Apart, InPlace})
          for (const size_t count : {size_t{1}, kLarge / 3}) every_collective(r, count, place, Device);
      },
      options);
  EXPECT_EQ(calls("ncclCommInitRankConfig"), before);
}

// Blocking and not, large and small, in memory of the device and of the host; another thread waits, the last first.
TEST_P(DeviceRanks, ManyInFlightAreRight) {
  fly(GetParam(), [](Rank &r) {
    std::vector<std::unique_ptr<Collective>> all;
    std::vector<Work> works;
    for (int i = 0; i < 40; ++i) {
      const size_t count = i % 4 == 0 ? kLarge / 3 : i % 4 == 1 ? 3 : 4000;
      all.push_back(std::make_unique<Collective>(r, kAll[i % 9], ISTHMUS_FLOAT32, ISTHMUS_SUM, count,
                                                 i % 2 ? InPlace : Apart, i % 7 == 6 ? Host : Device, i % r.size));
    }
    for (const auto &c : all) {
      OK(c->call(nullptr, &works.emplace_back().work));
      if (works.size() % 10 == 9) OK(isthmus_barrier(r.comm, nullptr, &works.emplace_back().work));
    }
    Collective(r, AllReduce, ISTHMUS_INT32, ISTHMUS_MAX, 10).run();
    std::atomic<int> failed{0};
    std::thread waiter([&] {
      for (auto it = works.rbegin(); it != works.rend(); ++it) failed += it->wait() != ISTHMUS_OK;
    });
    waiter.join();
    MUST(failed == 0);
    for (const auto &c : all) c->check();
  });
}

TEST_P(DeviceRanks, SplitsAreCommunicatorsToo) {
  fly(GetParam(), [](Rank &r) {
    const auto check = [&](int color, int key) {
      Rank part = r;
      OK(isthmus_comm_split(r.comm, color, key, "part", &part.comm));
      if (!part.comm) return;
      part.rank = isthmus_comm_rank(part.comm);
      part.size = isthmus_comm_size(part.comm);
      MUST(isthmus_comm_device(part.comm) == r.device);
      try {
        for (const size_t count : {size_t{2}, kLarge / 10}) every_collective(part, count, Apart, Device);
      } catch (const Broken &) {
        isthmus_comm_destroy(part.comm);
        throw;
      }
      isthmus_comm_destroy(part.comm);
    };
    check(0, -r.rank);            // all, the other way round
    check(r.host() ? -1 : 5, 0);  // those with a device
    check(r.rank % 2, 0);         // across the islands
    Collective(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 100).run();
  });
}

// Six ranks of one process have one staging memory, of which one operation of all of them needs more than there is. No rank goes on without the
// others, so none of them gives back what it has.
TEST(DeviceRank, OneOperationOfAllRanksOfAProcessFindsRoomBesideTheStagingMemory) {
  const unsigned long before = calls("cuMemHostRegister_v2");
  Options options;
  options.settings = "STAGING_BYTES=4194304;EAGER_BYTES=0";
  fly(
      "0a 1b 2b 3c -d -d",
      [](Rank &r) {
        for (const Kind kind : {AllReduce, AllGather, ReduceScatter, AllToAll})
          Collective(r, kind, ISTHMUS_FLOAT32, ISTHMUS_SUM, 3 * kLarge).run();
      },
      options);
  EXPECT_GE(calls("cuMemHostRegister_v2") - before, 2u) << "the staging memory, and then the reserve";
}

// ---- what serves ----------------------------------------------------------------------------------------------------------

std::string text_of(isthmus_result result, char *json) {
  const std::string text = result == ISTHMUS_OK ? json : "";
  isthmus_free(json);
  return text;
}

TEST(DeviceRank, SaysWhoServesIt) {
  const unsigned long before = calls("ncclCommInitRankConfig");
  fly("0a 1a -b", [](Rank &r) {
    char *json = nullptr;
    const isthmus_result t = isthmus_comm_topology(r.comm, &json);
    const std::string topology = text_of(t, json);
    MUST(topology.find("cuda:0") != std::string::npos && topology.find("cuda:1") != std::string::npos);
    MUST(topology.find("\"nccl\"") != std::string::npos);
    const isthmus_result e = isthmus_comm_explain(r.comm, "all_reduce", 1 << 20, ISTHMUS_FLOAT32, ISTHMUS_SUM, 0, &json);
    const std::string plan = text_of(e, json);
    MUST((plan.find("served by nccl") != std::string::npos) == !r.host());
  });
  EXPECT_EQ(calls("ncclCommInitRankConfig"), before + 2);
}

TEST(DeviceRank, AnIslandThatIsAloneIsLeftToItsLibrary) {
  fly("0a 1a", [](Rank &r) {
    Collective c(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, kLarge);
    OK(isthmus_barrier(r.comm, nullptr, nullptr));
    const unsigned long before = calls("ncclAllReduce");
    OK(isthmus_barrier(r.comm, nullptr, nullptr));
    c.run();
    OK(isthmus_barrier(r.comm, nullptr, nullptr));
    EXPECT_EQ(calls("ncclAllReduce"), before + 2) << "one call a rank";
  });
}

// What the library has no call for is sent and received by it: no slot, and no other link.
TEST(DeviceRank, SoAreItsExchangesAndWhatGoesToOneRankOrComesFromIt) {
  fly("0a 1a", [](Rank &r) {
    for (const auto &[kind, sends] : {std::pair{AllToAll, 4ul}, {Gather, 1ul}, {Scatter, 1ul}}) {
      Collective c(r, kind, ISTHMUS_INT16, ISTHMUS_SUM, kLarge);
      OK(isthmus_barrier(r.comm, nullptr, nullptr));
      const unsigned long sent = calls("ncclSend"), got = calls("ncclRecv");
      OK(isthmus_barrier(r.comm, nullptr, nullptr));
      c.run();
      OK(isthmus_barrier(r.comm, nullptr, nullptr));
      EXPECT_EQ(calls("ncclSend"), sent + sends) << kind;
      EXPECT_EQ(calls("ncclRecv"), got + sends) << kind;
    }
  });
}

// A small operation among ranks that share memory goes by their cells, whatever memory each of them gives.
TEST(DeviceRank, ASmallOperationIsOneHopAndCostsADeviceOneCopyEachWay) {
  for (const auto &[fleet, devices] : {std::pair{"0a -b", 1ul}, {"-a 0a -b", 1ul}, {"0a 1b -c", 2ul}})
    fly(fleet, [devices = devices](Rank &r) {
      char *json = nullptr;
      const isthmus_result e = isthmus_comm_explain(r.comm, "all_reduce", 3, ISTHMUS_FLOAT32, ISTHMUS_SUM, 0, &json);
      const std::string plan = text_of(e, json);
      EXPECT_NE(plan.find("\"path\": \"one hop\""), std::string::npos) << plan;
      for (const Where where : {Host, Device}) {
        Collective c(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 3, Apart, where);
        OK(isthmus_barrier(r.comm, nullptr, nullptr));
        const unsigned long before = calls("cuMemcpyAsync");
        OK(isthmus_barrier(r.comm, nullptr, nullptr));
        c.run();
        OK(isthmus_barrier(r.comm, nullptr, nullptr));
        EXPECT_EQ(calls("cuMemcpyAsync") - before, where == Host ? 0 : 2 * devices);
      }
    });
}

TEST(DeviceRank, ASmallCallThatNotAllMakeIsAMismatchWhateverMemoryIsGiven) {
  for (const char *fleet : {"0a -b", "0a 1b"})
    for (const Where where : {Device, Host})
      fly(fleet, [where](Rank &r) {
        Collective c(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, r.rank == 0 ? 2 : 3, Apart, r.rank == 0 ? where : Device);
        refused(r, ISTHMUS_ERR_MISMATCH, "is not the same on all ranks", c.call());
      });
}

TEST(DeviceRank, ADeviceThatIsNotThereIsAnErrorOfInit) {
  isthmus_options o{};
  o.size = sizeof o;
  o.world_size = 1;
  o.timeout = soon();
  for (const auto &[settings, text] :
       std::map<std::string, const char *>{{"DEVICE=cuda:4", "this process sees 4 devices"},
                                           {"DEVICE=cuda:x", "must be host, cuda, hip, acl, or one of"},
                                           {"DEVICE=cuda:", "must be host, cuda, hip, acl, or one of"},
                                           {"DEVICE=rocm:0", "must be host, cuda, hip, acl, or one of"},
                                           {"DEVICE=", "must be host, cuda, hip, acl, or one of"}}) {
    o.settings = settings.c_str();
    isthmus_comm_t comm = nullptr;
    EXPECT_NE(isthmus_init(&o, &comm), ISTHMUS_OK) << settings;
    EXPECT_NE(std::string(isthmus_last_error()).find(text), std::string::npos) << settings << ": " << isthmus_last_error();
    EXPECT_EQ(comm, nullptr);
  }
}

// ---- the user's stream ----------------------------------------------------------------------------------------------------

// The data comes to the stream only after the call has returned; what comes behind the call on the stream sees the result, and the host
// waits for nothing in between. The first call of its kind may allocate, which a driver may only do while the device is idle.
void behind_a_stream(const Rank &r, Kind kind, size_t count, bool first = false, OfKind stream_kind = OfKind::NonBlocking) {
  Collective c(r, kind, ISTHMUS_FLOAT32, ISTHMUS_SUM, count, count % 2 ? InPlace : Apart);
  if (!first) Collective(r, kind, ISTHMUS_FLOAT32, ISTHMUS_SUM, count, count % 2 ? InPlace : Apart).run();
  if (r.host()) return c.run();
  UserStream user(stream_kind);
  const Handle stream = user.stream;
  Pinned data(c.bytes()), result(c.bytes());
  std::memcpy(data.host, c.before().data(), c.bytes());
  c.memory().put(Bytes(c.bytes(), 0xee));
  const Event event;
  const isthmus_call how = on(stream);
  Work work;
  must_cu("StreamWaitValue32_v2", stream, user.word.device, 1u, 0u);
  must_cu("MemcpyAsync", number(c.memory().at()), data.device, c.bytes(), stream);
  Watch watch(user);
  OK(c.call(&how, &work.work));
  EXPECT_TRUE(watch.returned_in_time()) << c << ": the call has waited for the user's stream";
  must_cu("MemcpyAsync", result.device, number(c.memory().at()), c.bytes(), stream);
  must_cu("MemsetD8Async", number(c.memory().at()), static_cast<unsigned char>(0xdd), c.bytes(), stream);
  must_cu("EventRecord", event.event, stream);
  std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(isthmus_work_test(work.work) == ISTHMUS_IN_PROGRESS && cu("EventQuery", event.event) == 600);
  user.open();
  MUST(eventually([&] { return cu("EventQuery", event.event) == 0; }));
  const auto *got = static_cast<const unsigned char *>(result.host);
  const std::string wrong = c.difference(Bytes(got, got + c.bytes()));
  MUST(wrong.empty() || (ADD_FAILURE() << wrong, false));
  OK(work.wait());
}

TEST_P(DeviceRanks, TheUsersStreamOrdersAnOperation) {
  fly(GetParam(), [](Rank &r) {
    for (const Kind kind : {AllReduce, AllGather, ReduceScatter, AllToAll})
      for (const size_t count : {1, 1000, 100'001}) behind_a_stream(r, kind, count);
  });
}

// A call that is larger than all before it, on each kind of island.
TEST(DeviceRank, ALargerCallDoesNotWaitForTheUsersStreamEither) {
  for (const std::vector<std::string> &fleets : {std::vector<std::string>{"0a -b", "1a 2b"}, {"0a 1a", "2a 3a -b"}})
    for (const Kind kind : {AllReduce, Reduce, AllGather, ReduceScatter, AllToAll})
      fly_at_once(fleets, [&](Rank &r) {
        Collective(r, kind, ISTHMUS_FLOAT32, ISTHMUS_SUM, 1000).run();
        behind_a_stream(r, kind, kLarge, true);
      });
}

TEST(DeviceRank, EveryKindOfStreamIsAStream) {
  for (const char *fleet : {"0a 1a -b", "0a 1b"})
    fly(fleet, [](Rank &r) {
      for (const OfKind kind : kEveryKind)
        for (const size_t count : {10, 50'000}) behind_a_stream(r, AllReduce, count, false, kind);
    });
}

// Several in a row, each on what the one before it left, and nobody waits.
TEST_P(DeviceRanks, OperationsOfAStreamFollowEachOther) {
  fly(GetParam(), [](Rank &r) {
    constexpr size_t kCount = 5000;
    Memory x(r, kCount * 4);
    x.put(packed(ISTHMUS_FLOAT32, kCount, [&](size_t i) { return contribution(r.rank, i); }));
    std::vector<Work> works;
    {
      Collective(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, kCount, InPlace).run();
      const std::unique_ptr<UserStream> user = r.host() ? nullptr : std::make_unique<UserStream>();
      const std::unique_ptr<Watch> watch = user ? std::make_unique<Watch>(*user) : nullptr;
      const isthmus_call how = user ? on(user->stream) : isthmus_call{};
      if (user) user->stand();
      for (int i = 0; i < 6; ++i) {
        const isthmus_redop op = i == 0 ? ISTHMUS_SUM : ISTHMUS_AVG;
        OK(isthmus_all_reduce(r.comm, x.at(), x.at(), kCount, ISTHMUS_FLOAT32, op, user ? &how : nullptr,
                              &works.emplace_back().work));
      }
      if (user) {
        EXPECT_TRUE(watch->returned_in_time());
        user->open();
      }
    }
    for (const Work &work : works) OK(work.wait());
    MUST(x.get(kCount * 4) == packed(ISTHMUS_FLOAT32, kCount, [&](size_t i) { return reduced(ISTHMUS_SUM, r.size, i); }));
  });
}

// Two streams in turn: each operation comes behind what its stream holds, and behind the operation before it.
TEST(DeviceRank, StreamsMayTakeTurns) {
  fly("0a 1a -b", [](Rank &r) {
    if (r.host()) {
      for (int i = 0; i < 6; ++i) Collective(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 3000).run();
      return;
    }
    UserStream one, two;
    std::vector<std::unique_ptr<Collective>> all;
    std::vector<Work> works;
    for (int i = 0; i < 6; ++i) {
      all.push_back(std::make_unique<Collective>(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 3000));
      const isthmus_call how = on(i % 2 ? one.stream : two.stream);
      OK(all.back()->call(&how, &works.emplace_back().work));
    }
    for (const Work &work : works) OK(work.wait());
    for (const auto &c : all) c->check();
  });
}

TEST(DeviceRank, AStreamThatIsCapturedIsRefusedWithAReason) {
  fly("0a", [](Rank &r) {
    Collective c(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 1000);
    UserStream user;
    const isthmus_call how = on(user.stream);
    must_cu("StreamBeginCapture_v2", user.stream, 2);
    const isthmus_result result = c.call(&how);
    const std::string text = isthmus_last_error();
    Handle graph = nullptr;
    EXPECT_EQ(cu("StreamEndCapture", user.stream, &graph), 0) << "the capture goes on undisturbed";
    EXPECT_EQ(cu("GraphDestroy", graph), 0);
    EXPECT_EQ(result, ISTHMUS_ERR_UNSUPPORTED);
    EXPECT_NE(text.find("captured into a graph"), std::string::npos) << text;
  });
}
TEST(DeviceRank, TheCommunicatorGoesOnAfterACaptureWasRefused) {
  for (const char *fleet : {"0a", "0a 1a"})
    fly(fleet, [](Rank &r) {
      {
        Collective c(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 1000);
        UserStream user;
        const isthmus_call how = on(user.stream);
        must_cu("StreamBeginCapture_v2", user.stream, 2);
        MUST(c.call(&how) == ISTHMUS_ERR_UNSUPPORTED);
        Handle graph = nullptr;
        must_cu("StreamEndCapture", user.stream, &graph);
        must_cu("GraphDestroy", graph);
      }
      Collective(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 1000).run();
    });
}

TEST(DeviceRank, AStreamOnARankOfTheHostIsAnError) {
  fly("0a -b", [](Rank &r) {
    Collective c(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 100);
    if (r.host()) {
      const isthmus_call how = on(nullptr);
      MUST(c.call(&how) == ISTHMUS_ERR_ARGUMENT);
      EXPECT_NE(std::string(isthmus_last_error()).find("ISTHMUS_DEVICE"), std::string::npos) << isthmus_last_error();
    }
    c.run();
  });
}

// ---- what is refused ------------------------------------------------------------------------------------------------------

TEST(DeviceRank, BuffersOfAnotherDeviceAreErrorsAndItGoesOn) {
  for (const char *fleet : {"0a 1b", "0a 1a", "0a 1a -b"})
    fly(fleet, [](Rank &r) {
      std::unique_ptr<Memory>
          foreign;  // freed at the end: that waits for the other rank's device, which waits for this rank
      Rank other = r;
      if (r.rank == 0) {
        use(1);
        other.device = 1;
        foreign = std::make_unique<Memory>(other, 4000);
        use(0);
      }
      OK(isthmus_barrier(r.comm, nullptr, nullptr));  // so does its allocation
      if (r.rank == 0) {
        Memory &there = *foreign;
        Memory here(r, 4000);
        const char *const text = "is memory of cuda:1, and this rank works on cuda:0";
        const auto reduce = [&](void *send, void *recv) {
          return isthmus_all_reduce(r.comm, send, recv, 1000, ISTHMUS_FLOAT32, ISTHMUS_SUM, nullptr, nullptr);
        };
        refused(r, ISTHMUS_ERR_ARGUMENT, text, reduce(there.at(), there.at()));
        refused(r, ISTHMUS_ERR_ARGUMENT, text, reduce(here.at(), there.at()));
        refused(r, ISTHMUS_ERR_ARGUMENT, text, reduce(there.at(), here.at()));
        refused(r, ISTHMUS_ERR_ARGUMENT, text,
                isthmus_send(r.comm, there.at(), 10, ISTHMUS_FLOAT32, 1, 0, nullptr, nullptr));
      }
      if (!r.host()) use(r.device);
      MUST(isthmus_comm_error(r.comm) == ISTHMUS_OK);
      Collective(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 1000).run();
      if (foreign) use(1);
      foreign.reset();
      if (!r.host()) use(r.device);
    });
}

TEST(DeviceRank, BuffersOnBothSidesAreErrorsAndItGoesOn) {
  for (const char *fleet : {"0a -b", "0a 1a", "0a 1a -b"})
    fly(fleet, [](Rank &r) {
      if (!r.host()) {
        Memory device(r, 4000 * 4);
        std::vector<float> host(4000);
        const auto reduce = [&](void *send, void *recv) {
          return isthmus_all_reduce(r.comm, send, recv, 1000, ISTHMUS_FLOAT32, ISTHMUS_SUM, nullptr, nullptr);
        };
        refused(r, ISTHMUS_ERR_ARGUMENT, "send is memory of the host and recv of the device",
                reduce(host.data(), device.at()));
        refused(r, ISTHMUS_ERR_ARGUMENT, "send is memory of the device and recv of the host",
                reduce(device.at(), host.data()));
        refused(r, ISTHMUS_ERR_ARGUMENT, "give both of one, or pinned memory",
                isthmus_all_gather(r.comm, device.at(), host.data(), 100, ISTHMUS_FLOAT32, nullptr, nullptr));
      }
      MUST(isthmus_comm_error(r.comm) == ISTHMUS_OK);
      Collective(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 1000).run();
    });
}

// ---- ends -----------------------------------------------------------------------------------------------------------------

// But for the pages of counters, of which the first communicators made all that are needed, and the contexts of the devices.
TEST(DeviceRank, DestroyLeavesNothing) {
  const auto use_all = [] {
    for (const char *fleet : kFleets)
      fly(fleet, [](Rank &r) {
        for (const size_t count : {size_t{10}, kLarge / 15}) {
          every_collective(r, count, Apart, Device);
          every_collective(r, count, Apart, Host);
        }
        if (!r.host()) {
          UserStream user;
          const isthmus_call how = on(user.stream);
          Collective(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 5000).run(&how);
        } else {
          Collective(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 5000).run();
        }
      });
  };
  use_all();
  const auto counters = settled();
  for (const char *what : {"event", "communicator", "allocation"}) EXPECT_EQ(counters.at(what), 0u) << what;
  EXPECT_LE(counters.at("registration"), 4u) << "a page of counters a device";
  use_all();
  EXPECT_TRUE(is_left_again(counters)) << testing::PrintToString(live());
}

// One rank never comes; whoever aborts, those that wait are released, and their operations end.
TEST(DeviceRank, AbortEndsAnOperationOnAllRanks) {
  for (const char *fleet : {"0a 1b", "0a 1a", "0a -b", "0a 1a -b", "0a 1a 2b 3b"}) {
    const auto last = static_cast<int>(words_of(fleet).size()) - 1;
    for (const auto &[breaker, count] : {std::pair{0, kLarge}, {last, kLarge}, {0, size_t{2}}, {last, size_t{2}}})
      fly(fleet, [&, breaker = breaker, count = count, under_way = std::make_shared<std::barrier<>>(last + 1)](Rank &r) {
        Collective c(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, count);
        Work work;
        const isthmus_result begun = r.rank == last ? ISTHMUS_OK : c.call(nullptr, &work.work);
        std::this_thread::sleep_for(50ms);
        const isthmus_result so_far = work.work ? isthmus_work_test(work.work) : ISTHMUS_IN_PROGRESS;
        under_way->arrive_and_wait();
        MUST(begun == ISTHMUS_OK && so_far == ISTHMUS_IN_PROGRESS);
        if (r.rank == breaker) isthmus_comm_abort(r.comm, "enough");
        if (work.work) MUST(work.wait() == ISTHMUS_ERR_ABORTED);
        MUST(eventually([&] { return isthmus_comm_error(r.comm) == ISTHMUS_ERR_ABORTED; }));
        MUST(c.call() == ISTHMUS_ERR_ABORTED);
        EXPECT_NE(std::string(isthmus_last_error()).find("enough"), std::string::npos) << isthmus_last_error();
      });
  }
}

TEST(DeviceRank, AThreadThatFreesMemoryHoldsNothingUpForGood) {
  for (const char *fleet : {"0a 1b", "0a 1a"})
    fly(fleet, [](Rank &r) {
      UserStream user;
      const isthmus_call how = on(user.stream);
      Collective c(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 50'000);
      const Frees frees(r.device);
      for (int round = 0; round < 50; ++round) {
        Work work;
        OK(c.call(&how, &work.work));
        OK(work.wait());
      }
    });
}

// The user's stream gets through to what stands behind the operation.
TEST(DeviceRank, AbortReleasesTheUsersStream) {
  for (const auto &[fleet, count] :
       {std::pair{"0a 1b", size_t{100'000}}, {"0a 1b", 2}, {"0a 1a", 100'000}, {"0a 1a -b", 100'000}})
    fly(fleet, [count = count, submitted = std::make_shared<std::atomic<bool>>(false)](Rank &r) {
      if (r.rank != 0) {
        MUST(eventually([&] { return submitted->load(); }));
        std::this_thread::sleep_for(100ms);  // for the device to come to it
        isthmus_comm_abort(r.comm, "enough");
        return;
      }
      UserStream user;
      Collective c(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, count);
      const isthmus_call how = on(user.stream);
      Work work;
      OK(c.call(&how, &work.work));
      submitted->store(true);
      MUST(work.wait() == ISTHMUS_ERR_ABORTED);
      MUST(eventually([&] { return cu("StreamQuery", user.stream) == 0; }));
    });
}

// The device stands at what the user's stream waits for, so nothing of ours can leave it: the error comes all the same, and the stream
// gets through once the user lets it.
TEST(DeviceRank, AbortDoesNotWaitForTheUsersStream) {
  for (const size_t count : {size_t{2}, size_t{100'000}}) {
    std::atomic<int> submitted{0};
    fly_at_once({"0a 1b", "2a 3a"}, [&](Rank &r) {
      Collective(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, count).run();
      UserStream user;
      Collective c(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, count);
      const isthmus_call how = on(user.stream);
      Work work;
      if (r.rank == 0) user.stand();
      OK(c.call(&how, &work.work));
      ++submitted;
      MUST(eventually([&] { return submitted == 4; }));
      std::this_thread::sleep_for(100ms);  // for the devices to come to it
      if (r.rank == 0) isthmus_comm_abort(r.comm, "enough");
      MUST(work.wait() == ISTHMUS_ERR_ABORTED);
      user.open();
      MUST(eventually([&] { return cu("StreamQuery", user.stream) == 0; }));
    });
  }
}

TEST(DeviceRank, ARankThatDoesNotCallIsNamedAtTheDeadline) {
  for (const size_t count : {size_t{2}, size_t{100'000}})
    for (const std::vector<std::string> &fleets : {std::vector<std::string>{"0a 1b", "2a 3a"}, {"0a 1a -b", "-a 2b"}})
      fly_at_once(fleets, [count, called = std::make_shared<std::array<std::atomic<int>, 4>>()](Rank &r) {
        Collective(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 1000).run();
        Collective c(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, count);
        OK(isthmus_barrier(r.comm, nullptr, nullptr));
        const int absent = r.size - 1;
        if (r.rank == absent) {
          MUST(eventually([&] { return isthmus_comm_error(r.comm) != ISTHMUS_OK; }));
          return;
        }
        // The deadline is rank 0's, and runs when the others have called.
        std::atomic<int> &of_fleet = (*called)[static_cast<size_t>(r.size)];
        Work work;
        isthmus_result result = ISTHMUS_OK;
        if (r.rank == 0) {
          MUST(eventually([&] { return of_fleet >= absent - 1; }));
          OK(isthmus_comm_set_timeout(r.comm, isthmus_test::patient(6)));  // this rank's own copies end before it
          result = c.call();
        } else {
          OK(c.call(nullptr, &work.work));
          ++of_fleet;
          result = work.wait();
        }
        const std::string text = isthmus_last_error();
        EXPECT_EQ(result, ISTHMUS_ERR_TIMEOUT) << text;
        EXPECT_NE(text.find("rank " + std::to_string(absent)), std::string::npos) << text;
      });
}

// After aborts and deadlines there is nothing left behind either.
TEST(DeviceRank, WhatWasAbortedLeavesNothing) {
  fly("0a 1a 2b 3b", [](Rank &r) { Collective(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, 1000).run(); });
  const auto before = settled();
  for (int i = 0; i < 3; ++i)
    for (const char *fleet : {"0a 1b", "0a 1a 2b 3b"})
      fly(fleet, [&](Rank &r) {
        Collective c(r, AllReduce, ISTHMUS_FLOAT32, ISTHMUS_SUM, kLarge);
        Work work;
        if (r.rank == 0) return void(isthmus_comm_abort(r.comm, "enough"));
        const isthmus_result begun = c.call(nullptr, &work.work);
        MUST((begun == ISTHMUS_OK ? work.wait() : begun) == ISTHMUS_ERR_ABORTED);
      });
  EXPECT_TRUE(is_left_again(before)) << testing::PrintToString(live()) << " and before " << testing::PrintToString(before);
}

// Also where a library moves blocks of host memory, which then go by way of the device.
TEST(DeviceRank, WhatOnlyTheRootUsesMayBeAnythingElsewhere) {
  for (const char *fleet : {"0a 1a", "0a 1a -b"})
    fly(fleet, [](Rank &r) {
      constexpr size_t kBytes = 300'000;
      const auto size = static_cast<size_t>(r.size);
      const Bytes mine(kBytes, static_cast<unsigned char>(r.rank + 1));
      Bytes all(r.rank == 0 ? size * kBytes : 0), part(kBytes);
      void *const there = r.rank == 0 ? all.data() : reinterpret_cast<void *>(uintptr_t{64});  // nothing is there
      OK(isthmus_gather(r.comm, mine.data(), there, kBytes, ISTHMUS_UINT8, 0, nullptr, nullptr));
      for (size_t i = 0; i < all.size(); i += 1000) MUST(all[i] == i / kBytes + 1);
      OK(isthmus_scatter(r.comm, there, part.data(), kBytes, ISTHMUS_UINT8, 0, nullptr, nullptr));
      MUST(part == mine);
    });
}

}  // namespace
}  // namespace isthmus_test

int main(int argc, char **argv) {
  ::setenv("REHEARSAL_DEVICES", "4", 1);
  ::setenv("REHEARSAL_QUIET", "1", 1);
  for (const char *file : {rehearsal_file("nvidia/libcuda.so.1"), rehearsal_file("nvidia/libnccl.so.2")})
    if (!::dlopen(file, RTLD_NOW | RTLD_GLOBAL)) {
      std::fprintf(stderr, "%s\n", ::dlerror());
      return 4;
    }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
