// How HCCL's communicators come to be: the census of their ranks, then the real library's call as the program made it, or
// Isthmus.
#include <algorithm>
#include <climits>
#include <cstring>
#include <functional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "config.hpp"
#include "face_hccl.hpp"
#include "handles.hpp"

namespace isthmus::bridge::hccl {
namespace {

using namespace interpose::hccl;  // its codes and types

constexpr uint32_t kConfigMagic = 0xf0f0f0f0;
constexpr size_t kMaxConfig = 1 << 16;
// The last bytes of a root info are a unique id as NCCL's and RCCL's programs have one. HCCL leaves these bytes alone.
constexpr size_t kIdBytes = 128;
constexpr size_t kIdAt = sizeof RootInfo::bytes - kIdBytes;

// The ticket stands at the end of the root info. Where another vendor's program made the id, the ticket may also stand where
// that program put the id: at the beginning of the bytes that it read as a root info.
bool read_ticket(const RootInfo &root, Tail &tail) {
  const std::span<const unsigned char> bytes(root.bytes);
  return read_tail(bytes, tail) || read_tail(bytes.first(kIdBytes), tail);
}

// The name that a program asked for. False: the bytes are no configuration.
bool read(const Config *config, std::string &name) {
  const size_t size = size_of_config(config);
  if (size < offsetof(ConfigHead, unused) || size > kMaxConfig) return false;
  const auto c = read_head<ConfigHead>(config);
  if (c.magic != kConfigMagic) return false;
  name.assign(c.name, ::strnlen(c.name, sizeof c.name));
  return true;
}

const Config *config_of(const ConfigCopy &copy) { return reinterpret_cast<const Config *>(copy.data()); }

// Writes the name into the configuration, where the configuration has room for a name.
void set_name(ConfigCopy &copy, const std::string &name) {
  constexpr size_t kAt = offsetof(ConfigHead, name), kRoom = sizeof ConfigHead::name;
  if (!copy.holds(kAt, kRoom)) return;
  std::memset(copy.data() + kAt, 0, kRoom);
  std::memcpy(copy.data() + kAt, name.data(), std::min(name.size(), kRoom - 1));
}

class HcclInit final : public Init {
 public:
  // `real_init` makes the call of the real library as the program made it.
  HcclInit(const char *name_of_call, Handle *out, std::function<Result()> real_init)
      : Init(face(), name_of_call), out_(out), real_init_(std::move(real_init)) {}
  Result arrive() override;
  Result make_real() override { return real_init_(); }
  Result start() override;
  void unmake() override {
    if (const CommPtr comm = take_back(std::exchange(*out_, nullptr))) comm->abort();
  }
  void clear() noexcept override { *out_ = nullptr; }

  std::vector<Tail> tails;  // of all root infos, where there are several

