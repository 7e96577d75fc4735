#!/usr/bin/env bash
# Gathers programs, data and scripts for a machine with a GPU. Usage: make_bundle.sh BUILD FOLDER TEXT
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 bundle=$2 text=$3
most_megabytes=60

rm -rf "$bundle"
mkdir -p "$bundle/tests" "$bundle/data"
programs=(needle needle_tests needle_cuda_tests)
for program in "$build/needle" "$build/tests/needle_tests" "$build/tests/needle_cuda_tests"; do
  strip -o "$bundle/$(basename "$program")" "$program"
done

# Nothing but these may be wanted of the other machine.
unexpected=$(cd "$bundle" && for program in "${programs[@]}"; do readelf -d "$program"; done |
  sed -n 's/.*Shared library: \[\(.*\)\]/\1/p' | sort -u | grep -vE '^(libc|libm|libdl|libpthread|librt|ld-linux-.*|libcublas)\.so' || true)
if [ -n "$unexpected" ]; then
  echo "the programs want shared libraries:" "$unexpected"
  exit 1
fi
glibc=$(cd "$bundle" && for program in "${programs[@]}"; do objdump -T "$program"; done | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -1)

# Packed, since each holds OpenBLAS for all processors.
tar -C "$bundle" -czf "$bundle/programs.tar.gz" "${programs[@]}"
(cd "$bundle" && rm "${programs[@]}")
cp -r tests/reference "$bundle/tests/"
cp data/names.txt "$bundle/data/"
cp bench/run.sh bench/peer_torch.py "$bundle/"
if [ -e "$text" ]; then
  cp "$text" "$bundle/data/tinyshakespeare.txt"
else
  echo "there is no $text (TEXT=FILE): the part 'shakespeare' will want $bundle/data/tinyshakespeare.txt"
fi

megabytes=$(du -sm "$bundle" | cut -f1)
echo "$bundle: $megabytes MB, wants $glibc or newer and cuBLAS; there: $bundle/run.sh"
if [ "$megabytes" -gt "$most_megabytes" ]; then
  echo "that is more than $most_megabytes MB"
  exit 1
fi
