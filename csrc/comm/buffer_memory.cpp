#include "comm/buffer_memory.hpp"

#include "base/error.hpp"

namespace isthmus::comm {
namespace {

[[noreturn]] void refuse_two_places(const char *name, bool input_on_device) {
  fail(Code::Argument, "{}: send is memory of {} and recv of {}; give both of one, or pinned memory that the device reaches",
       name, input_on_device ? "the device" : "the host", input_on_device ? "the host" : "the device");
}

}  // namespace

void BufferMemory::check_lent(int type, int number, const void *memory) const {
  const device::Runtime *runtime = local_.device().runtime;
  if (!runtime)
    fail(Code::Unsupported, "this rank works on host memory: set ISTHMUS_DEVICE before init, or copy it to the host first");
  const device::Dlpack known = runtime->dlpack();
  const std::string own = formatted("{}:{}", runtime->vendor(), local_.device().number);
  if ((type != known.type || number != local_.device().number) && (known.shared == 0 || type != known.shared))
    fail(Code::Argument, "this rank works on {}", own);
  if (memory && local_.health().find(memory).where == device::Where::Unknown)
    fail(Code::Argument, "{}, on which this rank works, has no memory at {}", own, memory);
}

bool BufferMemory::on_device(const char *name, const void *input, const void *output, int claims, engine::Call &call) const {
  const device::Runtime *runtime = local_.device().runtime;
  if (!runtime) return false;
  const auto place = [&](const void *p, std::byte *&there) {
    const device::PointerInfo found = local_.health().find(p);
    there = static_cast<std::byte *>(found.there);
    if (found.where != device::Where::Device) return false;
    if (found.device != local_.device().number)
      fail(Code::Argument, "{}: the buffer at {} is memory of {}:{}, and this rank works on {}:{}", name, p,
           runtime->vendor(), found.device, runtime->vendor(), local_.device().number);
    return true;
  };
  if (!output) return place(input, call.input_there);
  if (!input) return place(output, call.output_there);
  const bool input_device = place(input, call.input_there),
             output_device = input == output ? input_device : place(output, call.output_there);
  if (input == output) call.output_there = call.input_there;
  if (input_device == output_device || (input_device ? call.output_there : call.input_there))
    return input_device || output_device;
  if (claims & (input_device ? 2 : 1)) check_claim(name, input_device ? "recv" : "send", input_device ? output : input);
  refuse_two_places(name, input_device);
}

void BufferMemory::check_claim(const char *name, const char *argument, const void *memory) const {
  const device::Runtime *runtime = local_.device().runtime;
  if (!runtime || !memory || local_.health().find(memory).where != device::Where::Unknown) return;
  const std::string own = formatted("{}:{}", runtime->vendor(), local_.device().number);
  fail(Code::Argument,
       "{}: {} at {} was given as memory of a device, and the runtime of {}, on which this rank works, knows no memory at "
       "this address: was it freed, is it the host's, or another vendor's? Pass memory that was allocated on {}, or pinned "
       "memory that its runtime knows",
       name, argument, memory, own, own);
}

bool BufferMemory::take_pinned(const char *name, bool sends, bool receives, engine::Operation &op) const {
  engine::Call &call = op.call;
  const auto check = [&](const std::byte *here, std::byte *&there, uint64_t bytes, bool of_output) {
    if (!there || (bytes != 0 && local_.health().find(here + bytes - 1).there == there + bytes - 1)) return;
    there = nullptr;
    if (call.device && bytes != 0) refuse_two_places(name, of_output);
  };
  const uint64_t input = sends ? op.given_input() : 0, output = receives ? op.given_output() : 0;
  check(call.input, call.input_there, input, false);
  check(call.output, call.output_there, output, true);
  if (call.device) return false;
  call.device = !op.plan->device.empty() && (input == 0 || call.input_there) && (output == 0 || call.output_there);
  if (!call.device) call.input_there = call.output_there = nullptr;
  return call.device;
}

}  // namespace isthmus::comm
