#include "apps/loss_curve.h"

#include "needle/inspect/svg.h"
#include "needle/io/files.h"

namespace needle {

std::filesystem::path draw_loss_curve(const RunFolder& run, std::optional<double> floor) {
  Series training{"training", {}, {}}, validation{"validation", {}, {}};
  const auto add = [](Series& series, std::int64_t step, double loss) {
    series.x.push_back(static_cast<double>(step));
    series.y.push_back(loss);
  };
  for (const LossRow& row : run.losses()) {
    add(training, row.step, row.training_loss);
    if (row.validation_loss) add(validation, row.step, *row.validation_loss);
  }
  Chart chart;
  chart.title = "Loss of " + run.path().filename().string();
  chart.x_label = "step";
  chart.y_label = "loss, nats per target";
  chart.series = {training, validation};
  if (floor) chart.reference_lines.push_back({"floor", *floor});
  const std::filesystem::path file = run.path() / "losses.svg";
  write_file_synced(file, draw_chart(chart));
  return file;
}

}  // namespace needle
