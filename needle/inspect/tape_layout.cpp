// Drawing levels by Graphviz's dot.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>

#include "needle/inspect/tape_levels.h"
#include "needle/io/files.h"

extern char** environ;

namespace needle {

namespace {

namespace fs = std::filesystem;

constexpr double kPoints = 72;  // to an inch, dot's unit

std::size_t at(int number) { return static_cast<std::size_t>(number); }

/// A folder that is gone with the scope.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    std::string name = (fs::temp_directory_path(error) / "needle-XXXXXX").string();
    require(!error && mkdtemp(name.data()) != nullptr, "inside: no folder can be made at ", name,
            "; TMPDIR says where");
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// What `dot -Tplain` says of the graphs.
std::string run_dot(const std::string& graphs) {
  const TemporaryFolder folder;
  const std::string input = (folder.path() / "graphs.dot").string(),
                    output = (folder.path() / "plain").string();
  write_file_synced(input, graphs);
  std::string program = "dot", format = "-Tplain", from = input;
  char* arguments[] = {program.data(), format.data(), from.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  int status = -1;
  const int error = posix_spawnp(&child, "dot", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  require(error == 0,
          "inside: Graphviz's program dot, which lays the graph out, is not there; install graphviz");
  waitpid(child, &status, 0);
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "inside: dot could not lay the graph out");
  return read_file(output);
}

/// Boxes are as wide as their text in the page's 13-pixel font.
void size_of_box(LevelNode& node) {
  constexpr double kCharacter = 7.4, kMargin = 22, kPort = 34;
  node.width = kMargin + kCharacter * static_cast<double>(node.label.size());
  switch (node.kind) {
    case LevelNode::Kind::module:
      node.height = 46;
      node.width = std::max(node.width, 110.0);
      break;
    case LevelNode::Kind::op:
      node.height = 34;
      break;
    case LevelNode::Kind::tensor:
      node.height = 28;
      break;
    case LevelNode::Kind::port:
      node.height = 20;
      node.width = kPort;
      break;
  }
}

std::string graph_of(const Level& level, const Tape& tape) {
  std::ostringstream text;
  text << "digraph { ranksep=0.5; nodesep=0.3; node [shape=box, fixedsize=true, label=\"\"];\n";
  for (std::size_t i = 0; i < level.nodes.size(); ++i) {
    const LevelNode& node = level.nodes[i];
    text << 'n' << i << " [width=" << node.width / kPoints << ", height=" << node.height / kPoints << "];\n";
  }
  for (const LevelEdge& edge : level.edges) {
    // Parameters give way to what flows.
    const bool leaf = tape.tensors[at(edge.tensor)].producer < 0;
    text << 'n' << edge.from << " -> n" << edge.to << " [weight=" << (leaf ? 1 : 4) << "];\n";
  }
  text << "}\n";
  return text.str();
}

struct Point {
  double x, y;
};

/// Where a chain of cubic curves through `points` is at that height.
double x_at(const std::vector<Point>& points, double y) {
  constexpr int kSteps = 16;
  Point last = points.front();
  for (std::size_t i = 0; i + 3 < points.size(); i += 3) {
    for (int step = 1; step <= kSteps; ++step) {
      const double t = static_cast<double>(step) / kSteps, s = 1 - t;
      const auto blend = [&](double Point::*c) {
        return s * s * s * points[i].*c + 3 * s * s * t * points[i + 1].*c +
               3 * s * t * t * points[i + 2].*c + t * t * t * points[i + 3].*c;
      };
      const Point point{blend(&Point::x), blend(&Point::y)};
      if ((last.y - y) * (point.y - y) <= 0) return point.x;
      last = point;
    }
  }
  return last.x;
}

/// Takes one graph's places from the lines of `plain`.
void read_places(std::istream& plain, Level& level) {
  std::vector<double> heights(level.nodes.size());
  std::size_t placed = 0;
  std::vector<std::vector<Point>> curves;
  std::string word, line;
  std::vector<std::pair<int, int>> ends;
  while (std::getline(plain, line) && line != "stop") {
    std::istringstream words(line);
    words >> word;
    if (word == "node") {
      std::string name;
      double x = 0, y = 0;
      words >> name >> x >> y;
      const std::size_t node = std::stoul(name.substr(1));
      level.nodes.at(node).x = kPoints * x;
      heights.at(node) = y;
      ++placed;
    } else if (word == "edge") {
      std::string from, to;
      std::size_t count = 0;
      words >> from >> to >> count;
      std::vector<Point> points(count);
      for (Point& point : points) words >> point.x >> point.y;
      ends.emplace_back(std::stoi(from.substr(1)), std::stoi(to.substr(1)));
      curves.push_back(std::move(points));
    }
  }
  require(placed == level.nodes.size(), "inside: dot placed ", placed, " of ", level.nodes.size(), " boxes");
  std::vector<double> rows = heights;  // y grows upwards
  std::ranges::sort(rows, std::greater());
  constexpr double kSame = 0.01;
  rows.erase(
      std::unique(rows.begin(), rows.end(), [](double a, double b) { return std::abs(a - b) < kSame; }),
      rows.end());
  level.ranks = static_cast<int>(rows.size());
  for (std::size_t i = 0; i < level.nodes.size(); ++i) {
    const auto row = std::ranges::find_if(rows, [&](double y) { return std::abs(y - heights[i]) < kSame; });
    level.nodes[i].rank = static_cast<int>(row - rows.begin());
  }
  std::map<std::pair<int, int>, std::vector<std::size_t>> unused;  // curves by ends, in order
  for (std::size_t i = 0; i < curves.size(); ++i) unused[ends[i]].push_back(i);
  for (LevelEdge& edge : level.edges) {
    std::vector<std::size_t>& found = unused[{edge.from, edge.to}];
    if (found.empty()) continue;
    const std::vector<Point>& curve = curves[found.front()];
    found.erase(found.begin());
    const int from = level.nodes[at(edge.from)].rank, to = level.nodes[at(edge.to)].rank;
    for (int rank = std::min(from, to) + 1; rank < std::max(from, to); ++rank)
      edge.bends.emplace_back(rank, kPoints * x_at(curve, rows[at(rank)]));
  }
}

}  // namespace

void lay_out(std::vector<Level>& levels, const Tape& tape) {
  std::string graphs;
  for (Level& level : levels) {
    for (LevelNode& node : level.nodes) size_of_box(node);
    graphs += graph_of(level, tape);
  }
  std::istringstream plain(run_dot(graphs));
  for (Level& level : levels) {
    try {
      read_places(plain, level);
    } catch (const std::logic_error&) {  // a name or a number that it was not given
      fail("inside: dot did not lay out the graph that it was given");
    }
  }
}

}  // namespace needle
