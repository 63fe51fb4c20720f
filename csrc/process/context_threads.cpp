#include "process/context_threads.hpp"

#include "base/fork.hpp"

namespace isthmus::process {
namespace {

thread_local bool own_thread = false;
const InChild forgets_own_thread([](void *) noexcept { own_thread = false; });

}  // namespace

void enter_context_thread() noexcept { own_thread = true; }

bool on_context_thread() noexcept { return own_thread; }

}  // namespace isthmus::process
