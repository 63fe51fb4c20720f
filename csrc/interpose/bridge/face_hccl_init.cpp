// How HCCL's communicators come to be: the census of their ranks, then the real library's call as the program made it, or Isthmus.
#include <algorithm>
#include <climits>
#include <cstring>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "face_hccl.hpp"
#include "handles.hpp"

namespace isthmus::bridge::hccl {
namespace {

using namespace interpose::hccl;  // its codes and types

constexpr uint32_t kConfigMagic = 0xf0f0f0f0;
constexpr size_t kMostConfig = 1 << 16;
// The last bytes of a root info are a unique id as NCCL's and RCCL's programs have it. HCCL leaves them alone.
constexpr size_t kIdBytes = 128;
constexpr size_t kIdAt = sizeof RootInfo::bytes - kIdBytes;

// Of an id that another vendor's program made, at the end or where a program put it that read it as a root info.
bool read_ticket(const RootInfo &root, Tail &tail) {
  const std::span<const unsigned char> bytes(root.bytes);
  return read_tail(bytes, tail) || read_tail(bytes.first(kIdBytes), tail);
}

// What a program asked for when it made a communicator. False: it is no configuration.
bool read(const Config *config, std::string &name) {
  size_t size = 0;
  std::memcpy(&size, config, sizeof size);
  ConfigHead c{};
  if (size < offsetof(ConfigHead, unused) || size > kMostConfig) return false;
  std::memcpy(&c, config, std::min(size, sizeof c));
  if (c.magic != kConfigMagic) return false;
  name.assign(c.name, ::strnlen(c.name, sizeof c.name));
  return true;
}

// A copy of a configuration, which has no addresses in it, for as long as it is needed.
class KeptConfig {
 public:
  explicit KeptConfig(const Config *config) {
    size_t size = 0;
    std::memcpy(&size, config, sizeof size);
    bytes_.resize((size + sizeof bytes_[0] - 1) / sizeof bytes_[0]);
    std::memcpy(bytes_.data(), config, size);
  }
  const Config *get() const noexcept { return reinterpret_cast<const Config *>(bytes_.data()); }
  void call_it(const std::string &name) {  // where there is room for a name
    constexpr size_t kAt = offsetof(ConfigHead, name), kRoom = sizeof ConfigHead::name;
    if (bytes_.size() * sizeof bytes_[0] < kAt + kRoom) return;
    auto *at = reinterpret_cast<char *>(bytes_.data()) + kAt;
    std::memset(at, 0, kRoom);
    std::memcpy(at, name.data(), std::min(name.size(), kRoom - 1));
  }

