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

Kernel = collections.namedtuple("Kernel", "name architecture registers stores loads")


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
    kernels, name, architecture, spills = [], None, None, {}
    for line in messages.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
            name, architecture, spills, function = match[1], match[2], {}, None
        elif match := re.search(r"Function properties for (\S+)", line):
            function = match[1]
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spills[function] = (int(match[1]), int(match[2]))
        elif name and (match := re.search(r"Used (\d+) registers", line)):
            # Functions that were not inlined are listed with the kernel.
            stores, loads = (sum(spill[i] for spill in spills.values()) for i in range(2))
            kernels.append(Kernel(name, architecture, int(match[1]), stores, loads))
            name = None
    return kernels


def demangled(names):
    names = sorted(names)
    output = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    short = (re.sub(r"^void |needle::|cuda::|\(anonymous namespace\)::|\(\w+\)(?=-?\d)", "", line) for line in output.splitlines())
    return dict(zip(names, short))


def must_not_spill(source, kernel, name):
    """Whether this is a kernel of a training step, at the head widths that matter."""
    if kernel.architecture not in STRICT_ARCHITECTURES or source.startswith("tests/"):
        return False
    numbers = {int(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.])", name.partition("<")[2])}
    return "attention" not in name or not numbers or bool(numbers & STRICT_HEAD_WIDTHS)


def report(build):
    root = pathlib.Path(__file__).resolve().parent.parent
    failures, total = [], 0
    spilling = []
    print(f"{'file':44} CPU s  kernels  most registers")
    rows = []
    for file in sorted(pathlib.Path(build).rglob("*.cu.o.json")):
        cost = json.loads(file.read_text())
        if not pathlib.Path(cost["source"]).exists() or not file.with_suffix("").exists():
            continue
        source = str(pathlib.Path(cost["source"]).resolve().relative_to(root))
        kernels = kernels_of(cost["messages"])
        names = demangled({kernel.name for kernel in kernels})
        print(f"{source:44} {cost['seconds']:5.1f}  {len(names):7}  {max((k.registers for k in kernels), default=0):14}")
        total += cost["seconds"]
        if cost["seconds"] > MOST_SECONDS_OF_A_FILE:
            failures.append(f"{source} takes {cost['seconds']:.0f} CPU seconds, more than {MOST_SECONDS_OF_A_FILE}")
        rows.append((source, kernels, names))
    print(f"{'together':44} {total:5.0f}")
    if not rows:
        failures.append(f"{build} holds no compiled CUDA source")
    if total > MOST_SECONDS:
        failures.append(f"all files take {total:.0f} CPU seconds, more than {MOST_SECONDS}")

    architectures = sorted({kernel.architecture for _, kernels, _ in rows for kernel in kernels})
    print(f"\n{'kernel, all its instances: registers':64}" + "".join(f"{a:>10}" for a in architectures) + "   spills")
    for source, kernels, names in rows:
        print(source)
        templates = collections.defaultdict(list)
        for kernel in kernels:
            name = names[kernel.name]
            templates[name.partition("<")[0]].append(kernel)
            if kernel.stores + kernel.loads == 0:
                continue
            strict = must_not_spill(source, kernel, name)
            text = f"{name} on {kernel.architecture}: {kernel.stores} bytes stored, {kernel.loads} loaded"
            spilling.append(text)
            if strict:
                failures.append("spills: " + text)
        for name, instances in sorted(templates.items()):
            columns = ""
            for architecture in architectures:
                used = [k.registers for k in instances if k.architecture == architecture] or [0]
                columns += f"{min(used)}-{max(used)}".rjust(10) if min(used) != max(used) else f"{used[0]:10}"
            spills = sum(kernel.stores + kernel.loads > 0 for kernel in instances)
            count = len({kernel.name for kernel in instances})
            print(f"  {name + (f' x {count}' if count > 1 else ''):62}{columns}{spills or '-':>9}")
    print("\nspilling kernels:" + ("".join("\n  " + text for text in spilling) or " none"))
    for failure in failures:
        print("FAILED: " + failure)
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "record":
        sys.exit(record(sys.argv[2:]))
    if len(sys.argv) == 3 and sys.argv[1] == "report":
        sys.exit(report(sys.argv[2]))
    sys.exit(__doc__)
