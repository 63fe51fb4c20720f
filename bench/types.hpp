// The names of element types and operations, as nccl-tests prints them, and the combinations that have a meaning
// (isthmus.h).
#pragma once

#include <isthmus/isthmus.h>

#include <string>
#include <vector>

namespace isthmus::bench {

const char *type_name(isthmus_dtype dtype);  // "float", "half", "f8e4m3", ...
const char *op_name(isthmus_redop op);       // "sum", ..., "mulsum"
bool combines(isthmus_dtype dtype, isthmus_redop op);

// One name (nccl-tests' or Isthmus' own) or "all". Throws std::invalid_argument with the names that are known.
std::vector<isthmus_dtype> parse_types(const std::string &text);
std::vector<isthmus_redop> parse_ops(const std::string &text);

}  // namespace isthmus::bench
