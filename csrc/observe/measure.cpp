#include "observe/measure.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "ccl/libraries.hpp"
#include "device/runtimes.hpp"
#include "observe/buffers.hpp"
#include "reduce/reduce.hpp"

namespace isthmus::observe {
namespace {

using nlohmann::ordered_json;

constexpr int kLeastRepetitions = 5, kMostRepetitions = 101;

double seconds_since(int64_t begin) { return static_cast<double>(now_ns() - begin) * 1e-9; }

// The rates of run(times), which moves `bytes` each time. A repetition has so many times that it is long enough for the clock.
std::vector<double> samples(double bytes, double seconds, const std::function<void(int)> &run) {
  run(1);  // touches memory and code for the first time
  int64_t begin = now_ns();
  run(1);
  const double once = std::max(seconds_since(begin), 1e-7), wanted = std::min(seconds / kLeastRepetitions, 0.05);
  const int times = static_cast<int>(std::clamp(wanted / once, 1.0, 10000.0));
  std::vector<double> rates;
  const int64_t start = now_ns();
  while (rates.size() < kLeastRepetitions || (rates.size() < kMostRepetitions && seconds_since(start) < seconds)) {
    begin = now_ns();
    run(times);
    rates.push_back(bytes * times / std::max(seconds_since(begin), 1e-9));
  }
  return rates;
}

class Report {
 public:
  void add(const std::string &name, std::vector<double> rates, const std::string &note) {
    entries_.push_back({{"name", name}, {"samples", std::move(rates)}, {"note", note}});
  }
  void missing(const std::string &name, const std::string &why) { missing_.push_back({{"name", name}, {"text", why}}); }
  std::string text() const { return ordered_json{{"entries", entries_}, {"missing", missing_}}.dump(1); }

