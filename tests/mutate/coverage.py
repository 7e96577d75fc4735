"""Which tests reach which lines of the CUDA sources, and how long they take."""
import collections
import concurrent.futures
import gzip
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import time

from build import environment, run

# The tests of kernels: a program, what is set for it, and which of its tests. Old GPUs have kernels of their own.
RUNS = (("needle_tests", "", "*cuda*:Cuda*"), ("needle_tests", "NEEDLE_EMU_SM=75", "Attention*cuda*"),
        ("needle_cuda_tests", "", "*"))
Test = collections.namedtuple("Test", "program setting name")


class Coverage:
    """lines[unit][file][line]: the tests that execute that line of that file as compiled in that unit.

    Of all units, and kept in `folder` while sources and tests are the same, so that any other choice of mutants finds it there.
    """

    def __init__(self, build, folder):
        self.build, self.folder = build, folder
        self.seconds, self.lines, self.compile_seconds = {}, {}, {}
        state = hashlib.sha256(json.dumps([RUNS, build.programs]).encode())
        for path in sorted(path for path in build.tree.rglob("*") if path.suffix in (".h", ".cu", ".cpp", ".txt")):
            if not path.is_relative_to(build.tree / "tests/mutate"):
                state.update(path.read_bytes())
        cache = folder / f"{state.hexdigest()[:16]}.json.gz"
        if cache.exists():
            self._load(cache)
        else:
            self._measure(build.units)
            self._save(cache)

    def tests_of(self, unit, file, line):
        """The tests that reach a line; for a line without code of its own, those that reach its neighbours."""
        known = {number for files in self.lines.values() for number in files.get(file, ())}
        near = {line} & known
        if not near and known:
            near = {max((number for number in known if number < line), default=min(known)),
                    min((number for number in known if number > line), default=max(known))}
        own = self.lines.get(unit, {}).get(file, {})
        return {test for number in near for test in own.get(number, ())}

    def _measure(self, units):
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "objects").mkdir(parents=True)
        objects = {}
        with concurrent.futures.ThreadPoolExecutor(self.build.jobs) as pool:
            for unit, path in pool.map(self._compile, sorted(units)):
                objects[unit] = path
        for program in self.build.programs:
            result = self.build.link(program, objects, self.folder / program, ["--coverage"])
            if result.returncode != 0:
                raise SystemExit(f"mutate: no link for the coverage of tests:\n{result.stderr}")
        tests = [Test(program, setting, name) for program, setting, pattern in RUNS if program in self.build.programs
                 for name in list_tests(self.folder / program, pattern)]
        print(f"coverage of {len(tests)} tests ...", flush=True)
        idle = {program: self._idle(program, objects) for program in self.build.programs}
        self.lines = {unit: collections.defaultdict(lambda: collections.defaultdict(list)) for unit in units}
        failing = []
        with concurrent.futures.ThreadPoolExecutor(self.build.jobs) as pool:
            for test, seconds, counts in pool.map(lambda test: self._measure_test(test, objects, idle), tests):
                if counts is None:
                    failing.append(test.name)
                    continue
                self.seconds[test] = seconds
                for unit, file, line, is_reached in counts:
                    reached = self.lines[unit][file][line]  # known even if nothing reaches it
                    if is_reached and (not reached or reached[-1] != test):
                        reached.append(test)
        if failing:
            print(f"{len(failing)} tests fail on the sources as they are and are left out: " + ", ".join(failing[:10]))

    def _compile(self, name):
        path = self.folder / "objects" / (name.replace("/", "+") + ".o")
        start = time.monotonic()
        result = self.build.compile(self.build.units[name], path, ["--coverage"])
        if result.returncode != 0:
            raise SystemExit(f"mutate: {name} does not compile with --coverage:\n{result.stderr}")
        self.compile_seconds[name] = time.monotonic() - start
        return name, path

    def _idle(self, program, objects):
        """{unit: what is counted where no test runs}."""
        place = self.folder / "runs" / program
        run([self.folder / program, "--gtest_filter=none"], env=environment(GCOV_PREFIX=str(place)))
        return {unit: data.read_bytes() for unit, data in self._data(place, objects)}

    @staticmethod
    def _data(place, objects):
        """(unit, file of its counts) for those that a run left."""
        for unit, path in objects.items():
            data = pathlib.Path(str(place) + str(path.with_suffix(".gcda").resolve()))
            if data.exists():
                yield unit, data

    def _measure_test(self, test, objects, idle):
        """(test, seconds, [(unit, file, line, whether it was reached)]); None where it fails."""
        place = self.folder / "runs" / hashlib.sha256(repr(test).encode()).hexdigest()[:16]
        start = time.monotonic()
        try:
            result = run([self.folder / test.program, f"--gtest_filter={test.name}"], timeout=600,
                         env=environment(test.setting, GCOV_PREFIX=str(place)))
        except subprocess.TimeoutExpired:
            return test, 0, None
        seconds = time.monotonic() - start
        counts = []
        for unit, data in self._data(place, objects) if result.returncode == 0 else []:
            if data.read_bytes() != idle[test.program].get(unit):
                data.with_suffix(".gcno").symlink_to((self.folder / "objects" / data.name).with_suffix(".gcno").resolve())
                counts += self._counts(unit, data)
        shutil.rmtree(place, ignore_errors=True)
        return test, seconds, counts if result.returncode == 0 else None

    def _counts(self, unit, data):
        found = run(["gcov", "--json-format", "--stdout", data.name], cwd=data.parent, check=True).stdout
        for file in json.loads(found)["files"]:
            path = pathlib.Path(file["file"])
            if path.is_relative_to(self.build.tree / "backends/cuda"):
                name = str(path.relative_to(self.build.tree))
                merged = collections.Counter()
                for line in file["lines"]:
                    merged[line["line_number"] - 1] += line["count"]
                for line, count in merged.items():
                    yield unit, name, line, count > 0

    def _save(self, cache):
        tests = list(self.seconds)
        number = {test: i for i, test in enumerate(tests)}
        lines = {unit: {file: {line: [number[test] for test in reached] for line, reached in known.items()}
                        for file, known in files.items()} for unit, files in self.lines.items()}
        with gzip.open(cache, "wt") as file:
            json.dump({"tests": tests, "seconds": list(self.seconds.values()), "compile": self.compile_seconds,
                       "lines": lines}, file)

    def _load(self, cache):
        with gzip.open(cache, "rt") as file:
            saved = json.load(file)
        tests = [Test(*test) for test in saved["tests"]]
        self.seconds = dict(zip(tests, saved["seconds"]))
        self.compile_seconds = saved["compile"]
        self.lines = {unit: {file: {int(line): [tests[i] for i in reached] for line, reached in known.items()}
                             for file, known in files.items()} for unit, files in saved["lines"].items()}


def list_tests(program, pattern):
    suite, names = "", []
    for line in run([program, "--gtest_list_tests", f"--gtest_filter={pattern}"], check=True).stdout.splitlines():
        line = re.sub(r"\s*#.*", "", line)
        if line.startswith("  "):
            names.append(suite + line.strip())
        elif line.endswith("."):
            suite = line
    return names
