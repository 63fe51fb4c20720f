// The class behind isthmus.Comm. A PythonCommunicator owns one rank's handle, and counts the calls that use the handle.
#pragma once

#include <optional>
#include <string>

#include "errors.hpp"

namespace isthmus::python {

struct InitArguments {
  int rank = -1, world_size = -1;  // -1: from the launcher's environment
  std::optional<std::string> address, unique_id, island, bridge, name, settings;
  py::object exchange;  // callable: bytes -> the bytes of all ranks, joined; or None
  double timeout = 0;   // 0: ISTHMUS_TIMEOUT
};

class PythonCommunicator {
 public:
  explicit PythonCommunicator(const InitArguments &options);  // collective: isthmus_init
  explicit PythonCommunicator(isthmus_comm_t handle);         // takes the handle
  ~PythonCommunicator();
  PythonCommunicator(const PythonCommunicator &) = delete;
  PythonCommunicator &operator=(const PythonCommunicator &) = delete;

  // Counts a call that uses the handle without the GIL. Meanwhile destroy() on another thread cannot free the handle.
  class ActiveCall {
   public:
    explicit ActiveCall(PythonCommunicator *c) noexcept : c_(c) { ++c_->active_; }
    ~ActiveCall() { c_->leave(); }
    ActiveCall(const ActiveCall &) = delete;
    ActiveCall &operator=(const ActiveCall &) = delete;

   private:
    PythonCommunicator *c_;
  };

  // The handle. NULL with an ArgumentError after destroy().
  isthmus_comm_t handle(const char *call) const;
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  bool destroyed() const noexcept { return !open_; }

  void destroy();
  void abort(const std::string &reason);
  void revoke(const std::string &reason);
  void raised(const std::string &what);
  void set_timeout(py::object seconds);
  uint64_t sequence();
  py::object error();  // None, or the exception that says why the communicator can no longer be used
  py::object split(int color, int key, const std::optional<std::string> &name);  // a capsule, or None
  // A capsule. mode: isthmus_shrink_mode; not dense: each rank keeps its slot.
  py::object shrink(const std::vector<int> &exclude, int mode, bool dense, const std::optional<std::string> &name);
  // The handle goes over to a new epoch: see isthmus_comm_reconfigure.
  void reconfigure(const std::vector<int> &exclude, const std::optional<std::string> &ticket, int n,
                   const std::optional<std::vector<int>> &slots, bool dense);
  py::tuple agree(uint64_t flags, const std::vector<int> &failed, bool allow_minority, std::optional<double> timeout);
  std::string topology();
  std::string dump();
  std::string explain(const std::string &collective, uint64_t count, py::object dtype, py::object op, int root);

  // Destroys all open communicators, at the interpreter's end. Each waits for its pending operations, for at most `seconds`.
  static void destroy_all(double seconds);

 private:
  void end(const char *call, isthmus_result (*how)(isthmus_comm_t, const char *), const std::string &why);
  void adopt(isthmus_comm_t handle);
  void leave();
  void free_handle();

  isthmus_comm_t handle_ = nullptr;
  bool open_ = false;  // false after destroy(); the handle may live on until the last call has left
  int active_ = 0;     // calls inside the library; guarded by the GIL
  int rank_ = -1, size_ = 0;
  long pid_ = 0;  // the process that made the communicator: a forked child leaves the handle alone
};

// What init and join have in common. The texts are those of `given`.
isthmus_options joining_options(const InitArguments &given);

std::string measure_leader_exchange(PythonCommunicator &comm, double seconds);  // JSON; collective

constexpr const char *kHandleCapsule = "isthmus_comm_t";

}  // namespace isthmus::python
