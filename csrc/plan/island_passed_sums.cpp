// The reduce_scatter of a rank that a vendor's library serves, where other islands make sums for one whose bridge has too little room
// (passed_sums.cpp). The library sums every domain for itself, in equal pieces: so all ranks of an island have equal parts of what crosses and of what the
// island sums for others. What an island keeps of the blocks of its own ranks, it sums to the rank that gets it.
//
//   stage      turn
//   island     t      device: sums -> memory of the device; copy in: -> slot
//   send       t      slot -> send: pieces of the domains that other islands sum
//   finish     t-1    receive the others' numbers; reduce -> slot; those of other islands' blocks -> send (result)
//   collect    t-2    receive results -> slot
//   copy out   t-4    device: slot -> output
//
// A slot has the rank's part of its own block, then its pieces, then what comes of its own block. It is written again behind the gate of a later chunk,
// which is opened when no link reads what was sent of this one.
#include <algorithm>

#include "plan/passed_sums.hpp"

namespace isthmus::plan {
namespace {

class IslandPassedSums : SumRoutes {
 public:
  IslandPassedSums(Builder &b, const Passing &passing) : SumRoutes(b, passing), kept_(domain(b.rank, g_)) {
    whole_ = kept_.size();
    for (int d = 0; d < b.world; ++d)
      for (size_t by = 0; by < clusters_; ++by) {
        const Range mine = piece(g_, b.position, d, by);
        if (mine.empty() || (by == g_ && cluster_of(d) == g_)) continue;
        pieces_.push_back({d, by, mine, whole_});
        whole_ += mine.size();
      }
    b.need_ring(whole_ + b.plan.chunk - kept_.size());
    sums_ = b.need_device(whole_ * b.plan.slots);
  }

  void plan() {
    device();
    b_.stage("send", 0);
    b_.wait(b_.rank, kStaged);
    each_reduced([&](int d, size_t by, Range mine) {
      const uint64_t at = place(d, by);
      each_frame(d, by, mine,
                 [&](int to, Range x) { b_.send(to, ext(d, x), b_.ring(b_.rank, at + (x.begin - mine.begin))); });
    });
    finish();
    b_.stage("collect", 2);
    each_result([&](int from, Range x) { b_.recv(from, ext(b_.rank, x), b_.ring(b_.rank, come(x.begin))); });
    if (b_.reuses()) b_.taken();
    b_.post(kReady);
  }

 private:
  struct SumPiece {
    int block;
    size_t by;  // the cluster that sums the domain
    Range range;
    uint64_t at;  // in the slot, and in the device's memory
  };

  uint64_t place(int block, size_t by) const {
    return std::find_if(pieces_.begin(), pieces_.end(), [&](const SumPiece &p) { return p.block == block && p.by == by; })
        ->at;
  }
  uint64_t come(uint64_t begin) const { return whole_ + (begin - kept_.end); }  // of results for this rank's block
  Span sum(uint64_t at) const { return Builder::device(sums_ + at, whole_); }

  void device() {
    const Range rest{kept_.end, b_.plan.chunk};
    b_.device_stage("copy out", std::min(kIslandAhead, b_.plan.chunks));
    b_.wait(b_.rank, kReady);
    b_.move(ext(b_.rank, kept_), b_.ring(b_.rank, 0), Builder::output(0, 0));
    b_.move(ext(b_.rank, rest), b_.ring(b_.rank, come(rest.begin)), Builder::output(0, rest.begin));
    b_.device_stage("island", 0);
    b_.together();
    for (const When when : kFullAndPart)
      for (const SumPiece &p : pieces_)
        scatter_sum(b_, static_cast<uint32_t>(p.block), domain(p.block, p.by), sum(p.at), when);
    for (size_t j = 0; j < b_.count; ++j)
      b_.call(IslandCall::Reduce, When::Always, ext(b_.members[j], kept_),
              Builder::input(static_cast<uint32_t>(b_.members[j]), 0), sum(0), static_cast<int>(j));
    b_.device_stage("copy in", 0, true);
    b_.move_for(When::FullChunk, {Memory::Scratch, 0, 0, 0, whole_}, sum(0), b_.ring(b_.rank, 0));
    b_.move_for(When::PartChunk, ext(b_.rank, kept_), sum(0), b_.ring(b_.rank, 0));
    for (const SumPiece &p : pieces_) b_.move_for(When::PartChunk, ext(p.block, p.range), sum(p.at), b_.ring(b_.rank, p.at));
    b_.post(kStaged);
  }

  // All that comes is received first: so the answers to a rank are before the results for it.
  void finish() {
    struct Sum {
      int block;
      Range range;
      Span slot;
      Given given;
    };
    std::vector<Sum> sums;
    b_.stage("finish", 1);
    for (int d = 0; d < b_.world; ++d) {
      const Range mine = summed(d);
      if (mine.empty()) continue;
      const Span slot = b_.ring(b_.rank, d == b_.rank ? 0 : place(d, g_));
      sums.push_back({d, mine, slot, receive(d, mine, {b_.contribution(g_, slot)})});
    }
    for (const Sum &s : sums) {
      b_.reduce(ext(s.block, s.range), s.given.spans, s.given.ends, s.slot, false);
      if (s.block != b_.rank) b_.send(s.block, ext(s.block, s.range), s.slot);
    }
  }

  const Range kept_;  // of a block of this island: what the island sums
  std::vector<SumPiece> pieces_;
  uint64_t whole_ = 0, sums_ = 0;
};

}  // namespace

void plan_island_passed_sums(Builder &b, const Passing &passing) { IslandPassedSums(b, passing).plan(); }

}  // namespace isthmus::plan
