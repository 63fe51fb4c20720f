// Groups that are made of a group: by split(), merge() and shrink().
#include <algorithm>

#include "backend.hpp"
#include "errors.hpp"
#include "interpreter.hpp"

namespace isthmus::torch_face {

namespace {

constexpr int kShrinkDefault = 0, kShrinkAbort = 1;  // torch.distributed.SHRINK_DEFAULT and SHRINK_ABORT

}  // namespace

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
                                                 const c10::intrusive_ptr<c10d::Backend::Options> &opts) {
  const auto me = std::find(ranks.begin(), ranks.end(), rank_);
  if (me == ranks.end()) return nullptr;
  auto options =
      c10::make_intrusive<GroupOptions>(*options_);  // never the caller's object: it may be used for the next split too
  if (opts) {
    if (const auto *ours = dynamic_cast<const GroupOptions *>(opts.get())) {
      options->island = ours->island;
      options->bridge = ours->bridge;
      options->settings = ours->settings;
    }
    options->timeout = opts->timeout;
    options->group_name = opts->group_name;
    options->group_desc = opts->group_desc;
  }
  options->global_ranks_in_group.clear();
  for (const int r : ranks) {
    const auto &global = options_->global_ranks_in_group;
    options->global_ranks_in_group.push_back(global.empty() ? static_cast<uint64_t>(r)
                                                            : global.at(static_cast<std::size_t>(r)));
  }
  const std::string name = options->group_name.empty() ? name_ + ":split" : options->group_name;
  return child(store, static_cast<int>(me - ranks.begin()), static_cast<int>(ranks.size()), options, name);
}

c10::intrusive_ptr<Backend> Backend::child(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                                           const c10::intrusive_ptr<GroupOptions> &options, const std::string &name) {
  static thread_local c10::weak_intrusive_ptr<Backend> last{c10::intrusive_ptr<Backend>()};
  if (auto there = last.lock(); there && !there->closed_->load() && there->met_in_ == store && there->name_ == name &&
                                there->rank_ == rank && there->size_ == size &&
                                there->options_->global_ranks_in_group == options->global_ranks_in_group)
    return there;
  auto made = c10::make_intrusive<Backend>(store, rank, size, options, name);
  made->met_in_ = store;
  last = c10::weak_intrusive_ptr<Backend>(made);
  return made;
}

c10::intrusive_ptr<c10d::Backend> Backend::merge(const c10::intrusive_ptr<c10d::Store> &store,
                                                 const c10::intrusive_ptr<c10d::Backend::Options> &opts, const int &rank,
                                                 const int &size) {
  auto options = c10::make_intrusive<GroupOptions>(*options_);
  if (opts) {
    options->timeout = opts->timeout;
    options->group_name = opts->group_name;
  }
  options->global_ranks_in_group.clear();
  const std::string name = options->group_name.empty() ? name_ + ":merge" : options->group_name;
  return child(store, rank, size, options, name);
}

c10::intrusive_ptr<c10d::Backend> Backend::shrink(const std::vector<int64_t> &ranks_to_exclude, int flags,
                                                  const c10::intrusive_ptr<c10d::Backend::Options> &opts) {
  const OpenCall entry(*this);
  if (flags != kShrinkDefault && flags != kShrinkAbort)
    bad_argument(c10::str("shrink of group ", name_, ": flags ", flags, " are neither SHRINK_DEFAULT nor SHRINK_ABORT"));
  std::vector<int> excluded;
  for (const int64_t r : ranks_to_exclude) {
    if (r < 0 || r >= size_)
      bad_argument(c10::str("shrink: rank ", r, ": not a rank of group ", name_, ", which has ", size_));
    excluded.push_back(static_cast<int>(r));
  }
  auto options = c10::make_intrusive<GroupOptions>(*options_);
  if (const auto *given = dynamic_cast<const GroupOptions *>(opts.get())) {
    const auto other = [](const std::string &wanted, const std::string &has) { return !wanted.empty() && wanted != has; };
    if (other(given->island, options_->island) || other(given->bridge, options_->bridge) ||
        other(given->settings, options_->settings))
      bad_argument(c10::str("shrink of group ", name_,
                            ": the ranks keep their island, bridge and settings; of options only the timeout counts"));
  }
  if (opts && opts->timeout != kBackendDefaultTimeout) options->timeout = opts->timeout;
  if (options->timeout <= kNoTimeout) bad_argument("the timeout of a group must be positive");
  options->global_ranks_in_group.clear();
  int rank = 0, size = 0;
  for (int r = 0; r < size_; ++r) {
    if (std::find(excluded.begin(), excluded.end(), r) != excluded.end()) continue;
    if (r < rank_) ++rank;
    ++size;
    const auto &global = options_->global_ranks_in_group;
    options->global_ranks_in_group.push_back(global.empty() ? static_cast<uint64_t>(r)
                                                            : global.at(static_cast<std::size_t>(r)));
  }
  const std::string name = name_ + "/shrink";
  isthmus_comm_t left = nullptr;
  {
    const interpreter::WithoutGil without_gil;
    check(isthmus_comm_shrink(comm_, excluded.data(), static_cast<int>(excluded.size()),
                              flags == kShrinkAbort ? ISTHMUS_SHRINK_ABORT : ISTHMUS_SHRINK_KEEP, name.c_str(), &left));
  }
  auto made = c10::make_intrusive<Backend>(rank, size, options, name, left);
  made->setTimeout(options->timeout);  // the communicator has that of its init
  return made;
}

}  // namespace isthmus::torch_face
