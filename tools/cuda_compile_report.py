#!/usr/bin/env python3
"""What compiling the CUDA sources costs: CPU seconds of each file, registers and spills of each kernel.

  cuda_compile_report.py record COMMAND...   run one compilation and keep what it cost beside its object file
  cuda_compile_report.py report BUILD        table of all of them; fails where a limit is passed
"""
import collections
import json
import pathlib
import re
import resource
import subprocess
import sys

MOST_SECONDS_OF_A_FILE = 60
MOST_SECONDS = 1200  # ten minutes of two cores
STRICT_ARCHITECTURES = ("sm_80", "sm_90")
STRICT_HEAD_WIDTHS = {64, 128}

Kernel = collections.namedtuple("Kernel", "name architecture registers spilled")  # bytes stored and loaded
File = collections.namedtuple("File", "source seconds kernels")


def record(command):
    """Runs a compilation; its messages are shown only where it fails."""
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    if result.returncode != 0:
        sys.stderr.write(result.stderr)
    elif "-o" in command:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cost = {"source": next(part for part in command if part.endswith(".cu")),
                "seconds": used.ru_utime + used.ru_stime, "messages": result.stderr}
        pathlib.Path(command[command.index("-o") + 1] + ".json").write_text(json.dumps(cost))
    return result.returncode


def kernels_of(messages):
    """The kernels in the messages of ptxas -v, by their mangled names."""
    kernels, name, architecture, function, spills = [], None, None, None, {}
    for line in messages.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
            name, architecture, spills, function = match[1], match[2], {}, None
        elif match := re.search(r"Function properties for (\S+)", line):
            function = match[1]
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spills[function] = int(match[1]) + int(match[2])
        elif name and (match := re.search(r"Used (\d+) registers", line)):
            # Functions that were not inlined are listed with the kernel.
            kernels.append(Kernel(name, architecture, int(match[1]), sum(spills.values())))
            name = None
    return kernels


def demangled(names):
    """{mangled name: what a reader wants of it}."""
    output = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    noise = r"^void |needle::|cuda::|\(anonymous namespace\)::|\(\w+\)(?=-?\d)"
    return {name: re.sub(noise, "", line) for name, line in zip(names, output.splitlines())}


def read(build):
    """The files compiled in a folder."""
    root = pathlib.Path(__file__).resolve().parent.parent
    for record in sorted(pathlib.Path(build).rglob("*.cu.o.json")):
        cost = json.loads(record.read_text())
        source = pathlib.Path(cost["source"]).resolve()
        if source.exists() and record.with_suffix("").exists():
            kernels = kernels_of(cost["messages"])
            names = demangled(sorted({kernel.name for kernel in kernels}))
            yield File(str(source.relative_to(root)), cost["seconds"],
                       [kernel._replace(name=names[kernel.name]) for kernel in kernels])


def must_not_spill(source, kernel):
    """Whether this is a kernel of a training step, at the head widths that matter."""
    if kernel.architecture not in STRICT_ARCHITECTURES or source.startswith("tests/"):
        return False
    numbers = {int(number) for number in re.findall(r"\b\d+\b", kernel.name.partition("<")[2])}
    return "attention" not in source or not numbers or bool(numbers & STRICT_HEAD_WIDTHS)


def print_kernels(files):
    """One line for all instances of a kernel: the registers that they use, how many of them spill."""
    architectures = sorted({kernel.architecture for file in files for kernel in file.kernels})
    print(f"\n{'registers of each kernel':64}" + "".join(f"{name:>10}" for name in architectures) + "  spilling")
    for file in files:
        print(file.source)
        instances = collections.defaultdict(list)
        for kernel in file.kernels:
            instances[kernel.name.partition("<")[0]].append(kernel)
        for name, kernels in sorted(instances.items()):
            count = len({kernel.name for kernel in kernels})
            line = f"  {name + (f' x {count}' if count > 1 else ''):62}"
            for architecture in architectures:
                used = sorted(kernel.registers for kernel in kernels if kernel.architecture == architecture)
                line += f"{'-'.join(str(number) for number in sorted({*used[:1], *used[-1:]})):>10}"
            print(f"{line}{sum(kernel.spilled > 0 for kernel in kernels) or '-':>10}")


def report(build):
    """Prints the tables; 1 where a limit is passed."""
    files, failures = list(read(build)), []
    print(f"{'file':52} CPU s  kernels  most registers")
    for file in files:
        kernels, registers = len({kernel.name for kernel in file.kernels}), [kernel.registers for kernel in file.kernels]
        print(f"{file.source:52} {file.seconds:5.1f}  {kernels:7}  {max(registers, default=0):14}")
        if file.seconds > MOST_SECONDS_OF_A_FILE:
            failures.append(f"{file.source} takes {file.seconds:.0f} CPU seconds, more than {MOST_SECONDS_OF_A_FILE}")
    total = sum(file.seconds for file in files)
    print(f"{'together':52} {total:5.1f}")
    if total > MOST_SECONDS:
        failures.append(f"all files take {total:.0f} CPU seconds, more than {MOST_SECONDS}")
    if not files:
        failures.append(f"{build} holds no compiled CUDA source")
    print_kernels(files)

    spilling = [(file.source, kernel) for file in files for kernel in file.kernels if kernel.spilled > 0]
    print("\nspilling: " + ("" if spilling else "none"))
    for source, kernel in spilling:
        what = f"{kernel.name} on {kernel.architecture}: {kernel.spilled} bytes"
        print("  " + what)
        if must_not_spill(source, kernel):
            failures.append(f"a kernel of a training step spills: {what}")
    for failure in failures:
        print("FAILED: " + failure)
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "record":
        sys.exit(record(sys.argv[2:]))
    if len(sys.argv) == 3 and sys.argv[1] == "report":
        sys.exit(report(sys.argv[2]))
    sys.exit(__doc__)
