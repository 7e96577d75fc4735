#include "needle/train/watch.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "needle/io/files.h"

namespace needle {

namespace {

constexpr const char* kHeader = "step,layer,quantity,head,value";

std::string text_of(const WatchRow& row) {
  std::ostringstream text;
  text.precision(6);
  text << row.step << ',' << row.layer << ',' << row.quantity << ',';
  if (row.head >= 0) text << row.head;
  text << ',' << row.value << '\n';
  return text.str();
}

double sum_of(const NDArray& x) { return reduce(Sum{}, x).item(); }

double norm_of(const NDArray& x) { return std::sqrt(sum_of(binary(Multiply{}, x, x))); }

double deviation_of(const NDArray& x) {
  const double count = static_cast<double>(x.count()), mean = sum_of(x) / count;
  return std::sqrt(std::max(0.0, sum_of(binary(Multiply{}, x, x)) / count - mean * mean));
}

bool is_activation(std::string_view op) {
  return op.ends_with("relu") || op.ends_with("gelu") || op.ends_with("gelu_tanh") || op == "silu";
}

/// The share of units (the last axis) that are above 0 nowhere.
double share_of_dead(const NDArray& x) {
  const NDArray rows = x.reshape({-1, x.size(-1)});
  const std::vector<double> highest = reduce(Max{}, rows, {0}).to_vector<double>();
  return static_cast<double>(std::ranges::count_if(highest, [](double y) { return y <= 0; })) /
         static_cast<double>(highest.size());
}

}  // namespace

std::vector<WatchRow> read_watch(const std::filesystem::path& file) {
  std::istringstream lines(read_file(file.string()));
  std::vector<WatchRow> rows;
  std::string line;
  const auto damaged = [&] { return file.string() + " is damaged at '" + line + "'"; };
  require(std::getline(lines, line) && line == kHeader, damaged());
  while (std::getline(lines, line)) {
    std::istringstream cells(line);
    std::string step, head, value;
    WatchRow row;
    std::getline(cells, step, ','), std::getline(cells, row.layer, ','),
        std::getline(cells, row.quantity, ',');
    std::getline(cells, head, ','), std::getline(cells, value);
    try {
      row.step = std::stoll(step);
      row.head = head.empty() ? -1 : std::stoi(head);
      row.value = std::stod(value);
    } catch (const std::logic_error&) {
      fail(damaged());
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

TrainingWatch::TrainingWatch(std::vector<Parameter> parameters, std::filesystem::path file,
                             std::int64_t every, std::int64_t after)
    : parameters_(std::move(parameters)), file_(std::move(file)), every_(every) {
  require(every >= 1, "watch: wants every step or every so many, got every ", every);
  std::string kept = std::string(kHeader) + '\n';
  if (std::filesystem::exists(file_)) {
    for (const WatchRow& row : read_watch(file_)) kept += row.step <= after ? text_of(row) : "";
  }
  write_file_synced(file_, kept);
  stream_.open(file_, std::ios::app);
}

Observer* TrainingWatch::of_step(std::int64_t step, Observer* otherwise) {
  if ((step - 1) % every_ != 0) return otherwise;
  step_ = step;
  rows_.clear();
  spreads_.clear();
  attention_.emplace([this](const std::string& path, const std::function<NDArray()>& weights) {
    look_at_attention(path, weights());
  });
  return this;
}

void TrainingWatch::note(const std::string& layer, const std::string& quantity, double value, int head) {
  rows_.push_back({step_, layer, quantity, head, value});
}

void TrainingWatch::look_at_attention(const std::string& path, const NDArray& weights) {
  // [batch, heads, queries, keys]; w log w is 0 where w is.
  const NDArray w = weights.cast(DType::f32);
  const NDArray safe = binary(Maximum{}, w, NDArray::full(w.shape(), 1e-30, w.dtype(), w.device()));
  const NDArray by_head = reduce(Sum{}, binary(Multiply{}, w, unary(Log{}, safe)), {0, 2, 3});
  const double queries = static_cast<double>(w.size(0) * w.size(2));
  int head = 0;
  for (const double sum : by_head.to_vector<double>())
    note(path, "attention entropy", -sum / queries, head++);
}

void TrainingWatch::before(const OpEvent& event) {
  if (event.phase != Phase::optimizer) return;
  weights_before_.clear();
  for (const Parameter& parameter : parameters_) {
    const NDArray& gradient = parameter.tensor.grad();
    if (gradient.defined()) note(parameter.name, "gradient norm", norm_of(gradient));
    weights_before_.push_back(gradient.defined() ? parameter.tensor.array().copy() : NDArray());
  }
}

void TrainingWatch::after(const OpEvent& event) {
  if (event.phase == Phase::forward && !event.path.empty() && is_floating(event.outputs[0].dtype())) {
    const NDArray& output = event.outputs[0];
    if (output.count() > 0) spreads_[event.path] = deviation_of(output);
    if (output.count() > 0 && is_activation(event.op)) note(event.path, "dead units", share_of_dead(output));
  }
  if (event.phase != Phase::optimizer) return;
  attention_.reset();
  for (const auto& [path, spread] : spreads_) note(path, "activation spread", spread);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!weights_before_[i].defined()) continue;
    const double norm = norm_of(weights_before_[i]);
    const double moved = norm_of(binary(Subtract{}, parameters_[i].tensor.array(), weights_before_[i]));
    if (norm > 0) note(parameters_[i].name, "update to weight", moved / norm);
  }
  weights_before_.clear();
  for (const WatchRow& row : rows_) stream_ << text_of(row);
  stream_.flush();
}

}  // namespace needle
