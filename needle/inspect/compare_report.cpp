#include "needle/inspect/compare_report.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <sstream>

#include "needle/inspect/svg.h"
#include "needle/inspect/svg_text.h"

namespace needle {

namespace {

template <class Value>
Spread spread_over(const std::vector<ComparedResult>& runs, Value ComparedResult::*member) {
  std::vector<double> numbers;
  for (const ComparedResult& run : runs) numbers.push_back(run.*member);
  return spread_of(numbers);
}

std::string number(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::string spread_text(const Spread& spread, double factor, int digits) {
  return number(factor * spread.mean, digits) + "\u00a0±\u00a0" + number(factor * spread.deviation, digits);
}

/// "1.23 million", for people.
std::string rounded(double value) {
  if (value >= 1e9) return number(value / 1e9, 2) + " G";
  if (value >= 1e6) return number(value / 1e6, 2) + " M";
  if (value >= 1e3) return number(value / 1e3, 1) + " k";
  return number(value, 0);
}

/// The validation loss of a family's runs against something, the mean over the seeds.
template <class X>
Series curve(const ComparedFamily& family, const X& x_of) {
  Series series{family.name, {}, {}};
  if (family.runs.empty()) return series;
  for (std::size_t point = 0; point < family.runs[0].points.size(); ++point) {
    double x = 0, y = 0, count = 0;
    for (const ComparedResult& run : family.runs) {
      if (point >= run.points.size()) continue;
      x += x_of(run.points[point]), y += run.points[point].validation_loss, ++count;
    }
    series.x.push_back(x / count), series.y.push_back(y / count);
  }
  return series;
}

template <class X>
std::string loss_chart(const Comparison& task, const std::string& against, const std::string& unit,
                       const X& x_of) {
  Chart chart{"Validation loss by " + against, unit, "nats per target", {}, {}};
  for (const ComparedFamily& family : task.families) chart.series.push_back(curve(family, x_of));
  return draw_chart(chart);
}

std::string distance_chart(const Comparison& task) {
  Chart chart{"Accuracy by distance",
              "positions back to the first token that tells the answer",
              "percent right",
              {},
              {}};
  for (const ComparedFamily& family : task.families) {
    Series series{family.name, {}, {}};
    for (const auto& [distance, share] : family.by_distance()) {
      series.x.push_back(static_cast<double>(distance));
      series.y.push_back(100 * share);
    }
    if (!series.x.empty()) chart.series.push_back(series);
  }
  if (chart.series.empty()) return {};
  if (task.chance) chart.reference_lines.push_back({"chance", 100 * *task.chance});
  return draw_chart(chart);
}

std::string growth_chart(const Comparison& task) {
  Chart chart{"Operations a token by length", "positions", "million operations a token", {}, {}};
  for (const ComparedFamily& family : task.families) {
    Series series{family.name, {}, {}};
    for (const auto& [length, operations] : family.growth) {
      series.x.push_back(static_cast<double>(length));
      series.y.push_back(operations / static_cast<double>(length) / 1e6);
    }
    chart.series.push_back(series);
  }
  return draw_chart(chart);
}

std::string table(const Comparison& task) {
  std::ostringstream html;
  html << "<div class=\"wide\"><table><thead><tr><th>model</th><th>parameters</th><th>operations a token</th>"
          "<th>longest path</th><th>reads back</th><th>training tokens/s</th><th>peak memory, MB</th>"
          "<th>learning rate</th><th>validation loss</th><th>accuracy, %</th>";
  if (!task.families.empty()) {
    for (const auto& [length, operations] : task.families[0].growth)
      html << "<th>operations at " << length << "</th>";
  }
  html << "</tr></thead><tbody>\n";
  for (const ComparedFamily& family : task.families) {
    html << "<tr><th>" << escaped(family.name) << "</th><td>" << family.facts.parameters << "</td><td>"
         << rounded(family.facts.operations_per_token) << "</td><td>"
         << (family.facts.path ? std::to_string(*family.facts.path) : "none") << "</td><td>"
         << reach_text(family.facts.receptive_field) << "</td><td>"
         << rounded(spread_over(family.runs, &ComparedResult::tokens_per_second).mean) << "</td><td>"
         << number(family.peak_bytes() / 1e6, 1) << "</td><td>"
         << (family.runs.empty() ? 0 : family.runs[0].run.learning_rate) << "</td><td>"
         << spread_text(family.loss(), 1, 4) << "</td><td>" << spread_text(family.accuracy(), 100, 1)
         << "</td>";
    for (const auto& [length, operations] : family.growth) html << "<td>" << rounded(operations) << "</td>";
    html << "</tr>\n";
  }
  html << "</tbody></table></div>\n";
  return html.str();
}

std::string search_table(const Comparison& task) {
  std::ostringstream html;
  html << "<details><summary>Search for the learning rates</summary><div class=\"wide\"><table><thead><tr>"
          "<th>model</th><th>learning rate</th><th>steps</th><th>validation loss</th><th>accuracy, %</th>"
          "</tr></thead><tbody>\n";
  for (const ComparedFamily& family : task.families) {
    for (const ComparedResult& search : family.searches) {
      html << "<tr><th>" << escaped(family.name) << "</th><td>" << search.run.learning_rate << "</td><td>"
           << search.run.steps << "</td><td>" << number(search.loss, 4) << "</td><td>"
           << number(100 * search.accuracy, 1) << "</td></tr>\n";
    }
  }
  html << "</tbody></table></div></details>\n";
  return html.str();
}

constexpr const char* kStyle = R"(
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; color: #222; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; margin-top: 2.5rem; border-top: 1px solid #ccc; padding-top: 1rem; }
h3 { font-size: 1.1rem; margin-top: 1.8rem; }
svg { width: 100%; height: auto; display: block; }
figure { margin: 1rem 0; break-inside: avoid; }
.chart { overflow-x: auto; } .chart svg { min-width: 36rem; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); gap: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd; vertical-align: bottom; }
th:first-child { text-align: left; } thead th { border-bottom: 2px solid #888; font-weight: 600; }
code, pre { font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; }
@media print { body { max-width: none; font-size: 11px; } .wide, .chart { overflow: visible; } .chart svg { min-width: 0; } table { font-size: 9px; } th, td { padding: .15rem .3rem; } }
)";

std::string figure(const std::string& svg, const char* kind) {
  return svg.empty() ? std::string() : "<figure class=\"" + std::string(kind) + "\">" + svg + "</figure>\n";
}

std::string section(const Comparison& task) {
  std::ostringstream html;
  html << "<h2>" << escaped(task.task) << "</h2>\n<p>" << escaped(task.data) << "</p>\n" << table(task);
  if (!task.families.empty() && !task.families[0].searches.empty()) html << search_table(task);
  html << figure(distance_chart(task), "chart");
  html << figure(loss_chart(task, "step", "steps", [](const auto& p) { return static_cast<double>(p.step); }),
                 "chart");
  html << figure(loss_chart(task, "time", "seconds of training", [](const auto& p) { return p.seconds; }),
                 "chart");
  html << figure(loss_chart(task, "operations", "million million operations",
                            [](const auto& p) { return p.operations / 1e12; }),
                 "chart");
  html << figure(growth_chart(task), "chart");
  html << "<h3>Who reads whom, and what heads look at</h3>\n<div class=\"pictures\">\n";
  for (const ComparedFamily& family : task.families) {
    for (const std::string& picture : family.pictures) html << figure(picture, "picture");
  }
  html << "</div>\n";
  return html.str();
}

}  // namespace

Spread ComparedFamily::loss() const { return spread_over(runs, &ComparedResult::loss); }
double ComparedFamily::peak_bytes() const {
  double most = 0;
  for (const ComparedResult& run : runs) most = std::max(most, run.peak_bytes);
  return most;
}
Spread ComparedFamily::accuracy() const { return spread_over(runs, &ComparedResult::accuracy); }

std::vector<std::pair<std::int64_t, double>> ComparedFamily::by_distance() const {
  std::map<std::int64_t, Hits> all;
  for (const ComparedResult& run : runs) {
    for (const auto& [distance, hits] : run.by_distance) {
      all[distance].hit += hits.hit;
      all[distance].targets += hits.targets;
    }
  }
  std::vector<std::pair<std::int64_t, double>> shares;
  for (const auto& [distance, hits] : all) shares.emplace_back(distance, hits.share());
  return shares;
}

std::string reach_text(std::int64_t receptive_field) {
  return receptive_field == 0 ? "all" : std::to_string(receptive_field);
}

std::string comparison_html(const std::vector<Comparison>& tasks, const ComparisonOrigin& origin) {
  const CompareSettings& settings = origin.settings;
  std::ostringstream html;
  html << "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<title>Sequence models compared</title>\n<style>"
       << kStyle << "</style></head><body>\n<h1>Sequence models compared</h1>\n";
  html << "<p>All have about " << settings.parameters << " parameters, the same data in the same order, and "
       << "the same optimizer.";
  if (settings.learning_rates.size() > 1) {
    html << " Of the learning rates";
    for (const double rate : settings.learning_rates) html << ' ' << rate;
    html << " each model keeps the one with the least validation loss after a search of "
         << number(100 * settings.search_share, 0) << " % of a run with one seed.";
  } else {
    html << " The learning rate is " << settings.learning_rates.front() << " for all.";
  }
  html << " Results are the mean and the sample deviation over " << settings.seeds
       << (settings.seeds == 1 ? " seed" : " seeds") << ". Equal for all: " << name_of_choice(settings.budget)
       << (settings.budget == Budget::steps ? "" : ", planned from steps that were measured before")
       << ". Operations are those of products, counted in a step. Longest path: steps from layer to "
       << "layer, or from position to position, by which the first position reaches the last.</p>\n";
  for (const Comparison& task : tasks) html << section(task);
  html << "<h2>How it was made</h2>\n<p>" << escaped(origin.machine) << ", " << escaped(origin.time)
       << ". To repeat it:</p>\n<pre>" << escaped(origin.command) << "</pre>\n"
       << "<details><summary>All settings</summary><pre>" << escaped(origin.all_settings.dump(1))
       << "</pre>\n";
  for (const Comparison& task : tasks) {
    for (const ComparedFamily& family : task.families)
      html << "<pre>" << escaped(task.task + ", " + family.name + ": " + nlohmann::json(family.model).dump())
           << "</pre>\n";
  }
  html << "</details>\n</body></html>\n";
  return html.str();
}

}  // namespace needle