 private:
  ordered_json entries_ = ordered_json::array(), missing_ = ordered_json::array();
};

void measure_reductions(Report &report, double seconds) {
  constexpr size_t kBytes = 1 << 20;
  const std::vector<std::byte> a(kBytes), b(kBytes);
  std::vector<std::byte> out(kBytes);
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    const reduce::Source sources[2] = {{a.data()}, {b.data()}};
    reduce::LocalReduction task{dtype, RedOp::Sum, sources, {}, out.data()};
    const size_t count = kBytes / dtype_size(dtype);
    report.add(formatted("reduce_{}", dtype_name(dtype)),
               samples(kBytes, seconds / 2,
                       [&](int times) {
                         for (int i = 0; i < times; ++i) reduce::reduce(task, count);
                       }),
               formatted("one thread, two sources of 1 MiB, {}", reduce::target()));
  }
}

void measure_copies(Report &report, device::Runtime &runtime, int device, double seconds) {
  const std::string name = formatted("{}:{}/", runtime.vendor(), device);
  Buffers b(runtime, device, 32 << 20);
  // A round trip first: bytes that do not arrive have no rate.
  for (size_t i = 0; i < b.bytes; ++i) b.here[0][i] = static_cast<std::byte>(i * 131 >> 7);
  b.submit(0, b.there[0], b.pinned[0]);
  b.submit(0, b.pinned[1], b.there[0]);
  b.finish(0);
  if (std::memcmp(b.here[0], b.here[1], b.bytes) != 0)
    fail(Code::Internal, "what was copied to the device and back is not what it was");
  const std::string note = runtime.describe(device);
  const auto bytes = static_cast<double>(b.bytes);
  report.add(name + "device_to_host",
             samples(bytes, seconds / 3,
                     [&](int times) {
                       for (int i = 0; i < times; ++i) b.submit(0, b.pinned[0], b.there[0]);
                       b.finish(0);
                     }),
             note);
  report.add(name + "host_to_device",
             samples(bytes, seconds / 3,
                     [&](int times) {
                       for (int i = 0; i < times; ++i) b.submit(0, b.there[0], b.pinned[0]);
                       b.finish(0);
                     }),
             note);
  report.add(name + "both_ways",
             samples(bytes, seconds / 3,
                     [&](int times) {
                       for (int i = 0; i < times; ++i) {
                         b.submit(0, b.pinned[0], b.there[0]);
                         b.submit(1, b.there[1], b.pinned[1]);
                       }
                       b.finish(0);
                       b.finish(1);
                     }),
             note + "; each way, both at once");
}

// One rank for each device, as threads of this process.
void measure_library(Report &report, device::Runtime &runtime, const std::vector<int> &devices, ccl::Library &library) {
  constexpr size_t kBytes = 16 << 20;
  constexpr int kTimes = 4, kRepetitions = 9;  // the same on all ranks, since their calls must meet
  const auto size = static_cast<int>(devices.size());
  const auto id = library.make_id(devices[0]);
  std::vector<double> rates;
  std::vector<Status> ends(devices.size());
  const auto rank = [&](int r) {
    try {
      const int device = devices[static_cast<size_t>(r)];
      Buffers b(runtime, device, kBytes);
      b.submit(0, b.there[0], b.pinned[0]);  // so the message is numbers, and no rubbish
      b.finish(0);
      const std::shared_ptr<device::Stream> stream = runtime.make_stream(device, "tune library");
      const auto event = runtime.make_event(device);
      const auto comm = library.join({id, r, size, Deadline(kPatience), {}}, stream);
      for (int i = -1; i < kRepetitions; ++i) {
        const int64_t begin = now_ns();
        for (int n = 0; n < kTimes; ++n) comm->all_reduce(b.there[0], b.there[1], kBytes / 4, DType::Float32, RedOp::Sum);
        event->record(*stream);
        try {
          wait(*event, *stream);
          if (const Status s = comm->status(); !s.ok()) throw Error(s.code, s.text);
        } catch (...) {
          b.lose();
          comm->abort();
          throw;
        }
        if (r == 0 && i >= 0) rates.push_back(static_cast<double>(kBytes) * kTimes / std::max(seconds_since(begin), 1e-9));
      }
    } catch (const Error &e) { ends[static_cast<size_t>(r)] = {e.code(), e.text()}; } catch (const std::exception &e) {
      ends[static_cast<size_t>(r)] = {Code::Internal, e.what()};
    }
  };
  std::vector<std::thread> others;
  for (int r = 1; r < size; ++r) others.emplace_back(rank, r);
  rank(0);
  for (std::thread &t : others) t.join();
  for (const Status &s : ends)
    if (!s.ok()) throw Error(s.code, s.text);
  report.add(formatted("{}/all_reduce", library.family()), std::move(rates),
             formatted("{} {}, {}", library.family(), library.version(),
                       size == 1 ? std::string("1 rank: the library copies, and nothing passes between devices")
                                 : formatted("{} ranks", size)));
}

// What ISTHMUS_DEVICE means here: a vendor (empty: all) and a device of it (-1: all).
struct WantedDevice {
  std::string vendor;
  int number = -1;
};
WantedDevice wanted_of(const std::string &setting) {
  if (setting == "host") return {};
  const size_t colon = std::min(setting.find(':'), setting.size());
  WantedDevice out{setting.substr(0, colon), -1};
  const std::string digits = setting.substr(std::min(colon + 1, setting.size()));
  const std::vector<std::string> known = device::vendors();
  const bool number = !digits.empty() && digits.size() < 6 && std::all_of(digits.begin(), digits.end(), ::isdigit);
  if (std::find(known.begin(), known.end(), out.vendor) == known.end() || (colon < setting.size() && !number))
    fail(Code::Config, "ISTHMUS_DEVICE={}: expected host, or a vendor's name, with :N where one device is meant", setting);
  if (number) out.number = std::stoi(digits);
  return out;
}

void measure_devices(Report &report, const Settings &settings, double seconds) {
  const std::string &setting = settings.text(Setting::Device), &ccl = settings.text(Setting::Ccl);
  const WantedDevice wanted = wanted_of(setting);
  const int number = wanted.number;
  for (const std::string &vendor : device::vendors()) {
    if (!wanted.vendor.empty() && vendor != wanted.vendor) continue;
    std::vector<int> measured;
    device::Runtime *runtime = nullptr;
    try {
      runtime = &device::open_runtime(vendor);
    } catch (const Error &e) {
      report.missing(vendor, e.text());
      continue;
    }
    const int count = runtime->devices();
    if (number >= count) fail(Code::Config, "ISTHMUS_DEVICE={}: there are {} devices of that vendor", setting, count);
    const int first = std::max(number, 0), last = number < 0 ? count - 1 : number;
    for (int d = first; d <= last; ++d) {
      try {
        measure_copies(report, *runtime, d, seconds / (last - first + 1));
        measured.push_back(d);
      } catch (const Error &e) { report.missing(formatted("{}:{}", vendor, d), e.text()); }
    }
    const std::string family = ccl == "auto" || ccl::vendor_of(ccl) != vendor ? ccl::family_for(vendor) : ccl;
    if (measured.empty() || family.empty() || ccl == "none") continue;
    try {
      // The path of the settings is for the library that a rank would take.
      const bool named = family == (ccl == "auto" ? ccl::family_for(wanted.vendor) : ccl);
      const auto library = ccl::open_library(family, named ? settings.text(Setting::CclLibrary) : "", "");
      if (const Status s = library->usable(); !s.ok()) throw Error(s.code, s.text);
      measure_library(report, *runtime, measured, *library);
    } catch (const Error &e) { report.missing(family, e.text()); }
  }
}

}  // namespace

std::string measure_json(const Settings &settings, double seconds) {
  if (!(seconds > 0 && seconds <= 3600))
    fail(Code::Argument, "measure: {} seconds; expected more than 0, at most 3600", seconds);
  Report report;
  measure_reductions(report, seconds / 3);
  measure_devices(report, settings, seconds * 2 / 3);
  return report.text();
}

}  // namespace isthmus::observe
