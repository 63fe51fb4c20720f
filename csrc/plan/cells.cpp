// The plan of a rank whose memory only its device can touch, in an operation that goes by cells (collective/one_hop.hpp). The device copies the
// input into scratch before the rank writes its cell, and the output out of scratch when the rank has read the cells. Every other rank runs the
// operation as if this one worked on memory of the host.
//
//   device   input -> scratch, kStaged              waits for kReady, scratch -> output
//   cells                        write, ring, read, reduce
//
// Blocks of equal counts lie back to back, so one copy each way will do. Else each block has a copy (Request::apart).
#include "plan/builder.hpp"

namespace isthmus::plan {

std::shared_ptr<const Plan> plan_by_cells(const topology::Topology &t, int rank, const Request &r) {
  const CollectiveTraits &what = traits(r.collective);
  const auto bytes_of = [&](Blocks blocks, bool used) { return used ? block_count(blocks, t.size()) * r.bytes : 0; };
  const uint64_t input = bytes_of(what.input, reads_input(r.collective, rank, r.root)),
                 output = bytes_of(what.output, writes_output(r.collective, rank, r.root));
  if (input == 0 && output == 0) return nullptr;
  auto plan = std::make_shared<Plan>();
  plan->request = r;
  plan->rank = rank;
  plan->world = t.size();
  plan->by_cells = true;
  plan->chunk = (std::max(input, output) + kLine - 1) / kLine * kLine;
  plan->chunks = plan->slots = 1;
  const Clusters clusters(t);
  Builder b(t, clusters, rank, *plan);
  // What the root of a broadcast gives, it gets without the host.
  const bool inside = input != 0 && output != 0 && what.reads == Who::Root && what.output == what.input;
  const auto all = [](uint64_t bytes) { return Extent{Memory::Scratch, 0, 0, 0, bytes}; };
  // f(block, offset in scratch, bytes) for each copy.
  const auto each = [&](uint64_t bytes, auto f) {
    if (!r.apart || bytes == r.bytes) return f(0u, uint64_t{0}, bytes);
    for (uint32_t block = 0; block * r.bytes < bytes; ++block) f(block, block * r.bytes, r.bytes);
  };
  const uint64_t from = b.need_scratch(input);
  if (output && !inside) plan->output_at = b.need_scratch(output);
  if (input) {
    b.device_stage("copy in", 0);
    each(input, [&](uint32_t block, uint64_t at, uint64_t bytes) {
      b.move(all(bytes), Builder::input(block, 0), Builder::scratch(from + at));
    });
    b.post(kStaged);
    if (inside) b.move(all(input), Builder::input(0, 0), Builder::output(0, 0));
  }
  if (plan->output_at) {
    b.device_stage("copy out", 0);
    b.wait(rank, kReady);
    each(output, [&](uint32_t block, uint64_t at, uint64_t bytes) {
      b.move(all(bytes), Builder::scratch(*plan->output_at + at), Builder::output(block, 0));
    });
  }
  b.finish();
  return plan;
}

}  // namespace isthmus::plan
