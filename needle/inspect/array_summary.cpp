#include "needle/inspect/array_summary.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "needle/inspect/tape_levels.h"

namespace needle {

namespace {

nlohmann::json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

/// Six digits, which is what a picture can show.
nlohmann::json rounded(double value) {
  if (!std::isfinite(value) || value == 0) return number_or_null(value);
  const double unit = std::pow(10, std::floor(std::log10(std::abs(value))) - 5);
  return number_or_null(unit > 0 ? std::round(value / unit) * unit : value);
}

/// Real elements, every so-manieth of them.
nlohmann::json grid_of(const NDArray& x, std::int64_t cells) {
  const auto most_columns = static_cast<std::int64_t>(std::sqrt(static_cast<double>(cells) * 4 / 3)),
             most_rows = cells / most_columns;
  NDArray matrix = x;
  while (matrix.rank() > 2) matrix = matrix[0];
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
  const std::int64_t row_step = (rows + most_rows - 1) / most_rows,
                     column_step = (columns + most_columns - 1) / most_columns;
  const NDArray seen = matrix.slice(0, 0, rows, row_step).slice(1, 0, columns, column_step);
  std::string of =
      x.rank() > 2 ? "the first matrix of " + text_of(x.shape()) : "all of " + text_of(x.shape());
  if (row_step > 1) of += ", one row in " + std::to_string(row_step);
  if (column_step > 1) of += ", one column in " + std::to_string(column_step);
  nlohmann::json values = nlohmann::json::array();
  for (const double value : seen.to_vector<double>()) {
    char digits[16];
    std::snprintf(digits, sizeof(digits), "%.3g", value);
    values.push_back(number_or_null(std::isfinite(value) ? std::strtod(digits, nullptr) : value));
  }
  return {{"rows", seen.size(0)}, {"columns", seen.size(1)}, {"values", values}, {"of", of}};
}

}  // namespace

nlohmann::json summary_of(const NDArray& x, std::int64_t cells) {
  constexpr std::size_t kMostNumbers = 64, kBins = 32;
  const std::vector<double> values = x.to_vector<double>();
  double sum = 0, squares = 0, least = INFINITY, greatest = -INFINITY;
  std::int64_t finite = 0, zeros = 0, nans = 0;
  for (const double value : values) {
    zeros += value == 0;
    nans += std::isnan(value);
    if (!std::isfinite(value)) continue;
    ++finite;
    sum += value;
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }
  const double mean = sum / static_cast<double>(std::max<std::int64_t>(finite, 1));
  for (const double value : values) squares += std::isfinite(value) ? (value - mean) * (value - mean) : 0;
  const double deviation = std::sqrt(squares / static_cast<double>(std::max<std::int64_t>(finite, 1)));
  nlohmann::json summary{{"count", values.size()},
                         {"mean", rounded(mean)},
                         {"deviation", rounded(deviation)},
                         {"least", rounded(least)},
                         {"greatest", rounded(greatest)},
                         {"zeros", zeros},
                         {"nans", nans}};
  if (values.size() <= kMostNumbers) {
    nlohmann::json numbers = nlohmann::json::array();
    for (const double value : values) numbers.push_back(number_or_null(value));
    summary["numbers"] = numbers;
  } else if (greatest > least) {
    std::vector<std::int64_t> bins(kBins);
    for (const double value : values) {
      if (!std::isfinite(value)) continue;
      const double place = (value - least) / (greatest - least) * static_cast<double>(kBins);
      ++bins[std::min(kBins - 1, static_cast<std::size_t>(place))];
    }
    summary["histogram"] = bins;
  }
  if (x.rank() >= 2 && x.count() > 0) summary["grid"] = grid_of(x, cells);
  return summary;
}

}  // namespace needle
