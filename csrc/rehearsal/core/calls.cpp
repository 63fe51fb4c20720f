#include "core/calls.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace rehearsal {
namespace {

bool alive(const Operation &o) {
  for (const auto &block : o.touches)
    if (!block->live.load(std::memory_order_acquire)) {
      misuse(o.entry.name(), Code::Illegal, "memory at %#zx was freed before the work that uses it ran",
             static_cast<size_t>(block->address));
      o.comm->device.break_down(Machine::get().illegal_address.load());
      return false;
    }
  return true;
}

Code submit_collective(const Entered &inside, const Operation &o, const StreamPtr &s, BreaksDevice breaks_device) {
  return o.comm->submit_locked(
      inside, o.entry, s,
      [o](Fabric &fabric, const Fabric::Stop &stop) {
        if (alive(o)) o.collective(fabric, stop);
      },
      o.entry.extras(), breaks_device(o.entry.extras().late), o.awaited);
}

Code submit_messages(const Entered &inside, const std::vector<Operation> &operations, const StreamPtr &s,
                     BreaksDevice breaks_device) {
  Extras x;
  bool until_taken = false;
  for (const Operation &o : operations) {
    x.hang |= o.entry.extras().hang;
    x.slow_ms += o.entry.extras().slow_ms;
    if (o.entry.extras().late) x.late = o.entry.extras().late;
    until_taken |= o.until_taken;
  }
  return operations.front().comm->submit_locked(
      inside, operations.front().entry, s,
      [operations, until_taken](Fabric &fabric, const Fabric::Stop &stop) {
        std::vector<Message> messages;
        for (const Operation &o : operations) {
          if (!alive(o)) return;
          messages.insert(messages.end(), o.messages.begin(), o.messages.end());
        }
        fabric.run(operations.front().entry.name(), messages, stop, until_taken);
      },
      x, breaks_device(x.late), operations.front().awaited);
}

// Makes `second` wait here until `first` has come here.
void order(const Entered &inside, const Entry &e, const StreamPtr &first, const StreamPtr &second) {
  const auto marker = std::make_shared<Marker>();
  const Extras none;
  submit_locked(
      inside, e, first, [marker] { marker->done.store(true, std::memory_order_release); }, true, &none);
  submit_locked(
      inside, e, second,
      [marker, second] { poll_until([&] { return marker->done.load(std::memory_order_acquire) || second->given_up(); }); },
      true, &none);
}

}  // namespace

Code find_buffer(Operation &o, const char *role, const void *p, uint64_t bytes, std::byte **out, bool host_too) {
  *out = nullptr;
  if (bytes == 0) return Code::Ok;
  const char *call = o.entry.name();
  const Place place = find_place(reinterpret_cast<uintptr_t>(p));
  Device &d = o.comm->device;
  if (!place.found())
    return misuse(call, Code::Invalid, "%s %p: %s", role, p,
                  place.state == Place::State::Freed ? "memory that was freed" : "not memory of a device");
  if (place.block->on_host() && (!host_too || (place.by_host_pointer && place.block->address != place.block->host)))
    return misuse(call, Code::Invalid, "%s %p: memory of the host", role, p);
  if (!place.block->on_host() && place.block->device != d.ordinal())
    return misuse(call, Code::Invalid, "%s %p: memory of device %d, the communicator's is %d", role, p, place.block->device,
                  d.ordinal());
  if (bytes > place.left())
    return misuse(call, Code::Invalid, "%s %p: %lu bytes, but %zu are left of what is there", role, p,
                  static_cast<unsigned long>(bytes), place.left());
  *out = place.at();
  o.touches.push_back(place.block);
  return Code::Ok;
}

Code launch(const std::vector<Operation> &operations, BreaksDevice breaks_device) {
  const Entry &e = operations.front().entry;
  const StreamPtr &s = operations.front().stream;
  Communicator &comm = *operations.front().comm;
  if (!s->capture() && comm.prepare(e.name()) != Code::Ok) return Code::NoMemory;
  const auto lock = comm.device.enter();
  if (comm.device.broken() || comm.lost()) return Code::Broken;
  const Lock submission(comm.submission);  // REHEARSAL_LOCKING may have taken the device's lock away
  // The work of a communicator is done in the order of its calls, also over several streams.
  if (!s->capture()) {
    if (comm.last && comm.last != s) order(lock, e, comm.last, s);
    comm.last = s;
  }
  std::vector<StreamPtr> others;
  for (const Operation &o : operations)
    if (o.stream != s && std::find(others.begin(), others.end(), o.stream) == others.end()) others.push_back(o.stream);
  for (const StreamPtr &other : others) order(lock, e, other, s);
  std::vector<Operation> messages;
  for (const Operation &o : operations) {
    if (!o.messages.empty()) messages.push_back(o);
    else if (o.collective) submit_collective(lock, o, s, breaks_device);
  }
  if (!messages.empty()) submit_messages(lock, messages, s, breaks_device);
  for (const StreamPtr &other : others) order(lock, e, s, other);
  return Code::Ok;
}

int Group::note(int result) {
  if (result && depth && !failure) failure = result;
  return result;
}

void Group::forget() {
  operations.clear();
  inits.clear();
  failure = 0;
}

int Group::end(int (*launch_all)(const std::vector<Operation> &), int (*mixed)()) {
  std::vector<Operation> left;
  std::vector<std::function<int()>> starts;
  left.swap(operations);
  starts.swap(inits);
  int result = std::exchange(failure, 0);
  if (!starts.empty()) {
    std::vector<int> results(starts.size(), 0);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < starts.size(); ++i) threads.emplace_back([&, i] { results[i] = starts[i](); });
    for (std::thread &t : threads) t.join();
    for (const int r : results)
      if (!result) result = r;
    if (!left.empty() && !result) result = mixed();
  }
  while (!left.empty() && !result) {
    std::vector<Operation> same, rest;
    for (Operation &o : left) (o.comm == left.front().comm ? same : rest).push_back(o);
    result = launch_all(same);
    left.swap(rest);
  }
  return result;
}

}  // namespace rehearsal
