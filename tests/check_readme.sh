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
shown=$(sed -n '/^```c++$/,/^```$/p' README.md | sed '/^```/d')
if [[ $(cat examples/custom_model.cpp) != *"$shown"* ]]; then
  echo "README.md's model is not that of examples/custom_model.cpp"
  exit 1
fi
echo "README.md shows examples/small_program.cpp and examples/custom_model.cpp"
