// What a failure of a vendor's library is told with: the word of the device's stream (ccl/stream_word.hpp). The streams here answer when they are let.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "ccl/stream_word.hpp"
#include "device/abandoned.hpp"
#include "eventually.hpp"
#include "in_child.hpp"

namespace isthmus::ccl {
namespace {

class AskedStream final : public device::Stream {
 public:
  explicit AskedStream(Status word, bool answers = true) : word_(std::move(word)), answers_(answers) {}
  int device() const noexcept override { return 0; }
  Status status() const override {
    asked.fetch_add(1);
    answers_.wait(false);
    return word_;
  }
  bool capturing() const override { return false; }
  void answer() {
    answers_.store(true);
    answers_.notify_all();
  }
  mutable std::atomic<int> asked{0};

 private:
  const Status word_;
  std::atomic<bool> answers_;
};
using Asked = std::shared_ptr<AskedStream>;

Status told() { return {Code::Device, "nccl communicator: unhandled cuda error (1)"}; }
Status gone() { return {Code::Device, "device 0 is gone"}; }
const std::string kBoth = "nccl communicator: unhandled cuda error (1); its stream has failed: device 0 is gone";

TEST(StreamWord, TheLibrarysWordsComeFirstAndAStreamThatWorksAddsNothing) {
  const Asked failed = std::make_shared<AskedStream>(gone()), works = std::make_shared<AskedStream>(Status{});
  EXPECT_EQ(with_stream_word(told(), failed).text, kBoth);
  EXPECT_EQ(with_stream_word(told(), works).text, told().text);
  EXPECT_EQ(works->asked, 1);
  EXPECT_TRUE(with_stream_word({}, works).ok());
  EXPECT_EQ(works->asked, 1) << "what is well asks nobody";
}

TEST(StreamWord, AFailureWhoseDeviceHasFailedIsTheDevicesWhateverTheLibraryCallsIt) {
  const Asked failed = std::make_shared<AskedStream>(gone());
  const Asked broke = std::make_shared<AskedStream>(Status{Code::Resource, "no memory for the question"});
  const Status internal{Code::System, "hccl all_reduce: internal error (4)"};
  EXPECT_EQ(with_stream_word(internal, failed).code, Code::Device);
  EXPECT_EQ(with_stream_word(internal, broke).code, Code::System);
  EXPECT_EQ(with_stream_word(internal, broke).text, internal.text);
}

TEST(StreamWord, OnlyTheFirstFailureAsksAndOnlyOfADevice) {
  const Asked asked = std::make_shared<AskedStream>(gone());
  const std::shared_ptr<device::Stream> stream = asked;
  StreamFailure network(stream), device(stream), any(stream);
  network.keep({Code::System, "nccl communicator: remote error (6)"});
  network.keep(told());
  EXPECT_EQ(network.status().code, Code::System);
  EXPECT_EQ(asked->asked, 0);
  device.keep(told());
  device.keep({Code::System, "nccl all_reduce: internal error (3)"});
  EXPECT_EQ(asked->asked, 0) << "who keeps a failure asks nobody";
  EXPECT_EQ(device.status().text, kBoth);
  EXPECT_EQ(device.status().text, kBoth);
  EXPECT_EQ(asked->asked, 1);
  any.keep({}, true);
  EXPECT_FALSE(any.happened());
  any.keep({Code::System, "hccl all_reduce: internal error (4)"}, true);
  EXPECT_EQ(any.status().code, Code::Device);
  EXPECT_EQ(asked->asked, 2);
}

TEST(StreamWord, WhileTheStreamIsAskedTheFirstFailureStaysTheFirstAndNobodyAsksBeside) {
  const Asked asked = std::make_shared<AskedStream>(gone(), false);
  const std::shared_ptr<device::Stream> stream = asked;
  StreamFailure failure(stream);
  failure.keep(told());
  Status texts[2];
  std::thread first([&] { texts[0] = failure.status(); });
  EXPECT_TRUE(isthmus_test::eventually([&] { return asked->asked == 1; }));
  EXPECT_TRUE(failure.happened());
  std::thread second([&] { texts[1] = failure.status(); });
  failure.keep({Code::Aborted, "hccl all_reduce: aborted"});  // returns, though the driver has not answered
  asked->answer();
  first.join();
  second.join();
  for (const Status &s : texts) EXPECT_EQ(s.code, Code::Device) << s.text;
  EXPECT_EQ(texts[0].text, texts[1].text);
  EXPECT_EQ(asked->asked, 1);
}

TEST(StreamWord, ADriverThatDoesNotAnswerIsAskedOnceUntilItHasAnswered) {
  const Asked hangs = std::make_shared<AskedStream>(gone(), false), other = std::make_shared<AskedStream>(gone());
  const size_t left = device::abandoned_threads();
  const int64_t begin = now_ns();
  const Status alone = with_stream_word(told(), hangs);
  EXPECT_EQ(alone.text, told().text);
  EXPECT_EQ(alone.code, Code::Device);
  EXPECT_GT(now_ns() - begin, 1'900'000'000);
  EXPECT_EQ(device::abandoned_threads(), left + 1);
  EXPECT_EQ(with_stream_word(told(), other).text, told().text);
  EXPECT_EQ(other->asked, 0) << "the driver was asked before it had answered";
  isthmus_test::in_child([] { return unanswered->load() == 0; });  // a child has asked nobody
  hangs->answer();
  ASSERT_TRUE(isthmus_test::eventually([] { return unanswered->load() == 0; }));
  EXPECT_EQ(with_stream_word(told(), other).text, kBoth);
  EXPECT_EQ(hangs->asked, 1);
}

// The last of what a call holds may be the last of a stream, whose end is the driver's. A process may end without destructors until that is over.
TEST(StreamWord, AThreadThatIsLeftBehindLetsGoOfItsCallBeforeItIsBack) {
  ASSERT_TRUE(isthmus_test::eventually([] { return device::threads_left_behind() == 0; }));  // those of the tests before
  struct Held {
    std::atomic<bool> &let, &ends, &ended;
    ~Held() {
      ends.store(true);
      let.wait(false);
      ended.store(true);
    }
  };
  std::atomic<bool> comes{false}, let{false}, ends{false}, ended{false};
  auto held = std::shared_ptr<Held>(new Held{let, ends, ended});
  EXPECT_FALSE(device::call_within(0.01, [held = std::move(held), &comes] {
    comes.wait(false);
    return Status{};
  }));
  comes.store(true);
  comes.notify_all();
  ASSERT_TRUE(isthmus_test::eventually([&] { return ends.load(); }));
  EXPECT_EQ(device::threads_left_behind(), 1) << "it still ends what it held";
  let.store(true);
  let.notify_all();
  EXPECT_TRUE(isthmus_test::eventually([] { return device::threads_left_behind() == 0; }));
  EXPECT_TRUE(ended.load());
}

}  // namespace
}  // namespace isthmus::ccl
