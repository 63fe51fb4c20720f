#include "target.hpp"

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

// A vendor's library may have written to the variable, too, when the group ended. The library's handle stays there.
void Target::write(void *handle) noexcept {
  if (*out_ == handle_) *out_ = handle;
}

}  // namespace isthmus::bridge
