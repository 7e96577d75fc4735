#!/usr/bin/env bash
# Tests and measures needle on this machine's GPU, without a network.
#
#   run.sh [PART...]     intrinsics suite speed sanitizer shakespeare; all of them, in this order, without one
#
# Each part has a budget of seconds, below; what overruns it is cut. Results appear as they come, and in results/.
# `intrinsics suite sanitizer` and `speed shakespeare` are each done within ten minutes.
set -uo pipefail
cd "$(dirname "$0")" || exit 2
declare -A budget=([intrinsics]=60 [suite]=180 [speed]=240 [sanitizer]=180 [shakespeare]=120)
parts=(intrinsics suite speed sanitizer shakespeare)
python=${PYTHON:-python3}
cores=$(nproc)
mkdir -p results
shopt -s nullglob

# Passes on what tests say, but for those that pass.
only_news() { grep --line-buffered -vE '^(\[ +(RUN|OK) |\[-----|\[=====|Note: |Running main|$)' || true; }

died() { echo "ended in: $(grep -E '^\[ RUN' "$1" | tail -1)"; }

# Tests in several processes side by side; each prints its failures.
side_by_side() {  # PROCESSES LOG COMMAND...
  local processes=$1 log=$2 failed=0 children=()
  shift 2
  for ((i = 0; i < processes; i++)); do
    (
      export GTEST_TOTAL_SHARDS=$processes GTEST_SHARD_INDEX=$i OMP_NUM_THREADS=1
      "$@" 2>&1 | tee "results/$log-$i.log" | only_news
    ) &
    children+=($!)
  done
  for child in "${children[@]}"; do wait "$child" || failed=1; done
  for ((i = 0; i < processes; i++)); do
    grep -qE '^\[==========\].* ran\.' "results/$log-$i.log" || died "results/$log-$i.log"
  done
  return $failed
}

intrinsics() { ./needle_cuda_tests 2>&1 | only_news; }

suite() { side_by_side $((cores < 8 ? cores : 8)) suite ./needle_tests --gtest_filter='*cuda*:Cuda*'; }

# The smallest case of each kernel: the tests of single ops.
sanitizer() {
  local failed=0 tool kernels='OpTable.Float32*cuda*:OpTable.SixteenBit*cuda*:Attention*cuda*:*SequenceOps*cuda*:*OptimizerTest*cuda*'
  if ! command -v compute-sanitizer > /dev/null; then
    echo "there is no compute-sanitizer on this machine's path"
    return 1
  fi
  for tool in memcheck racecheck; do
    echo "-- $tool"
    compute-sanitizer --tool $tool --error-exitcode 1 ./needle_cuda_tests > results/sanitizer-$tool.log 2>&1 || failed=1
    grep '=====.*\(ERROR SUMMARY\|RACECHECK SUMMARY\)' results/sanitizer-$tool.log
    side_by_side $((cores < 4 ? cores : 4)) sanitizer-$tool compute-sanitizer --tool $tool --error-exitcode 1 \
      ./needle_tests --gtest_filter="$kernels" || failed=1
  done
  return $failed
}

# needle's milliseconds a step beside PyTorch's, from all lines measured.
compare() {
  "$python" - results/speed.jsonl << 'END'
import json, sys
ours, theirs = {}, {}
for line in open(sys.argv[1]):
    try:
        row = json.loads(line)
    except ValueError:
        continue
    if "work" in row:
        key = (row["work"].replace("G124-attention", "A1024"), row.get("precision", "f32"))
        ours.setdefault(key, {})["with a graph" if row.get("graph") else "plain"] = 1e3 * row["seconds"]
    elif "config" in row:
        key = (row["config"], {"float32": "f32", "bfloat16": "bf16"}[row["dtype"]])
        theirs.setdefault(key, {})[row.get("compile_mode", row.get("attention_backend"))] = row["median_ms"]
print("ms a step; in brackets PyTorch's time over needle's")
for key, times in ours.items():
    for way, own in times.items():
        print(" ".join(key), way, f"{own:.3f}", *(f"| {mode} {ms:.3f} ({ms / own:.2f})" for mode, ms in theirs.get(key, {}).items()))
END
}

