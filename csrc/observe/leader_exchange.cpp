#include "observe/leader_exchange.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "observe/buffers.hpp"

namespace isthmus::observe {
namespace {

constexpr int64_t kSmallest = 1024;
constexpr int kLeastSweeps = 5, kSweeps = 9, kMostCalls = 100;

// The two buffers of a call. Where the rank works on a device, both lie in the device's memory.
class MeasuredMessage {
 public:
  MeasuredMessage(comm::Communicator &comm, size_t bytes) {
    if (device::Runtime *runtime = comm.local().device().runtime) {
      device_ = std::make_unique<Buffers>(*runtime, comm.local().device().number, bytes);
      device_->submit(0, device_->there[0], device_->pinned[0]);
      device_->finish(0);
      input = device_->there[0];
      output = device_->there[1];
      return;
    }
    host_.assign(2 * bytes / sizeof(float), 1.0f);
    input = host_.data();
    output = host_.data() + bytes / sizeof(float);
  }
  void lose() noexcept {
    if (device_) device_->lose();
  }
  const void *input = nullptr;
  void *output = nullptr;

 private:
  std::vector<float> host_;
  std::unique_ptr<Buffers> device_;
};

void call(comm::Communicator &comm, const comm::CallRequest &request) {
  struct Taken {
    engine::Operation *op = engine::OperationPool::instance().take();
    ~Taken() { engine::OperationPool::instance().release(op); }
  } taken;
  comm.prepare(request, *taken.op);
  comm.local().run(taken.op);
  comm.local().driver().wait(taken.op, INT64_MAX);
  if (taken.op->end.result != Code::Ok) throw Error(engine::status_of(comm.local().core(), *taken.op));
}

// The largest number of all ranks, place by place.
std::vector<double> slowest(comm::Communicator &comm, const std::vector<double> &mine) {
  const auto blocks = static_cast<size_t>(comm.terms().numbering.slots());  // those of holes stay 0
  std::vector<double> all(blocks * mine.size());
  comm::CallRequest r;
  r.collective = Collective::AllGather;
  r.send = mine.data();
  r.recv = all.data();
  r.count = mine.size();
  r.dtype = static_cast<int>(DType::Float64);
  call(comm, r);
  std::vector<double> most(mine);
  for (size_t i = 0; i < all.size(); ++i) most[i % mine.size()] = std::max(most[i % mine.size()], all[i]);
  return most;
}

template <class T>
T median(std::vector<T> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Times every size in both forms, sweep by sweep. Form 2 i is the leader exchange of size i; form 2 i + 1 is what the same size
// takes above it: pieces, or over a long way one way.
class Sweeps {
 public:
  Sweeps(comm::Communicator &comm, std::vector<int64_t> sizes)
      : comm_(comm), sizes_(std::move(sizes)), message_(comm, static_cast<size_t>(sizes_.back())) {
    request_.collective = Collective::AllReduce;
    request_.dtype = static_cast<int>(DType::Float32);
    request_.send = message_.input;
    request_.recv = message_.output;
  }

  // Collective. Takes about `seconds`.
  void run(double seconds) {
    try {
      for (int warm = 0; warm < 2; ++warm) {
        times_.clear();
        sweep(1);
      }
      double once = 0;
      for (const double time : slowest(comm_, times_)) once += time;
      const int calls = static_cast<int>(std::clamp(seconds / (kSweeps * once), 1.0, double{kMostCalls}));
      count_ = static_cast<int>(std::clamp(seconds / (calls * once), double{kLeastSweeps}, double{kSweeps})) | 1;
      times_.clear();
      for (int s = 0; s < count_; ++s) sweep(calls);
      times_ = slowest(comm_, times_);
    } catch (...) {
      message_.lose();
      throw;
    }
  }

  int count() const noexcept { return count_; }
  const std::vector<int64_t> &sizes() const noexcept { return sizes_; }
  // The size up to which the leader exchange is better, by each sweep.
  std::vector<int64_t> best() const {
    std::vector<int64_t> best;
    for (int s = 0; s < count_; ++s) {
      std::vector<double> whole, pieces;
      for (size_t i = 0; i < sizes_.size(); ++i) {
        whole.push_back(time(s, 2 * i));
        pieces.push_back(time(s, 2 * i + 1));
      }
      best.push_back(best_leader_bytes(sizes_, whole, pieces));
    }
    return best;
  }
  // The median of each size, in microseconds. `form` 0: the leader exchange; 1: pieces.
  std::vector<double> medians(size_t form) const {
    std::vector<double> medians;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      std::vector<double> all;
      for (int s = 0; s < count_; ++s) all.push_back(time(s, 2 * i + form));
      medians.push_back(median(all) * 1e6);
    }
    return medians;
  }

 private:
  size_t forms() const noexcept { return 2 * sizes_.size(); }
  double time(int sweep, size_t form) const { return times_[static_cast<size_t>(sweep) * forms() + form]; }
  void sweep(int calls) {
    for (size_t form = 0; form < forms(); ++form) {
      request_.count = static_cast<uint64_t>(sizes_[form / 2]) / sizeof(float);
      request_.leader_bytes = form % 2 == 0 ? sizes_[form / 2] : 0;
      const int64_t begin = now_ns();
      for (int i = 0; i < calls; ++i) call(comm_, request_);
      times_.push_back(static_cast<double>(now_ns() - begin) * 1e-9 / calls);
    }
  }

  comm::Communicator &comm_;
  const std::vector<int64_t> sizes_;
  MeasuredMessage message_;
  comm::CallRequest request_;
  int count_ = kSweeps;
  std::vector<double> times_;  // seconds, sweep by sweep
};

// The islands between which a message of this communicator crosses. Error(Unsupported): no message crosses.
topology::Topology crossed_islands(const comm::Communicator &comm) {
  plan::Request smallest;
  smallest.bytes = kSmallest;
  topology::Topology t = plan::planned_on(comm.topology(), smallest);
  if (!plan::has_leader_exchange(t, Collective::AllReduce))
    fail(Code::Unsupported,
         "measure: in communicator '{}' no message crosses between islands ({} rank{}, {}); start the ranks as the job will "
         "be, in two islands or more",
         comm.name(), comm.size(), comm.size() == 1 ? "" : "s",
         t.flat ? "which all read each other's memory" : "all served by one library");
  return t;
}

}  // namespace

int64_t best_leader_bytes(std::span<const int64_t> sizes, std::span<const double> whole, std::span<const double> pieces) {
  double cost = 0, least = 0;
  int64_t best = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    cost += std::log(whole[i] / pieces[i]);
    if (cost < least) {
      least = cost;
      best = sizes[i];
    }
  }
  return best;
}

