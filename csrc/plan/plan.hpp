// The plan: what one rank does for one collective of one shape, as data. plan_collective() makes a plan. It is pure and deterministic: the
// same request gives the same digest on every rank. The engine runs a plan, explain() prints a plan, predict() walks a plan, and the prover
// proves a plan by running all ranks' plans symbolically.
//
// EXECUTION. A rank has two in-order lists, `host` and `device`. `device` is empty for host ranks. A list is a sequence of stages, each with
// a skew. A list of C chunks runs so (cursor.hpp):
//
//   for t = 0 .. C-1+max_skew
//     for every stage in order, with c = t - skew
//       if 0 <= c < C: the steps of the stage, in order, for chunk c
//
// A step starts when the step before it has ended. Wait and Recv end when their condition holds. Send ends when the link has *taken* the
// span; the link may go on reading the span until the receiver's Recv has ended. Only counters and frames order one rank against another.
// There is no choice and no try-wait, so one symbolic run proves all interleavings.
//
// THE DEVICE LIST is what the calling thread submits, in this order, on ranks that a vendor's library serves. Its stages stand on one stream;
// stages that say `beside` stand on a second one:
//
//   stream 1   A(c) ─── B(c) ─── A(c+1) ─── ...
//   stream 2                └ beside(c)                begins when all that stream 1 was given before has ended;
//                                                      stream 1 waits for stream 2 only at the end of the operation
//
// In one queue both streams are one order, so a plan completes there too. Ccl steps are calls of the library, which all ranks of the island
// make in the same order. Moves are copies of the device's. The host list touches neither Input nor Output of such a rank.
// A rank that no library serves, and whose memory only its device can touch, has a device list too. That list has only copies: between the
// user's memory and pinned scratch that stands for it, or the rings of the ranks that share memory with it (staging.cpp).
//
// THE TWO LISTS of a rank meet in local counters:
//
//   counter    posted by   meaning
//   kStaged    device      what the host waits for lies in the slot
//   kTaken     device      what the host had put into the slot was copied out
//   kReady     host        what the device is to copy out lies in the slot, or the slot is to be filled again
//
// COUNTERS. Each rank owns kCounters 64-bit counters in memory that the ranks sharing memory with it can read. A counter's value is
// (sequence << 24) + v. So the value rises for ever and never has to be reset. Post(k, v) stores the value to the rank's own counter k.
// Wait(q, k, v) waits until rank q's counter k is >= (sequence << 24) + v. v is affine in c: v = mul*c + add. v must be > 0 in a Post. A Wait
// with v <= 0 holds at once; so the reuse of slots is written for the first chunks.
//
// ENTRY RULE (the engine's; the prover models it). Before the first step of an operation that writes its ring, the rank waits until all ranks
// that share memory with it have ended the last operation that used rings (slot_bytes > 0).
// Two operations N and N+1 of plans that `come_early` may overlap, where their slots lie in different places, and their scratch too, and N+1
// touches nothing of N's output: what stands on the second stream before the first step on stream 1 waits until N may begin, and not for N's end.
// So chunks of N+1 are copied in while the last ones of N are copied out. Where no two ranks share memory, the host list of such an N+1 goes ahead
// as well, but for plans with pairwise_sizes: it begins when N was let begin, the host list of N has ended, and no link reads a span of N's Sends
// any more. So frames of N+1 go while the device copies out the last chunks of N. All else of N+1 waits as above.
// EXIT RULE (likewise). An operation ends on a rank when its lists have ended and no link reads a span of its Sends any more. So scratch and
// the user's buffers are free then.
//
// BYTES. Extents are bytes of the user's dtype. A span that holds partial results (accumulator type) has its offset given in its own bytes. It
// covers extent * accumulator_size / dtype_size bytes.
// ALIASING. The dst or the copy of a Reduce may be exactly one of its sources (in place). A Move whose source is its dst is no work. A rank
// writes only to its own ring. Slots and slot_bytes are equal on all ranks that share memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/collective.hpp"
#include "base/dtype.hpp"
#include "base/island_call.hpp"
#include "topology/topology.hpp"

