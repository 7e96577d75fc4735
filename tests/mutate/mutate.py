#!/usr/bin/env python3
"""Puts mistakes into the CUDA sources, one at a time, and sees whether the tests of kernels find them.

Rules: a barrier, wait, commit or guard dropped; a comparison, an arithmetic operator, min or max swapped; a constant
changed (tile sizes excepted). Mutants that can stand beside what they change are all in one program, each behind a
switch; the others are built one by one. Each runs, on the emulator, the tests that reach it, the quick ones first. Those
that survive must stand in survivors.txt, each with a reason:

    backends/cuda/softmax.cu, softmax_kernel: BEFORE -> AFTER
        equivalent because ...
"""
import argparse
import collections
import concurrent.futures
import pathlib
import random
import re
import shutil
import subprocess
import sys
import threading
import time

from build import PROGRAMS, Build, environment, run
from rules import RULES, mutants
from switches import RUNS, Switches

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SURVIVORS = pathlib.Path(__file__).with_name("survivors.txt")
NO_BUILD, FOUND, SURVIVED, EXPLAINED = "no build", "found", "survived", ", as listed"
FIRST_PART = 20  # tests of the first process; the quick ones come first


def name_of(mutant):
    return f"{mutant.file}, {mutant.function}: {mutant.before} -> {mutant.after}"


def place_of(mutant):
    return f"{mutant.file}:{mutant.line + 1} [{mutant.rule}]"


def explained_survivors():
    """{mutant's name: reason} of survivors.txt."""
    reasons, name = {}, None
    for line in SURVIVORS.read_text().splitlines() if SURVIVORS.exists() else []:
        if line.startswith("#") or not line.strip():
            continue
        if not line.startswith(" "):
            name = line.strip()
        elif name:
            reasons[name] = line.strip()
    return reasons


def changed_lines(revision):
    """{file: numbers of the lines that differ from a revision}."""
    lines, file = collections.defaultdict(set), None
    for line in run(["git", "diff", "-U0", revision, "--", "backends/cuda"], cwd=ROOT, check=True).stdout.splitlines():
        if line.startswith("+++ "):
            file = line[6:]
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(match[1]), int(match[2] or 1)
            lines[file] |= set(range(first - 1, first - 1 + count))
    return lines


def chosen_mutants(options):
    """Those to try, and all there are."""
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "backends/cuda").iterdir() if path.suffix in (".cu", ".h"))
    of_all = [mutant for file in files for mutant in mutants(file, (ROOT / file).read_text())]
    found = [mutant for mutant in of_all if options.files is None or mutant.file in options.files]
    if options.changed:
        changed = changed_lines(options.changed)
        untracked = set(run(["git", "ls-files", "-o", "--", "backends/cuda"], cwd=ROOT).stdout.splitlines())
        found = [mutant for mutant in found if mutant.line in changed[mutant.file] or mutant.file in untracked]
    if options.rules:
        found = [mutant for mutant in found if any(name in mutant.rule for name in options.rules)]
    if options.only:
        found = [mutant for mutant in found if options.only in name_of(mutant)]
    if options.sample and options.sample < len(found):
        found = random.Random(options.seed).sample(found, options.sample)
    return found, of_all


