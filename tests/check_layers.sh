#!/usr/bin/env bash
# Includes only point down the layers, and device libraries are named in backends/ alone. Usage: check_layers.sh ROOT
set -u
cd "${1:-.}" || exit 2
layers=(backends needle ops nn optim data io models generate train inspect apps)
failures=0

# The number of a path's layer; `needle/ndarray.h` and its like are layer "needle", autograd among them.
layer_of() {
  local part
  case "$1" in
    backends/*) part=backends ;;
    apps/*) part=apps ;;
    needle/*/*) part=${1#needle/}; part=${part%%/*} ;;
    *) part=needle ;;
  esac
  for index in "${!layers[@]}"; do
    if [ "${layers[$index]}" = "$part" ]; then echo "$index"; return; fi
  done
  echo "unknown layer: $1" >&2
  echo -1
}

complain() { echo "$1"; failures=$((failures + 1)); }

while IFS=: read -r file line include; do
  [ "$file" = needle/needle.h ] && continue
  included=$(sed -E 's/.*"(.*)".*/\1/' <<<"$include")
  if [ ! -e "$included" ]; then complain "$file:$line: include is not written from the root: $included"; continue; fi
  if [ "$(layer_of "$included")" -lt 0 ] || [ "$(layer_of "$file")" -lt 0 ]; then complain "$file:$line: a path of no layer"; fi
  if [ "$(layer_of "$included")" -gt "$(layer_of "$file")" ]; then complain "$file:$line: points up: $included"; fi
done < <(grep -rnE '^#include "' backends needle apps --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh')

while IFS= read -r place; do
  case "$place" in needle/threads.cpp:*) continue ;; esac
  complain "$place: device library above the backends"
done < <(grep -rnE 'cblas_|dnnl|cuda[A-Za-z_]*\.h|omp_|#pragma omp' needle apps --include='*.h' --include='*.cpp')

# Sums that come in any order would differ from run to run.
while IFS= read -r place; do
  complain "$place: an atomic that adds or chooses in any order"
done < <(grep -rnE 'atomic(Add|Sub|Exch|Min|Max|And|Or|Xor|Inc|Dec)|\bred\.' backends/cuda)

if [ "$failures" -gt 0 ]; then exit 1; fi
echo "layers: every include points down; no kernel adds atomically"
