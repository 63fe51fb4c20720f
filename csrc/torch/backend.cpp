// The life of a group, and how a call becomes a TorchWork.
#include "backend.hpp"

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <thread>
#include <unordered_set>

#include "coalescing.hpp"
#include "completer.hpp"
#include "errors.hpp"
#include "interpreter.hpp"
#include "rendezvous.hpp"

namespace isthmus::torch_face {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLeaveInside = 10s;  // how long shutdown() waits for threads that an abort has released
constexpr double kExitSeconds = 2;  // how long pending operations may hold up the end of the process

using OpenGroups = Guarded<std::unordered_set<Backend *>>;  // the groups that are not shut down
// Never destroyed: a group may outlive static destruction.
std::atomic<OpenGroups *> the_open_groups{new OpenGroups};
OpenGroups &open_groups() { return *the_open_groups.load(std::memory_order_acquire); }

// A list of ranks as text, "0-3,7". The texts of two ranks are compared, so a long text without order ends with a digest of
// the whole list.
std::string listed(const std::vector<uint64_t> &ranks) {
  constexpr std::size_t kLongest = 800;
  std::string text;
  uint64_t digest = 14695981039346656037u;  // FNV-1a
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (text.size() < kLongest) text += c10::str(i ? "," : "", ranks[i], end > i + 1 ? c10::str("-", ranks[end - 1]) : "");
    for (; i < end; ++i) digest = (digest ^ ranks[i]) * 1099511628211u;
  }
  return text.size() < kLongest ? text : c10::str(text, ",... (", ranks.size(), " ranks, digest ", digest, ")");
}

// Whether a call that failed so had begun an operation. An interrupted call is the signal handler's exception, and is over.
bool has_begun(isthmus_result result) noexcept {
  return result != ISTHMUS_ERR_ARGUMENT && result != ISTHMUS_ERR_CONFIG && result != ISTHMUS_ERR_UNSUPPORTED &&
         result != ISTHMUS_ERR_FORKED && result != ISTHMUS_ERR_INTERRUPTED;
}

std::string owned_text(char *json) {
  std::string text = json;
  isthmus_free(json);
  return text;
}

}  // namespace

Backend::Backend(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, c10::intrusive_ptr<GroupOptions> options,
                 const std::string &name)
    : c10d::Backend(rank, size), options_(std::move(options)), name_(name) {
  init();
  if (options_->timeout <= kNoTimeout) bad_argument("the timeout of a group must be positive");
  const interpreter::WithoutGil without_gil;
  StoreExchange exchange(without_device_prefix(store), rank, size, options_->timeout, name_);
  isthmus_options init = {};
  init.size = sizeof init;
  init.rank = rank;
  init.world_size = size;
  init.exchange = StoreExchange::exchange;
  init.exchange_context = &exchange;
  init.name = name_.c_str();
  const std::string members = "global ranks " + listed(options_->global_ranks_in_group);
  init.members = options_->global_ranks_in_group.empty() ? nullptr : members.c_str();
  init.island = options_->island.empty() ? nullptr : options_->island.c_str();
  init.bridge = options_->bridge.empty() ? nullptr : options_->bridge.c_str();
  init.timeout = seconds(options_->timeout);
  std::string settings = options_->device.empty() ? "" : "DEVICE=" + options_->device + ";";  // the last of two counts
  settings += options_->settings;
  init.settings = settings.empty() ? nullptr : settings.c_str();
  const isthmus_result result = isthmus_init(&init, &comm_);
  if (exchange.error()) std::rethrow_exception(exchange.error());  // says more than init's "the exchange failed"
  check(result);
  exchange.clean_up();
  open_groups().lock()->insert(this);
}

Backend::Backend(int rank, int size, c10::intrusive_ptr<GroupOptions> options, std::string name, isthmus_comm_t comm)
    : c10d::Backend(rank, size), options_(std::move(options)), name_(std::move(name)), comm_(comm) {
  init();
  open_groups().lock()->insert(this);
}

Backend::~Backend() { shutdown(); }

void Backend::release_resources() {
  shutdown();
  hook_.reset();
}

constinit thread_local Backend::OpenCall *Backend::OpenCall::innermost_ = nullptr;

