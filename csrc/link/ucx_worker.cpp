#include "link/ucx_worker.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/log.hpp"

namespace isthmus::link {
namespace {

using namespace ucx_abi;

constexpr int kRounds = 16;             // of UCX in one progress(), so that links get their time
constexpr size_t kMostEarly = 1 << 16;  // hellos of processes that this one may never know

const void *this_thread() noexcept {
  static thread_local const char here = 0;
  return &here;
}

}  // namespace

UcxWorker::Hold::Hold(UcxWorker &worker) noexcept : worker_(worker) {
  while (!worker_.try_turn()) ::sched_yield();
}

UcxWorker::UcxWorker() : ucx_(UcxLibrary::open()), context_(ucx_.make_context()) {
  try {
    make_worker();
  } catch (...) {
    if (worker_) ucx_->worker_destroy(worker_);
    ucx_->cleanup(context_);
    throw;
  }
}

void UcxWorker::make_worker() {
  const auto must = [&](const char *what, ucx_abi::Status s) {
    if (s != kOk) fail(Code::Unsupported, "ucx: {} of UCX {} fails: {}", what, ucx_.version(), ucx_.text(s));
  };
  WorkerParams params;
  params.fields = kWorkerThreadMode | kWorkerFlags;
  params.thread_mode = kSerialized;
  params.flags = kIgnoreRequestLeak;
  must("ucp_worker_create", ucx_->worker_create(context_, &params, &worker_));
  must("ucp_worker_get_efd", ucx_->worker_get_efd(worker_, &fd_));
  for (const auto &[id, callback] : {std::pair<unsigned, OnArrival>{kData, on_data}, {kHello, on_hello}}) {
    HandlerParams handler;
    handler.fields = kHandlerId | kHandlerCallback | kHandlerArgument;
    handler.id = id;
    handler.callback = callback;
    handler.argument = this;
    must("ucp_worker_set_am_recv_handler", ucx_->worker_set_am_recv_handler(worker_, &handler));
  }
  Address *address = nullptr;
  size_t bytes = 0;
  must("ucp_worker_get_address", ucx_->worker_get_address(worker_, &address, &bytes));
  address_.resize(bytes);
  std::memcpy(address_.data(), address, bytes);
  ucx_->worker_release_address(worker_, address);
}

UcxWorker::~UcxWorker() {
  ucx_->worker_destroy(worker_);
  leftovers_.clear();
  ucx_->cleanup(context_);
}

bool UcxWorker::progress() noexcept {
  int rounds = 0;
  while (rounds < kRounds && ucx_->worker_progress(worker_) != 0) ++rounds;
  if (watcher_ == this_thread()) watcher_ = nullptr;  // it is awake
  // What was taken out of UCX does not wake a sleeper by itself, and may be what the sleeper waits for.
  if (rounds != 0 && watcher_) {
    ucx_->worker_signal(worker_);
    watcher_ = nullptr;
  }
  return rounds != 0;
}

bool UcxWorker::watch() noexcept {
  if (watcher_ == this_thread()) return true;  // nothing has happened since
  watcher_ = nullptr;
  if (ucx_->worker_arm(worker_) != kOk) return false;
  watcher_ = this_thread();
  return true;
}

void UcxWorker::attach(uint64_t token, UcxReceiver &receiver) {
  receivers_[token] = &receiver;
  const auto early = early_.find(token);
  if (early == early_.end()) return;
  receiver.greeted(early->second);
  early_.erase(early);
}

void UcxWorker::detach(uint64_t token) noexcept { receivers_.erase(token); }

Memory UcxWorker::map(std::span<std::byte> memory) {
  MemoryParams params;
  params.fields = kMemoryAddress | kMemoryLength;
  params.address = memory.data();
  params.length = memory.size();
  Memory out = nullptr;
  if (const ucx_abi::Status s = ucx_->mem_map(context_, &params, &out); s != kOk)
    fail(Code::Resource,
         "ucx: {} bytes of staging memory cannot be registered: {}. `ulimit -l` is the limit of locked memory, which RDMA "
         "devices need unlimited",
         memory.size(), ucx_.text(s));
  return out;
}

void UcxWorker::unmap(Memory memory) noexcept { ucx_->mem_unmap(context_, memory); }

ucx_abi::Status UcxWorker::on_data(void *self, const void *header, size_t header_bytes, void *data, size_t bytes,
                                   const ArrivalParams *params) {
  auto &worker = *static_cast<UcxWorker *>(self);
  UcxHeader h;
  if (header_bytes < sizeof h) return kOk;
  std::memcpy(&h, header, sizeof h);
  const auto found = worker.receivers_.find(h.token);
  if (found == worker.receivers_.end()) return kOk;  // of a link that is gone, or of nobody whom this process knows
  const std::span rest(static_cast<const std::byte *>(header) + sizeof h, header_bytes - sizeof h);
  return found->second->arrived(h, rest, data, bytes, params->attributes);
}

ucx_abi::Status UcxWorker::on_hello(void *self, const void *header, size_t header_bytes, void *, size_t,
                                    const ArrivalParams *) {
  auto &worker = *static_cast<UcxWorker *>(self);
  UcxHeader h;
  if (header_bytes != sizeof h) return kOk;
  std::memcpy(&h, header, sizeof h);
  if (const auto found = worker.receivers_.find(h.token); found != worker.receivers_.end()) found->second->greeted(h.number);
  else if (worker.early_.size() < kMostEarly) worker.early_.emplace(h.token, h.number);
  return kOk;
}

}  // namespace isthmus::link
