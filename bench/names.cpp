#include "names.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace isthmus::bench {
namespace {

// Without the signs between words.
std::string letters(std::string_view text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out), [](char c) { return c != '_' && c != '-'; });
  return out;
}

// The number of letters that must be changed, added or left out to make one text of the other.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view text, const std::vector<std::string> &known) {
  std::string best;
  const std::string given = letters(text);
  size_t least = std::max<size_t>(1, given.size() / 3) + 1;
  for (const std::string &name : known)
    if (const size_t d = distance(given, letters(name)); d < least) least = d, best = name;
  return best;
}

std::string meant(std::string_view text, const std::vector<std::string> &known) {
  const std::string found = nearest(text, known);
  return found.empty() ? "." : ", did you mean " + found + "?";
}

}  // namespace isthmus::bench
