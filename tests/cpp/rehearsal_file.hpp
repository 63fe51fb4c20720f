// Where the simulated vendors' libraries of this build lie. In a source of its own: what depends on the build's folder is compiled anew in
// every checkout.
#pragma once

// The path of one of them ("nvidia/libcuda.so.1"), which stays.
const char *rehearsal_file(const char *name);
