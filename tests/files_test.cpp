// Reading and writing whole files, folders that appear all at once (BR-069), and the JSON reader's limits.
#include "needle/io/files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/on_devices.h"

namespace needle {
namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

class FilesTest : public testing::Test {
 protected:
  FilesTest() : folder_(fs::temp_directory_path() / ("needle_files_" + std::to_string(::getpid()))) {
    fs::create_directory(folder_);
  }
  ~FilesTest() override { fs::remove_all(folder_); }

  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  const fs::path folder_;
};

/// Three files whose contents all name the version, the shape of a checkpoint.
void save(const fs::path& path, const std::string& version) {
  PendingFolder pending(path);
  for (const char* name : {"model", "optimizer", "state"}) {
    write_file_synced(pending.path() / name, version + std::string(3000, '.') + name);
  }
  pending.commit();
}

/// The version of a saved folder; "mixed" unless all its files agree and are whole.
std::string version_in(const fs::path& path) {
  const std::string version = read_file(path / "model").substr(0, 1);
  for (const char* name : {"model", "optimizer", "state"}) {
    if (read_file(path / name) != version + std::string(3000, '.') + name) return "mixed";
  }
  return version;
}

/// Runs `function` in a child process that may write no more than `limit` bytes into a file; a longer write
/// kills it, or fails like a full disk if `survives`. Returns whether the child ended by itself.
template <class F>
bool run_limited(rlim_t limit, bool survives, F&& function) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limits = {limit, limit}, no_core = {0, 0};
    ::setrlimit(RLIMIT_FSIZE, &limits);
    ::setrlimit(RLIMIT_CORE, &no_core);
    std::signal(SIGXFSZ, survives ? SIG_IGN : SIG_DFL);
    function();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status);
}

TEST_F(FilesTest, ReadsWhatWasWritten) {
  for (const std::size_t size : {0u, 1u, 4095u, 4096u, 4097u, 100000u}) {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 % 256);
    write_file_synced(folder_ / "file", bytes);
    EXPECT_EQ(read_file(folder_ / "file"), bytes) << size;
  }
  const std::string_view pieces[] = {"one ", "", "two"};
  write_file_synced(folder_ / "file", pieces);
  EXPECT_EQ(read_file(folder_ / "file"), "one two");
}

TEST_F(FilesTest, ErrorsNameThePathAndTheReason) {
  const std::string missing = error_of([&] { read_file(folder_ / "missing"); });
  EXPECT_TRUE(contains(missing, (folder_ / "missing").string())) << missing;
  EXPECT_TRUE(contains(missing, "No such file")) << missing;
  EXPECT_TRUE(contains(error_of([&] { read_file(folder_); }), "directory"));
  EXPECT_TRUE(contains(error_of([&] { write_file_synced(folder_ / "no" / "file", "x"); }), "No such file"));
  const std::string full = error_of([] { write_file_synced("/dev/full", "x"); });
  EXPECT_EQ(full, "cannot write /dev/full: No space left on device");
}

TEST_F(FilesTest, FolderAppearsOnlyByCommit) {
  const fs::path path = folder_ / "run" / "step-1";  // the parent is made as well
  {
    PendingFolder pending(path);
    write_file_synced(pending.path() / "model", "A");
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_TRUE(fs::is_empty(folder_ / "run"));
  save(path, "A");
  EXPECT_EQ(version_in(path), "A");
  save(path, "B");
  EXPECT_EQ(version_in(path), "B");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "run"), {}), 1);
}

TEST_F(FilesTest, FolderRefusesAFileOfItsNameAndAnEmptyName) {
  write_file_synced(folder_ / "taken", "x");
  EXPECT_TRUE(contains(error_of([&] { PendingFolder(folder_ / "taken"); }), "is not a folder"));
  EXPECT_TRUE(contains(error_of([&] { PendingFolder(folder_ / "taken" / "below"); }), "cannot create"));
  EXPECT_TRUE(contains(error_of([&] { PendingFolder(fs::path("")); }), "needs a name"));
  EXPECT_EQ(read_file(folder_ / "taken"), "x");
}

