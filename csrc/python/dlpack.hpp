// The part of DLPack's published ABI (versions 0 and 1) that a consumer of host arrays needs.
#pragma once

#include <Python.h>

#include "isthmus/isthmus.h"

#include <cstdint>
#include <string>

namespace isthmus::python::dlpack {

struct Found {
  void *data = nullptr;
  uint64_t count = 0;
  isthmus_dtype dtype = ISTHMUS_UINT8;
  bool contiguous = true;
  bool read_only = false;
};

// The name of a device type, "cuda", ...
std::string device_name(long type, long index);
bool on_host(long type) noexcept;  // plain or pinned host memory

// Reads a capsule without consuming it: the memory lives as long as the capsule. Returns false with a Python error.
bool read_capsule(PyObject *capsule, const char *call, const char *argument, Found *out);

}  // namespace isthmus::python::dlpack
