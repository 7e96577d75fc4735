// The program on published checkpoints: it scores, shows, trains further and exports them, as a user does.
#include "needle/io/tokenizer_files.h"
#include "needle/models/model.h"
#include "needle/models/published.h"
#include "tests/program.h"
#include "tests/published_folder.h"

namespace needle {
namespace {

class PublishedProgramTest : public ProgramTest {
 protected:
  PublishedProgramTest() {
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 60; ++i) text << "First Citizen " << i << ":\nSpeak, caf\u00e9 \U0001f600!\n\n";
  }

  /// A checkpoint with random weights and the byte pairs of the reference, in the folder `name`.
  void publish(const std::string& name, const ModelConfig& config) const {
    const fs::path reference = NEEDLE_TEST_REFERENCE;
    fs::create_directory(folder_ / name);
    const TemporaryFolder files;
    if (config.norm == NormKind::rms) {
      fs::copy_file(reference / "byte_pair_llama_tokenizer.json", files / "tokenizer.json");
    } else {
      fs::copy_file(reference / "byte_pair_gpt2_vocab.json", files / "vocab.json");
      fs::copy_file(reference / "byte_pair_gpt2_merges.txt", files / "merges.txt");
    }
    const Tokenizer tokenizer = read_tokenizer(files.path(), config.vocabulary, 0, 0);
    Generator random(1);
    save_published(folder_ / name, *make_model(config, random), tokenizer);
  }
  void publish_both() const {
    ModelConfig config = DecoderConfig::of_size(600, 32, 16, 2, 2);
    publish("gpt2", config);
    config.norm = NormKind::rms, config.positions = Positions::rotary, config.bias = false;
    config.activation = Activation::gated, config.tied = false;
    publish("llama", config);
  }

  double loss_of(const std::string& checkpoint) const {
    const Result result = run({"evaluate", "--checkpoint", checkpoint, "--text", "text.txt", "--json"});
    EXPECT_EQ(result.code, 0) << result.errors;
    return nlohmann::json::parse(result.output).at("loss");
  }

  void expect_refused(const Arguments& arguments, const std::string& part) const {
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 2) << result.output;
    EXPECT_TRUE(contains(result.errors, part));
    EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
  }
};

TEST_F(PublishedProgramTest, IsScoredAndShown) {
  publish_both();
  for (const std::string name : {"gpt2", "llama"}) {
    EXPECT_NEAR(loss_of(name), std::log(600), 0.2);
    const Result shorter =
        run({"evaluate", "--checkpoint", name, "--text", "text.txt", "--context", "8", "--json"});
    EXPECT_EQ(shorter.code, 0) << shorter.errors;
    const Result written = run({"generate", "--checkpoint", name, "--prompt", "First", "--new-tokens", "3"});
    EXPECT_EQ(written.code, 0) << written.errors;
    EXPECT_TRUE(written.output.starts_with("First"));
    const Result seen =
        run({"attention", "--checkpoint", name, "--text", "First Citizen<|endoftext|>", "--json"});
    EXPECT_EQ(seen.code, 0) << seen.errors;
    EXPECT_TRUE(contains(seen.output, "\" C"));
    for (const Arguments& looking :
         {Arguments{"check", "--checkpoint", name, "--length", "6"},
          Arguments{"cost", "--checkpoint", name, "--length", "8"}, Arguments{"inspect", name}})
      EXPECT_EQ(run(looking).code, 0) << looking[0] << run(looking).errors;
  }
  EXPECT_TRUE(contains(run({"inspect", "llama"}).output, "model.layers.1.self_attn.k_proj.weight"));
  expect_refused({"cost", "--checkpoint", "gpt2", "--layers", "3"},
                 "--layers can't be given with --checkpoint");
  expect_refused({"evaluate", "--checkpoint", "gpt2", "--text", "text.txt", "--context", "33"},
                 "more than the 32");
}