namespace isthmus::plan {

using isthmus::Collective;

inline constexpr int kCounters = 4;  // copied-in, reduced, consumed, spare: names for people in explain()
// Of one rank's two lists: numbers kCounters and up, the first two posted by the device, the last by the host.
inline constexpr int kLocalCounters = 3;
inline constexpr uint8_t kStaged = kCounters, kTaken = kCounters + 1, kReady = kCounters + 2;
// Of a counter's 64 bits, the value within an operation. 2^40 operations are four years of 8000 a second.
inline constexpr int kValueBits = 24;
inline constexpr uint64_t kMostChunks = (uint64_t{1} << kValueBits) - 64;

enum class Memory : uint8_t {
  Input,   // the user's send buffer
  Output,  // the user's recv buffer
  Ring,    // slots of rank `rank` (own or of a rank that shares memory): offset + slot_bytes * (c % slots)
  Scratch,  // private host memory of this rank: offset + plan.scratch_stride * (c % slots). Pinned where there is a device list
  Device,  // private memory on this rank's device, plan.device_bytes: offset + stride * (c % slots). Of the device list alone, which is in order
};

// Blocks are the operands of the launch: block b of Input is at displacement input_displ[b] with input_bytes[b] bytes (Output
// likewise). The table of collectives (base/collective.hpp) says how many blocks there are, and which ranks use them. So every collective, v
// or not, is one case. A rank leaves out what its role does not use.
struct Operands {  // what the engine evaluates spans against; bytes
  std::span<const uint64_t> input_displ, input_bytes, output_displ, output_bytes;
};

// Of == Scratch: bounded by no block, always `length` bytes (frames that carry no data).
struct Extent {               // how many bytes the step moves for chunk c: clip(length, 0, block_bytes - (base + stride*c))
  Memory of = Memory::Input;  // Input or Output: whose block sizes bound it
  uint32_t block = 0;
  uint64_t base = 0, stride = 0, length = 0;  // base + stride*c is also the default offset in that block
};

struct Span {
  Memory memory = Memory::Input;
  int32_t rank = -1;     // Ring: whose (-1: own)
  uint32_t block = 0;    // Input, Output
  uint64_t base = 0;     // Input, Output: offset in the block = base + stride*c. Ring, Scratch: offset in the slot
  uint64_t stride = 0;   // Device: of the places that chunks take by turns; 0: all have one
  bool partial = false;  // accumulator type
  uint32_t weight = 1;   // source of a Reduce: multiplied by it in the accumulator type before it is added
};

enum class StepKind : uint8_t { Move, Reduce, Send, Recv, Post, Wait, Ccl, Taken };

// Which chunks a step is for. The last chunk may be shorter than the others; calls that give every rank the same count cannot serve it. What
// is done once, for whole blocks, is done with the first chunk. Of v-collectives each block has a last chunk of its own: a step is for the full or
// the short chunks of the block of its extent.
enum class When : uint8_t { Always, FullChunk, PartChunk, FirstChunk };

struct Step {
  StepKind kind = StepKind::Move;
  int32_t peer = -1;         // Send, Recv, Wait: rank in the communicator. Ccl: the root, as its position in the island
  uint8_t counter = 0;       // Post, Wait
  int64_t mul = 0, add = 0;  // Post, Wait: v = mul*c + add
  // Steps with an extent are skipped where it is empty (0 bytes). A Wait or Post with `guarded` is skipped so too.
  bool guarded = false;
  Extent extent;
  Span dst;   // Move, Reduce, Recv
  Span copy;  // Reduce: second destination where `has_copy`
  bool has_copy = false;
  bool scaled = false;  // Move: PREMUL_SUM's factor of this rank applies
  // Move: dst (Reduce: copy) will not be read soon. The step writes past the caches where writes_past_caches() is true for the launch.
  bool stream = false;
  bool partial = false;              // Reduce: write partial results. Send/Recv: the span holds partial results
  bool token = false;                // Send, Recv: at most 8 bytes whose content has no meaning; they only order
  uint32_t source = 0, sources = 0;  // Move, Send: one span; Reduce: several; index into Plan::sources
  When when = When::Always;
  // Ccl. The extent is what one rank gives or gets: the count of the call, in bytes. The extent of an AllToAllV is of Scratch, as the call has
  // all blocks of the operands that belong to ranks of the island. These blocks come from the user's input, or from memory of the device in
  // which they lie back to back by position.
  IslandCall call = IslandCall::AllReduce;
  // What the library is asked for: AVG only where the library serves everybody. Elsewhere the op is SUM, or PREMUL_SUM with the factor
  // 2^-halvings where the dtype may be too short for the sum. Both are divided where the bridge rounds. The user's own PREMUL_SUM is asked for where
  // the library serves everybody; the factor is that of the call.
  RedOp op = RedOp::Sum;
  uint8_t halvings = 0;
  uint32_t group = 0, groups = 0;  // Reduce: of sources; index into Plan::group_ends; 0 groups: one
  uint64_t divisor = 1;            // Reduce: the result is divided by this number before the rounding
};

// Taken (host list): ends when no link reads a span any more that this rank sent of this chunk.
struct Stage {
  const char *name = "";  // static text, for explain: "copy in", "reduce", "exchange", ...
  uint32_t skew = 0;
  uint32_t step = 0, steps = 0;
  bool beside = false;  // device list: on the second stream
  // Device list: the library's calls that follow each other are one group of the library's. So they run in any order, and none of them touches what
  // another one writes.
  bool together = false;
};

// Plan::chunk of v-collectives whose blocks are moved whole, whatever their sizes: one chunk.
inline constexpr uint64_t kWholeBlocks = uint64_t{1} << 62;

inline constexpr uint64_t kDefaultLeaderBytes = 8192;
// Who said up to which size messages take the leader exchange.
enum class LeaderBytesFrom : uint8_t { Default, Profile, Setting };

struct Request {  // all of it agreed on all ranks but `rank`
  Collective collective = Collective::AllReduce;
  DType dtype = DType::Float32;
  RedOp op = RedOp::Sum;
  int root = 0;        // send, recv: the peer
  uint64_t bytes = 0;  // of one block (all_reduce, reduce, broadcast: the message). v-collectives: 0, see `chunks`
  uint64_t chunk_bytes = 128 * 1024;
  // Taken as 2 where it is less, 64 where it is more. v-collectives of host ranks have fewer where these would exceed kRingTurn or 16
  // chunks, but not fewer than 4.
  uint32_t max_slots = 4;
  uint64_t small_bytes = kDefaultLeaderBytes;  // messages up to here cross a bridge in one hop (leader exchange), whole
  LeaderBytesFrom small_from = LeaderBytesFrom::Default;  // for explain()
  uint64_t stream_bytes = 32 << 20;  // a rank's output from here on is written past the caches. A hint; NOT agreed: local
  bool device = false;  // this rank's user memory is its device's, which the host cannot touch. NOT agreed: local
  // What the slowest bridge carries in a time beside which the calls for a chunk of a device or a library do not count. Of equal counts, chunks that
  // devices copy are no longer than that, but for few chunks' sake, and no shorter than one or two of chunk_bytes. 0: nobody knows the rates, so they are as
  // long as a fast bridge needs.
  uint64_t paced_bytes = 0;
  // Frames are long on their way between hosts, so many chunks are sent before the first one is waited for: see Builder::ahead. Links then grant
  // 256 chunks of the setting.
  bool far = false;
  // far: so many more bytes for a bridge are worth it where they spare one of two ways (takes_one_way()).
  uint64_t way_bytes = 0;
  uint64_t reach =
      0;  // the first bytes of the rings that its device reaches, of all with whom it shares memory. NOT agreed: local
  bool apart =
      false;  // the blocks of a buffer do not lie back to back: displacements say where. Of equal counts; v-collectives are so always
  bool in_place = false;  // all_to_all in place needs staging of the input; other collectives ignore it. NOT agreed: local
};

// Where ranks work on devices' memory, and stand on several hosts or have rings at fixed places: the slots of a plan, and the most bytes
// that its rings take on one host.
inline constexpr uint32_t kDeviceSlots = 6;
// Slots of a far request, where ranks share memory and where none do. Rings of so many slots are 16 MiB with chunks of 128 KiB.
inline constexpr uint32_t kFarSlots = 32, kFarSlotsAlone = 64;
inline constexpr uint64_t kRingTurn = 2 << 20;  // bytes of the ring through which operations of host ranks take turns
uint64_t most_ring_bytes(uint64_t chunk_bytes, uint32_t slots) noexcept;
// The largest chunk_bytes whose rings have no more bytes than that.
uint64_t most_ring_chunk(uint64_t ring_bytes, uint32_t slots) noexcept;

struct Plan {
  Request request;
  int rank = 0, world = 1;
  uint64_t digest = 0;  // equal on all ranks: of the request (less in_place) and the topology's digest
  uint64_t chunk = 0;   // bytes of a chunk (of a block), multiple of 64 but for a single short one
  uint32_t chunks = 1;  // C for collectives of equal counts. v-collectives: the least C; chunks_of() gives that of a launch
  bool paced = false;   // chunks may be shorter because a bridge is slow (Request::paced_bytes)
  uint32_t max_skew = 0;
  uint32_t slots = 0;            // slots of ring and scratch. The plan uses a ring where slot_bytes > 0
  uint64_t slot_bytes = 0;       // ring memory needed: slots * slot_bytes
  uint64_t device_bytes = 0;     // memory on the device
  uint64_t scratch_stride = 0;   // scratch memory needed: max(slots,1) * scratch_stride
  bool uses_links = false;       // has Send or Recv steps, or sends sizes
  bool host_in_slots = false;    // the host list reads or writes slots
  bool waits_for_links = false;  // has Taken steps
  // The device list has copies alone, and those in stand on the second stream, which posts kStaged. So what it begins with needs nothing of stream 1
  // (see the entry rule).
  bool comes_early = false;
  // Sizes that only sender and receiver know (all_to_all_v). Before the first step of the host list the engine compares them with every rank
  // that shares memory, as each rank has published its sizes. Frames carry their size, so links need no such look. Blocks that a library is to
  // move are the exception (sizes_by_links): ranks of its island that share no memory send each other the sizes first.
  bool pairwise_sizes = false, sizes_by_links = false;
  // The host's part is one hop by cells (plan_by_cells): there is no host list. The input's copy lies at the begin of scratch. `output_at`: where the
  // output is to lie for the device, behind kReady; none: the device copies nothing out.
  bool by_cells = false;
  std::optional<uint64_t> output_at;
  uint64_t link_bytes = 0;  // stated volume: bytes this rank sends over links for the whole operation (equal counts)
  std::vector<Step> steps;
  std::vector<Span> sources;
  std::vector<uint32_t> group_ends;
  std::vector<Stage> host, device;
};

// What the library of an island of `size` ranks is asked for in a reduction. `alone`: nobody else takes part.
struct Asked {
  RedOp op = RedOp::Sum;
  uint8_t halvings =
      0;  // PremulSum: the factor is 2^-halvings, at most 1 / size, so that no sum is larger than its largest number
};
Asked asked_of_library(const Request &request, size_t size, bool alone) noexcept;

// The topology that a request is planned on: `t`, in which islands are dissolved whose library cannot do the request.
topology::Topology planned_on(const topology::Topology &t, const Request &request);
// all_to_all, gather and scatter between several islands, with counts too, are planned without libraries. Blocks that stay in an island are the
// exception: the island's library moves them where the library can, and where the ranks' memory is devices'. Returns the ranks of the island of
// `rank` by their positions, with `rank` itself, where the library moves such blocks; else none.
std::vector<int> inside_of(const topology::Topology &t, int rank, const Request &request);

// C of a launch: plan.chunks for equal counts, else ceil(largest block this rank sends, receives or has to know of / chunk), and
// plan.chunks at the least.
uint32_t chunks_of(const Plan &plan, const Operands &operands) noexcept;  // kMostChunks: too many
// Bytes of a step for chunk c (0: skip), and the offset of a span in its memory (blocks: from the start of the user's
// buffer).
uint64_t extent_bytes(const Extent &e, uint32_t c, const Operands &operands) noexcept;
// Whether the steps with `stream` write past the caches in a launch. Collectives of equal counts: always, as the planner knew the sizes.
// v-collectives: where the rank receives Request::stream_bytes or more.
bool writes_past_caches(const Plan &plan, const Operands &operands) noexcept;
// What a sum over `world` ranks is divided by: AVG by the number of ranks, every other op by 1.
uint64_t divisor_of(RedOp op, int world) noexcept;
// Whether the step runs for chunk c.
bool runs_for(const Plan &plan, const Step &step, uint32_t c, const Operands &operands) noexcept;
uint64_t span_offset(const Plan &plan, const Span &s, uint32_t c, const Operands &operands) noexcept;

// Whether messages of this collective have a small form (the leader exchange) between the islands of planned_on(), and whether this one takes it.
bool has_leader_exchange(const topology::Topology &planned, Collective c) noexcept;
bool takes_leader_exchange(const topology::Topology &planned, const Request &request) noexcept;
// Whether this all_reduce between islands that are far apart, and larger than small ones, crosses once: each island gives all others its whole sum.
// Else each finishes a part of the message, and gives the result of that to the others, which is a second way.
bool takes_one_way(const topology::Topology &planned, const Request &request) noexcept;
uint64_t most_one_way_bytes(const topology::Topology &planned,
                            const Request &request) noexcept;  // 0: never; UINT64_MAX: always
// The most that Request::small_bytes can be: slots of two messages and the credit of links hold what a leader exchange sends.
uint64_t most_leader_bytes(uint64_t chunk_bytes) noexcept;

// Throws Error(Unsupported) for (dtype, op) without meaning, Error(Argument) for a root outside the world. Pure.
std::shared_ptr<const Plan> plan_collective(const topology::Topology &t, int rank, const Request &request);

// The device's part of an operation that goes by cells, on a rank whose memory only its device can touch: no host list, and a digest of 0, as
// nothing of it concerns another rank. Null: the rank neither gives nor gets a byte. Pure. (cells.cpp)
std::shared_ptr<const Plan> plan_by_cells(const topology::Topology &t, int rank, const Request &request);

// The bridge (docs/explain/plans.md): the share of a message that each island owns for the given rates of their bridges (sums to 1),
// and the least time of an all_reduce in units of message bytes / rate: T* = max(1 / min B, 2 (k-1) / sum B).
std::vector<double> bridge_shares(std::span<const double> rates);
double bridge_time(std::span<const double> rates) noexcept;
// all_gather between islands of so many ranks: which part of its blocks an island sends to all others itself (`direct`), and how the other islands
// share what is left, which it sends to one of them and that one passes on (`relays`, sum 1; none: all is direct).
struct Passing {
  std::vector<double> direct, relays;
};
Passing gather_passing(std::span<const double> ranks, std::span<const double> rates);
// Likewise of a reduce_scatter: which part of the sums of its blocks an island makes itself, and how others share the rest, whose results they send.
Passing scatter_passing(std::span<const double> ranks, std::span<const double> rates);

// How long the plan takes on its rank at the rates of the ranks' profiles, in seconds. Three things work side by side:
//   - the rank's thread: its copies, its reductions and its links, one after the other;
//   - the busiest bridge: any rank's, by the frames of all ranks' plans;
//   - the copies from and to the rank's device.
// The prediction is the slowest of the three, and `fill`. `fill` is one chunk's time in what the first or last chunk does not overlap with,
// and one chunk's time in the hops during which the busiest bridge has nothing to carry. The prediction leaves out: waiting for other ranks,
// latency, and the calls of islands' libraries.
struct Prediction {
  double seconds = 0;   // 0: unknown, or nothing to do
  std::string unknown;  // why it is unknown
  bool none = false;    // nothing is bridged and there is no profile: nobody asks for one
  double copies = 0, reductions = 0, links = 0, bridge = 0, device = 0, fill = 0;
  bool simulated = false;  // some rates are a rehearsal's
};
Prediction predict(const Plan &plan, const topology::Topology &t);

std::string explain(const Plan &plan, const topology::Topology &t);       // text that people read
std::string explain_json(const Plan &plan, const topology::Topology &t);  // the same as data, with the text in "text"

}  // namespace isthmus::plan
