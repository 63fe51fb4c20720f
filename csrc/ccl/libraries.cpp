#include "ccl/libraries.hpp"

#include "base/error.hpp"
#include "ccl/nccl.hpp"
#include "ccl/oneccl.hpp"

namespace isthmus::ccl {

std::vector<std::string> families() {
  std::vector<std::string> names{"oneccl"};
  for (const NcclFamily &f : nccl_families()) names.emplace_back(f.family);
  return names;
}

std::string vendor_of(const std::string &family) {
  if (family == "oneccl") return "host";
  for (const NcclFamily &f : nccl_families())
    if (family == f.family) return f.vendor;
  return {};
}

std::string family_for(const std::string &vendor) {
  for (const NcclFamily &f : nccl_families())
    if (vendor == f.vendor) return f.family;
  return {};
}

bool serves_threads(const std::string &family) noexcept {
  for (const NcclFamily &f : nccl_families())
    if (family == f.family) return true;
  return false;
}

std::shared_ptr<Library> open_library(const std::string &family, const std::string &path, bool one_host) {
  return family == "oneccl" ? open_oneccl(path, one_host) : open_nccl(family, path);
}

}  // namespace isthmus::ccl
