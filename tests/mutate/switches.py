"""All mutants that can stand beside the line they change, in one build: each behind a switch that is set when a program
starts. So a mutant costs no compilation, and one run of the tests tells which of them each test reaches."""
import collections
import concurrent.futures
import gzip
import hashlib
import json
import re
import shutil
import zlib

from build import environment, run
from rules import PARENTHESES, masked

# The tests of kernels: a program, what is set for it, and which of its tests. Old GPUs have kernels of their own.
RUNS = (("needle_tests", "", "*cuda*:Cuda*"), ("needle_tests", "NEEDLE_EMU_SM=75", "Attention*cuda*"),
        ("needle_cuda_tests", "", "*"))
Test = collections.namedtuple("Test", "program setting name")

NUMBERS = 1 << 20  # of switches: a mutant keeps its own while others come and go
RUNTIME = """
#include <gtest/gtest.h>
#include <cstdlib>
#include <fstream>

namespace {

bool reached[%d];
const int chosen = std::getenv("NEEDLE_MUTANT") ? std::atoi(std::getenv("NEEDLE_MUTANT")) : -1;

/// Writes a line for what is reached before all tests, and one for each: its name, whether it failed, its seconds and what it
/// reached.
class Reached final : public testing::EmptyTestEventListener {
  std::ofstream file_{std::getenv("NEEDLE_REACHED")};

  void write_reached() {
    for (int i = 0; i < %d; ++i) {
      if (reached[i]) file_ << ' ' << i;
      reached[i] = false;
    }
    file_ << std::endl;
  }
  void OnTestProgramStart(const testing::UnitTest&) override {
    file_ << "start 0 0";
    write_reached();
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    file_ << test.test_suite_name() << '.' << test.name() << ' ' << test.result()->Failed() << ' '
          << test.result()->elapsed_time() / 1e3;
    write_reached();
  }
};

const bool installed = [] {
  if (std::getenv("NEEDLE_REACHED")) testing::UnitTest::GetInstance()->listeners().Append(new Reached);
  return true;
}();

}  // namespace

extern "C" bool needle_mutant(int number) {
  reached[number] = true;
  return number == chosen;
}
""" % (NUMBERS, NUMBERS)

HEAD = re.compile(r"\s*(?:(?:else )?(?:if(?: constexpr)?|while|for) " + PARENTHESES + r" |else |return )+")
OPENING, CLOSING = "([{", ")]}"


def span_of_change(before, after):
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return start, len(before) - end


def expression_around(code, start, end):
    """The span of the expression of which code[start:end] is an operator."""
    depth, left = 0, start
    while left > 0:
        c = code[left - 1]
        depth += (c in CLOSING) - (c in OPENING)
        if depth < 0 or depth == 0 and (c in ",;" or c in "?:" and code[left - 2:left] in (" ?", " :")
                                        or re.search(r"(?<= )(=|[-+*/|&^]=|<<=|>>=)$", code[:left])):
            break
        left -= 1
    depth, right = 0, end
    while right < len(code):
        c = code[right]
        depth += (c in OPENING) - (c in CLOSING)
        if depth < 0 or depth == 0 and (c in ",;" or code[right:right + 3] in (" ? ", " : ")):
            break
        right += 1
    head = HEAD.match(code[left:start])
    left += head.end() if head else 0
    while left < start and code[left] == " ":
        left += 1
    return left, right


DROPPED = ()
CONDITIONS = ("guard dropped", "comparison")
CONTINUES = re.compile(r"[-+*/%&|^<>]$")  # a line whose expression goes on in the next one


def alternative(mutant, lines):
    """(start, end, what stands there in the mutant) in its line; DROPPED for a whole statement; None without a switch."""
    before = lines[mutant.line]
    code, after = masked(before), mutant.text.split("\n")[mutant.line]
    before = before[:len(code.rstrip())]
    start, end = span_of_change(before, after)
    if mutant.rule == "guard dropped" and (guard := re.search(r"(?<!else )\bif (" + PARENTHESES + ")", code)):
        early_end = r"\b(continue|return|break)\b"
        never = re.search(early_end, before) and not re.search(early_end, after)
        return guard.start(1) + 1, guard.end(1) - 1, "false" if never else "true"
    if "dropped" in mutant.rule and not after.strip():
        return DROPPED
    if mutant.rule == "constant":
        number = next(match for match in re.finditer(r"[\w.]+(-\d+[fF]?)?", code) if match.start() <= start < match.end() or
                      match.end() == start)
        left, right = number.span()
    else:
        left, right = expression_around(code, start, end)
        if not code[:left].strip() and CONTINUES.search(masked(lines[mutant.line - 1]).rstrip()):
            return None
    return left, right, after[left:len(after) - (len(before) - right)]