TEST_F(PublishedProgramTest, IsTrainedFurtherAndExportedAgain) {
  publish_both();
  for (const std::string name : {"gpt2", "llama"}) {
    for (const std::string data : {"--text", "--lines"}) {
      const std::string out = name + data, file = data == "--text" ? "text.txt" : "names.txt";
      const double before = loss_of(name);
      const Arguments training{"train", "--from",   name, data,        file, "--steps",
                               "6",     "--batch",  "4",  "--context", "16", "--save-every",
                               "3",     "--out",    out,  "--threads", "1",  "--learning-rate",
                               "0.01",  "--warmup", "1"};
      const Result trained = run(training);
      ASSERT_EQ(trained.code, 0) << trained.errors;
      const nlohmann::json saved = load_settings(folder_ / (out + "/step-6"));
      EXPECT_EQ(saved.at("tokenizer").at("kind"), "byte-pair");
      EXPECT_EQ(saved.at("training").at("from"), name);
      EXPECT_EQ(saved.at("model").at("context"), 32);
      EXPECT_EQ(saved.at("model").at("vocabulary"), 600);
      EXPECT_TRUE(data == "--lines" || loss_of(out) < before) << before;

      const Result exported = run({"export", "--checkpoint", out, "--to", out + "-published"});
      ASSERT_EQ(exported.code, 0) << exported.errors;
      EXPECT_TRUE(contains(exported.output, name == "gpt2" ? "GPT-2" : "Llama"));
      EXPECT_EQ(loss_of(out + "-published"), loss_of(out));
      // What is exported is read by all that reads the first, and has the same names.
      EXPECT_EQ(SafetensorsFile(folder_ / (out + "-published/model.safetensors")).names(),
                SafetensorsFile(folder_ / (name + "/model.safetensors")).names());
      expect_refused({"export", "--checkpoint", out, "--to", name}, "is there already");
    }
  }
  // A run that began so goes on as any other, and another may begin with it.
  const Arguments stopped{"train", "--from",       "gpt2", "--text", "text.txt", "--steps",   "4", "--batch",
                          "2",     "--save-every", "2",    "--out",  "whole",    "--threads", "1"};
  ASSERT_EQ(run(stopped).code, 0);
  const Result resumed = run({"train", "--resume", "gpt2--text/step-6", "--out", "again"});
  EXPECT_EQ(resumed.code, 0) << resumed.errors;
  const Result second =
      run({"train", "--from", "whole", "--lines", "names.txt", "--steps", "1", "--batch", "2"});
  EXPECT_EQ(second.code, 0) << second.errors;
}

TEST_F(PublishedProgramTest, ARunCanBeginWithOneOfOurs) {
  ASSERT_EQ(run(training("first", 5)).code, 0);
  const Result second = run({"train", "--from", "first", "--lines", "names.txt", "--layers", "1", "--steps",
                             "5", "--batch", "4", "--out", "second", "--json"});
  ASSERT_EQ(second.code, 0) << second.errors;
  const Result scored = run({"evaluate", "--checkpoint", "first", "--lines", "names.txt", "--json"});
  ASSERT_EQ(scored.code, 0) << scored.errors;
  EXPECT_EQ(load_settings(folder_ / "second/step-5").at("tokenizer"),
            load_settings(folder_ / "first/step-5").at("tokenizer"));
  // Its own characters alone are known.
  std::ofstream(folder_ / "others.txt") << "Zo\u00eb\nq\n";
  expect_refused({"train", "--from", "first", "--lines", "others.txt"}, "'Z' (U+005A)");
  expect_refused({"export", "--checkpoint", "first", "--to", "published"}, "no place for positions rotary");
}

TEST_F(PublishedProgramTest, WhatDoesNotFitIsOneLine) {
  publish_both();
  const Arguments from{"train", "--from", "gpt2"};
  const auto with = [&](Arguments more) {
    more.insert(more.begin(), from.begin(), from.end());
    return more;
  };
  expect_refused(with({}), "--from wants --lines or --text");
  expect_refused(with({"--task", "copy"}), "--from wants --lines or --text");
  expect_refused(with({"--text", "text.txt", "--layers", "3"}),
                 "--layers 3 does not fit gpt2, whose model has 2");
  expect_refused(with({"--text", "text.txt", "--positions", "rotary"}), "--positions");
  expect_refused(with({"--text", "text.txt", "--context", "64"}), "reads 1 to 32 positions");
  expect_refused(with({"--text", "text.txt", "--tokens", "bytes"}), "--tokens");
  expect_refused({"train", "--resume", "gpt2", "--from", "gpt2"}, "--from can't be given with --resume");

  const PublishedFolder tiny("llama_tiny");
  const std::string folder = tiny.path().string();
  expect_refused({"generate", "--checkpoint", folder, "--prompt", "a"}, "there is no tokenizer.json");
  EXPECT_EQ(run({"check", "--checkpoint", folder}).code, 0);
  EXPECT_EQ(run({"cost", "--checkpoint", folder}).code, 0);
  nlohmann::json config = nlohmann::json::parse(read_file(tiny / "config.json"));
  config["new_field"] = 1;
  write_file_synced(tiny / "config.json", config.dump());
  const Result warned = run({"check", "--checkpoint", folder});
  EXPECT_EQ(warned.code, 0);
  EXPECT_TRUE(contains(warned.errors, "warning: "));
  EXPECT_TRUE(contains(warned.errors, "\"new_field\" is not known"));
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  write_file_synced(tiny / "config.json", config.dump());
  expect_refused({"check", "--checkpoint", folder}, "rope_scaling");
}

}  // namespace
}  // namespace needle
