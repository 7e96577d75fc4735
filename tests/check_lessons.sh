#!/usr/bin/env bash
# Lessons are short, listed and have an answer; and each stop of the reading path is where it says. Usage:
# check_lessons.sh ROOT
set -u
cd "${1:-.}" || exit 2
failures=0
complain() { echo "$1"; failures=$((failures + 1)); }

most=80
lessons=0
for source in lessons/*.cpp; do
  lessons=$((lessons + 1))
  name=$(basename "$source" .cpp)
  lines=$(wc -l < "$source")
  if [ "$lines" -gt $most ]; then complain "$source: $lines lines, at most $most"; fi
  grep -q "($name.cpp)" lessons/README.md || complain "$source: not in lessons/README.md"
  grep -q 'Exercise' "$source" || complain "$source: no exercise"
  grep -q "(answers/$name.h)" "$source" || complain "$source: does not say where its answer is"
  grep -q "lessons/answers/$name.h" tests/lessons_test.cpp || complain "$source: its answer is not tested"
done

# A stop reads `FILE:FIRST-LAST`, from `SYMBOL`: the symbol stands in the first line, and the last one ends a block.
stops=0
while IFS=: read -r file range symbol; do
  stops=$((stops + 1))
  first=${range%-*} last=${range#*-}
  if [ ! -f "$file" ]; then complain "lessons/README.md: there is no $file"; continue; fi
  if ! sed -n "${first}p" "$file" | grep -qF "$symbol"; then
    complain "lessons/README.md: $file:$first is not '$symbol', which is in line $(grep -nF "$symbol" "$file" | head -1 | cut -d: -f1)"
  elif [ "$last" -lt "$first" ] || ! sed -n "${last}p" "$file" | grep -qE '^ *\};?$|;$'; then
    complain "lessons/README.md: $file:$first-$last does not end where something ends"
  fi
done < <(sed -nE 's/^.*`([^`]+:[0-9]+-[0-9]+)`, from `([^`]+)`.*$/\1:\2/p' lessons/README.md)
if [ $stops -lt 10 ]; then complain "lessons/README.md: only $stops stops can be read"; fi

if [ "$failures" -gt 0 ]; then exit 1; fi
echo "lessons: $lessons of at most $most lines; $stops ranges of the reading path begin where they say"
