"""The mistakes that are put into CUDA sources, one at a time."""
import collections
import re

Mutant = collections.namedtuple("Mutant", "file line rule function before after text")  # lines count from 0


def swap(a, b):
    """Both ways; clang-format puts blanks around binary operators and nowhere else."""
    return [(rf"(?<= ){re.escape(a)}(?= |$)", b), (rf"(?<= ){re.escape(b)}(?= |$)", a)]


def other_number(match):
    """1.0 for 0.0, twice any other number with a point, the next whole number."""
    digits, suffix = re.fullmatch(r"(.*?)([fuUlL]*)", match[0]).groups()
    if digits.isdigit():
        return str(int(digits) + 1) + suffix
    return ("1.0" if float(digits) == 0 else repr(2 * float(digits))) + suffix


OTHER_END = {"min": "max", "max": "min", "fminf": "fmaxf", "fmaxf": "fminf", "Min": "Max", "Max": "Min",
             "Minimum": "Maximum", "Maximum": "Minimum"}
NO_ELSE = r"(?<!else )"
PARENTHESES = r"\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)"  # that match

RULES = {
    "barrier dropped": [(r"^\s*__sync(threads|warp)\(.*?\);", ""), (r"__syncthreads_(and|or|count)(?=\()", "")],
    "wait dropped": [(r"^\s*(__pipeline_wait_prior|wait_for_\w+)\(.*?\);", "")],
    "commit dropped": [(r"^\s*__pipeline_commit\(\);", "")],
    "guard dropped": [
        (NO_ELSE + r"\bif " + PARENTHESES + r" (continue|return|break)\b[^;]*;", ";"),  # with the early end that it guards
        (NO_ELSE + r"\bif " + PARENTHESES + r"(?= [^;{]+;\s*$| \{\s*$|\s*$)", ""),  # alone: what it guards is always done
        (r"^\s*(cuda::)?(require\w*|check_\w+)\(.*\);\s*$", ""),
    ],
    "comparison": swap("<", "<=") + swap(">", ">=") + swap("==", "!=") + swap("&&", "||") + [(r"!(?=[\w(:])", "")],
    "arithmetic": [*swap("+", "-"), *swap("+=", "-="), *swap("<<", ">>"), *swap("&", "|"), *swap("/", "%"),
                   (r"(?<= )\*(?= )", "+"), (r"(?<= )\*=(?= )", "+="), (r"(?<= )/=(?= )", "*="), (r"(?<= )\^(?= )", "|")],
    "min/max": [(r"\b(" + "|".join(OTHER_END) + r")\b(?=[({])", lambda match: OTHER_END[match[0]])],
    # Not in the arguments of templates and the sizes of arrays.
    "constant": [(r"(?<![\w.<\[])(\d+\.\d*(e-?\d+)?|\d+)[fuUlL]*(?![\w.>])", other_number)],
}

# Declarations, and sizes of tiles, blocks and grids, of which others are right, too.
SKIPPED = re.compile(r"^\s*(#|using |template|namespace|static_assert|NEEDLE_|asm |\})|\\$|__launch_bounds__"
                     r"|constexpr (int|unsigned|std::\w+|auto) k[A-Z]|NEEDLE_(DYNAMIC_)?SHARED|dim3\(")


def masked(line):
    """The line with comments and strings blanked."""
    line = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'', lambda match: "~" * len(match[0]), line)
    return re.sub(r"//.*", lambda match: " " * len(match[0]), line)


def emulated_lines(lines):
    """The numbers of the lines that are compiled where there is no nvcc."""
    conditions = []
    for number, line in enumerate(lines):
        if re.match(r"\s*#\s*if", line):
            of_nvcc = re.search(r"__CUDACC__|__CUDA_ARCH__", line) and "NEEDLE_CUDA_EMULATED" not in line
            conditions.append(not of_nvcc or "!defined" in line)
        elif re.match(r"\s*#\s*el", line):
            conditions[-1] = not conditions[-1]
        elif re.match(r"\s*#\s*endif", line):
            conditions.pop()
        elif all(conditions):
            yield number


def function_at(code):
    """The name of the function or struct that begins on this line, if one does."""
    code = re.sub(r"__launch_bounds__\(.*?\)", "", code)
    match = re.match(r"(?!using|namespace|#|//|[\s}])(?:[\w:<>*&,]+\s+)*(?:CudaBackend::)?([\w:~]+)\(", code)
    match = match or re.match(r"\s+(\w+_kernel)\(|struct (\w+)|class (\w+)", code)
    return next((name for name in match.groups() if name), None) if match else None


def mutants(file, text):
    """All mutants of a file."""
    lines = text.split("\n")
    function, compiled = "", set(emulated_lines(lines))
    times = collections.Counter()
    for number, line in enumerate(lines):
        code = masked(line)
        function = function_at(code) or function
        if number not in compiled or not code.strip() or SKIPPED.search(code):
            continue
        line = line[:len(code.rstrip())]  # without its comment
        seen = {line}
        for rule, replacements in RULES.items():
            for pattern, new in replacements:
                for match in re.finditer(pattern, code):
                    after = line[:match.start()] + (new if isinstance(new, str) else new(match)) + line[match.end():]
                    if after in seen:
                        continue
                    seen.add(after)
                    change = (function, " ".join(line.split()), " ".join(after.split()) or "(nothing)")
                    times[change] += 1  # the same change once more in this function has a name of its own
                    place = function if times[change] == 1 else f"{function} ({times[change]})"
                    yield Mutant(file, number, rule, place, *change[1:],
                                 "\n".join(lines[:number] + [after] + lines[number + 1:]))
