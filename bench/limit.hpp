// The limits of this machine, measured in the same run: the memory rate of STREAM-like kernels that all ranks run at once,
// and a raw exchange over one TCP connection. Nothing here uses the library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace isthmus::bench {

double now_seconds();

// The kernels. Their bytes a second are counted as in STREAM: every read and every write once. A plain store also reads the
// line that it writes, and these bytes are not counted. So kernels with streaming stores show more.
enum class Kernel { Add, Copy, AddStreaming, Count };
inline constexpr size_t kKernels = static_cast<size_t>(Kernel::Count);
using MemoryRates = std::array<double, kKernels>;
const char *kernel_name(Kernel k);

// The buffers of one rank's share of the measurement. `bytes` is the size of all three arrays together.
class MemoryProbe {
 public:
  explicit MemoryProbe(size_t bytes);
  // Runs the kernel for about `seconds`, and returns this rank's rate. The caller lines the ranks up before each call.
  double run(Kernel k, double seconds);

 private:
  std::vector<float> a_, b_, c_;
};

// One variant of a full-duplex exchange: both sides send and receive the whole message at once, on one thread each. piece:
// bytes of one call. small_target: the side receives into one reused window of 256 KiB, and not into the whole buffer.
struct Variant {
  size_t piece;
  bool small_target;
};
std::array<Variant, 10> variants(size_t bytes);
// Both ends call exchange() with the same arguments. Returns this end's seconds. Throws std::runtime_error.
double exchange(int fd, const std::byte *send, std::byte *recv, size_t bytes, Variant v);
// One message there and one back; `spin` polls instead of sleeping. Returns seconds, the median of `rounds`.
double ping_pong(int fd, size_t bytes, int rounds, bool first, bool spin);

// The best variant's rate in bytes a second in each direction (median of `rounds`, the slower end's time).
struct RawRate {
  double rate;
  Variant best;
  std::vector<double> medians;
};
RawRate raw_rate(int fd, size_t bytes, int rounds);

int listen_loopback(uint16_t &port);
int accept_one(int listener);
int connect_loopback(uint16_t port);

// Rates in bytes a second, one for each repetition. There are at least kLeastRepetitions, and more until `seconds` have
// passed. Both functions fork the second process, so the calling process must have no other threads. Both throw
// std::runtime_error.
inline constexpr int kLeastRepetitions = 5, kMostRepetitions = 101;
std::vector<double> hand_over_rates(double seconds);  // between two processes through shared memory, each way
std::vector<double> loopback_rates(double seconds);   // over one TCP connection, each way

// `isthmus-bench --limit` and `--raw-tcp`: start the processes themselves and print JSON.
int print_memory_limit(int ranks, size_t bytes);
int print_raw_tcp(size_t bytes, size_t small_bytes, int rounds);
// `isthmus-bench --rates`: the samples from which `isthmus tune` makes a profile.
int print_host_rates(double seconds);

}  // namespace isthmus::bench