class Judge:
    """Tests mutants, by their switch or built each, every thread in a folder of its own."""

    def __init__(self, build, switches, work, command):
        self.build, self.switches, self.work, self.command = build, switches, work, command
        self.threads = {}

    def verdict(self, mutant):
        folder = self.work / f"job-{self.threads.setdefault(threading.get_ident(), len(self.threads))}"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / pathlib.Path(mutant.file).parent).mkdir(parents=True)
        number = self.switches.numbers.get(mutant) if self.switches else None
        if number is not None:
            return self._test(mutant, self.switches.folder, folder, number)
        (folder / mutant.file).write_text(mutant.text)
        objects = {}
        for name, unit in self.build.units.items():
            if name != mutant.file and mutant.file not in unit.headers:
                continue
            objects[name] = folder / (name.replace("/", "+") + ".o")
            source = folder / mutant.file if name == mutant.file else None
            # Warnings, such as of a value that is not used any more, are no verdict; most mutants fall before speed counts.
            if self.build.compile(self.build.units[name], objects[name], ["-w", "-Og"], source, folder).returncode != 0:
                return NO_BUILD
        for program in self.build.programs:
            if self.build.link(program, objects, folder / program).returncode != 0:
                return NO_BUILD
        if self.command:
            return self._run(["bash", "-c", self.command], folder, self.timeout)
        return self._test(mutant, folder, folder, -1)

    def _test(self, mutant, programs, folder, number):
        tests = self.switches.tests_of(mutant)
        if not tests:
            return SURVIVED + ": no test reaches it"
        for program, setting in dict.fromkeys((program, setting) for program, setting, _ in RUNS):
            own = [test for test in tests if (test.program, test.setting) == (program, setting)]
            own.sort(key=tests.get)
            while self.budget and sum(tests[test] for test in own) > self.budget:
                own.pop()
            size = FIRST_PART
            while own:
                part, own, size = own[:size], own[size:], 5 * size
                limit = 60 + 10 * sum(tests[test] for test in part)
                verdict = self._run([programs / program, "--gtest_fail_fast", "--gtest_brief=1",
                                     "--gtest_filter=" + ":".join(test.name for test in part)], folder, limit, setting,
                                    NEEDLE_MUTANT=str(number))
                if verdict != SURVIVED:
                    return verdict
        return SURVIVED

    timeout, budget = 600, None

    @staticmethod
    def _run(command, folder, limit, setting="", **variables):
        try:
            result = subprocess.run(command, cwd=folder, env=environment(setting, **variables), timeout=limit, text=True,
                                    errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except subprocess.TimeoutExpired:
            return FOUND + ": time-out"
        if result.returncode == 0:
            return SURVIVED
        kind = re.search(r"needle cuda emulator: (race|uninitialized|out_of_bounds|use_after_free|deadlock|divergent_barrier|"
                         r"warp_misuse|misaligned|api_misuse|invalid_address|trap|canary)", result.stdout)
        return FOUND + ": " + (kind[1] if kind else "crash" if result.returncode < 0 else "value")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="+", help="sources to put mistakes into; all of backends/cuda without it")
    parser.add_argument("--changed", metavar="REVISION", help="only lines that differ from this revision")
    parser.add_argument("--rules", nargs="+", metavar="NAME", help="only mutants of rules with these names or parts of them, "
                        "e.g. barrier wait commit guard; all of them: " + ", ".join(RULES))
    parser.add_argument("--only", metavar="TEXT", help="only mutants with this text in the name that survivors.txt gives them")
    parser.add_argument("--sample", type=int, metavar="N", help="only so many, drawn by chance")
    parser.add_argument("--seed", type=int, default=1, help="of that chance")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build-mutate", help="folder to build in")
    parser.add_argument("--test", metavar="COMMAND", help="judge by this command, run where the programs are")
    parser.add_argument("--timeout", type=float, default=600, help="seconds of --test")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="of tests for one mutant, the quick ones; without it all")
    parser.add_argument("--programs", nargs="+", default=PROGRAMS, help="what to build: " + ", ".join(PROGRAMS))
    parser.add_argument("--list", action="store_true", help="only show the mutants")
    options = parser.parse_args()
    for name in options.rules or ():
        if not any(name in rule for rule in RULES):
            parser.error(f"no rule has '{name}' in its name; there are: " + ", ".join(RULES))

    chosen, of_all = chosen_mutants(options)
    if options.list:
        for mutant in chosen:
            print(f"{place_of(mutant)} {mutant.function}: {mutant.before} -> {mutant.after}")
        print(f"{len(chosen)} mutants")
        return 0
    work = options.work.resolve()
    build = Build(ROOT, work, options.jobs, options.programs)
    switches = None if options.test else Switches(build, of_all, work / "switches")
    judge = Judge(build, switches, work, options.test)
    judge.timeout, judge.budget = options.timeout, options.budget

    explained, verdicts, start = explained_survivors(), [], time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for mutant, verdict in zip(chosen, pool.map(judge.verdict, chosen)):
            if verdict.startswith(SURVIVED) and name_of(mutant) in explained:
                verdict += EXPLAINED
            verdicts.append(verdict)
            print(f"{len(verdicts):5} {verdict:24} {place_of(mutant)}: {mutant.before} -> {mutant.after}", flush=True)
    print(f"\n{len(chosen)} mutants in {(time.monotonic() - start) / 60:.0f} minutes")
    listed_in_vain = set(explained) - {name_of(mutant) for mutant in of_all}
    listed_in_vain |= {name_of(mutant) for mutant, verdict in zip(chosen, verdicts)
                       if verdict.startswith(FOUND) and name_of(mutant) in explained}
    return report(chosen, verdicts, listed_in_vain)


def report(chosen, verdicts, listed_in_vain):
    """Sums up; 1 where a mutant survived without a reason."""
    print(", ".join(f"{count} {verdict}" for verdict, count in collections.Counter(verdicts).most_common()))
    new = [mutant for mutant, verdict in zip(chosen, verdicts) if verdict.startswith(SURVIVED) and EXPLAINED not in verdict]
    found = [mutant for mutant, verdict in zip(chosen, verdicts) if verdict.startswith(FOUND)]
    for rule in RULES:
        of_rule, missed = (sum(mutant.rule == rule for mutant in mutants_) for mutants_ in (found, new))
        if of_rule + missed:
            print(f"{rule:16} found {of_rule} of {of_rule + missed} that {SURVIVORS.name} does not explain")
    if found or new:
        print(f"{'together':16} found {100 * len(found) / (len(found) + len(new)):.1f} %")
    for name in sorted(listed_in_vain):
        print(f"found, or gone, but in {SURVIVORS.name}: {name}")
    if new:
        print("\nwithout a reason:")
        for mutant in new:
            print(name_of(mutant))
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
