// Gathers, for every op, the sources that make it: what needle/inspect/op_sources.h declares.
// Usage: op_sources ROOT OUTPUT.cpp
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

struct Piece {
  std::string what, file;
  std::size_t first, last;  // lines, counted from 0
};

/// A class of an op: where it stands, and what it is built on.
struct OpClass {
  std::string file, base;
  std::size_t first, last;
};

std::map<std::string, Lines> files;  // by path from the root

void read_files(const fs::path& root, const std::string& folder, const std::set<std::string>& endings) {
  for (const fs::directory_entry& entry : fs::directory_iterator(root / folder)) {
    if (!endings.contains(entry.path().extension().string())) continue;
    Lines& lines = files[folder + '/' + entry.path().filename().string()];
    std::ifstream stream(entry.path());
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
  }
}

/// The last line of the braces that open at or after `first`.
std::size_t end_of_braces(const Lines& lines, std::size_t first) {
  int depth = 0;
  bool opened = false;
  for (std::size_t i = first; i < lines.size(); ++i) {
    for (const char c : lines[i]) {
      depth += c == '{' ? 1 : c == '}' ? -1 : 0;
      opened |= c == '{';
    }
    if (opened && depth == 0) return i;
  }
  return lines.size() - 1;
}

std::string text_of(const std::string& file, std::size_t first, std::size_t last) {
  std::string text;
  const Lines& lines = files.at(file);
  for (std::size_t i = first; i <= last; ++i) text += lines[i] + '\n';
  return text;
}

std::map<std::string, OpClass> find_classes() {
  const std::regex opening(R"(^(?:struct|class) (\w*Op)\b(?: final)? : (?:public )?(\w+).*\{)");
  std::map<std::string, OpClass> classes;
  for (const auto& [file, lines] : files) {
    for (std::size_t i = 0; i < lines.size(); ++i) {
      std::smatch found;
      if (std::regex_search(lines[i], found, opening) && !classes.contains(found[1]))
        classes[found[1]] = {file, found[2], i, end_of_braces(lines, i)};
    }
  }
  return classes;
}

/// The method of the class, or of what it is built on.
void add_method(const std::map<std::string, OpClass>& classes, const std::string& name,
                const std::string& method, const std::string& what, std::vector<Piece>& pieces) {
  const auto found = classes.find(name);
  if (found == classes.end()) return;
  const OpClass& its = found->second;
  const std::regex signature("^  (?:\\w+|std::vector<\\w+>) " + method + "\\(");
  const Lines& lines = files.at(its.file);
  for (std::size_t i = its.first; i <= its.last; ++i) {
    if (!std::regex_search(lines[i], signature)) continue;
    pieces.push_back({what, its.file, i, end_of_braces(lines, i)});
    return;
  }
  add_method(classes, its.base, method, what, pieces);
}

/// The names that `pattern` captures in the text, each once.
std::set<std::string> names_in(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  std::set<std::string> names;
  for (std::sregex_iterator i(text.begin(), text.end(), expression), end; i != end; ++i)
    names.insert((*i)[1]);
  return names;
}

/// The first place in files under `folder` where a line matches.
void add_definition(const std::string& folder, const std::string& pattern, const std::string& what,
                    std::vector<Piece>& pieces) {
  const std::regex expression(pattern);
  for (const auto& [file, lines] : files) {
    if (!file.starts_with(folder)) continue;
    const auto line = std::ranges::find_if(
        lines, [&](const std::string& text) { return std::regex_search(text, expression); });
    if (line == lines.end()) continue;
    const auto first = static_cast<std::size_t>(line - lines.begin());
    pieces.push_back({what, file, first, end_of_braces(lines, first)});
    return;
  }
}

/// Helper structs ("AttentionKernels") and functions on arrays, by name: what ops call to reach a device.
const std::map<std::string, std::string>& helpers() {
  static const std::map<std::string, std::string> all = [] {
    const std::regex opening(R"(^(?:struct (\w+Kernels) \{|(?:NDArray|void) (?:NDArray::)?(\w+)\())");
    std::map<std::string, std::string> found;
    for (const auto& [file, lines] : files) {
      if (!file.starts_with("needle/ndarray") && !(file.starts_with("needle/ops/") && file.ends_with(".cpp")))
        continue;
      for (std::size_t i = 0; i < lines.size(); ++i) {
        std::smatch names;
        if (std::regex_search(lines[i], names, opening))
          found[names[1].matched ? names[1] : names[2]] += text_of(file, i, end_of_braces(lines, i));
      }
    }
    return found;
  }();
  return all;
}

/// `body` with the helpers that it calls, and those that these call.
std::string with_helpers(const std::string& body) {
  std::string text = body;
  constexpr int kDeep = 2;
  for (int depth = 0; depth < kDeep; ++depth) {
    std::string more;
    for (const std::string& word : names_in(text, R"(\b(\w+)\b)")) {
      if (const auto found = helpers().find(word); found != helpers().end()) more += found->second;
    }
    text += more;
  }
  return text;
}

