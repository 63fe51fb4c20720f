// The table of interpose_bench: rows, each measured bare and through the door in turns, and the limit that rows are held to.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

// The same communicators, by the handles of the real library and by those that a program may have behind the door.
struct Handles {
  std::vector<void *> bare, door;
};

// Nanoseconds of one row.
struct Figures {
  double bare, door, added;
};

inline double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

template <class Function>
Function *find(void *library, const char *name) {
  return reinterpret_cast<Function *>(::dlsym(library, name));
}

class Rows {
 public:
  static constexpr int kCalls = 2000;  // of a batch

  Rows(int rounds, int batches) : rounds_(rounds), batches_(batches) {}

  // Function: a type, or a struct of functions. `call(function, handle)` makes the row's `calls` calls. `held`: to the limit.
  template <class Function, class Call>
  void add(std::string name, size_t communicators, int calls, bool held, Function bare, Function door, const Handles &h,
           Call call) {
    rows_.push_back(
        {std::move(name), communicators, calls, held, [=, this, &h]() mutable { return compare(bare, door, h, call); }, {}});
  }

  // All rows, one after the other, `rounds` times: a neighbour that is busy for a second does not take one row alone.
  void measure() {
    for (int round = 0; round < rounds_; ++round)
      for (Row &row : rows_) row.rounds.push_back(row.once());
  }

  // Prints the table. The rest is the number of rows over the limit, which are named on stderr.
  int print(double limit) const {
    std::printf("# %-30s %5s %6s %9s %9s %9s   %s\n", "function", "comms", "calls", "bare", "door", "added",
                "least..most of the rounds' medians of what is added");
    int over = 0;
    for (const Row &row : rows_) {
      const auto all = [&row](double Figures::*what) {
        std::vector<double> v;
        for (const Figures &f : row.rounds) v.push_back(f.*what);
        return v;
      };
      std::vector<double> added = all(&Figures::added);
      const auto [least, most] = std::minmax_element(added.begin(), added.end());
      const double typical = median(added);
      std::printf("%-32s %5zu %6d %9.2f %9.2f %9.2f   %.2f..%.2f%s\n", row.name.c_str(), row.communicators, row.calls,
                  median(all(&Figures::bare)), median(all(&Figures::door)), typical, *least, *most,
                  row.held ? "" : "   (no limit)");
      if (!row.held || typical <= limit * row.calls) continue;
      ++over;
      std::fprintf(stderr, "%s, %zu communicators: %.2f ns a call more than bare, over the limit of %g\n", row.name.c_str(),
                   row.communicators, typical / row.calls, limit);
    }
    return over;
  }

 private:
  struct Row {
    std::string name;
    size_t communicators;
    int calls;
    bool held;
    std::function<Figures()> once;
    std::vector<Figures> rounds;
  };

  template <class Function, class Call>
  static double batch(Function &f, const std::vector<void *> &handles, Call &call) {
    void *const *at = handles.data(), *const *const end = at + handles.size();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) {
      __asm__ volatile("" : : "r"(&f) : "memory");  // the address is not known at compile time
      call(f, *at);
      if (++at == end) at = handles.data();
    }
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / kCalls;
  }

  template <class Function, class Call>
  Figures compare(Function &bare, Function &door, const Handles &h, Call &call) const {
    std::vector<double> one, other, added;
    for (int i = 0; i < batches_; ++i) {
      one.push_back(batch(bare, h.bare, call));
      other.push_back(batch(door, h.door, call));
      added.push_back(other.back() - one.back());
    }
    return {median(one), median(other), median(added)};
  }

  const int rounds_, batches_;
  std::vector<Row> rows_;
};
