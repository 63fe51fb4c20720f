// The configuration table. Every setting is one row of kSettings (settings.cpp): its environment variable, its type, default,
// range and meaning. The environment, isthmus_options.settings, the documentation and validation all come from it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace isthmus {

enum class Setting : int {
  Address,
  Bridge,
  BridgeRates,
  Ccl,
  CclLibrary,
  Census,
  ChunkBytes,
  Device,
  Disable,
  Dump,
  EagerBytes,
  FarMicros,
  GroupWaitMs,
  GuardSlots,
  HeartbeatMs,
  Interface,
  Interpose,
  Island,
  JobKey,
  LeaderBytes,
  LibraryMessages,
  Log,
  LogFile,
  Name,
  Ports,
  Profile,
  Rank,
  RealHccl,
  RealNccl,
  RealRccl,
  RecorderEntries,
  ReduceThreads,
  SilenceMs,
  SpinMicros,
  StagingBytes,
  Stores,
  TcpCongestion,
  TcpCreditBytes,
  TcpStreams,
  Timeout,
  Trace,
  TraceSteps,
  WorldSize,
  Count
};
inline constexpr int kSettingCount = static_cast<int>(Setting::Count);

enum class SettingKind : uint8_t { Text, Integer, Bytes, Real, Choice, Ports, Pattern };

struct PortRange {  // both ends are in it; all 0: any port
  uint16_t first = 0, last = 0;
  bool any() const noexcept { return first == 0; }
  unsigned count() const noexcept { return any() ? 0u : static_cast<unsigned>(last - first) + 1u; }
  bool has(unsigned port) const noexcept { return !any() && port >= first && port <= last; }
};

struct SettingRow {
  Setting id;
  const char *name;  // "ISTHMUS_TIMEOUT"
  SettingKind kind;
  const char *fallback;  // default, as one would write it
  double min, max;       // Integer, Bytes, Real: inclusive range
  const char *choices;   // Choice: "auto|shm|tcp"
  bool agreed;           // changes plans: must be equal on all ranks of a communicator
  const char *meaning;
  bool process = false;  // belongs to the process: the first communicator decides, a later one may not ask for another value
};
std::span<const SettingRow> setting_rows() noexcept;

class Settings {
 public:
  Settings();  // the defaults
  // From now on the default of a setting, for all of this process. Throws Error(Config).
  static void set_default(std::string_view name, std::string_view value);
  // Defaults overlaid by the environment. Throws Error(Config): unknown ISTHMUS_* name (with the nearest known one), bad value.
  static Settings from_environment();
  // "NAME=value;NAME=value", NAME with or without "ISTHMUS_". Throws Error(Config).
  void apply(std::string_view list);
  void set(std::string_view name, std::string_view value);  // one setting; throws Error(Config)

  const std::string &text(Setting s) const noexcept { return values_[static_cast<int>(s)].text; }
  int64_t integer(Setting s) const noexcept { return values_[static_cast<int>(s)].integer; }  // Integer and Bytes
  double real(Setting s) const noexcept { return values_[static_cast<int>(s)].real; }
  PortRange ports(Setting s) const noexcept { return values_[static_cast<int>(s)].ports; }
  bool is_set(Setting s) const noexcept { return values_[static_cast<int>(s)].given; }
  // Throws Error(Config) where `later` sets a setting of the process to another value than this one has.
  void check_process_settings(const Settings &later) const;
  // "ISTHMUS_CHUNK_BYTES=262144 ..." of the agreed rows: exchanged at init, compared by text.
  std::string agreed_text() const;
  std::string to_json() const;  // array of {name, kind, default, range, agreed, process, meaning, value, given}

 private:
  struct Value {
    std::string text;
    int64_t integer = 0;
    double real = 0;
    PortRange ports;
    bool given = false;
  };
  std::array<Value, kSettingCount> values_;
};

}  // namespace isthmus
