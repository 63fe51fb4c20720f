// Where the pages of staging memory lie, and how large they are. Both are asked of the kernel once, before a device pins the memory: the node
// that is nearest to the device, and huge pages. What the kernel refuses is told and changes nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace isthmus::link {

// What was asked of the kernel, and what it gave.
struct StagingPages {
  bool asked = false;
  int node = -1;                       // asked for; -1: none, as the device does not say which is nearest
  std::string node_lost, huge_lost;    // why the kernel gives none, for people; empty: it may
  uint64_t looked = 0, elsewhere = 0;  // pages that were there when they were looked at, and those of them on another node
  uint64_t huge_bytes = 0;             // in huge pages
  std::string lost() const;            // all that was lost, in a sentence; empty: nothing
};

// Asks for pages of that node (not for -1) and for huge pages. The policy is the file's, so it counts for pages that another process touches
// first.
StagingPages ask_for_pages(std::span<std::byte> memory, int node);
// Looks where some pages of the memory lie, and how much of it is in huge pages.
void look_at_pages(std::span<std::byte> memory, StagingPages &pages);

}  // namespace isthmus::link
