// PyTorch's own function that makes a communicator, for Python, whose way to it takes no id: what it declares, in our words.
#include <stdio.h>

#include <exception>

namespace torch::cuda::nccl {
struct ncclUniqueId {
  char bytes[128];
};
void *comm_init_rank(int ranks, const ncclUniqueId &id, int rank);
}  // namespace torch::cuda::nccl

/* Whether there is a communicator of this one rank, and if not, why. */
extern "C" int init_alone(const void *id, char *why, unsigned long bytes) {
  try {
    torch::cuda::nccl::comm_init_rank(1, *static_cast<const torch::cuda::nccl::ncclUniqueId *>(id), 0);
    return 1;
  } catch (const std::exception &error) {
    snprintf(why, bytes, "%s", error.what());
    return 0;
  }
}
