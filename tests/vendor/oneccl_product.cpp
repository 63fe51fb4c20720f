// What Isthmus declares of oneCCL in its own words, compared with the published headers. Only compiled, never run:
// tests/suite/test_vendor_abi_oneccl.py.

#include "ccl/oneccl_abi.hpp"
// Then the vendor's.
#include <oneapi/ccl.h>

#include <iterator>

#include "same_shape.hpp"

namespace {

namespace oc = isthmus::ccl::oneccl_abi;

#define COMPARE(name, arguments)                                                                \
  static_assert(vendor::same_shape<decltype(oc::Functions::name), decltype(&::oneccl##name)>(), \
                "oneccl" #name " is declared otherwise");
ISTHMUS_ONECCL_FUNCTIONS(COMPARE)
COMPARE(GetLastError, )
#undef COMPARE

static_assert(oc::kIdBytes == ONECCL_UNIQUE_ID_BYTES);
static_assert(sizeof(oc::Id) == sizeof(onecclUniqueId) && alignof(oc::Id) == alignof(onecclUniqueId));
static_assert(sizeof(oc::Handle) == sizeof(onecclComm_t));
static_assert(sizeof(oc::Result) == sizeof(onecclResult_t));
static_assert(oc::kSuccess == onecclSuccess);

static_assert(sizeof(oc::Type) == sizeof(onecclDataType_t));
static_assert(+oc::kInt8 == +onecclInt8 && +oc::kUInt8 == +onecclUint8);
static_assert(+oc::kInt32 == +onecclInt32 && +oc::kUInt32 == +onecclUint32);
static_assert(+oc::kInt64 == +onecclInt64 && +oc::kUInt64 == +onecclUint64);
static_assert(+oc::kFloat16 == +onecclFloat16 && +oc::kFloat32 == +onecclFloat32 && +oc::kFloat64 == +onecclFloat64);
static_assert(+oc::kBFloat16 == +onecclBfloat16);

static_assert(sizeof(oc::ReduceOp) == sizeof(onecclRedOp_t));
static_assert(+oc::kSum == +onecclSum && +oc::kProd == +onecclProd);
static_assert(+oc::kMax == +onecclMax && +oc::kMin == +onecclMin);

// Every result has a text, and the right one.
constexpr bool says(int result, std::string_view text) { return oc::kResultTexts[result] == text; }
static_assert(std::size(oc::kResultTexts) == onecclNotImplemented + 1);
static_assert(says(onecclSuccess, "success") && says(onecclError, "error") && says(onecclSystemError, "system error"));
static_assert(says(onecclInternalError, "internal error") && says(onecclInvalidArgument, "invalid argument"));
static_assert(says(onecclInvalidUsage, "invalid usage") && says(onecclInProgress, "still in progress"));
static_assert(says(onecclFailureGPU, "GPU failure") && says(onecclFailureCPU, "CPU failure"));
static_assert(says(onecclAllocFailureCPU, "no host memory") && says(onecclAllocFailureGPU, "no device memory"));
static_assert(says(onecclPluginException, "exception in the plugin") && says(onecclNotImplemented, "not implemented"));

static_assert(oc::version_code(2022, 1, 0) == ONECCL_VERSION(2022, 1, 0));
static_assert(oc::version_code(ONECCL_MAJOR, ONECCL_MINOR, 0) == ONECCL_VERSION_CODE);
// ONECCL_IS_OLDEST: of these headers.
#ifdef ONECCL_IS_OLDEST
static_assert(oc::kLeastVersion == ONECCL_VERSION_CODE);
#else
static_assert(oc::kLeastVersion <= ONECCL_VERSION_CODE);
#endif

}  // namespace
