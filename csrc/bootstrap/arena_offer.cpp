#include "bootstrap/arena_offer.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "net/fork_guard.hpp"
#include "net/wire.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr uint64_t kArenaMagic = 0x414e455241485349;  // "ISHARENA"

}  // namespace

ArenaOffer offer_arena(int fd, size_t bytes, const Bytes16 &process) {
  ArenaOffer offer;
  if (fd < 0) return offer;
  if (bytes < kArenaHeader) fail(Code::Argument, "an arena of {} bytes; its first {} are the mesh's", bytes, kArenaHeader);
  offer.fd = fd;
  offer.bytes = bytes;
  offer.nonce = net::random16();
  net::ByteVector header;
  net::Writer(header).number(kArenaMagic).number(uint64_t{bytes}).bytes16(process).bytes16(offer.nonce);
  const Mapping own(fd, kArenaHeader);
  std::memcpy(own.data(), header.data(), header.size());
  net::close_in_child(fd);
  return offer;
}

PeerArena map_peer_arena(const UniqueFd &fd, uint64_t bytes, const Bytes16 &process) noexcept {
  PeerArena out;
  try {
    struct stat s {};
    if (bytes == 0) {
      out.why = "the process offers no shared memory";
      return out;
    }
    if (!fd) {
      out.why = "its descriptor did not arrive (too many open files?)";
      return out;
    }
    if (bytes < kArenaHeader || ::fstat(fd.get(), &s) != 0 || static_cast<uint64_t>(s.st_size) < bytes) {
      out.why = formatted("its memory is smaller than the {} bytes announced", bytes);
      return out;
    }
    if (const int seals = ::fcntl(fd.get(), F_GET_SEALS); seals < 0 || !(seals & F_SEAL_SHRINK)) {
      out.why = "its memory could become smaller, and an access to what is gone would end this process";
      return out;
    }
    // The header is read, not mapped: until the header is known, the memory may be anybody's.
    std::array<std::byte, kArenaHeader> begin{};
    if (::pread(fd.get(), begin.data(), begin.size(), 0) != static_cast<ssize_t>(begin.size())) {
      out.why = system_text("reading its memory", errno);
      return out;
    }
    net::Reader r(begin);
    const bool header = r.number<uint64_t>() == kArenaMagic && r.number<uint64_t>() == bytes && r.bytes16() == process;
    out.nonce = r.bytes16();
    if (header) out.mapping = Mapping(fd.get(), bytes);
    else out.why = "its memory does not begin as that process's would";
  } catch (const Error &e) { out.why = e.text(); } catch (...) {
    out.why = "out of memory";
  }
  return out;
}

void agree(PeerArena &theirs, const ArenaOffer &ours, const Bytes16 &read_back, const std::string &their_why) {
  if (theirs.why.empty() && !their_why.empty()) theirs.why = "it says: " + their_why;
  if (theirs.why.empty() && read_back != ours.nonce) theirs.why = "the peer read another nonce than ours";
  if (!theirs.why.empty()) theirs.mapping.reset();
}

}  // namespace isthmus::bootstrap