Backend::OpenCall::OpenCall(Backend &backend) : backend_(backend) {
  if (!backend_.birth_.here()) {
    raise(
        ISTHMUS_ERR_FORKED,
        c10::str(
            "group ", backend_.name_,
            " belongs to the parent process, and a forked child cannot use it; make one here (destroy_process_group, which "
            "leaves the parent's as it is, then init_process_group with a store of its own)"));
  }
  backend_.inside_.fetch_add(1);
  if (backend_.closed_->load()) {
    backend_.leave();
    raise(ISTHMUS_ERR_ARGUMENT,
          c10::str("group ", backend_.name_, " was shut down (destroy_process_group); it cannot be used any more"));
  }
  innermost_ = this;
}

Backend::OpenCall::~OpenCall() {
  innermost_ = outer_;
  backend_.leave();
}

int Backend::OpenCall::of_this_thread(const Backend &backend) noexcept {
  int calls = 0;
  for (const OpenCall *call = innermost_; call; call = call->outer_) calls += &call->backend_ == &backend;
  return calls;
}

void Backend::leave() noexcept {
  if (inside_.fetch_sub(1) != 1 || !last_destroys_.load() || !last_destroys_.exchange(false)) return;
  const interpreter::WithoutGil without_gil;
  static_cast<void>(isthmus_comm_destroy(comm_));
}