def with_switches(lines, chosen):
    """The lines, none of them moved, with switches for mutants, {number: mutant}; and the numbers of those that get one."""
    result, of_line, kept = list(lines), collections.defaultdict(list), set()
    for number, mutant in chosen.items():
        of_line[mutant.line].append((number, mutant))
    for line, mutants in of_line.items():
        before = lines[line][:len(masked(lines[line]).rstrip())]
        found = {number: alternative(mutant, lines) for number, mutant in mutants}
        kept |= {number for number, place in found.items() if place is not None}
        joined = []  # (start, end, [(number, start, end, text)]), apart from one another
        for number, (start, end, text) in sorted(((number, place) for number, place in found.items() if place),
                                                 key=lambda item: item[1][:2]):
            all_ = [(number, start, end, text)]
            if joined and start < joined[-1][1]:
                start, end = min(start, joined[-1][0]), max(end, joined[-1][1])
                all_ = joined.pop()[2] + all_
            joined.append((start, end, all_))
        text = before
        for start, end, all_ in reversed(joined):
            # Conditions may be pointers: all alternatives become bools.
            is_condition = any(chosen[number].rule in CONDITIONS and [start, end] == place for number, *place, _ in all_)
            yes = "!!" if is_condition else ""
            value = f"{yes}({before[start:end]})"
            for number, own_start, own_end, new in all_:
                other = before[start:own_start] + new + before[own_end:end]
                value = f"(needle_mutant({number}) ? {yes}({other}) : {value})"
            text = text[:start] + value + text[end:]
        for number, place in found.items():
            if place == DROPPED:
                text = f"if (!needle_mutant({number})) {text.lstrip()}"
        result[line] = text
    return result, kept


