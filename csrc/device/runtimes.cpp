#include "device/runtimes.hpp"

#include "device/acl.hpp"
#include "device/cuda.hpp"
#include "device/hip.hpp"

namespace isthmus::device {
namespace {

struct VendorRow {
  const char *vendor;
  Runtime &(*open)();
};
constexpr VendorRow kRows[] = {{"cuda", cuda_runtime}, {"hip", hip_runtime}, {"acl", acl_runtime}};

}  // namespace

std::vector<std::string> vendors() {
  std::vector<std::string> names;
  for (const VendorRow &row : kRows) names.emplace_back(row.vendor);
  return names;
}

Runtime &open_runtime(const std::string &vendor) {
  for (const VendorRow &row : kRows)
    if (vendor == row.vendor) return row.open();
  fail(Code::Argument, "no vendor '{}' is known", vendor);
}

}  // namespace isthmus::device
