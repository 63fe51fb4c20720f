#include "types.hpp"

#include <stdexcept>

#include "names.hpp"

namespace isthmus::bench {
namespace {

struct TypeName {
  const char *nccl, *own;
};
constexpr TypeName kTypes[ISTHMUS_DTYPE_COUNT] = {
    {"int8", "int8"},           {"uint8", "uint8"},          {"int16", "int16"},
    {"uint16", "uint16"},       {"int32", "int32"},          {"uint32", "uint32"},
    {"int64", "int64"},         {"uint64", "uint64"},        {"bool", "bool"},
    {"half", "float16"},        {"bfloat16", "bfloat16"},    {"float", "float32"},
    {"double", "float64"},      {"f8e4m3", "float8_e4m3fn"}, {"f8e5m2", "float8_e5m2"},
    {"complex64", "complex64"}, {"complex128", "complex128"}};
constexpr TypeName kOps[ISTHMUS_REDOP_COUNT] = {{"sum", "sum"}, {"avg", "avg"},   {"prod", "prod"},
                                                {"min", "min"}, {"max", "max"},   {"band", "band"},
                                                {"bor", "bor"}, {"bxor", "bxor"}, {"mulsum", "premul_sum"}};

template <typename E, size_t N>
std::vector<E> parse(const std::string &text, const TypeName (&names)[N], const char *what) {
  std::vector<E> found;
  std::string known;
  std::vector<std::string> all{"all"};
  for (size_t i = 0; i < N; ++i) {
    if (text == "all" || text == names[i].nccl || text == names[i].own) found.push_back(static_cast<E>(i));
    known += std::string(" ") + names[i].nccl;
    all.insert(all.end(), {names[i].nccl, names[i].own});
  }
  if (found.empty())
    throw std::invalid_argument(std::string("unknown ") + what + " '" + text + "'" + meant(text, all) + " Known:" + known +
                                " all");
  return found;
}

}  // namespace

const char *type_name(isthmus_dtype dtype) { return kTypes[dtype].nccl; }
const char *op_name(isthmus_redop op) { return kOps[op].nccl; }

bool combines(isthmus_dtype t, isthmus_redop op) {
  const bool is_complex = t == ISTHMUS_COMPLEX64 || t == ISTHMUS_COMPLEX128;
  const bool is_float = t >= ISTHMUS_FLOAT16 && t <= ISTHMUS_FLOAT8_E5M2;
  switch (op) {
    case ISTHMUS_AVG: return t != ISTHMUS_BOOL;
    case ISTHMUS_MIN:
    case ISTHMUS_MAX: return !is_complex;
    case ISTHMUS_BAND:
    case ISTHMUS_BOR:
    case ISTHMUS_BXOR: return !is_float && !is_complex;
    case ISTHMUS_PREMUL_SUM: return is_float;
    default: return true;
  }
}

std::vector<isthmus_dtype> parse_types(const std::string &text) { return parse<isthmus_dtype>(text, kTypes, "datatype"); }
std::vector<isthmus_redop> parse_ops(const std::string &text) { return parse<isthmus_redop>(text, kOps, "operation"); }

}  // namespace isthmus::bench
