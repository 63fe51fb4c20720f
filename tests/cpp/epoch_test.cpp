// What keeps one epoch of a communicator from the next: which frames a rank takes, and which library's communicator goes on.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "collective/succession.hpp"
#include "comm/communicator.hpp"
#include "comm/reconfigure.hpp"
#include "patience.hpp"

namespace isthmus::comm {
namespace {

using collective::goes_on;
using collective::LibraryPlace;

using Members = std::array<std::shared_ptr<Communicator>, 2>;

// Two ranks, which are threads of this process; each calls `make`.
Members on_both(const std::function<std::shared_ptr<Communicator>(int)> &make) {
  Members made;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      try {
        made[static_cast<size_t>(rank)] = make(rank);
      } catch (const Error &e) { ADD_FAILURE() << "rank " << rank << ": " << e.text(); }
    });
  for (auto &t : threads) t.join();
  return made;
}

Members begun() {
  std::array<std::byte, 128> id{};
  Settings settings;
  settings.set("ISTHMUS_TIMEOUT", formatted("{}", isthmus_test::soon()));
  bootstrap::create_unique_id(settings, id);
  return on_both([&](int rank) {
    InitOptions o;
    o.rank = rank;
    o.world = 2;
    o.unique_id = id.data();
    o.name = "epochs";
    o.settings = settings;
    return Communicator::init(o);
  });
}

// A receive of rank 0 for eight bytes of rank 1, which waits.
struct WaitingReceive {
  std::array<std::byte, 8> buffer{};
  engine::Operation *const op = engine::OperationPool::instance().take();
  explicit WaitingReceive(Communicator &comm) {
    CallRequest r;
    r.collective = plan::Collective::Recv;
    r.recv = buffer.data();
    r.count = buffer.size();
    r.dtype = static_cast<int>(DType::UInt8);
    r.root = 1;
    r.timeout = isthmus_test::soon();
    comm.prepare(r, *op);
    comm.local().submit(op);
  }
  ~WaitingReceive() { engine::OperationPool::instance().release(op); }
};

link::FrameHeader message_for(const rank::Rank &rank, uint32_t epoch) {
  link::FrameHeader h;
  h.kind = link::FrameKind::Message;
  h.dtype = static_cast<uint8_t>(DType::UInt8);
  h.member = rank.id().index;
  h.epoch = epoch;
  h.source = 1;
  h.id = 1;
  h.bytes = 8;
  h.total = h.digest = 8;
  return h;
}

TEST(Epochs, AFrameOfTheOldEpochReachesNoBufferOfTheNewOneAlsoWhereTheIndexIsTheSame) {
  Members old = begun();
  ASSERT_TRUE(old[0] && old[1]);
  const uint32_t before = old[0]->local().id().epoch;
  Members now = on_both([&](int rank) { return reconfigure(*old[static_cast<size_t>(rank)], {}).epoch; });
  ASSERT_TRUE(now[0] && now[1]);
  rank::Rank &mine = now[0]->local();
  ASSERT_NE(mine.id().epoch, before);
  const WaitingReceive receive(*now[0]);
  std::byte *to = nullptr;
  EXPECT_EQ(mine.port().accept_frame(message_for(mine, before), 0, to), link::Accept::Drop);
  EXPECT_EQ(to, nullptr);
  // The same frame of this epoch goes to the buffer: so the epoch alone kept the other one from it.
  EXPECT_EQ(mine.port().accept_frame(message_for(mine, mine.id().epoch), 0, to), link::Accept::Take);
  EXPECT_EQ(to, receive.buffer.data());
  for (auto &comm : now) comm->abort("the test is over");
  for (auto &comm : {old[0], old[1], now[0], now[1]}) comm->destroy();
}

TEST(Epochs, ANewEpochHasTheNameTheTimeoutAndTheRanksOfTheOldOne) {
  Members old = begun();
  ASSERT_TRUE(old[0] && old[1]);
  for (auto &comm : old) comm->set_timeout(isthmus_test::soon() + 1);
  Members now = on_both([&](int rank) { return reconfigure(*old[static_cast<size_t>(rank)], {}).epoch; });
  for (int rank = 0; rank < 2; ++rank) {
    const auto &comm = now[static_cast<size_t>(rank)];
    ASSERT_TRUE(comm);
    EXPECT_EQ(comm->name(), "epochs");
    EXPECT_EQ(comm->rank(), rank);
    EXPECT_EQ(comm->size(), 2);
    EXPECT_EQ(comm->timeout(), isthmus_test::soon() + 1);
  }
  for (auto &comm : {old[0], old[1], now[0], now[1]}) comm->destroy();
}

std::vector<LibraryPlace> island(uint32_t size) {
  std::vector<LibraryPlace> places(size);
  for (uint32_t i = 0; i < size; ++i) {
    places[i].made = {7};
    places[i].position = i;
    places[i].size = size;
    places[i].calls = 12;
  }
  return places;
}

// The mark is an event of the executor that had the operation, and goes back to it once.
TEST(Operations, ThatAreUsedAgainHaveNoMarkOfTheirFormerEnd) {
  engine::OperationPool &pool = engine::OperationPool::instance();
  engine::Operation *const op = pool.take();
  engine::EndMark mark;
  op->end.mark = &mark;
  pool.release(op);
  engine::Operation *const again = pool.take();
  EXPECT_EQ(again, op);
  EXPECT_EQ(again->end.mark, nullptr);
  pool.release(again);
}

TEST(LibraryPlaces, ALibrarysCommunicatorGoesOnWhereAllOfItsRanksAreThereInTheirOrder) {
  EXPECT_TRUE(goes_on(island(3)));
  EXPECT_FALSE(goes_on({}));
  std::vector<LibraryPlace> less = island(3);
  less.pop_back();
  EXPECT_FALSE(goes_on(less));
  std::vector<LibraryPlace> turned = island(3);
  std::swap(turned[0], turned[1]);
  EXPECT_FALSE(goes_on(turned));
}

TEST(LibraryPlaces, ARankThatHasNoneOrAnotherOneOrMadeAnotherNumberOfCallsEndsIt) {
  for (const auto &spoil : std::vector<std::function<void(LibraryPlace &)>>{
           [](LibraryPlace &p) { p.made = {}; }, [](LibraryPlace &p) { p.made = {8}; }, [](LibraryPlace &p) { ++p.calls; }})
    for (size_t of = 0; of < 3; ++of) {
      std::vector<LibraryPlace> places = island(3);
      spoil(places[of]);
      EXPECT_FALSE(goes_on(places));
    }
}

TEST(LibraryPlaces, AMessageWithoutItsOtherSideEndsItAndOneWithBothDoesNot) {
  std::vector<LibraryPlace> places = island(3);
  places[0].sends_to(2);
  EXPECT_FALSE(goes_on(places));
  places[1].receives_from(0);  // of another pair
  EXPECT_FALSE(goes_on(places));
  places[2].receives_from(0);
  EXPECT_FALSE(goes_on(places));
  places[0].sends_to(1);
  EXPECT_TRUE(goes_on(places));
}

}  // namespace
}  // namespace isthmus::comm
