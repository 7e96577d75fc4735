#include "apps/saved_model.h"

#include "needle/io/checkpoint.h"
#include "needle/models/model.h"

namespace needle {

SavedModel load_saved_model(const std::filesystem::path& path, Device device) {
  const std::filesystem::path folder = find_checkpoint(path);
  const SavedRun run = load_saved_run(folder);
  const bool masks = run.settings.model.kind == ModelKind::encoder;  // by an id of its own
  require(run.tokenizer.vocabulary_size() == run.settings.model.vocabulary ||
              (masks && run.tokenizer.vocabulary_size() + 1 == run.settings.model.vocabulary),
          folder.string(), ": its tokenizer has ", run.tokenizer.vocabulary_size(), " ids, its model ",
          run.settings.model.vocabulary);
  Generator overwritten(0);
  SavedModel saved{folder, run.settings, run.tokenizer, make_model(run.settings.model, overwritten, device)};
  load_checkpoint(folder, *saved.model);
  return saved;
}

}  // namespace needle
