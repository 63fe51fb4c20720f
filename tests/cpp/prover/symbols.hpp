// What a byte can be: an expression over contributions, at a position of a block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace isthmus::prover {

// Expressions, each stored once, so that equal ones have equal numbers. A sum is a left fold in order; its first term,
// when it is itself a sum, is spliced in, because ((a + b) + c) is one left fold however it was cut.
class Symbols {
 public:
  enum class Kind : uint8_t { Leaf, Scaled, Sum, Final, Island, Smaller, Kept };
  int leaf(int operation, int rank) { return make(Kind::Leaf, {operation, rank}); }
  int scaled(int leaf_id) { return make(Kind::Scaled, {leaf_id}); }
  // The result: divided by that number in the accumulator type, then rounded.
  int final(int sum_id, uint64_t divisor) { return make(Kind::Final, {sum_id, static_cast<int>(divisor)}); }
  // The sum that an island's library made, in whatever order: of the dtype's width, so a contribution and not a partial result.
  int island(std::vector<int> terms) {
    std::sort(terms.begin(), terms.end());
    return make(Kind::Island, std::move(terms));
  }
  // That sum of terms each times 2^-halvings; and what it is when it was made larger again: a sum that was never out of range.
  int smaller(int island_id, int halvings) { return make(Kind::Smaller, {island_id, halvings}); }
  int kept(int island_id) { return make(Kind::Kept, {island_id}); }
  int island_of(int smaller_id) const { return nodes_[static_cast<size_t>(smaller_id)].parts[0]; }
  int halvings_of(int smaller_id) const { return nodes_[static_cast<size_t>(smaller_id)].parts[1]; }
  int sum(const std::vector<int> &terms) {
    if (terms.size() == 1) return terms[0];
    std::vector<int> list;
    if (kind(terms[0]) == Kind::Sum) list = nodes_[static_cast<size_t>(terms[0])].parts;
    else list.push_back(terms[0]);
    list.insert(list.end(), terms.begin() + 1, terms.end());
    return make(Kind::Sum, std::move(list));
  }
  // A result with its contributions sorted: equal to another's that has the same ones, each as often, in whatever order they were added.
  int sorted(int final_id) {
    if (final_id < 0 || kind(final_id) != Kind::Final) return final_id;
    const std::vector<int> parts = nodes_[static_cast<size_t>(final_id)].parts;
    std::vector<int> terms;
    add_terms(parts[0], terms);
    std::sort(terms.begin(), terms.end());
    return make(Kind::Final, {make(Kind::Sum, std::move(terms)), parts[1]});
  }
  Kind kind(int id) const { return nodes_[static_cast<size_t>(id)].kind; }
  std::string text(int id) const {
    const Node &n = nodes_[static_cast<size_t>(id)];
    switch (n.kind) {
      case Kind::Leaf: return "x" + std::to_string(n.parts[1]) + (n.parts[0] ? "@op" + std::to_string(n.parts[0]) : "");
      case Kind::Scaled: return "scaled(" + text(n.parts[0]) + ")";
      case Kind::Final:
        return "round(" + text(n.parts[0]) + (n.parts[1] != 1 ? " / " + std::to_string(n.parts[1]) : "") + ")";
      case Kind::Smaller: return text(n.parts[0]) + " / 2^" + std::to_string(n.parts[1]);
      case Kind::Kept: return "kept(" + text(n.parts[0]) + ")";
      case Kind::Sum:
      case Kind::Island: break;
    }
    std::string out = n.kind == Kind::Island ? "island(" : "(";
    for (size_t i = 0; i < n.parts.size() && i < 12; ++i) out += (i ? " + " : "") + text(n.parts[i]);
    return out + (n.parts.size() > 12 ? " + ..)" : ")");
  }

 private:
  struct Node {
    Kind kind;
    std::vector<int> parts;
  };
  void add_terms(int id, std::vector<int> &terms) const {
    if (kind(id) != Kind::Sum) return terms.push_back(id);
    for (const int part : nodes_[static_cast<size_t>(id)].parts) add_terms(part, terms);
  }
  int make(Kind kind, std::vector<int> parts) {
    const auto [at, fresh] = known_.try_emplace({kind, parts}, static_cast<int>(nodes_.size()));
    if (fresh) nodes_.push_back({kind, std::move(parts)});
    return at->second;
  }
  std::vector<Node> nodes_;
  std::map<std::pair<Kind, std::vector<int>>, int> known_;
};

struct Content {
  int expression = -1;
  uint32_t block = 0;
  uint64_t position = 0;  // in the block, bytes of the dtype
  uint64_t width = 1;     // bytes of memory per byte of the dtype: more than 1 in the accumulator type
  bool token = false;
  bool same_place(const Content &o) const { return block == o.block && position == o.position; }
};
struct Piece {
  uint64_t bytes;
  Content content;
};  // bytes of the memory they lie in

inline Content advanced(Content c, uint64_t bytes) {
  c.position += bytes / c.width;
  return c;
}

}  // namespace isthmus::prover