TEST_F(FilesTest, BR069KilledSaveLeavesThePreviousOneWhole) {
  const fs::path previous = folder_ / "step-1", next = folder_ / "step-2", kept = folder_ / "best";
  save(previous, "A");
  save(kept, "A");
  for (const rlim_t bytes : {0, 1, 1500, 3000, 3006, 3009}) {  // the files take 3006, 3010 and 3006 bytes
    EXPECT_FALSE(run_limited(bytes, false, [&] { save(next, "B"); })) << bytes;
    EXPECT_EQ(listing(), (std::vector<std::string>{".step-2.partial", "best", "step-1"}));
    EXPECT_FALSE(run_limited(bytes, false, [&] { save(kept, "B"); })) << bytes;
    EXPECT_EQ(listing(), (std::vector<std::string>{".best.partial", "best", "step-1"}));
    EXPECT_EQ(version_in(previous), "A");
    EXPECT_EQ(version_in(kept), "A");
  }
  save(kept, "B");  // the next save clears what the killed ones left
  save(next, "B");
  EXPECT_EQ(listing(), (std::vector<std::string>{"best", "step-1", "step-2"}));
  EXPECT_EQ(version_in(previous), "A");
  EXPECT_EQ(version_in(kept), "B");
  EXPECT_EQ(version_in(next), "B");
}

TEST_F(FilesTest, BR069FailedWriteIsAnErrorAndLeavesNothing) {
  save(folder_ / "best", "A");
  EXPECT_TRUE(run_limited(2000, true, [&] {
    const std::string message = error_of([&] { save(folder_ / "best", "B"); });
    if (!contains(message, ".best.partial/model: File too large")) std::abort();
  }));
  EXPECT_EQ(listing(), std::vector<std::string>{"best"});
  EXPECT_EQ(version_in(folder_ / "best"), "A");
}

TEST_F(FilesTest, OnlyHiddenPartialFoldersAreCleaned) {
  for (const char* name : {".old.partial", "mine.partial", ".hidden"}) fs::create_directory(folder_ / name);
  write_file_synced(folder_ / ".file.partial", "x");
  fs::create_directory_symlink(folder_ / ".hidden", folder_ / ".link.partial");
  save(folder_ / "step-1", "A");
  EXPECT_EQ(listing(), (std::vector<std::string>{".file.partial", ".hidden", ".link.partial", "mine.partial",
                                                 "step-1"}));
}

TEST(ParseJson, ReadsValues) {
  const auto value = parse_json(R"({"a": [1, 2.5, "x]}\"[{"], "b": {"a": null}})", "file.json");
  EXPECT_EQ(value["a"][1], 2.5);
  EXPECT_EQ(value["a"][2], "x]}\"[{");
  EXPECT_TRUE(value["b"]["a"].is_null());
  std::string deep = std::string(100, '[') + std::string(100, ']');
  EXPECT_TRUE(parse_json(deep, "file.json").is_array());
  EXPECT_EQ(parse_json('"' + std::string(200, '[') + '"', "file.json").get<std::string>().size(), 200u);
}

TEST(ParseJson, ErrorsAreOneShortLineWithTheName) {
  const std::string many = "{\"a\": \"" + std::string(100000, 'x');
  const std::pair<std::string, const char*> cases[] = {
      {"", "unexpected end of input"},
      {"{\"a\": 1", "not valid JSON"},
      {"{\"a\": 1} x", "not valid JSON"},
      {"{\n\"a\":\n\n tru}", "line 4"},
      {"[1e999]", "number overflow"},
      {"\"\xff\"", "not valid JSON"},
      {many, "not valid JSON"},
      {R"({"a": 1, "b": {"a": 1, "a": 2}})", R"(key "a" stands twice)"},
      {std::string(101, '[') + std::string(101, ']'), "nested 101 deep"},
  };
  for (const auto& [text, part] : cases) {
    const std::string message = error_of([&] { parse_json(text, "some/file.json"); });
    EXPECT_TRUE(message.starts_with("some/file.json: ")) << message;
    EXPECT_TRUE(contains(message, part)) << message;
    EXPECT_FALSE(contains(message, "\n")) << message;
    EXPECT_LT(message.size(), 250u);
  }
}

TEST(ParseJson, BR063DeepNestingIsRefusedQuickly) {
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& text : {std::string(100000, '['), objects}) {
    EXPECT_TRUE(contains(error_of([&] { parse_json(text, "file.json"); }), "nested 100000 deep"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

}  // namespace
}  // namespace needle
