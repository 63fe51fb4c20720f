// The part of DLPack's published ABI (versions 0 and 1) that a consumer of arrays needs.
#pragma once

#include <Python.h>

#include "isthmus/isthmus.h"

#include <cstdint>
#include <string>

namespace isthmus::python::dlpack {

struct DlPlace {
  int type = 1;  // DLDeviceType; 1: the host
  int number = 0;
};

struct Found {
  DlPlace place;
  void *data = nullptr;
  uint64_t count = 0;
  isthmus_dtype dtype = ISTHMUS_UINT8;
  bool contiguous = true;
  bool read_only = false;
  bool copied = false;  // whether the producer made a copy for us: nobody would read what is written there
};

std::string device_name(DlPlace place);  // "cuda:1"
bool on_host(const DlPlace &) noexcept;  // plain or pinned host memory

// Reads a capsule without consuming it: the memory lives as long as the capsule. Returns false with a Python error.
bool read_capsule(PyObject *capsule, const char *call, const char *argument, Found *out);

}  // namespace isthmus::python::dlpack
