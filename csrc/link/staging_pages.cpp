#include "link/staging_pages.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>

#include "base/error.hpp"
#include "base/format.hpp"

namespace isthmus::link {
namespace {

// Of linux/mempolicy.h. libnuma would be one more library for two calls.
constexpr int kPreferred =
    1;  // MPOL_PREFERRED: other nodes serve where this one is full. MPOL_BIND would end the process there
constexpr unsigned kMoveWhatIsThere = 2;  // MPOL_MF_MOVE
constexpr size_t kMostNodes = 1024;
constexpr size_t kLooked = 256;  // pages, spread over the memory
constexpr const char *kSharedHuge = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

// Why the kernel does not take the node; empty: it does.
std::string prefer_node(std::span<std::byte> memory, int node) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMostNodes / kBits> nodes{};
  if (static_cast<size_t>(node) >= kMostNodes) return formatted("node {} is beyond the {} that are known", node, kMostNodes);
  nodes[static_cast<size_t>(node) / kBits] = 1ul << (static_cast<size_t>(node) % kBits);
  // The kernel takes the number of bits less one.
  if (::syscall(SYS_mbind, memory.data(), memory.size(), kPreferred, nodes.data(), kMostNodes + 1, kMoveWhatIsThere) == 0)
    return {};
  const int error = errno;
  return formatted("{}{}", system_text("mbind", error),
                   error == EPERM || error == ENOSYS ? "; allow mbind in the sandbox"
                   : error == EINVAL ? "; this process may not use that node (/proc/self/status, Mems_allowed_list)"
                                     : "");
}

// Why the kernel gives no huge pages; empty: it may give some.
std::string prefer_huge(std::span<std::byte> memory) {
  if (::madvise(memory.data(), memory.size(), MADV_HUGEPAGE) != 0) return system_text("madvise(MADV_HUGEPAGE)", errno);
  std::string line;
  std::ifstream file(kSharedHuge);
  if (!std::getline(file, line)) return formatted("{} cannot be read", kSharedHuge);
  for (const char *off : {"[never]", "[deny]"})  // madvise() succeeds all the same
    if (line.find(off) != std::string::npos)
      return formatted("{} is \"{}\"; `echo advise > {}` allows them", kSharedHuge,
                       std::string(off + 1, std::string(off).size() - 2), kSharedHuge);
  return {};
}

// Bytes of the mappings within that range that are in huge pages.
uint64_t huge_bytes(uint64_t begin, uint64_t end) {
  uint64_t found = 0;
  bool within = false;
  std::ifstream file("/proc/self/smaps");
  for (std::string line; std::getline(file, line);) {
    uint64_t from = 0, to = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " ", &from, &to) == 2) within = from < end && to > begin;
    else if (within && std::sscanf(line.c_str(), "ShmemPmdMapped: %" SCNu64, &kib) == 1) found += kib * 1024;
  }
  return found;
}

}  // namespace

std::string StagingPages::lost() const {
  std::string text;
  if (!node_lost.empty())
    text = formatted("its pages may lie on any NUMA node and not on node {}, the device's ({})", node, node_lost);
  else if (elsewhere != 0)
    text = formatted("{} of {} pages do not lie on NUMA node {}, the device's, which may be full", elsewhere, looked, node);
  if (!huge_lost.empty()) text += formatted("{}it has no huge pages ({})", text.empty() ? "" : "; ", huge_lost);
  return text;
}

StagingPages ask_for_pages(std::span<std::byte> memory, int node) {
  StagingPages pages;
  pages.asked = true;
  pages.node = std::max(node, -1);
  if (node >= 0) pages.node_lost = prefer_node(memory, node);
  pages.huge_lost = prefer_huge(memory);
  return pages;
}

void look_at_pages(std::span<std::byte> memory, StagingPages &pages) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t count = memory.size() / page, step = std::max<size_t>(count / kLooked, 1);
  std::array<void *, kLooked> at{};
  std::array<int, kLooked> node{};
  size_t n = 0;
  for (size_t i = 0; i < count && n < kLooked; i += step) at[n++] = memory.data() + i * page;
  // Without nodes to move them to the call says where the pages are. A negative number: the page does not exist yet.
  if (n != 0 && ::syscall(SYS_move_pages, 0, n, at.data(), nullptr, node.data(), 0) == 0) {
    pages.looked = static_cast<uint64_t>(
        std::count_if(node.begin(), node.begin() + static_cast<long>(n), [](int x) { return x >= 0; }));
    if (pages.node >= 0)
      pages.elsewhere = static_cast<uint64_t>(std::count_if(node.begin(), node.begin() + static_cast<long>(n),
                                                            [&](int x) { return x >= 0 && x != pages.node; }));
  }
  if (!pages.huge_lost.empty()) return;  // /proc/self/smaps is long in a large process
  const auto begin = reinterpret_cast<uint64_t>(memory.data());
  pages.huge_bytes = huge_bytes(begin, begin + memory.size());
}

}  // namespace isthmus::link