 private:
  std::vector<uint64_t> bytes_;
};

// `real` makes the call of the real library as the program made it; in a group when that ends.
Result join(const char *call, uint32_t size, const RootInfo &root, uint32_t rank, const std::string &name, Handle *out,
            std::function<Result()> real, std::vector<Tail> tails = {}) {
  auto i = std::make_unique<Init>();
  Arrival &a = i->arrival;
  if (!read_ticket(root, a.tail)) return real();
  a.mine = record_of(door().family, door().version);
  a.rank = static_cast<int>(rank);
  a.world = static_cast<int>(size);
  i->call = call;
  i->out = out;
  i->name = name;
  i->real = std::move(real);
  i->tails = std::move(tails);
  if (in_group()) {
    *out = nullptr;
    if (const Outcome o = devices().current(i->place); !o.ok()) return note(failed(call, o));
    pending().inits.push_back(std::move(i));
    return kSuccess;
  }
  arrive(*i);
  tell(*i);
  if (a.verdict == Verdict::Vendor) return i->real();
  *out = nullptr;
  if (a.verdict == Verdict::Failed) return failed(call, a.outcome);
  if (const Outcome o = devices().current(i->place); !o.ok()) return failed(call, o);
  return build(*i);
}

// Of what is wrong the real library tells.
bool may_span(uint32_t size, const RootInfo *root, uint32_t rank, const Handle *out) {
  return out && root && size >= 1 && size <= INT_MAX && rank < size;
}

// Not the same for two parts that are made at once.
int tag_of(uint64_t number, const uint32_t *ranks, uint32_t count) {
  constexpr int kFirst = 1 << 30;  // programs' messages have the tag 0
  uint64_t h = 0xcbf29ce484222325 ^ number;
  for (uint32_t i = 0; i < count; ++i) h = (h ^ ranks[i]) * 0x100000001b3;
  return kFirst + static_cast<int>((h ^ h >> 32) & (kFirst - 1));
}

}  // namespace

// Ranks of other vendors may know the first id alone, so those of HCCL share the others.
void arrive(Init &i) {
  Arrival &a = i.arrival;
  meet(a);
  const auto of_ours = [&](const Record &one) { return std::strcmp(one.family, a.mine.family) == 0; };
  const auto ours = std::count_if(a.ranks.begin(), a.ranks.end(), of_ours);
  if (i.tails.size() < 2 || ours == 0) return;
  const auto before = std::count_if(a.ranks.begin(), a.ranks.begin() + a.rank, of_ours);
  const auto share = share_of(i.tails, static_cast<size_t>(before), static_cast<size_t>(ours));
  end_meetings(share, [&](bool doubtful, const std::string &text) {
    say(doubtful ? Level::Warn : Level::Info, std::string(i.call) + ": " + text);
  });
}

void tell(const Init &i) {
  const Finding found = finding(i.call, door().name, i.arrival);
  if (!found.text.empty()) say(found.doubtful ? Level::Warn : Level::Info, found.text);
}

Result build(Init &i) {
  Arrival &a = i.arrival;
  const std::string unique = name_of(a.tail.ticket);
  Traits traits{a.rank, a.world, i.place, true, i.name.empty() ? unique : i.name, LocalRanks::of(unique), {}};
  for (const Record &one : a.ranks) traits.vendors += one.family[0];
  const auto comm = std::make_shared<Comm>(std::move(traits));
  try {
    if (const Outcome o = comm->init(a.meeting, settings_of(door(), i.place)); !o.ok()) {
      comm->abort();
      return failed(i.call, o);
    }
    *i.out = give_handle(comm);
  } catch (const std::exception &) {
    comm->abort();
    throw;
  }
  if (*i.out) return kSuccess;
  comm->abort();
  return refused(kUnavailable, i.call,
                 "too many communicators that span vendors are in use, or there is no memory for their handles");
}

namespace {

// Of either call HCCL's published source writes a description of the root to the beginning, of 200 bytes or so, and reads no more.
Result make_root_info(const char *call, RootInfo *root) {
  auto *f = real<Result(RootInfo *)>(call);
  if (!f) return lacks(call);
  if (!root) return f(root);
  RootInfo made{};  // the library writes the beginning, and need not clear the rest
  if (const Result r = f(&made)) return r;
  *root = made;
  const std::span<const unsigned char> id(made.bytes + kIdAt, kIdBytes);
  isthmus_ticket ticket;
  std::string why;
  if (std::any_of(id.begin(), id.end(), [](unsigned char byte) { return byte != 0; }))
    why = std::string("it leaves no room for it in ") + door().path;
  else if (const Outcome o = outcome(isthmus_meeting_create(&ticket)); !o.ok()) why = o.text;
  if (why.empty()) write_tail(root->bytes, door().family, ticket);
  else say(Level::Warn, "the root info has no ticket of Isthmus, so what is made with it cannot span vendors: " + why);
  return kSuccess;
}

Result init_real(uint32_t size, const RootInfo *root, uint32_t rank, Handle *out) {
  constexpr const char *kCall = "HcclCommInitRootInfo";
  auto *f = real<Result(uint32_t, const RootInfo *, uint32_t, Handle *)>(kCall);
  return f ? f(size, root, rank, out) : lacks(kCall);
}
Result init_real_config(uint32_t size, const RootInfo *root, uint32_t rank, const Config *config, Handle *out) {
  constexpr const char *kCall = "HcclCommInitRootInfoConfig";
  auto *f = real<Result(uint32_t, const RootInfo *, uint32_t, const Config *, Handle *)>(kCall);
  return f ? f(size, root, rank, config, out) : lacks(kCall);
}

Result init_real_scalable(uint32_t size, uint32_t count, const RootInfo *roots, uint32_t rank, uint32_t further,
                          const Config *config, Handle *out) {
  constexpr const char *kCall = "HcclCommInitRootInfoScalable";
  auto *f = real<Result(uint32_t, uint32_t, const RootInfo *, uint32_t, uint32_t, const Config *, Handle *)>(kCall);
  return f ? f(size, count, roots, rank, further, config, out) : lacks(kCall);
}

}  // namespace

Result get_root_info(RootInfo *root) { return make_root_info("HcclGetRootInfo", root); }
Result get_root_info_scalable(RootInfo *root) { return make_root_info("HcclGetRootInfoScalable", root); }

// What the program's variables hold may be something else when a group ends.
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
    real = [=, kept = *root, asked = KeptConfig(config)] { return init_real_config(size, &kept, rank, asked.get(), out); };
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
    real = [=, kept = std::vector<RootInfo>(all.begin(), all.end()), asked = KeptConfig(config)] {
      return init_real_scalable(size, count, kept.data(), rank, further, asked.get(), out);
    };
  return join("HcclCommInitRootInfoScalable", size, all[0], rank, name, out, std::move(real), std::move(tails));
}

