// Published checkpoints in folders of their own, for tests.
#pragma once

#include <string>

#include "tests/temporary_folder.h"

namespace needle {

/// "gpt2_tiny" or "llama_tiny" of tests/reference under the published names.
struct PublishedFolder : TemporaryFolder {
  explicit PublishedFolder(const std::string& name) {
    const std::filesystem::path reference = NEEDLE_TEST_REFERENCE;
    std::filesystem::copy_file(reference / (name + "_config.json"), *this / "config.json");
    std::filesystem::copy_file(reference / (name + "_model.safetensors"), *this / "model.safetensors");
  }
};

}  // namespace needle
