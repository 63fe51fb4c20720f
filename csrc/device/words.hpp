// The means by which the host and a vendor's streams tell each other something. Where streams write values and wait for values: 64-bit words
// that both see. Where streams do not write, a stream calls a function on the host, and a mark says which value has come.
//
//   words:  host                     stream          marks:  host                          stream
//             raises the gate's  -->  waits                    take(7): a mark     - - ->    (the call, with the mark)
//             reads the signal's <--  writes                   value() is 7        <------   Marks::reached(mark), on a thread
//                                                                                            of the vendor's or of ours
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/lock.hpp"
#include "device/runtime.hpp"

namespace isthmus::device {

// A 64-bit word that the host and a device both see. The device finds the word at `there`.
struct Word {
  std::atomic<uint64_t> *host = nullptr;
  void *there = nullptr;
};

// Words that are taken and given back. The system never gets them back: there are as many words as gates or signals were alive at once.
class Words {
 public:
  template <class More>  // more(): a std::vector<Word>. Where more() makes no word, nothing is taken.
  std::optional<Word> take(More more) {
    Lock lock(mutex_);
    if (free_.empty()) {
      lock.unlock();  // a device that hangs may hold up more(), and must hold up nobody who gives a word back
      const std::vector<Word> made = more();
      lock.lock();
      free_.insert(free_.end(), made.begin(), made.end());
    }
    if (free_.empty()) return std::nullopt;
    const Word w = free_.back();
    free_.pop_back();
    w.host->store(0, std::memory_order_relaxed);
    return w;
  }
  void give(Word w) noexcept {
    const Lock lock(mutex_);
    free_.push_back(w);
  }
  // The device knows none of the words any more.
  void forget() noexcept {
    const Lock lock(mutex_);
    free_.clear();
  }

 private:
  Mutex mutex_;
  std::vector<Word> free_ ISTHMUS_GUARDED_BY(mutex_);
};

// The marks of one signal. Each call of the host function gets one mark. The function stores the mark's value and wakes whoever waits.
//
// Marks go round in a ring. The ring doubles when its next mark has not been reached yet, so steady traffic makes no mark. Marks outlive
// the signal: the ring stays in its pool, and serves another signal once the stream has called for every mark. A stream that fails
// never calls for all, and then the ring stays as it is.
class Marks {
 public:
  struct Mark {
    Marks *marks = nullptr;
    Mark *next = nullptr;
    uint64_t value = 0;
    std::atomic<bool> queued{false};
    std::atomic<uint64_t> *counter = nullptr;  // of whoever submits the call; rises by one when the call is over
  };

  // The next mark, for a call that is submitted now. give_back(): the call could not be submitted.
  Mark &take(uint64_t value) {
    const Lock lock(mutex_);
    if (!next_ || next_->queued.load(std::memory_order_acquire)) grow();
    Mark &mark = *next_;
    last_ = next_;
    next_ = mark.next;
    mark.value = value;
    mark.counter = nullptr;
    mark.queued.store(true, std::memory_order_relaxed);
    ++taken_;
    return mark;
  }
  void give_back(Mark &mark) noexcept {
    const Lock lock(mutex_);
    mark.queued.store(false, std::memory_order_relaxed);
    --taken_;
  }
  uint64_t value() const noexcept { return value_.load(std::memory_order_acquire); }

  // The host function, whose argument is a mark. It stores the value, and wakes while the signal lives.
  static void reached(void *argument) noexcept {
    Mark &mark = *static_cast<Mark *>(argument);
    Marks &m = *mark.marks;
    uint64_t seen = m.value_.load(std::memory_order_relaxed);
    while (seen < mark.value &&
           !m.value_.compare_exchange_weak(seen, mark.value, std::memory_order_release, std::memory_order_relaxed)) {}
    m.waking_.fetch_add(1);
    if (const Wake wake = m.wake_.load()) wake(m.context_);
    m.waking_.fetch_sub(1);
    std::atomic<uint64_t> *const counter = mark.counter;
    mark.queued.store(false, std::memory_order_release);
    m.reached_.fetch_add(1, std::memory_order_release);  // the function touches nothing of the marks after this
    if (counter) counter->fetch_add(1, std::memory_order_release);
  }

  // The signal ends. When this returns nobody is woken any more.
  void end() noexcept {
    wake_.store(nullptr);
    while (waking_.load() != 0) std::this_thread::yield();  // a wake only stores, counts or wakes, so it is soon over
    used_.store(false, std::memory_order_release);
  }
  // Serves another signal. False: a call for a mark is outstanding, or another signal has the marks.
  bool begin(Wake wake, void *context) noexcept {
    const Lock lock(mutex_);
    if (used_.load(std::memory_order_acquire) || reached_.load(std::memory_order_acquire) != taken_) return false;
    used_.store(true, std::memory_order_relaxed);
    value_.store(0, std::memory_order_relaxed);
    context_ = context;
    wake_.store(wake);
    return true;
  }

 private:
  static constexpr size_t kFirst = 64;

  // Puts new marks between the mark that was taken last and the oldest, which would come next.
  void grow() ISTHMUS_REQUIRES(mutex_) {
    const size_t n = std::max(kFirst, count_);
    auto block = std::make_unique<Mark[]>(n);
    for (size_t i = 0; i < n; ++i) {
      block[i].marks = this;
      block[i].next = i + 1 < n ? &block[i + 1] : next_ ? next_ : &block[0];
    }
    blocks_.push_back(std::move(block));
    Mark *const first = blocks_.back().get();
    if (last_) last_->next = first;
    next_ = first;
    count_ += n;
  }

  std::atomic<uint64_t> value_{0};
  std::atomic<Wake> wake_{nullptr};
  void *context_ = nullptr;
  std::atomic<uint32_t> waking_{0};
  std::atomic<uint64_t> reached_{0};  // calls that have ended
  std::atomic<bool> used_{false};
  Mutex mutex_;                                    // two threads may submit
  uint64_t taken_ ISTHMUS_GUARDED_BY(mutex_) = 0;  // marks that were ever given to a stream
  Mark *next_ ISTHMUS_GUARDED_BY(mutex_) = nullptr;
  Mark *last_ ISTHMUS_GUARDED_BY(mutex_) = nullptr;
  size_t count_ ISTHMUS_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Mark[]>> blocks_ ISTHMUS_GUARDED_BY(mutex_);
};

class MarkPool {
 public:
  Marks &take(Wake wake, void *context) {
    const Lock lock(mutex_);
    for (const auto &m : all_)
      if (m->begin(wake, context)) return *m;
    all_.push_back(std::make_unique<Marks>());
    all_.back()->begin(wake, context);
    return *all_.back();
  }

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<Marks>> all_ ISTHMUS_GUARDED_BY(mutex_);
};

}  // namespace isthmus::device
