#include "apps/saved_model.h"

#include <iostream>

#include "needle/io/checkpoint.h"
#include "needle/io/tokenizer_files.h"
#include "needle/models/model.h"
#include "needle/models/published.h"

namespace needle {

namespace {

SavedDescription describe_published(const std::filesystem::path& folder) {
  const PublishedConfig config = read_published_config(folder);
  for (const std::string& warning : config.warnings) std::cerr << "warning: " << warning << std::endl;
  TrainSettings settings;
  settings.model = config.model;
  settings.data.source = DataSource::text;
  Tokenizer tokenizer = read_tokenizer(folder, config.model.vocabulary, config.begin, config.end);
  settings.data.tokens = tokenizer.kind();
  // Tables are often padded beyond the last token.
  require(tokenizer.vocabulary_size() <= config.model.vocabulary, folder.string(), ": its tokenizer has ",
          tokenizer.vocabulary_size(), " ids, its model ", config.model.vocabulary);
  return {folder, settings, std::move(tokenizer), config.names};
}

}  // namespace

SavedDescription describe_saved(const std::filesystem::path& path) {
  if (is_published(path)) return describe_published(path);
  const std::filesystem::path folder = find_checkpoint(path);
  const SavedRun run = load_saved_run(folder);
  const std::int64_t tokens = run.tokenizer.vocabulary_size(), vocabulary = run.settings.model.vocabulary;
  const bool masks = run.settings.model.kind == ModelKind::encoder;  // by an id of its own
  const bool fits = run.tokenizer.byte_pairs() != nullptr
                        ? tokens <= vocabulary
                        : tokens == vocabulary || (masks && tokens + 1 == vocabulary);
  require(fits, folder.string(), ": its tokenizer has ", tokens, " ids, its model ", vocabulary);
  return {folder, run.settings, run.tokenizer, std::nullopt};
}

void load_weights(const SavedDescription& saved, SequenceModel& model) {
  if (saved.published)
    load_published(saved.folder, *saved.published, model);
  else
    load_checkpoint(saved.folder, model);
}

SavedModel load_saved_model(const std::filesystem::path& path, Device device) {
  SavedModel saved{describe_saved(path), nullptr};
  Generator overwritten(0);
  saved.model = make_model(saved.settings.model, overwritten, device);
  load_weights(saved, *saved.model);
  return saved;
}

}  // namespace needle
