#include "target.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <exception>
#include <utility>

#include "handles.hpp"

namespace isthmus::bridge {

bool Target::promise(const DevicePlace &place, bool blocking, const std::string &name) {
  Traits traits{0, 0, place, blocking, name, std::make_shared<LocalRanks>(name), nullptr, true};
  promised_ = std::make_shared<Comm>(std::move(traits));
  handle_ = give_handle(promised_);
  *out_ = handle_;
  if (handle_) state_ = State::Promised;
  return handle_ != nullptr;
}

bool Target::given_up() const { return state_ == State::Promised && find(handle_) != promised_; }

bool Target::put(const CommPtr &comm) {
  if (state_ == State::Promised) {
    if (!replace(handle_, promised_, comm)) return false;
  } else {
    handle_ = give_handle(comm);
    *out_ = handle_;
    if (!handle_) return false;
  }
  promised_ = comm;
  state_ = State::Ours;
  return true;
}

void **Target::vendors() {
  if (state_ != State::Promised) return out_;
  void **at = make_alias(handle_, promised_);
  if (at) state_ = State::Vendors;
  return at;
}

void Target::withdraw() {
  if (state_ == State::Promised || state_ == State::Ours) {
    state_ = State::Empty;
    if (take_back(handle_, promised_)) promised_->abort();
    write(nullptr);
  }
}

void Target::settle() noexcept {
  if (state_ == State::Promised) {
    try {
      withdraw();
    } catch (const std::exception &) {}  // no memory for the list of free handles: this handle is lost
  } else if (state_ == State::Vendors) {
    state_ = State::Empty;
    void *real = behind(handle_);
    if (!real) drop_alias(handle_);
    write(real);
  }
}

// The variable may hold something else by now: a vendor's library may have written its handle there, and the program may use
// the memory for other things, or may have given the memory back. So only a handle of ours is replaced, and the kernel reads
// and writes, which tells where there is no memory any more. Where the kernel may not, the variable keeps the handle, which
// stays another name of the communicator.
void Target::write(void *handle) const noexcept {
  void *held = nullptr;
  const iovec mine{&held, sizeof held}, theirs{out_, sizeof held};
  const pid_t self = ::getpid();
  if (::process_vm_readv(self, &mine, 1, &theirs, 1, 0) != sizeof held || held != handle_) return;
  held = handle;
  static_cast<void>(::process_vm_writev(self, &mine, 1, &theirs, 1, 0));
}

}  // namespace isthmus::bridge