void Backend::shutdown() {
  if (!closed_->load() && comm_ && birth_.here()) {  // a flight record needs the group open
    const interpreter::WithoutGil without_gil;
    static_cast<void>(isthmus_dump_settle(kExitSeconds));
  }
  if (closed_->exchange(true) || !comm_ || !birth_.here()) return;
  open_groups().lock()->erase(this);
  met_in_.reset();
  coalescing::drop_if_abandoned();
  const interpreter::WithoutGil without_gil;
  if (inside_.load() > 0) {
    // A signal's handler runs inside the call that it interrupts, which ends after the handler.
    const int own = OpenCall::of_this_thread(*this);
    static_cast<void>(isthmus_comm_abort(
        comm_, own > 0 ? "the process group was shut down by a signal's handler, which had interrupted a call of the group"
                       : "the process group was shut down while another thread used it"));
    const auto deadline = Clock::now() + kLeaveInside;
    while (inside_.load() > own && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
    if (inside_.load() > own) {
      TORCH_WARN("isthmus: a thread is still inside group ", name_,
                 " 10 s after its abort; the group is left open until the thread comes out");
    }
    last_destroys_.store(true);
    if (inside_.load() > 0 || !last_destroys_.exchange(false)) return;
  }
  static_cast<void>(isthmus_comm_destroy(comm_));
}

void Backend::shutdown_all() {
  const interpreter::WithoutGil without_gil;
  while (true) {
    c10::intrusive_ptr<Backend> backend;
    {
      const auto open = open_groups().lock();
      if (open->empty()) break;
      Backend *const one = *open->begin();
      open->erase(one);
      // Null where another thread has let go of the group: its shutdown() waits for this lock, and goes on by itself.
      backend = c10::intrusive_ptr<Backend>::reclaim(c10::raw::weak_intrusive_ptr::lock(one));
    }
    if (!backend) continue;
    static_cast<void>(isthmus_comm_set_timeout(backend->comm_, kExitSeconds));
    backend->shutdown();
  }
  Completer::get().stop();
}

void Backend::forked() noexcept { the_open_groups.store(new OpenGroups, std::memory_order_release); }

void Backend::abort() {
  if (closed_->load() || !birth_.here()) return;
  const OpenCall entry(*this);
  check(isthmus_comm_abort(comm_, "torch: abort() of the process group"));
}

std::optional<c10::Stream> Backend::stream_of(const BackendRequest &request) const {
  const std::optional<c10::Device> device = request.staging.device();
  if (!device) return std::nullopt;
  if (isthmus_comm_device(comm_) < 0) {
    raise(ISTHMUS_ERR_UNSUPPORTED, c10::str("a tensor on ", *device,
                                            " was passed, and this rank works on host memory: choose the device before the "
                                            "group is made (torch.",
                                            device->type() == c10::DeviceType::PrivateUse1 ? "accelerator" : "cuda",
                                            ".set_device..., or ISTHMUS_DEVICE), or move the tensor with .cpu()"));
  }
  return c10::impl::VirtualGuardImpl(device->type()).getStream(*device);
}

Backend::WorkPtr Backend::submit(BackendRequest request, Start start) {
  const OpenCall entry(*this);
  isthmus_call options = ISTHMUS_CALL_INIT;
  options.timeout = request.timeout > kNoTimeout ? seconds(request.timeout) : 0;
  options.scale = request.scale;
  // The profiler's record costs as much as a small operation, so it is made only while the profiler records.
  if (!at::hasCallbacks()) request.title = nullptr;
  // An operation on a device is always asynchronous: the operation begins behind the caller's current stream.
  const std::optional<c10::Stream> stream = stream_of(request);
  if (stream) {
    options.on_stream = ISTHMUS_STREAM_BOTH;
    options.stream = stream->native_handle();
    options.device_memory = ISTHMUS_MEMORY_BOTH;
  }
  if (coalescing::open()) return record(std::move(request), options, stream, start);
  if (!request.async && !stream) return complete(std::move(request), options, start);
  return launch(std::move(request), options, stream, start);
}

Backend::WorkPtr Backend::record(BackendRequest request, const isthmus_call &options, std::optional<c10::Stream> stream,
                                 Start start) {
  const std::shared_ptr<PendingWork> block = coalescing::current();
  try {
    if (stream) block->place().stands_on(*stream);
    else block->place().stands_on_host();
  } catch (const std::exception &e) {
    coalescing::fail(ISTHMUS_ERR_ARGUMENT, e.what());
    throw;
  }
  auto work = c10::make_intrusive<TorchWork>(rank_, request.type, request.title, request.inputs, request.outputs);
  const isthmus_result result = start(&options, nullptr);
  if (result != ISTHMUS_OK) {
    const std::string text = isthmus_last_error();
    coalescing::fail(result, text);
    raise(result, text);
  }
  block->keep(std::move(request.inputs), std::move(request.staging));
  block->keep(std::move(request.outputs), {});
  if (!request.async && coalescing::opened_by(*this)) return nullptr;
  work->follow(block);
  return work;
}

Backend::WorkPtr Backend::complete(BackendRequest request, const isthmus_call &options, Start start) {
  const auto begin = Clock::now();
  std::shared_ptr<CompletionHook::HookReport> report;
  if (hook_) report = std::make_shared<CompletionHook::HookReport>(hook_, request.type);
  auto work = c10::make_intrusive<TorchWork>(rank_, request.type, request.title, request.inputs, std::move(request.outputs));
  isthmus_result result = ISTHMUS_OK;
  {
    const interpreter::WithoutGil without_gil;
    result = start(&options, nullptr);
  }
  interpreter::raise_if_interrupted();
  if (result != ISTHMUS_OK) {
    const std::string text = isthmus_last_error();
    if (report && has_begun(result)) CompletionHook::tell(std::move(report), isthmus_comm_sequence(comm_));
    raise(result, text);
  }
  request.staging.finish();
  work->done(isthmus_comm_sequence(comm_), Clock::now() - begin);
  if (report) CompletionHook::tell(std::move(report), work->getSequencenumber());
  return work;
}

Backend::WorkPtr Backend::launch(BackendRequest request, isthmus_call options, std::optional<c10::Stream> stream,
                                 Start start) {
  std::shared_ptr<CompletionHook::HookReport> report;
  if (hook_) report = std::make_shared<CompletionHook::HookReport>(hook_, request.type);
  auto work = c10::make_intrusive<TorchWork>(rank_, request.type, request.title, request.inputs, request.outputs);
  auto operation = PendingWork::make();
  const bool later = request.waits_for_peer || (request.async && may_go_on_beside(request.type));
  if (stream && later && (request.waits_for_peer || !request.staging.has_copies())) {
    // Kernels run beside the operation until wait(), and no stream that waits for a message holds up a send to its sender.
    options.on_stream = ISTHMUS_STREAM_BEFORE;
    operation->place().begins_behind(*stream);
  } else if (stream) {
    operation->place().stands_on(*stream);
  }
  isthmus_work_t handle = nullptr;
  {
    const interpreter::WithoutGil without_gil;  // a device that cannot wait for the host lets the call do so
    check(start(&options, &handle));
  }
  operation->keep(std::move(request.inputs), std::move(request.staging));
  operation->keep(std::move(request.outputs), {});
  if (report)
    operation->at_end(
        [report, sequence = handle ? isthmus_work_sequence(handle) : 0] { CompletionHook::tell(report, sequence); });
  work->follow(operation);
  operation->submitted(handle);
  interpreter::raise_if_interrupted();
  return work;
}

void Backend::startCoalescing() {
  const OpenCall entry(*this);
  coalescing::begin(*this, closed_);
}

Backend::WorkPtr Backend::endCoalescing() {
  const OpenCall entry(*this);
  auto work = c10::make_intrusive<TorchWork>(rank_, c10d::OpType::COALESCED, "isthmus:coalesced", Tensors{}, Tensors{});
  std::shared_ptr<CompletionHook::HookReport> report;
  if (hook_) report = std::make_shared<CompletionHook::HookReport>(hook_, c10d::OpType::COALESCED);
  coalescing::end(*this, [&](const std::shared_ptr<PendingWork> &operation, isthmus_work_t handle, bool outermost) {
    work->follow(operation);
    if (!report || !outermost) return;
    operation->at_end(
        [report, sequence = handle ? isthmus_work_sequence(handle) : 0] { CompletionHook::tell(report, sequence); });
  });
  return work;
}

uint64_t Backend::getSequenceNumberForGroup() {
  const OpenCall entry(*this);
  return isthmus_comm_sequence(comm_);
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  const OpenCall entry(*this);
  if (timeout <= kNoTimeout) bad_argument("the timeout of a group must be positive");
  check(isthmus_comm_set_timeout(comm_, seconds(timeout)));
  options_->timeout = timeout;
}

c10d::ErrorType Backend::getError() {
  const OpenCall entry(*this);
  switch (isthmus_comm_error(comm_)) {
    case ISTHMUS_OK: return c10d::ErrorType::SUCCESS;
    case ISTHMUS_ERR_TIMEOUT: return c10d::ErrorType::TIMEOUT;
    case ISTHMUS_ERR_PEER_LOST: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
  }
}

std::optional<std::string> Backend::failure() {
  const OpenCall entry(*this);
  const isthmus_result result = isthmus_comm_error(comm_);
  if (result == ISTHMUS_OK) return std::nullopt;
  return c10::str(isthmus_result_name(result), " - ", isthmus_last_error());
}

void Backend::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)> &&hook) {
  TORCH_CHECK(!hook_, "isthmus: a completion hook is already registered on group ", name_);
  hook_ = std::make_shared<CompletionHook>(std::move(hook));
  onCompletionHook_ = [](const std::shared_ptr<c10d::WorkInfo> &) {};  // what hasHooks() looks at
}

