// One rank's communicator as Python sees it: its life, and who is inside a call of it.
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

  // Counts a call that uses the handle without the GIL, so that destroy() on another thread cannot free it meanwhile.
  class Use {
   public:
    explicit Use(PythonCommunicator *c) noexcept : c_(c) { ++c_->active_; }
    ~Use() { c_->leave(); }
    Use(const Use &) = delete;
    Use &operator=(const Use &) = delete;

   private:
    PythonCommunicator *c_;
  };

  // NULL and an ArgumentError after destroy().
  isthmus_comm_t handle(const char *call) const;
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  bool destroyed() const noexcept { return !open_; }

  void destroy();
  void abort(const std::string &reason);
  void raised(const std::string &what);
  void set_timeout(py::object seconds);
  uint64_t sequence();
  py::object error();  // None, or the exception that says why it can no longer be used
  py::object split(int color, int key, const std::optional<std::string> &name);  // a capsule, or None
  py::object shrink(const std::vector<int> &exclude, bool abort, const std::optional<std::string> &name);  // a capsule
  std::string topology();
  std::string dump();
  std::string explain(const std::string &collective, uint64_t count, py::object dtype, py::object op, int root);
  std::string measure_leader_exchange(double seconds);  // collective

  // Destroys all that are open; each waits for what is pending for at most `seconds`. For the end of the interpreter.
  static void destroy_all(double seconds);

 private:
  void end(const char *call, isthmus_result (*how)(isthmus_comm_t, const char *), const std::string &why);
  void adopt(isthmus_comm_t handle);
  void leave();
  void free_handle();

  isthmus_comm_t handle_ = nullptr;
  bool open_ = false;  // false after destroy(), where the handle may live on until the last call has left
  int active_ = 0;     // calls inside the library; guarded by the GIL
  int rank_ = -1, size_ = 0;
  long pid_ = 0;  // of the process that made it: a forked child leaves it alone
};

constexpr const char *kHandleCapsule = "isthmus_comm_t";

}  // namespace isthmus::python
