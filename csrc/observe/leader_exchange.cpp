#include "observe/leader_exchange.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "observe/buffers.hpp"

namespace isthmus::observe {
namespace {

constexpr int64_t kSmallest = 1024;
constexpr int kLeastSweeps = 5, kSweeps = 9, kMostCalls = 100;

// What is summed and where the sum goes: memory of the device, where this rank works on one.
class Message {
 public:
  Message(comm::Communicator &comm, size_t bytes) {
    if (device::Runtime *runtime = comm.local().device().runtime) {
      device_ = std::make_unique<Buffers>(*runtime, comm.local().device().number, bytes);
      device_->submit(0, device_->there[0], device_->pinned[0]);
      device_->finish(0);
      in = device_->there[0];
      out = device_->there[1];
      return;
    }
    host_.assign(2 * bytes / sizeof(float), 1.0f);
    in = host_.data();
    out = host_.data() + bytes / sizeof(float);
  }
  void lose() noexcept {
    if (device_) device_->lose();
  }
  const void *in = nullptr;
  void *out = nullptr;

 private:
  std::vector<float> host_;
  std::unique_ptr<Buffers> device_;
};

void call(comm::Communicator &comm, const comm::Request &request) {
  struct Taken {
    engine::Operation *op = engine::OperationPool::instance().take();
    ~Taken() { engine::OperationPool::instance().release(op); }
  } taken;
  comm.prepare(request, *taken.op);
  comm.local().run(taken.op);
  comm.local().driver().wait(taken.op, INT64_MAX);
  if (taken.op->result != Code::Ok) throw Error(taken.op->result, taken.op->text);
}

// The largest of all ranks', number by number.
std::vector<double> slowest(comm::Communicator &comm, const std::vector<double> &mine) {
  const auto world = static_cast<size_t>(comm.size());
  std::vector<double> all(world * mine.size());
  comm::Request r;
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

}  // namespace

int64_t best_leader_bytes(std::span<const int64_t> sizes, std::span<const double> star, std::span<const double> pieces) {
  double cost = 0, least = 0;
  int64_t best = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    cost += std::log(star[i] / pieces[i]);
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
  for (int64_t bytes = kSmallest; bytes <= static_cast<int64_t>(plan::most_leader_bytes(comm.chunk_bytes())); bytes *= 2)
    sizes.push_back(bytes);
  comm::Request r;
  r.collective = Collective::AllReduce;
  r.dtype = static_cast<int>(DType::Float32);
  plan::Request planned;
  planned.bytes = static_cast<uint64_t>(sizes[0]);
  const topology::Topology &whole = comm.topology(), t = plan::planned_on(whole, planned);
  if (!plan::has_leader_exchange(t, Collective::AllReduce))
    fail(Code::Unsupported,
         "measure: in communicator '{}' no message crosses between islands ({} rank{}, {}); start the ranks as the job will "
         "be, in two islands or more",
         comm.name(), comm.size(), comm.size() == 1 ? "" : "s",
         t.flat ? "which all read each other's memory" : "all served by one library");

  Message message(comm, static_cast<size_t>(sizes.back()));
  r.send = message.in;
  r.recv = message.out;
  const size_t forms = 2 * sizes.size();  // star, pieces; size by size
  const auto run = [&](size_t form, int calls) {
    r.count = static_cast<uint64_t>(sizes[form / 2]) / sizeof(float);
    r.leader_bytes = form % 2 == 0 ? sizes[form / 2] : 0;
    const int64_t begin = now_ns();
    for (int i = 0; i < calls; ++i) call(comm, r);
    return static_cast<double>(now_ns() - begin) * 1e-9 / calls;
  };
  std::vector<double> times;  // sweep by sweep
  int sweeps = kSweeps;
  try {
    for (int warm = 0; warm < 2; ++warm) {
      times.clear();
      for (size_t f = 0; f < forms; ++f) times.push_back(run(f, 1));
    }
    double once = 0;
    for (const double time : slowest(comm, times)) once += time;
    const int calls = static_cast<int>(std::clamp(seconds / (kSweeps * once), 1.0, double{kMostCalls}));
    sweeps = static_cast<int>(std::clamp(seconds / (calls * once), double{kLeastSweeps}, double{kSweeps})) | 1;
    times.clear();
    for (int s = 0; s < sweeps; ++s)
      for (size_t f = 0; f < forms; ++f) times.push_back(run(f, calls));
    times = slowest(comm, times);
  } catch (...) {
    message.lose();
    throw;
  }

  const auto of = [&](int sweep, size_t form) { return times[static_cast<size_t>(sweep) * forms + form]; };
  std::vector<int64_t> best;
  for (int s = 0; s < sweeps; ++s) {
    std::vector<double> star, pieces;
    for (size_t i = 0; i < sizes.size(); ++i) {
      star.push_back(of(s, 2 * i));
      pieces.push_back(of(s, 2 * i + 1));
    }
    best.push_back(best_leader_bytes(sizes, star, pieces));
  }
  nlohmann::ordered_json out{{"link", topology::one_memory(whole) ? "memory" : "tcp"},
                             {"bytes", median(best)},
                             {"min", *std::min_element(best.begin(), best.end())},
                             {"max", *std::max_element(best.begin(), best.end())},
                             {"repetitions", sweeps},
                             {"ranks", comm.size()},
                             {"islands", t.groups.size()},
                             {"sizes", sizes}};
  for (const size_t form : {0, 1}) {
    std::vector<double> medians;
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::vector<double> all;
      for (int s = 0; s < sweeps; ++s) all.push_back(of(s, 2 * i + form));
      medians.push_back(median(all) * 1e6);
    }
    out[form == 0 ? "star_us" : "pieces_us"] = medians;
  }
  return out.dump(1);
}

}  // namespace isthmus::observe