void Backend::waitForPendingWorks() {
  if (!hook_) return;
  const interpreter::WithoutGil without_gil;  // hooks may be Python
  hook_->wait(options_->timeout);
}

std::string Backend::topology() {
  const OpenCall entry(*this);
  char *json = nullptr;
  check(isthmus_comm_topology(comm_, &json));
  return owned_text(json);
}

std::string Backend::explain(const std::string &collective, uint64_t count, at::ScalarType dtype, const c10d::ReduceOp &op,
                             int root) {
  const OpenCall entry(*this);
  const Carried carried = carried_as(at::empty({0}, at::TensorOptions().dtype(dtype)), Use::move);
  char *json = nullptr;
  check(isthmus_comm_explain(comm_, collective.c_str(), count * carried.per_element, carried.dtype, reduction(op), root,
                             &json));
  return owned_text(json);
}

std::string Backend::dump() {
  const OpenCall entry(*this);
  char *json = nullptr;
  check(isthmus_comm_dump(comm_, &json));
  return owned_text(json);
}

int Backend::checked_root(int64_t root) const {
  if (root < 0 || root >= size_)
    bad_argument(c10::str("root ", root, " is not a rank of group ", name_, ", which has ", size_));
  return static_cast<int>(root);
}

void Backend::check_peer(int peer, const char *what) const {
  if (peer < 0 || peer >= size_)
    bad_argument(c10::str(what, " ", peer, ": not a rank of group ", name_, ", which has ", size_));
}

}  // namespace isthmus::torch_face
