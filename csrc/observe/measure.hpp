// What `isthmus tune` measures inside this process: its reductions, its devices and the libraries that serve them.
#pragma once

#include <string>

#include "base/settings.hpp"

namespace isthmus::observe {

// {"entries": [{"name", "samples": bytes a second, one for each repetition, "note"}], "missing": [{"name", "text": why not}]}. Names:
//   reduce_float32, reduce_bfloat16   one thread reduces two sources of 1 MiB; bytes of the result
//   cuda:0/device_to_host, cuda:0/host_to_device, cuda:0/both_ways   copies of 32 MiB from and to pinned memory; both_ways: each way, at once
//   nccl/all_reduce                   of 16 MiB float32 by a rank for each device that was measured; bytes of the message
// The settings say what is measured: the device that they name; all devices of a vendor (no number); or with "host" every device there is. Takes about
// `seconds`, and longer where a device is slow. Nothing may use the devices meanwhile.
std::string measure_json(const Settings &settings, double seconds);

}  // namespace isthmus::observe
