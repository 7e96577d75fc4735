"""A scratch copy of the sources, built once; a mutant is one more object and a link away from it."""
import collections
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

PROGRAMS = ("needle_tests", "needle_cuda_tests")
Unit = collections.namedtuple("Unit", "name command source object headers")  # one .cu file; paths below the copy


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, errors="replace", **options)


class Build:
    def __init__(self, root, work, jobs, programs):
        self.tree, self.folder, self.jobs, self.programs = work / "tree", work / "build", jobs, programs
        self._copy(root)
        self._compile()
        self.units = {unit.name: unit for unit in self._units()}
        self.links = {program: self._link_command(program) for program in programs}

    def _copy(self, root):
        """Brings the copy up to date, touching only what differs."""
        listed = run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, check=True).stdout.splitlines()
        wanted = {name for name in listed if (root / name).is_file()}
        for name in wanted:
            content, target = (root / name).read_bytes(), self.tree / name
            if not target.exists() or target.read_bytes() != content:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                target.write_bytes(content)
                target.chmod((root / name).stat().st_mode | 0o200)
        for path in [path for path in self.tree.rglob("*") if path.is_file()]:
            if str(path.relative_to(self.tree)) not in wanted:
                path.unlink()

    def _compile(self):
        commands = (["cmake", "-S", self.tree, "-B", self.folder, "-G", "Ninja", "-DNEEDLE_CUDA=EMULATED",
                     "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DCMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE=PRE_TEST"],
                    ["cmake", "--build", self.folder, "-j", str(self.jobs), "--target", *self.programs])
        for command in commands:
            result = run(command)
            if result.returncode != 0:
                raise SystemExit(f"mutate: the sources as they are do not build:\n{result.stdout}{result.stderr}")

    def _units(self):
        headers, unit = collections.defaultdict(set), None
        for line in run(["ninja", "-C", self.folder, "-t", "deps"], check=True).stdout.splitlines():
            if match := re.match(r"(\S+): #deps", line):
                unit = match[1]
            elif unit and (path := pathlib.Path(line.strip())).is_relative_to(self.tree):
                headers[unit].add(str(path.relative_to(self.tree)))
        for entry in json.loads((self.folder / "compile_commands.json").read_text()):
            if not entry["file"].endswith(".cu"):
                continue
            source = str(pathlib.Path(entry["file"]).relative_to(self.tree))
            command = shlex.split(entry["command"])
            target = command[command.index("-o") + 1]
            for option in ("-o", "-c"):
                del command[command.index(option):command.index(option) + 2]
            yield Unit(source, command, source, target, headers[target] - {source})

    def _link_command(self, program):
        target = run(["ninja", "-C", self.folder, "-t", "query", program], check=True).stdout
        command = run(["ninja", "-C", self.folder, "-t", "commands", "-s", program], check=True).stdout
        path = re.search(r"-o (\S+)", command)
        if not path:  # an alias: its only input is the program
            return self._link_command(re.search(r"input: \S+\n\s+(\S+)", target)[1])
        return shlex.split(command.split("&&")[1])

    def compile(self, unit, target, options=(), source=None, overlay=None):
        """Compiles a unit, with another source, or with the headers in `overlay` before those of the tree."""
        compiler = 2 if unit.command[0].endswith("ccache") else 1
        command = [*unit.command[:compiler], *(["-I", str(overlay)] if overlay else []), *unit.command[compiler:], *options,
                   "-o", str(target), "-c", str(source or self.tree / unit.source)]
        return run(command, cwd=self.folder)

    def link(self, program, objects, target, options=()):
        """Links a program with some units' objects replaced; objects: {unit name: path}."""
        command, extra = list(self.links[program]), []
        command[command.index("-o") + 1] = str(target)
        for name, path in objects.items():
            own = self.units[name].object
            if own in command:
                command.remove(own)
                extra.append(str(path))
            elif "libneedle.a" in command:
                extra.append(str(path))  # before the library, whose own is then not wanted
        if shutil.which("ld.lld"):
            options = [*options, "-fuse-ld=lld"]  # the quickest; each mutant waits for it
        # First, so that their copies of functions in headers are taken.
        return run(command[:1] + extra + command[1:] + list(options), cwd=self.folder)


def environment(setting="", **others):
    """With NAME=VALUE; one thread a process, since as many run side by side as there are cores."""
    own = dict([setting.split("=")]) if setting else {}
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **own, **others}
