#include "needle/train/watch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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
  const double count = static_cast<double>(x.count());
  const NDArray wide = x.cast(x.dtype() == DType::f64 ? DType::f64 : DType::f32);
  const NDArray centred = unary(AddScalar{-sum_of(wide) / count}, wide);
  return norm_of(centred) / std::sqrt(count);
}

bool is_activation(std::string_view op) {
  return op.ends_with("relu") || op.ends_with("gelu") || op.ends_with("gelu_tanh") || op == "silu";
}

/// Of each unit (the last axis) the highest number.
std::vector<double> highest_of(const NDArray& x) {
  return reduce(Max{}, x.reshape({-1, x.size(-1)}), {0}).to_vector<double>();
}

}  // namespace

std::vector<WatchRow> read_watch(const std::filesystem::path& file) {
  std::string text = read_file(file.string());
  text.erase(text.rfind('\n') + 1);
  std::istringstream lines(text);
  std::vector<WatchRow> rows;
  std::string line;
  const auto damaged = [&] { return file.string() + " is damaged at '" + line + "'"; };
  if (!std::getline(lines, line) || line != kHeader) fail(damaged());
  while (std::getline(lines, line)) {
    std::istringstream cells(line);
    std::string step, head, value;
    WatchRow row;
    std::getline(cells, step, ','), std::getline(cells, row.layer, ','),
        std::getline(cells, row.quantity, ',');
    std::getline(cells, head, ','), std::getline(cells, value);
    try {
      std::size_t end = 0;
      row.step = std::stoll(step);
      row.head = head.empty() ? -1 : std::stoi(head);
      row.value = std::stod(value, &end);
      if (end != value.size()) fail(damaged());
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
  // Whole under another name first, so that a crash leaves either the old rows or these.
  const std::filesystem::path fresh = file_.parent_path() / (".fresh-" + file_.filename().string());
  write_file_synced(fresh.string(), kept);
  std::filesystem::rename(fresh, file_);
  stream_.open(file_, std::ios::app);
}

Observer* TrainingWatch::of_step(std::int64_t step, Observer* otherwise) {
  attention_.reset();
  if ((step - 1) % every_ != 0) return otherwise;
  step_ = step;
  rows_.clear();
  spreads_.clear();
  highest_.clear();
  entropies_.clear();
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
  auto& [sums, queries] = entropies_[path];
  sums.resize(static_cast<std::size_t>(w.size(1)));
  queries += static_cast<double>(w.size(0) * w.size(2));
  std::size_t head = 0;
  for (const double sum : by_head.to_vector<double>()) sums[head++] -= sum;
}

void TrainingWatch::before(const OpEvent& event) {
  if (event.phase != Phase::optimizer) return;
  StepState state;
  const std::vector<double> numbers = event.inputs[0].to_vector<double>();
  std::memcpy(static_cast<void*>(&state), numbers.data(), sizeof(state));
  weights_before_.clear();
  for (const Parameter& parameter : parameters_) {
    const NDArray& gradient = parameter.tensor.grad();
    if (gradient.defined()) note(parameter.name, "gradient norm", norm_of(gradient) / state.loss_scale);
    weights_before_.push_back(gradient.defined() ? parameter.tensor.array().copy() : NDArray());
  }
}

void TrainingWatch::after(const OpEvent& event) {
  if (event.phase == Phase::forward && !event.path.empty() && is_floating(event.outputs[0].dtype())) {
    const NDArray& output = event.outputs[0];
    if (output.count() > 0) spreads_[event.path] = deviation_of(output);
    if (output.count() > 0 && is_activation(event.op)) {
      std::vector<double>& highest = highest_[event.path];
      const std::vector<double> now = highest_of(output);
      if (highest.empty()) highest = now;
      std::ranges::transform(highest, now, highest.begin(),
                             [](double a, double b) { return std::max(a, b); });
    }
  }
  if (event.phase != Phase::optimizer) return;
  attention_.reset();
  for (const auto& [path, spread] : spreads_) note(path, "activation spread", spread);
  for (const auto& [path, highest] : highest_) {
    const auto dead = std::ranges::count_if(highest, [](double y) { return y <= 0; });
    note(path, "dead units", static_cast<double>(dead) / static_cast<double>(highest.size()));
  }
  for (const auto& [path, entropy] : entropies_) {
    int head = 0;
    for (const double sum : entropy.first) note(path, "attention entropy", sum / entropy.second, head++);
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!weights_before_[i].defined()) continue;
    const double norm = norm_of(weights_before_[i]);
    const double moved = norm_of(binary(Subtract{}, parameters_[i].tensor.array(), weights_before_[i]));
    if (norm > 0) note(parameters_[i].name, "update to weight", moved / norm);
  }
  weights_before_.clear();
  std::string text;  // in one piece
  for (const WatchRow& row : rows_) text += text_of(row);
  stream_ << text;
  stream_.flush();
  require(stream_.good(), "watch: ", file_.string(), " could not be written");
}

}  // namespace needle