void add_kernels(const std::string& of, std::vector<Piece>& pieces) {
  const std::string body = with_helpers(of);
  for (const std::string& kernel : names_in(body, R"((?:device\(\)|backend\(\))->(\w+)\()")) {
    if (kernel == "synchronize" || kernel.starts_with("copy_") || kernel == "allocate") continue;
    add_definition("backends/cpu/", "^\\w.* CpuBackend::" + kernel + "\\(", "kernel on cpu", pieces);
    add_definition("backends/cuda/", "^\\w.* CudaBackend::" + kernel + "\\(", "kernel on cuda", pieces);
  }
  for (const std::string& functor :
       names_in(body, R"(\b(?:unary|binary|\w*FunctionOp|FastUnaryOp)[<(](\w+)\b)"))
    add_definition("backends/", "^struct " + functor + " \\{", "functor on every device", pieces);
}

/// What the public header says of the function of that name; "linear_gelu" is told under "linear".
void add_formula(std::string name, std::vector<Piece>& pieces) {
  for (; !name.empty();
       name = name.substr(0, name.find_last_of('_') == std::string::npos ? 0 : name.find_last_of('_'))) {
    for (const auto& [file, lines] : files) {
      if (!file.ends_with(".h") || !file.starts_with("needle/ops/")) continue;
      for (std::size_t i = 1; i < lines.size(); ++i) {
        if (!std::regex_search(lines[i], std::regex("^\\w\\S* " + name + "\\("))) continue;
        std::size_t last = i;  // a comment may stand over several functions
        while (last > 0 && !lines[last - 1].empty() && !lines[last - 1].starts_with("///")) --last;
        std::size_t first = last;
        while (first > 0 && lines[first - 1].starts_with("///")) --first;
        if (first == last) continue;
        pieces.push_back({"formula", file, first, last - 1});
        return;
      }
    }
  }
}

std::string literal(const std::string& text) {
  std::string result;
  constexpr std::size_t kLongest = 8000;  // a compiler need not take longer ones in one piece
  for (std::size_t i = 0; i < text.size(); i += kLongest)
    result += "R\"needle(" + text.substr(i, kLongest) + ")needle\" ";
  return result;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::cerr << "usage: op_sources ROOT OUTPUT.cpp\n";
    return 2;
  }
  const fs::path root = arguments[1];
  read_files(root, "needle/ops", {".h", ".cpp"});
  read_files(root, "needle", {".cpp"});
  read_files(root, "backends", {".h"});
  read_files(root, "backends/cpu", {".cpp"});
  read_files(root, "backends/cuda", {".cu"});

  const std::map<std::string, OpClass> classes = find_classes();
  std::ofstream out(arguments[2]);
  out << "#include <map>\n\n#include \"needle/inspect/op_sources.h\"\n\nnamespace needle {\n\n"
      << "std::vector<OpSource> sources_of(const std::string& op) {\n"
      << "  static const std::map<std::string, std::vector<OpSource>> all{\n";
  std::set<std::string> written;
  for (const auto& [name, its] : classes) {
    const std::string body = text_of(its.file, its.first, its.last);
    const Lines& lines = files.at(its.file);
    for (std::size_t i = its.first; i <= its.last; ++i) {
      if (lines[i].find(" name() const override") == std::string::npos) continue;
      const std::string names = text_of(its.file, i, end_of_braces(lines, i));
      for (const std::string& op : names_in(names, "\"(\\w+)\"")) {
        if (!written.insert(op).second) continue;
        std::vector<Piece> pieces;
        add_formula(op, pieces);
        for (const auto& [method, what] : std::vector<std::pair<std::string, std::string>>{
                 {"compute", "compute"},
                 {"definition", "definition in simple ops, whose gradient is the rule"},
                 {"gradient", "gradient"},
                 {"add_gradient", "fast gradient"}})
          add_method(classes, name, method, what, pieces);
        add_kernels(body + lines[its.first], pieces);
        const auto is = [](const char* what) {
          return [what](const Piece& piece) { return piece.what == what; };
        };
        if (std::ranges::none_of(pieces, is("formula"))) {  // what computes it says it
          auto saying = std::ranges::find_if(pieces, is("functor on every device"));
          if (saying == pieces.end()) saying = std::ranges::find_if(pieces, is("compute"));
          if (saying != pieces.end())
            pieces.insert(pieces.begin(), {"formula", saying->file, saying->first, saying->last});
        }
        out << "      {\"" << op << "\", {\n";
        for (const Piece& piece : pieces)
          out << "          {\"" << piece.what << "\", \"" << piece.file << "\", " << piece.first + 1 << ",\n"
              << literal(text_of(piece.file, piece.first, piece.last)) << "},\n";
        out << "      }},\n";
      }
    }
  }
  out << "  };\n  const auto found = all.find(op);\n"
      << "  return found == all.end() ? std::vector<OpSource>() : found->second;\n}\n\n}  // namespace "
         "needle\n";
  return out ? 0 : 1;
}
