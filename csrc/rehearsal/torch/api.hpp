// What the device of torch needs of a simulated vendor: its own C calls, behind one table a vendor. No header of torch in here.
#pragma once

#include <cstddef>
#include <string>

namespace rehearsal_torch {

using Native = void *;  // the vendor's stream or event; a null stream is the device's default one

// Calls work on the device that an On made current. All but is_pinned and device_of throw std::runtime_error, with the call's name
// and the vendor's words.
class Api {
 public:
  Api() = default;
  Api(const Api &) = delete;
  Api &operator=(const Api &) = delete;
  virtual ~Api() = default;

  virtual const char *vendor() const = 0;  // "cuda", "hip" or "npu"
  virtual int devices() = 0;
  virtual std::string name(int device) = 0;

  // Makes a device current in this thread; what enter() gives belongs to leave().
  virtual int enter(int device) = 0;
  virtual void leave(int before) noexcept = 0;

  virtual void *allocate(size_t bytes) = 0;  // null: the device has not so much left
  virtual void release(void *memory) = 0;
  virtual void *allocate_pinned(size_t bytes) = 0;  // on the host; null: none left
  virtual void release_pinned(void *host) = 0;
  virtual void memory(size_t *left, size_t *all) = 0;
  virtual bool is_pinned(const void *host) noexcept = 0;
  virtual int device_of(const void *memory) noexcept = 0;  // -1: memory of no device

  // In the order of the stream. The host's side must be pinned.
  virtual void copy_in(void *device, const void *host, size_t bytes, Native stream) = 0;
  virtual void copy_out(void *host, const void *device, size_t bytes, Native stream) = 0;
  virtual void copy_within(void *to, const void *from, size_t bytes, Native stream) = 0;  // also between two devices
  virtual void zero(void *memory, size_t bytes, Native stream) = 0;

  virtual Native new_stream(bool urgent) = 0;
  virtual bool idle(Native stream) = 0;
  virtual void synchronize(Native stream) = 0;
  virtual void synchronize() = 0;

  virtual Native new_event(bool timed) = 0;
  virtual void destroy_event(Native event) = 0;
  virtual void record(Native event, Native stream) = 0;
  virtual void wait(Native stream, Native event) = 0;
  virtual bool done(Native event) = 0;
  virtual void synchronize_event(Native event) = 0;
  virtual float elapsed_ms(Native first, Native second) = 0;
};

// The simulated vendor that this process finds. The first call opens its libraries; it throws where there are none, and where the
// driver is no simulation. Never destroyed: tensors may outlive everything else.
Api &api();

// A device is current as long as this lives.
class On {
 public:
  explicit On(int device) : before_(api().enter(device)) {}
  ~On() { api().leave(before_); }
  On(const On &) = delete;
  On &operator=(const On &) = delete;

 private:
  int before_;
};

// In a child of fork() nothing of the driver may be called, and a tensor that dies there is not freed.
bool in_forked_child() noexcept;

}  // namespace rehearsal_torch
