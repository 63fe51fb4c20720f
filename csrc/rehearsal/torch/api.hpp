// Api is what torch's device needs of a simulated vendor. Each vendor has an implementation, which calls the vendor's C functions. This
// file includes no header of torch.
#pragma once

#include <cstddef>
#include <string>

namespace rehearsal_torch {

using Native = void *;  // the vendor's stream or event; a null stream is the device's default stream

// The functions work on the device that an On made current in the calling thread. Sizes are in bytes. Any thread may call. If the vendor's
// call fails, the function throws std::runtime_error with the call's name and the vendor's text. is_pinned(), device_of() and leave() never
// throw.
class Api {
 public:
  Api() = default;
  Api(const Api &) = delete;
  Api &operator=(const Api &) = delete;
  virtual ~Api() = default;

  virtual const char *vendor() const = 0;  // "cuda", "hip" or "npu"
  virtual int devices() = 0;
  virtual std::string name(int device) = 0;

  // enter() makes a device current in this thread. leave() ends that, and takes what enter() returned.
  virtual int enter(int device) = 0;
  virtual void leave(int before) noexcept = 0;

  virtual void *allocate(size_t bytes) = 0;  // null: the device has not enough left
  virtual void release(void *memory) = 0;
  virtual void *allocate_pinned(size_t bytes) = 0;  // on the host; null: not enough left
  virtual void release_pinned(void *host) = 0;
  virtual void memory(size_t *left, size_t *all) = 0;
  virtual bool is_pinned(const void *host) noexcept = 0;
  virtual int device_of(const void *memory) noexcept = 0;  // -1: not memory of a device

  // Work in the order of the stream, which may begin after the call has returned. Host memory must be pinned, and stay until the copy is
  // done.
  virtual void copy_in(void *device, const void *host, size_t bytes, Native stream) = 0;
  virtual void copy_out(void *host, const void *device, size_t bytes, Native stream) = 0;
  virtual void copy_within(void *to, const void *from, size_t bytes, Native stream) = 0;  // or between two devices
  virtual void zero(void *memory, size_t bytes, Native stream) = 0;

  virtual Native new_stream(bool urgent) = 0;
  virtual bool idle(Native stream) = 0;  // all work of the stream is done
  virtual void synchronize(Native stream) = 0;
  virtual void synchronize() = 0;  // with the whole device

  virtual Native new_event(bool timed) = 0;
  virtual void destroy_event(Native event) = 0;
  virtual void record(Native event, Native stream) = 0;
  virtual void wait(Native stream, Native event) = 0;
  virtual bool done(Native event) = 0;  // its stream has come to the record
  virtual void synchronize_event(Native event) = 0;
  virtual float elapsed_ms(Native first, Native second) = 0;
};

// The simulated vendor that this process finds. The first call opens the vendor's libraries. The call throws if there are none, or if they
// are real ones. Never destroyed: tensors may outlive everything else.
Api &api();

// A device is current in the thread as long as an On lives.
class On {
 public:
  explicit On(int device) : before_(api().enter(device)) {}
  ~On() { api().leave(before_); }
  On(const On &) = delete;
  On &operator=(const On &) = delete;

 private:
  int before_;
};

// True in a child of fork(). The child may call nothing of the vendor, and the memory of a tensor that dies in the child is not freed.
bool in_forked_child() noexcept;

}  // namespace rehearsal_torch
