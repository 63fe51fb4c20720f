// The items of the queues: copies, fills, waits for values, writes of values, host functions.
#include <cstring>
#include <vector>

#include "core/journal.hpp"
#include "core/machine.hpp"

namespace rehearsal {
namespace {

// A range of memory that an item reads or writes.
struct Range {
  std::shared_ptr<Block> block;  // none: memory of the host that is not registered
  std::byte *at = nullptr;

  // Asked when the item runs. False: the memory has been freed, which is a misuse, and the device has failed.
  bool alive(const char *call, Device &d) const {
    if (!block || block->live.load(std::memory_order_acquire)) return true;
    misuse(call, Code::Illegal, "memory at %#zx was freed before the work that uses it ran",
           static_cast<size_t>(block->address));
    d.break_down(Machine::get().illegal_address.load());
    return false;
  }
};

Code resolve(const char *call, const char *role, uintptr_t address, size_t bytes, Side side, Range *out) {
  const Place p = find_place(address);
  const auto a = static_cast<size_t>(address);
  if (p.state == Place::State::Freed) return misuse(call, Code::Invalid, "%s %#zx: memory that was freed", role, a);
  const bool unknown_is_fine = side == Side::Pageable || side == Side::Any;
  if (!p.found()) {
    if (unknown_is_fine) {
      out->at = reinterpret_cast<std::byte *>(address);
      return Code::Ok;
    }
    return misuse(call, Code::Invalid, "%s %#zx: neither memory of a device nor registered memory of the host", role, a);
  }
  if (side == Side::Device && p.by_host_pointer && p.block->address != p.block->host)
    return misuse(call, Code::Invalid, "%s %#zx: a pointer of the host where an address of the device belongs", role, a);
  if ((side == Side::Host || side == Side::Pageable) && !p.by_host_pointer && !p.block->on_host())
    return misuse(call, Code::Invalid, "%s %#zx: memory of the device where memory of the host belongs", role, a);
  if (bytes > p.left()) {
    if (unknown_is_fine && p.by_host_pointer) {  // part of the range is registered, and a synchronous copy does not care
      out->at = p.at();
      return Code::Ok;
    }
    return misuse(call, Code::Invalid, "%s %#zx: %zu bytes, but %zu are left of what is there", role, a, bytes, p.left());
  }
  out->block = p.block;
  out->at = p.at();
  return Code::Ok;
}

Way way_of(const Range &target, const Range &source) {
  const bool to_device = target.block && !target.block->on_host(), from_device = source.block && !source.block->on_host();
  if (to_device == from_device) return Way::Inside;
  return to_device ? Way::In : Way::Out;
}

// Takes the copy engine of that direction for `bytes`, and waits until the engine is done. meanwhile() is called while the engine works.
template <class Meanwhile>
void carry(Device &d, Queue &q, Way way, size_t bytes, Meanwhile meanwhile) {
  const Settings &s = settings();
  const double rate = way == Way::Out ? s.copy_out_gbps : way == Way::In ? s.copy_in_gbps : s.copy_gbps;
  const int64_t end = rate > 0 ? d.engine(way).reserve(q.ready_ns(), bytes, rate) : 0;
  // By the queue's clock, behind what stands before it in the engine.
  const int64_t begin = rate > 0 ? end - static_cast<int64_t>(static_cast<double>(bytes) / rate) : now_ns();
  meanwhile();
  if (rate > 0) q.end_at(end);
  if (way != Way::Inside) note_carried(way == Way::Out, bytes, d.engine(way).worked(begin, now_ns()));
}

template <class T>
bool holds(T now, T value, Compare how) {
  switch (how) {
    case Compare::GreaterEqual: return static_cast<std::make_signed_t<T>>(static_cast<T>(now - value)) >= 0;
    case Compare::Equal: return now == value;
    case Compare::And: return (now & value) != 0;
    case Compare::Nor: return static_cast<T>(~(now | value)) != 0;
    case Compare::SignedGreaterEqual: return static_cast<int64_t>(now) >= static_cast<int64_t>(value);
  }
  return false;
}

// Waits until the word compares with the value, or the stream is given up.
template <class T>
void stand_at(const Range &r, T value, Compare how, const Stream &s) {
  std::atomic_ref<T> word(*reinterpret_cast<T *>(r.at));
  poll_until([&] { return holds<T>(word.load(std::memory_order_acquire), value, how) || s.given_up(); });
}

Code resolve_word(const Entry &e, uintptr_t address, bool wide, Range *out) {
  const size_t bytes = wide ? 8 : 4;
  if (address % bytes) return misuse(e.name(), Code::Invalid, "%#zx is not aligned", static_cast<size_t>(address));
  return resolve(e.name(), "word", address, bytes, Side::Device, out);
}

}  // namespace

Code submit_locked(const Entered &, const Entry &e, const StreamPtr &s, std::function<void()> body, bool quick,
                   const Extras *extras, bool awaited) {
  note_submission(e.name(), s.get());
  if (const auto capture = s->capture()) {
    ++capture->items;
    return capture->invalid.load() ? Code::CaptureInvalidated : Code::Ok;
  }
  Item item;
  item.call = e.name();
  item.stream = s;
  item.behind = s->device.behind(*s);
  item.body = std::move(body);
  item.extras = extras ? *extras : e.extras();
  item.quick = quick && !item.extras.hang && !item.extras.late && !item.extras.slow_ms;
  s->queue.push(std::move(item));
  if (awaited && Machine::get().blocking.load(std::memory_order_relaxed))
    s->wait_done(s->submitted.load(std::memory_order_relaxed));
  return Code::Ok;
}

Code copy(const Entry &e, const StreamPtr &s, uintptr_t to, Side to_side, uintptr_t from, Side from_side, size_t bytes) {
  Device &d = s->device;
  const auto lock = d.enter();
  if (d.broken()) return Code::Broken;
  if (bytes == 0) return Code::Ok;
  Range target, source;
  if (const Code c = resolve(e.name(), "destination", to, bytes, to_side, &target); c != Code::Ok) return c;
  if (const Code c = resolve(e.name(), "source", from, bytes, from_side, &source); c != Code::Ok) return c;
  const auto body = [call = e.name(), target, source, bytes, &d, &q = s->queue] {
    if (!target.alive(call, d) || !source.alive(call, d)) return;
    const bool apart = target.at + bytes <= source.at || source.at + bytes <= target.at;
    carry(d, q, way_of(target, source), bytes, [&] {
      if (settings().scribble && apart) std::memset(target.at, 0xA5, bytes);
    });
    std::memmove(target.at, source.at, bytes);
  };
  return submit_locked(lock, e, s, body, false, nullptr, true);
}

Code copy_taken(const Entry &e, const StreamPtr &s, uintptr_t to, const void *from, size_t bytes) {
  Device &d = s->device;
  const auto lock = d.enter();
  if (d.broken()) return Code::Broken;
  if (bytes == 0) return Code::Ok;
  Range target;
  if (const Code c = resolve(e.name(), "destination", to, bytes, Side::Device, &target); c != Code::Ok) return c;
  const auto *const begin = static_cast<const std::byte *>(from);
  const auto body = [call = e.name(), target, taken = std::vector<std::byte>(begin, begin + bytes), &d, &q = s->queue] {
    if (!target.alive(call, d)) return;
    carry(d, q, Way::In, taken.size(), [] {});
    std::memcpy(target.at, taken.data(), taken.size());
  };
  return submit_locked(lock, e, s, body, false, nullptr, true);
}

bool between_hosts(uintptr_t to, uintptr_t from) {
  const Place target = find_place(to), source = find_place(from);
  return (!target.found() || target.block->on_host()) && (!source.found() || source.block->on_host());
}

Code fill(const Entry &e, const StreamPtr &s, uintptr_t to, unsigned char value, size_t bytes) {
  Device &d = s->device;
  const auto lock = d.enter();
  if (d.broken()) return Code::Broken;
  if (bytes == 0) return Code::Ok;
  Range target;
  if (const Code c = resolve(e.name(), "destination", to, bytes, Side::Device, &target); c != Code::Ok) return c;
  const auto body = [call = e.name(), target, value, bytes, &d, &q = s->queue] {
    if (!target.alive(call, d)) return;
    carry(d, q, Way::Inside, bytes, [] {});
    std::memset(target.at, value, bytes);
  };
  return submit_locked(lock, e, s, body, false, nullptr, true);
}

Code wait_value(const Entry &e, const StreamPtr &s, uintptr_t address, uint64_t value, Compare how, bool wide) {
  Device &d = s->device;
  const auto lock = d.enter();
  if (d.broken()) return Code::Broken;
  Range word;
  if (const Code c = resolve_word(e, address, wide, &word); c != Code::Ok) return c;
  return submit_locked(lock, e, s, [call = e.name(), word, value, how, wide, s] {
    if (!word.alive(call, s->device)) return;
    if (wide) stand_at<uint64_t>(word, value, how, *s);
    else stand_at<uint32_t>(word, static_cast<uint32_t>(value), how, *s);
    if (const long us = settings().gate_us; us > 0) s->queue.end_at(now_ns() + us * 1000, true);
  });
}

Code write_value(const Entry &e, const StreamPtr &s, uintptr_t address, uint64_t value, bool wide) {
  Device &d = s->device;
  const auto lock = d.enter();
  if (d.broken()) return Code::Broken;
  Range word;
  if (const Code c = resolve_word(e, address, wide, &word); c != Code::Ok) return c;
  const auto body = [call = e.name(), word, value, wide, &d, &q = s->queue] {
    if (!word.alive(call, d)) return;
    q.end_at(q.ready_ns());
    if (wide) std::atomic_ref(*reinterpret_cast<uint64_t *>(word.at)).store(value, std::memory_order_release);
    else
      std::atomic_ref(*reinterpret_cast<uint32_t *>(word.at)).store(static_cast<uint32_t>(value), std::memory_order_release);
  };
  return submit_locked(lock, e, s, body, false, nullptr, true);
}

Code host_function(const Entry &e, const StreamPtr &s, void (*function)(void *), void *argument) {
  Device &d = s->device;
  const auto lock = d.enter();
  if (d.broken()) return Code::Broken;
  if (!function) return misuse(e.name(), Code::Invalid, "no function");
  const auto body = [function, argument] {
    in_host_function() = true;
    function(argument);
    in_host_function() = false;
  };
  return submit_locked(lock, e, s, body, false, nullptr, true);
}

}  // namespace rehearsal
