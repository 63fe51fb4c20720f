// What a call of isthmus.h asks for, in elements, as the user gave the words. Preparation turns a request into an operation, in bytes.
#pragma once

#include <cstdint>

#include "plan/plan.hpp"

namespace isthmus::comm {

class Numbering;

struct CallRequest {
  plan::Collective collective = plan::Collective::Barrier;
  const void *send = nullptr;
  void *recv = nullptr;
  uint64_t count = 0;
  const uint64_t *send_counts = nullptr, *send_displs = nullptr;  // v-collectives
  const uint64_t *recv_counts = nullptr, *recv_displs = nullptr;
  int dtype = 0, op = 0;
  int root = 0;  // or the peer
  int tag = 0;
  double timeout = 0, scale = 1;
  const void *factor = nullptr;  // see isthmus_call
  const char *label = nullptr;
  bool on_stream = false;  // ordered on the user's stream
  bool order_later = false;
  void *stream = nullptr;
  int device_memory = 0;  // as in isthmus_call
  bool keep = false;      // the same
  bool commit = false;    // the same
  // For measurements: the bytes up to which this call takes the leader exchange, the same on all ranks. -1: as agreed.
  int64_t leader_bytes = -1;
  // Not null: root, counts and displacements are those of ranks, made of slots (slot_call.hpp). Of equal counts each slot has its block.
  const Numbering *numbering = nullptr;
};

}  // namespace isthmus::comm