std::string measure_leader_exchange_json(comm::Communicator &comm, double seconds) {
  if (!(seconds > 0 && seconds <= 3600))
    fail(Code::Argument, "measure: {} seconds; expected more than 0, at most 3600", seconds);
  std::vector<int64_t> sizes;
  for (int64_t bytes = kSmallest; bytes <= static_cast<int64_t>(plan::most_leader_bytes(comm.terms().chunk_bytes));
       bytes *= 2)
    sizes.push_back(bytes);
  const topology::Topology topology = crossed_islands(comm);
  Sweeps sweeps(comm, std::move(sizes));
  sweeps.run(seconds);
  const std::vector<int64_t> best = sweeps.best();
  // The keys are those of profiles, in which the leader exchange is called star.
  const nlohmann::ordered_json out{{"link", topology::one_memory(comm.topology()) ? "memory" : "tcp"},
                                   {"bytes", median(best)},
                                   {"min", *std::min_element(best.begin(), best.end())},
                                   {"max", *std::max_element(best.begin(), best.end())},
                                   {"repetitions", sweeps.count()},
                                   {"ranks", comm.size()},
                                   {"islands", topology.islands.size()},
                                   {"sizes", sweeps.sizes()},
                                   {"star_us", sweeps.medians(0)},
                                   {"pieces_us", sweeps.medians(1)}};
  return out.dump(1);
}

}  // namespace isthmus::observe