measure() {  # WORKS OPTION...
  local failed=0 work
  for work in $1; do
    echo "-- needle $work ${*:2}"
    ./needle bench --device cuda --json --work "$work" "${@:2}" | tee -a results/speed.jsonl || failed=1
  done
  return $failed
}
peer() { echo "-- PyTorch $*"; "$python" peer_torch.py "$@" --device cuda | tee -a results/speed.jsonl; }
speed() {
  : > results/speed.jsonl
  local failed=0
  # What the goals speak of comes first.
  measure "G124 G124-attention" --precision bf16 || failed=1
  measure W1 --graph || failed=1
  measure "W1 W2 W3 G124" || failed=1
  if "$python" -c 'import torch' 2> results/torch.log; then
    peer train --config G124 --dtype bfloat16 --opt fused --modes eager,default
    peer attn --T 1024 --batch 8 --heads 12 --dtype bfloat16
    peer train --config W1 --opt fused --modes eager,reduce-overhead
    peer train --config W2,W3,G124 --opt fused --modes eager
  else
    echo "$python has no torch ($(tail -1 results/torch.log)): nothing to compare with"
  fi
  return $failed
}

# nanoGPT's setting for one GPU.
shakespeare() {
  if [ ! -e data/tinyshakespeare.txt ]; then
    echo "there is no data/tinyshakespeare.txt beside this script"
    return 1
  fi
  ./needle train --device cuda --text data/tinyshakespeare.txt --context 256 --batch 64 --layers 6 --heads 6 --width 384 \
    --dropout 0.2 --steps 5000 --learning-rate 1e-3 --final-learning-rate 1e-4 --warmup 100 --betas 0.9 0.99 \
    --weight-decay 0.1 --evaluate-every 250 --precision bf16 --out results/shakespeare --overwrite
}

# --- one part, in a process of its own that can be cut
if [ "${1-}" = --part ]; then
  "$2"
  exit
fi

for part in "$@"; do
  if [ -z "${budget[$part]-}" ]; then
    echo "run.sh: there is no part '$part'; there are: ${parts[*]}" >&2
    exit 2
  fi
done
if [ $# -gt 0 ]; then parts=("$@"); fi

[ needle -nt programs.tar.gz ] || tar -xzmf programs.tar.gz || exit 1

# cuBLAS is this machine's own: the toolkit's, or one that came with PyTorch.
cublas=$(readelf -d needle 2> /dev/null | grep -oE 'libcublas\.so\.[0-9]+')
cublas=${cublas:-libcublas.so.13}
if ldd needle | grep -q "$cublas => not found"; then
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2> /dev/null)
  for folder in /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib "$packages"/nvidia/*/lib; do
    if [ -e "$folder/$cublas" ]; then
      export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
      break
    fi
  done
fi
# Where containers put the driver.
if [ -d /usr/local/nvidia/lib64 ]; then export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/nvidia/lib64; fi
if ldd needle | grep 'not found'; then
  echo "this machine lacks a library that the programs want"
  exit 1
fi
# Tests know their files by this name.
ln -sfn "$PWD" /tmp/needle-gpu-bundle

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2> /dev/null || echo "nvidia-smi shows no GPU"
if ./needle_cuda_tests --gtest_filter='*WarpOperations*' | grep -q 'no CUDA device'; then
  echo "there is no CUDA device here that these programs can use: no part can run (${parts[*]})"
  exit 1
fi

failures=0
for part in "${parts[@]}"; do
  rm -f results/"$part"-*
  echo "=== $part (at most ${budget[$part]} s)"
  start=$SECONDS
  timeout --kill-after=5 "${budget[$part]}" bash "$0" --part "$part" 2>&1 | tee "results/$part.log"
  code=${PIPESTATUS[0]}
  logs=(results/"$part"-*.log)
  case $code in
    0) verdict=passed ;;
    124 | 137)
      verdict="CUT: its ${budget[$part]} s are over"
      for log in "${logs[@]}"; do died "$log"; done
      ;;
    *) verdict="FAILED (code $code)" ;;
  esac
  [ "$code" = 0 ] || failures=$((failures + 1))
  if [ "$part" = speed ]; then compare; fi
  if [ ${#logs[@]} -gt 0 ]; then
    echo "tests passed: $(cat "${logs[@]}" | grep -cE '^\[       OK'), failed: $(cat "${logs[@]}" | grep -cE '^\[  FAILED  \].* ms\)$')"
  fi
  echo "=== $part: $verdict, after $((SECONDS - start)) s"
done
exit $((failures > 0))
