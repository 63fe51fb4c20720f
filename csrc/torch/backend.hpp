// The c10d::Backend "isthmus". Every method translates its tensors and options, and makes one call of isthmus.h.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <c10/util/FunctionRef.h>

#include <isthmus/isthmus.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "completion_hook.hpp"
#include "fork.hpp"
#include "tensors.hpp"
#include "work.hpp"

namespace isthmus::torch_face {

// The options of one group; init_process_group(pg_options=...). Empty strings mean the environment's or the default.
struct GroupOptions final : c10d::Backend::Options {
  GroupOptions() : c10d::Backend::Options("isthmus") {}
  std::string island, bridge;
  std::string settings;  // "NAME=value;NAME=value"
  std::string device;    // "cuda:1": what the rank works on where neither the settings nor the environment say it
};

// The properties of one operation. The call that starts the operation is not among them.
struct BackendRequest {
  c10d::OpType type;
  const char *title;  // in torch's profiler
  std::chrono::milliseconds timeout;
  bool async;
  std::vector<at::Tensor> inputs;   // kept alive while it runs
  std::vector<at::Tensor> outputs;  // kept alive, and what TorchWork::result() and futures give
  double scale = 1;                 // PREMUL_SUM's factor
  bool waits_for_peer = false;      // a receive
  Staging staging = {};
};

class Backend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Collective over the ranks of the group. `name` is for messages; the timeout is that of `options`.
  Backend(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, c10::intrusive_ptr<GroupOptions> options,
          const std::string &name);
  // Of a communicator that is there already; the group owns it from here on.
  Backend(int rank, int size, c10::intrusive_ptr<GroupOptions> options, std::string name, isthmus_comm_t comm);
  ~Backend() override;
  void release_resources() override;  // called where the last reference goes and a weak one is left

  const std::string getBackendName() const override { return "isthmus"; }
  // A copy: torch writes the name and the timeout of a split into what it gets here.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options(); }
  c10::intrusive_ptr<GroupOptions> options() const { return c10::make_intrusive<GroupOptions>(*options_); }

  WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) override;
  WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
  WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
  WorkPtr allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &opts) override;
  WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &opts) override;
  WorkPtr allgather(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts) override;
  WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &opts) override;
  WorkPtr allgather_coalesced(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts) override;
  WorkPtr gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &opts) override;
  WorkPtr scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &opts) override;
  WorkPtr reduce_scatter(Tensors &outputs, TensorLists &inputs, const c10d::ReduceScatterOptions &opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input, const c10d::ReduceScatterOptions &opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                          const c10d::ReduceScatterOptions &opts) override;
  WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                        std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &opts) override;
  WorkPtr alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts) override;
  WorkPtr send(Tensors &tensors, int peer, int tag) override;
  WorkPtr recv(Tensors &tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors &tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions &opts) override;
  void monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all_ranks) override;

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // A child group meets anew through the store. Only the ranks of the child group take part, and no other rank has to call
  // anything.
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options> &opts) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store> &store,
                                          const c10::intrusive_ptr<c10d::Backend::Options> &opts, const int &rank,
                                          const int &size) override;

  // A group of the ranks that are left, in the same order: collective over these, and they meet over this group's own
  // connections. The excluded ranks need not live. `flags` is SHRINK_DEFAULT (this group goes on, and must not have failed) or
  // SHRINK_ABORT. Of `opts` only the timeout counts, because the ranks stay where they are.
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t> &ranks_to_exclude, int flags,
                                           const c10::intrusive_ptr<c10d::Backend::Options> &opts) override;

  void setSequenceNumberForGroup() override {}  // sequence numbers agree from the start
  uint64_t getSequenceNumberForGroup() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10d::ErrorType getError() override;
  std::optional<std::string> failure();       // why the group can no longer be used; none: it can
  void enableCollectivesTiming() override {}  // TorchWork::getDuration() always knows
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)> &&hook) override;
  void waitForPendingWorks() override;

  void abort() override;     // local; ends every pending operation on every rank, and every wait in other threads
  void shutdown() override;  // not collective; the group cannot be used afterwards

  // JSON texts of isthmus.h.
  std::string topology();
  std::string explain(const std::string &collective, uint64_t count, at::ScalarType dtype, const c10d::ReduceOp &op,
                      int root);
  std::string dump();

  // Shuts every group of the process down while the interpreter is alive. Waits a short while for pending operations.
  static void shutdown_all();
  static void forked() noexcept;  // in a forked child: none of the groups is its own

 private:
  using Start = c10::function_ref<isthmus_result(const isthmus_call *, isthmus_work_t *)>;
  // Every operation goes through submit(), which calls `start` in one of three ways:
  //   record()     the thread has an open coalescing block
  //   complete()   the caller waits for the end
  //   launch()     else: the call comes back while the operation runs
  WorkPtr submit(BackendRequest request, Start start);
  // record() of a call that waits returns null, which torch takes for a call that is done: the block ends it.
  WorkPtr record(BackendRequest request, const isthmus_call &options, std::optional<c10::Stream> stream, Start start);
  WorkPtr complete(BackendRequest request, const isthmus_call &options, Start start);
  WorkPtr launch(BackendRequest request, isthmus_call options, std::optional<c10::Stream> stream, Start start);

  // A group of split() or merge(). torch asks for one for each kind of device, one after the other with the same store, and keeps the first: they
  // all are the same group.
  static c10::intrusive_ptr<Backend> child(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                                           const c10::intrusive_ptr<GroupOptions> &options, const std::string &name);

  // Where the operation stands if its tensors are on a device: the caller's current stream there.
  std::optional<c10::Stream> stream_of(const BackendRequest &request) const;

  // Of lists.cpp: one gather into a list of one tensor a rank.
  struct ListGather {
    Buffer in;
    bool flat;
    Buffer whole;   // if flat
    Scattered out;  // if not
  };
  ListGather prepare_gather(Staging &staging, const at::Tensor &input, const Tensors &outputs);
  isthmus_result run_gather(const ListGather &gather, const isthmus_call *call, isthmus_work_t *work);
  int checked_root(int64_t root) const;
  void check_peer(int peer, const char *what) const;

  // Holds the communicator open during a call, and refuses calls after shutdown().
  class OpenCall {
   public:
    explicit OpenCall(Backend &backend);
    ~OpenCall();
    OpenCall(const OpenCall &) = delete;
    OpenCall &operator=(const OpenCall &) = delete;
    static int of_this_thread(const Backend &backend) noexcept;  // how many calls of the group this thread is inside of

   private:
    static thread_local OpenCall *innermost_;  // of this thread
    Backend &backend_;
    OpenCall *const outer_ = innermost_;
  };
  void leave() noexcept;  // the end of an OpenCall

  const c10::intrusive_ptr<GroupOptions> options_;
  const std::string name_;
  const ProcessBirth birth_{};  // a forked child leaves the communicator alone
  // Set in the constructor; destroyed by shutdown() when nobody is inside, else by the call that leaves last.
  isthmus_comm_t comm_ = nullptr;
  // With inside_, sequentially consistent: either an OpenCall sees it, or shutdown() sees the OpenCall. Shared with the
  // coalescing blocks that the group has opened.
  const std::shared_ptr<std::atomic<bool>> closed_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<int> inside_{0};
  std::atomic<bool> last_destroys_{false};

  // Of child(), while the group is open. The thread's that has made it, and shutdown()'s.
  c10::intrusive_ptr<c10d::Store> met_in_;
  std::shared_ptr<CompletionHook> hook_;  // shared with the operations that are to report; null: there is none
};

}  // namespace isthmus::torch_face