// The members alone call it, so nothing is collective over the parent: the first of them gives the others a root info.
Result create_part(Handle *whole, uint32_t count, uint32_t *ranks, uint64_t number, uint32_t mine, Config *config,
                   Handle *out) {
  constexpr const char *kCall = "HcclCreateSubCommConfig";
  constexpr uint64_t kNoMember = 0xffffffff;
  const auto at = whole ? reinterpret_cast<uintptr_t>(*whole) - reserve_handles() : interpose::kHandleBytes;
  if (at >= interpose::kHandleBytes) {
    auto *f = real<Result(Handle *, uint32_t, uint32_t *, uint64_t, uint32_t, Config *, Handle *)>(kCall);
    return f ? f(whole, count, ranks, number, mine, config, out) : lacks(kCall);
  }
  const CommPtr parent = bridge::find(*whole);
  if (!parent) return note(refused(kParameter, kCall, "the communicator was destroyed"));
  if (!ranks && number == kNoMember) return kSuccess;
  if (!ranks || !config || !out) return note(refused(kPointer, kCall, "an argument is NULL"));
  if (in_group())
    return note(refused(kNotSupported, kCall, "a part of a communicator that spans vendors is not made in a group"));
  std::string name;
  if (!read(config, name)) return refused(kParameter, kCall, "the configuration was not initialised");
  KeptConfig named(config);
  if (name.empty()) named.call_it(name = parent->traits().name + "_sub_" + std::to_string(number));  // HCCL's rule
  const auto size = static_cast<uint32_t>(parent->traits().size);
  const std::set<uint32_t> members(ranks, ranks + std::min(count, size));
  if (count < 1 || count > size || members.size() != count || *members.rbegin() >= size || mine >= count ||
      ranks[mine] != static_cast<uint32_t>(parent->traits().rank))
    return refused(kParameter, kCall,
                   "the ranks are not some of the communicator's, each once, with this rank in its place");
  const std::string &vendors = parent->traits().vendors;
  const auto alien =
      std::find_if(members.begin(), members.end(), [&](uint32_t r) { return vendors[r] != door().family[0]; });
  if (alien != members.end())
    return refused(
        kNotSupported, kCall,
        "rank " + std::to_string(*alien) + " is not HCCL's, and would not call this: a part is of HCCL's ranks alone");
  if (const Outcome o = parent->status(); !o.ok()) return failed(kCall, o);
  *out = nullptr;
  const DeviceGuard guard(devices());
  devices().enter(parent->traits().place);
  RootInfo root{};
  const int tag = tag_of(number, ranks, count);
  if (mine == 0) {
    if (const Result r = get_root_info(&root)) {
      refused(r, kCall, "the library gives no root info for the part");
      root = {};
    }
    for (uint32_t q = 1; q < count; ++q)
      if (const Outcome o = outcome(isthmus_send(parent->get(), &root, sizeof root, ISTHMUS_UINT8,
                                                 static_cast<int>(ranks[q]), tag, nullptr, nullptr));
          !o.ok())
        return failed(kCall, o);
  } else if (const Outcome o = outcome(isthmus_recv(parent->get(), &root, sizeof root, ISTHMUS_UINT8,
                                                    static_cast<int>(ranks[0]), tag, nullptr, nullptr, nullptr));
             !o.ok()) {
    return failed(kCall, o);
  }
  if (Tail tail; !read_ticket(root, tail))
    return refused(kSystem, kCall, "rank " + std::to_string(ranks[0]) + " could not make a root info; its log says why");
  return join(kCall, count, root, mine, name, out, [&] { return init_real_config(count, &root, mine, named.get(), out); });
}

}  // namespace isthmus::bridge::hccl
