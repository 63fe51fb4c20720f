#!/bin/sh
# reduce_symbols.sh NM OBJECT...: every object of kernels exports its table and nothing else. A weak or further global symbol
# could be chosen by the linker for code that must run on every processor.
set -eu
nm=$1
shift
test $# -ge 2
for object in "$@"; do
  defined=$("$nm" -C --defined-only --extern-only "$object" | sed 's/^[^ ]* //')
  case "$defined" in
    "D isthmus::reduce::kTable"* | "R isthmus::reduce::kTable"*) ;;
    *) echo "$object exports no table first: $defined" >&2; exit 1 ;;
  esac
  if [ "$(printf '%s\n' "$defined" | wc -l)" -ne 1 ]; then
    echo "$object exports more than its table:" >&2
    printf '%s\n' "$defined" >&2
    exit 1
  fi
done
echo "$# objects export one table each"