class Switches:
    """numbers[mutant]: its switch; tests_of(mutant): {test: seconds} of those that reach it."""

    def __init__(self, build, mutants, folder):
        self.build, self.folder = build, folder
        self.numbers, self.tests, self.compile_seconds = self._numbered(mutants), {}, {}
        self.of_line = collections.defaultdict(lambda: collections.defaultdict(set))  # [file][line]: numbers
        state = hashlib.sha256(json.dumps([RUNS, build.programs]).encode())
        for path in sorted(path for path in build.tree.rglob("*") if path.suffix in (".h", ".cu", ".cpp", ".py")
                           or path.name == "CMakeLists.txt"):
            if path.name not in ("mutate.py", "survivors.txt"):
                state.update(path.read_bytes())
        cache = folder / f"{state.hexdigest()[:16]}.json.gz"
        if not cache.exists():
            self._make(cache)
        with gzip.open(cache, "rt") as file:
            saved = json.load(file)
        kept = set(saved["kept"])
        self.reached = collections.defaultdict(dict)
        for program, setting, name, seconds, numbers in saved["tests"]:
            for number in numbers:
                self.reached[number][Test(program, setting, name)] = seconds
        for mutant, number in self.numbers.items():
            if number in kept:
                self.of_line[mutant.file][mutant.line].add(number)
        self.numbers = {mutant: number for mutant, number in self.numbers.items() if number in kept}

    def tests_of(self, mutant):
        """Of a mutant without a switch: those that reach its line, or else the lines next to it that have one."""
        if mutant in self.numbers:
            return self.reached[self.numbers[mutant]]
        lines = self.of_line[mutant.file]
        near = {mutant.line} & set(lines) or {max((line for line in lines if line < mutant.line), default=None),
                                              min((line for line in lines if line > mutant.line), default=None)} - {None}
        return {test: seconds for line in near for number in lines[line] for test, seconds in self.reached[number].items()}

    @staticmethod
    def _numbered(mutants):
        numbers, taken = {}, set()
        for mutant in mutants:
            name = repr((mutant.file, mutant.function, mutant.before, mutant.after))
            number = zlib.crc32(name.encode()) % NUMBERS
            while number in taken:
                number = (number + 1) % NUMBERS
            taken.add(number)
            numbers[mutant] = number
        return numbers

    def _make(self, cache):
        for old in self.folder.glob("*.json.gz"):
            old.unlink()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "switch.h").write_text('extern "C" bool needle_mutant(int number);\n')
        (self.folder / "switch.cpp").write_text(RUNTIME)
        unfit = self.folder / "unfit.json"  # numbers of those found not to compile
        known = set(json.loads(unfit.read_text())) if unfit.exists() else set()
        kept = {number: mutant for mutant, number in self.numbers.items() if number not in known}
        files = sorted({mutant.file for mutant in self.numbers})
        units = [name for name, unit in self.build.units.items() if name in files or unit.headers & set(files)]
        self._write(files, kept)
        todo, objects, attempts = list(units), {}, 0
        while todo:
            attempts += 1
            with concurrent.futures.ThreadPoolExecutor(self.build.jobs) as pool:
                results = list(pool.map(self._compile, todo))
            wrong, again = set(), []
            for name, (path, errors) in zip(todo, results):
                objects[name] = path
                if errors is not None:
                    again.append(name)
                    wrong |= self._wrong(errors, kept, name, attempts > 3)
            for number in wrong:
                kept.pop(number, None)
            if wrong:
                known |= wrong
                unfit.write_text(json.dumps(sorted(known)))
                self._write(files, kept)  # what compiled before has switches that nothing sets
            todo = again
        print(f"{len(kept)} of {len(self.numbers)} mutants have a switch", flush=True)
        runtime = self.folder / "switch.o"
        result = run(["g++", "-std=c++20", "-O2", "-c", self.folder / "switch.cpp", "-o", runtime])
        if result.returncode != 0:
            raise SystemExit(f"mutate: {result.stderr}")
        for program in self.build.programs:
            result = self.build.link(program, objects, self.folder / program, [str(runtime)])
            if result.returncode != 0:
                raise SystemExit(f"mutate: no link with switches:\n{result.stderr}")
        tests = self._reached()
        with gzip.open(cache, "wt") as file:
            json.dump({"kept": sorted(kept), "tests": tests}, file)

    def _write(self, files, kept):
        for file in files:
            lines = (self.build.tree / file).read_text().split("\n")
            own = {number: mutant for number, mutant in kept.items() if mutant.file == file}
            switched, with_one = with_switches(lines, own)
            for number in set(own) - with_one:
                del kept[number]
            path, text = self.folder / "source" / file, "\n".join(switched)
            if not path.exists() or path.read_text() != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def _compile(self, name):
        path = self.folder / (name.replace("/", "+") + ".o")
        source = self.folder / "source" / name
        # An array of a size that is not constant any more is another type.
        options = ["-Wno-error", "-Werror=vla", "-Og", "-fmax-errors=0", "-include", str(self.folder / "switch.h")]
        result = self.build.compile(self.build.units[name], path, options, source if source.exists() else None,
                                    self.folder / "source")
        return path, result.stderr if result.returncode != 0 else None

    def _wrong(self, errors, kept, name, is_last):
        """The mutants that do not compile: those just before an error or, in the last attempt, all of its line."""
        wrong, around, source = set(), set(), re.escape(str(self.folder / "source"))
        for file, line, column, kind in re.findall(rf"{source}/([\w/.]+):(\d+):(\d+): +(\w+)", errors):
            code = (self.folder / "source" / file).read_text().split("\n")[int(line) - 1]
            numbers = [(match.start(), int(match[1])) for match in re.finditer(r"needle_mutant\((\d+)\)", code)]
            before = [number for place, number in numbers if place < int(column)]
            around |= {number for _, number in numbers}
            if kind == "error":
                wrong |= set(before[-1:] if before and not is_last else [number for _, number in numbers])
        wrong = wrong & set(kept) or around & set(kept)
        if not wrong:
            raise SystemExit(f"mutate: {name} does not compile with switches:\n{errors}")
        return wrong

    def _reached(self):
        """[[program, setting, test, seconds, numbers it reaches]]"""
        found = []
        for program, setting, pattern in RUNS:
            if program not in self.build.programs:
                continue
            report = self.folder / "reached.txt"
            result = run([self.folder / program, f"--gtest_filter={pattern}", "--gtest_brief=1"],
                         env=environment(setting, NEEDLE_REACHED=str(report)))
            if result.returncode < 0:
                raise SystemExit(f"mutate: {program} crashes on the sources as they are:\n{result.stdout}{result.stderr}")
            lines = [line.split() for line in report.read_text().splitlines()]
            failing = [line[0] for line in lines if line[1] != "0"]
            if failing:
                print(f"{len(failing)} tests fail on the sources as they are and are left out: " + ", ".join(failing[:10]))
            tests = [[program, setting, line[0], float(line[2]), [int(number) for number in line[3:]]]
                     for line in lines if line[1] == "0"]
            # Whatever starts a process, or its first test alone reaches, belongs to each test that runs by itself.
            others = {number for test in tests[2:] for number in test[4]}
            start = tests.pop(0)[4]
            start += [number for number in tests[0][4] if number not in others] if tests else []
            for test in tests:
                test[4] = sorted({*test[4], *start})
            print(f"{len(tests)} tests of {program} {setting} in {sum(test[3] for test in tests):.0f} s", flush=True)
            found += tests
        return found
