#!/usr/bin/env bash
# The program that the README shows is the one that the tests run. Usage: check_readme.sh ROOT
set -u
cd "${1:-.}" || exit 2
shown=$(sed -n '/^```cpp$/,/^```$/p' README.md | sed '/^```/d')
run=$(tail -n +2 examples/small_program.cpp)
if [ "$shown" != "$run" ]; then
  diff <(echo "$run") <(echo "$shown")
  echo "README.md and examples/small_program.cpp differ"
  exit 1
fi
echo "README.md shows examples/small_program.cpp"
