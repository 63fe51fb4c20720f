// Whether nobody listens any more at the addresses by which a process was reached. Its host's kernel refuses there at once, where a way to it
// is left, also when the way of the control connection is silent and brings no word of the process's end.
//
//   look(): knocks everywhere                   ... the time between two looks ...        look(): what has become of it
//
// A network may refuse for a moment, so two refusals in a row count. Who is connected leaves without a word, which the other side's gate knows.
//
// One thread at a time. Nothing waits.
#pragma once

#include <cstdint>
#include <vector>

#include "net/socket.hpp"

namespace isthmus::bootstrap {

class Absence {
 public:
  void add(const net::Address &address);  // many streams may have one address
  // True: nobody listens at the addresses any more.
  bool look(int64_t now_ns);
  void forget() noexcept {
    knocks_.clear();
    refused_ = 0;
  }

 private:
  struct Knock {
    const net::Address address;
    UniqueFd fd;
  };
  enum class Said : uint8_t { Nothing, Refused, Taken };
  Said ask();  // what the knocks have come to

  std::vector<net::Address> addresses_;
  std::vector<Knock> knocks_;
  int64_t begun_ns_ = 0;
  int refused_ = 0;  // in a row
};

}  // namespace isthmus::bootstrap
