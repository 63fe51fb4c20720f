#include "dtypes.hpp"

#include <cstring>
#include <iterator>

#include "errors.hpp"

namespace isthmus::python {
namespace {

// NumPy's first type number for types of other packages, such as ml_dtypes. The packages get their numbers in the order of
// import.
constexpr int kUserTypes = 256;
constexpr int kUserCache = 64;
constexpr int kNone = -1;
constexpr int kHalf = 23;  // NPY_HALF

// NPY_BOOL to NPY_CDOUBLE. NPY_LONG and NPY_LONGLONG are both 64 bits wide on the platforms of Isthmus.
constexpr int kNumpyTypes[] = {ISTHMUS_BOOL,    ISTHMUS_INT8,  ISTHMUS_UINT8,     ISTHMUS_INT16,
                               ISTHMUS_UINT16,  ISTHMUS_INT32, ISTHMUS_UINT32,    ISTHMUS_INT64,
                               ISTHMUS_UINT64,  ISTHMUS_INT64, ISTHMUS_UINT64,    ISTHMUS_FLOAT32,
                               ISTHMUS_FLOAT64, kNone,         ISTHMUS_COMPLEX64, ISTHMUS_COMPLEX128};
static_assert(sizeof(long) == 8, "NumPy's LONG is taken as 64 bits");

int user_numpy_type(PyObject *array, int number) {  // for types of other packages, such as ml_dtypes
  static int cache[kUserCache];                     // dtype + 2; 0: not asked yet
  const int slot = number - kUserTypes;
  if (slot < 0 || slot >= kUserCache) return kNone;
  if (!cache[slot]) {
    isthmus_dtype dtype;
    cache[slot] = (dtype_from_name(attribute_text(array, "dtype").c_str(), &dtype) ? static_cast<int>(dtype) : kNone) + 2;
  }
  return cache[slot] - 2;
}

struct TorchDtype {
  PyObject *object;
  isthmus_dtype dtype;
};

}  // namespace

std::string text_of(PyObject *object) {
  std::string out;
  if (PyObject *s = PyObject_Str(object)) {
    if (const char *utf8 = PyUnicode_AsUTF8(s)) out = utf8;
    Py_DECREF(s);
  }
  PyErr_Clear();
  return out;
}

std::string attribute_text(PyObject *object, const char *name) {
  std::string out;
  if (PyObject *value = PyObject_GetAttrString(object, name)) {
    out = text_of(value);
    Py_DECREF(value);
  }
  PyErr_Clear();
  return out;
}

bool dtype_from_numpy(PyObject *array, int number, isthmus_dtype *out) {
  const int type = number >= 0 && number < static_cast<int>(std::size(kNumpyTypes)) ? kNumpyTypes[number]
                   : number == kHalf                                                ? static_cast<int>(ISTHMUS_FLOAT16)
                   : number >= kUserTypes                                           ? user_numpy_type(array, number)
                                                                                    : kNone;
  if (type == kNone) return false;
  *out = static_cast<isthmus_dtype>(type);
  return true;
}

bool dtype_from_torch(PyObject *tensor, PyObject *attribute, isthmus_dtype *out) {
  static TorchDtype cache[ISTHMUS_DTYPE_COUNT];
  static int cached = 0;
  PyObject *object = PyObject_GetAttr(tensor, attribute);
  if (!object) return false;
  for (int i = 0; i < cached; ++i) {
    if (cache[i].object == object) {
      *out = cache[i].dtype;
      Py_DECREF(object);
      return true;
    }
  }
  const bool known = dtype_from_name(text_of(object).c_str(), out);
  if (known && cached < ISTHMUS_DTYPE_COUNT) cache[cached++] = {object, *out};  // torch's dtypes live for ever
  else Py_DECREF(object);
  return known;
}

bool dtype_from_format(const char *format, Py_ssize_t itemsize, isthmus_dtype *out) {
  if (!format) format = "B";
  if (*format == '@' || *format == '=' || *format == '<' || *format == '|') ++format;
  const bool complex = *format == 'Z';
  if (complex) ++format;
  if (!*format || format[1]) return false;
  const auto sized = [&](isthmus_dtype b1, isthmus_dtype b2, isthmus_dtype b4, isthmus_dtype b8) {
    *out = itemsize == 1 ? b1 : itemsize == 2 ? b2 : itemsize == 4 ? b4 : b8;
    return itemsize == 1 || itemsize == 2 || itemsize == 4 || itemsize == 8;
  };
  const auto exactly = [&](isthmus_dtype dtype, Py_ssize_t size) {
    *out = dtype;
    return itemsize == size;
  };
  if (complex) return *format == 'f' ? exactly(ISTHMUS_COMPLEX64, 8) : *format == 'd' && exactly(ISTHMUS_COMPLEX128, 16);
  if (std::strchr("bhilqn", *format)) return sized(ISTHMUS_INT8, ISTHMUS_INT16, ISTHMUS_INT32, ISTHMUS_INT64);
  if (std::strchr("BHILQN", *format)) return sized(ISTHMUS_UINT8, ISTHMUS_UINT16, ISTHMUS_UINT32, ISTHMUS_UINT64);
  switch (*format) {
    case '?': return exactly(ISTHMUS_BOOL, 1);
    case 'c': return exactly(ISTHMUS_UINT8, 1);
    case 'e': return exactly(ISTHMUS_FLOAT16, 2);
    case 'f': return exactly(ISTHMUS_FLOAT32, 4);
    case 'd': return exactly(ISTHMUS_FLOAT64, 8);
    default: return false;
  }
}

bool dtype_from_typestr(const char *text, isthmus_dtype *out) {
  if (!text || (text[0] != '<' && text[0] != '|' && text[0] != '=')) return false;
  constexpr struct {
    const char *text;
    isthmus_dtype dtype;
  } known[] = {{"i1", ISTHMUS_INT8},      {"i2", ISTHMUS_INT16},      {"i4", ISTHMUS_INT32},   {"i8", ISTHMUS_INT64},
               {"u1", ISTHMUS_UINT8},     {"u2", ISTHMUS_UINT16},     {"u4", ISTHMUS_UINT32},  {"u8", ISTHMUS_UINT64},
               {"b1", ISTHMUS_BOOL},      {"f2", ISTHMUS_FLOAT16},    {"f4", ISTHMUS_FLOAT32}, {"f8", ISTHMUS_FLOAT64},
               {"c8", ISTHMUS_COMPLEX64}, {"c16", ISTHMUS_COMPLEX128}};
  for (const auto &k : known)
    if (std::strcmp(text + 1, k.text) == 0) return *out = k.dtype, true;
  return false;
}

bool dtype_from_name(const char *name, isthmus_dtype *out) noexcept {
  if (const char *dot = std::strrchr(name, '.')) name = dot + 1;
  const size_t length = std::strcspn(name, "'>");
  for (int i = 0; i < ISTHMUS_DTYPE_COUNT; ++i) {
    const char *ours = isthmus_dtype_name(static_cast<isthmus_dtype>(i));
    if (std::strlen(ours) == length && !std::memcmp(name, ours, length)) {
      *out = static_cast<isthmus_dtype>(i);
      return true;
    }
  }
  return false;
}

bool dtype_from_object(PyObject *object, const char *call, isthmus_dtype *out) {
  const std::string text = text_of(object);
  if (dtype_from_name(text.c_str(), out)) return true;
  raise_unsupported(
      "%s: dtype %s is none that Isthmus carries: int8 to int64, uint8 to uint64, bool, float16, bfloat16, float32, "
      "float64, float8_e4m3fn, float8_e5m2, complex64, complex128",
      call, text.c_str());
  return false;
}

}  // namespace isthmus::python