 private:
  Handle *const out_;  // written when it is known whose the communicator is: in a group when that ends, as at HCCL
  const std::function<Result()> real_init_;
};

// Ends the meetings of further root infos. Ranks of other vendors may know the first root info alone, so the ranks of HCCL
// share the other root infos among themselves.
Result HcclInit::arrive() {
  meet(arrival);
  const auto of_ours = [&](const RankRecord &one) { return std::strcmp(one.family, arrival.mine.family) == 0; };
  const auto begin = arrival.ranks.begin();
  const auto ours = std::count_if(begin, arrival.ranks.end(), of_ours);
  if (tails.size() < 2 || ours == 0) return kSuccess;
  const auto before = std::count_if(begin, begin + arrival.rank, of_ours);
  end_meetings(share_of(tails, static_cast<size_t>(before), static_cast<size_t>(ours)));
  return kSuccess;
}

Result HcclInit::start() {
  Traits traits{arrival.rank, arrival.world, place, true, full_name(), LocalRanks::of(name_of(arrival.tail.ticket)), {}};
  traits.deadlines = true;  // HCCL's operations have one, too, and HCCL has no abort
  const auto comm = std::make_shared<Comm>(std::move(traits));
  try {
    if (const Outcome o = comm->init(arrival.meeting, settings_of(door(), place), vendors_of(arrival.ranks)); !o.ok()) {
      comm->abort();
      return failed(call, o);
    }
    *out_ = give_handle(comm);
  } catch (const std::exception &) {
    comm->abort();
    throw;
  }
  if (*out_) return kSuccess;
  comm->abort();
  return refused(face().rules.no_handle, call, kNoHandle);
}

// Joins a communicator. In a group the rank joins when the group ends.
Result join(const char *call, uint32_t size, const RootInfo &root, uint32_t rank, const std::string &name, Handle *out,
            std::function<Result()> real_init, std::vector<Tail> tails = {}) {
  Tail tail{};
  if (!read_ticket(root, tail)) return real_init();
  const auto i = std::make_shared<HcclInit>(call, out, std::move(real_init));
  i->name = name;
  i->tails = std::move(tails);
  i->expect(tail, static_cast<int>(rank), static_cast<int>(size));
  if (!in_group()) return i->make();
  i->clear();
  return i->defer();
}

// Whether the arguments may be those of a communicator that spans vendors. If not, the real library tells the program what is
// wrong.
bool may_span(uint32_t size, const RootInfo *root, uint32_t rank, const Handle *out) {
  return out && root && size >= 1 && size <= INT_MAX && rank < size;
}

// In both calls HCCL's published source writes a description of the root to the beginning, of 200 bytes or so, and reads no
// more.
Result make_root_info(const char *call, RootInfo *root) {
  auto *f = face().real<Result(RootInfo *)>(call);
  if (!f) return face().lacks(call);
  if (!root) return f(root);
  RootInfo made{};  // the library writes the beginning, and need not clear the rest
  if (const Result r = f(&made)) return r;
  *root = made;
  const std::span<const unsigned char> id(made.bytes + kIdAt, kIdBytes);
  const bool has_room = std::all_of(id.begin(), id.end(), [](unsigned char byte) { return byte == 0; });
  add_ticket(face(), root->bytes, has_room, "root info");
  return kSuccess;
}

Result init_real(uint32_t size, const RootInfo *root, uint32_t rank, Handle *out) {
  return call_real<Result(uint32_t, const RootInfo *, uint32_t, Handle *)>("HcclCommInitRootInfo", size, root, rank, out);
}
Result init_real_config(uint32_t size, const RootInfo *root, uint32_t rank, const Config *config, Handle *out) {
  return call_real<Result(uint32_t, const RootInfo *, uint32_t, const Config *, Handle *)>("HcclCommInitRootInfoConfig",
                                                                                           size, root, rank, config, out);
}
Result init_real_scalable(uint32_t size, uint32_t count, const RootInfo *roots, uint32_t rank, uint32_t further,
                          const Config *config, Handle *out) {
  return call_real<Result(uint32_t, uint32_t, const RootInfo *, uint32_t, uint32_t, const Config *, Handle *)>(
      "HcclCommInitRootInfoScalable", size, count, roots, rank, further, config, out);
}

}  // namespace

Result get_root_info(RootInfo *root) { return make_root_info("HcclGetRootInfo", root); }
Result get_root_info_scalable(RootInfo *root) { return make_root_info("HcclGetRootInfoScalable", root); }

// In a group the real library's calls are made with copies: the program's variables may hold something else when the group
// ends.
Result init(uint32_t size, const RootInfo *root, uint32_t rank, Handle *out) {
  if (!may_span(size, root, rank, out)) return init_real(size, root, rank, out);
  std::function<Result()> real = [=] { return init_real(size, root, rank, out); };
  if (in_group()) real = [=, kept = *root] { return init_real(size, &kept, rank, out); };
  return join("HcclCommInitRootInfo", size, *root, rank, "", out, std::move(real));
}

Result init_config(uint32_t size, const RootInfo *root, uint32_t rank, const Config *config, Handle *out) {
  std::string name;
  if (!config || !read(config, name) || !may_span(size, root, rank, out))
    return init_real_config(size, root, rank, config, out);
  std::function<Result()> real = [=] { return init_real_config(size, root, rank, config, out); };
  if (in_group())
    real = [=, kept = *root, copy = ConfigCopy(config)] {
      return init_real_config(size, &kept, rank, config_of(copy), out);
    };
  return join("HcclCommInitRootInfoConfig", size, *root, rank, name, out, std::move(real));
}

Result init_scalable(uint32_t size, uint32_t count, const RootInfo *roots, uint32_t rank, uint32_t further,
                     const Config *config, Handle *out) {
  std::string name;
  if (!config || !read(config, name) || !may_span(size, roots, rank, out) || count < 1 || count > size || further != 0)
    return init_real_scalable(size, count, roots, rank, further, config, out);
  const std::span<const RootInfo> all(roots, count);
  std::vector<Tail> tails(count);
  for (size_t n = 0; n < all.size(); ++n)
    if (!read_ticket(all[n], tails[n])) tails[n] = {};
  std::function<Result()> real = [=] { return init_real_scalable(size, count, roots, rank, further, config, out); };
  if (in_group())
    real = [=, kept = std::vector<RootInfo>(all.begin(), all.end()), copy = ConfigCopy(config)] {
      return init_real_scalable(size, count, kept.data(), rank, further, config_of(copy), out);
    };
  return join("HcclCommInitRootInfoScalable", size, all[0], rank, name, out, std::move(real), std::move(tails));
}

// ---- parts of a communicator -------------------------------------------------------------------------------------------------------

namespace {

constexpr const char *kPart = "HcclCreateSubCommConfig";

// A tag of messages. No other part that is made at the same time has the tag.
int tag_of(uint64_t number, const uint32_t *ranks, uint32_t count) {
  constexpr int kFirst = 1 << 30;  // programs' messages have the tag 0
  uint64_t h = 0xcbf29ce484222325 ^ number;
  for (uint32_t i = 0; i < count; ++i) h = (h ^ ranks[i]) * 0x100000001b3;
  return kFirst + static_cast<int>((h ^ h >> 32) & (kFirst - 1));
}

// The fault of the list of members. Success: there is no fault.
Result check_members(Comm &parent, uint32_t count, const uint32_t *ranks, uint32_t mine) {
  const Traits &traits = parent.traits();
  const std::string vendors = *parent.vendors.lock();
  const auto size = static_cast<uint32_t>(traits.size);
  const std::set<uint32_t> members(ranks, ranks + std::min(count, size));
  if (count < 1 || count > size || members.size() != count || *members.rbegin() >= size || mine >= count ||
      ranks[mine] != static_cast<uint32_t>(traits.rank))
    return refused(kParameter, kPart,
                   "the ranks are not some of the communicator's, each once, with this rank in its place");
  const auto is_alien = [&](uint32_t r) { return vendors[r] != door().family[0]; };
  const auto alien = std::find_if(members.begin(), members.end(), is_alien);
  if (alien == members.end()) return kSuccess;
  return refused(
      kNotSupported, kPart,
      "rank " + std::to_string(*alien) + " is not HCCL's, and would not call this: a part is of HCCL's ranks alone");
}

// The first member makes a root info, and sends it to the others. Only the members call, so nothing is collective over the
// parent.
Result share_root_info(Comm &parent, uint32_t count, const uint32_t *ranks, int tag, RootInfo &root) {
  const auto rank_of = [&](uint32_t q) { return static_cast<int>(ranks[q]); };
  if (rank_of(0) != parent.traits().rank)
    return failed(kPart, outcome(isthmus_recv(parent.get(), &root, sizeof root, ISTHMUS_UINT8, rank_of(0), tag, nullptr,
                                              nullptr, nullptr)));
  if (const Result r = get_root_info(&root)) {
    refused(r, kPart, "the library gives no root info for the part");
    root = {};
  }
  for (uint32_t q = 1; q < count; ++q) {
    const Outcome o =
        outcome(isthmus_send(parent.get(), &root, sizeof root, ISTHMUS_UINT8, rank_of(q), tag, nullptr, nullptr));
    if (!o.ok()) return failed(kPart, o);
  }
  return kSuccess;
}

}  // namespace

// Makes a part of a communicator that spans vendors, of ranks that are all HCCL's.
Result create_part(Handle *whole, uint32_t count, uint32_t *ranks, uint64_t number, uint32_t mine, Config *config,
                   Handle *out) {
  constexpr uint64_t kNoMember = 0xffffffff;
  const auto at = whole ? reinterpret_cast<uintptr_t>(*whole) - reserve_handles() : interpose::kHandleBytes;
  if (at >= interpose::kHandleBytes)
    return call_real<Result(Handle *, uint32_t, uint32_t *, uint64_t, uint32_t, Config *, Handle *)>(
        kPart, whole, count, ranks, number, mine, config, out);
  const CommPtr parent = bridge::find(*whole);
  if (!parent) return note(refused(kParameter, kPart, "the communicator was destroyed"));
  if (!ranks && number == kNoMember) return kSuccess;
  if (!ranks || !config || !out) return note(refused(kPointer, kPart, "an argument is NULL"));
  if (in_group())
    return note(refused(kNotSupported, kPart, "a part of a communicator that spans vendors is not made in a group"));
  std::string name;
  if (!read(config, name)) return refused(kParameter, kPart, "the configuration was not initialised");
  ConfigCopy named(config);
  if (name.empty()) set_name(named, name = parent->traits().name + "_sub_" + std::to_string(number));  // HCCL's rule
  if (const Result r = check_members(*parent, count, ranks, mine)) return r;
  if (const Outcome o = parent->status(); !o.ok()) return failed(kPart, o);
  *out = nullptr;
  const DeviceGuard guard(devices());
  devices().enter(parent->traits().place);
  RootInfo root{};
  if (const Result r = share_root_info(*parent, count, ranks, tag_of(number, ranks, count), root)) return r;
  if (Tail tail; !read_ticket(root, tail))
    return refused(kSystem, kPart, "rank " + std::to_string(ranks[0]) + " could not make a root info; its log says why");
  return join(kPart, count, root, mine, name, out,
              [&] { return init_real_config(count, &root, mine, config_of(named), out); });
}

}  // namespace isthmus::bridge::hccl
