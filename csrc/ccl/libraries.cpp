#include "ccl/libraries.hpp"

#include "base/error.hpp"
#include "ccl/hccl.hpp"
#include "ccl/nccl.hpp"
#include "ccl/oneccl.hpp"

namespace isthmus::ccl {
namespace {

struct FamilyRow {
  std::string family, vendor;
  bool threads;  // ranks of one island may be threads of one process
};
const std::vector<FamilyRow> &all_rows = *[] {
  auto *const r = new std::vector<FamilyRow>{{"oneccl", "host", false}};
  for (const NcclFamily &f : nccl_families()) r->push_back({f.family, f.vendor, true});
  r->push_back({"hccl", "acl", true});
  return r;
}();
const std::vector<FamilyRow> &rows() { return all_rows; }

}  // namespace

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const FamilyRow &row : rows()) names.push_back(row.family);
  return names;
}

std::string vendor_of(const std::string &family) {
  for (const FamilyRow &row : rows())
    if (family == row.family) return row.vendor;
  return {};
}

std::string family_for(const std::string &vendor) {
  for (const FamilyRow &row : rows())
    if (vendor == row.vendor && vendor != "host") return row.family;
  return {};
}

bool serves_threads(const std::string &family) noexcept {
  for (const FamilyRow &row : rows())
    if (family == row.family) return row.threads;
  return false;
}

std::shared_ptr<Library> open_library(const std::string &family, const std::string &path, const std::string &interface) {
  if (family == "oneccl") return open_oneccl(path, interface);
  if (family == "hccl") return open_hccl(path);
  return open_nccl(family, path);
}

}  // namespace isthmus::ccl
