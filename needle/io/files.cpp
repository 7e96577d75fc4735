// Files by POSIX calls, because only these can say that bytes have reached the disk.
#include "needle/io/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "backends/error.h"

namespace needle {
namespace {

constexpr std::string_view kPartialSuffix = ".partial";
constexpr int kMaxJsonDepth = 100;

/// Throws "cannot VERB PATH: REASON", the reason from errno.
[[noreturn]] void fail_system(const char* verb, const std::filesystem::path& path) {
  const std::string reason = std::system_category().message(errno);
  fail("cannot ", verb, ' ', path.string(), ": ", reason);
}

/// An open file, closed at the end of its life.
class Descriptor {
 public:
  Descriptor(const char* verb, const std::filesystem::path& path, int flags)
      : number_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (number_ < 0) fail_system(verb, path);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }
  /// False when closing reports a late write error.
  bool close() { return ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

void sync(const Descriptor& file, const std::filesystem::path& path) {
  // EINVAL: a pipe, a device or a foreign file system on which there is nothing to sync.
  if (::fsync(file.number()) != 0 && errno != EINVAL) fail_system("write", path);
}

void sync_folder(const std::filesystem::path& path) {
  sync(Descriptor("open folder", path, O_RDONLY | O_DIRECTORY), path);
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

void remove_leftovers(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.') && name.ends_with(kPartialSuffix) &&
        std::filesystem::is_directory(entry.symlink_status(ignored))) {
      std::filesystem::remove_all(entry.path(), ignored);
    }
  }
}

/// The deepest nesting of brackets outside strings.
int nesting_depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

/// The parser's complaint without its error number and without the text it had read, which can be long.
std::string complaint(const nlohmann::json::exception& error) {
  const std::string text = error.what();
  const std::size_t start = text.find("] ") + 2;
  return text.substr(start, std::min<std::size_t>(text.find("; last read"), start + 160) - start);
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  const Descriptor file("read", path, O_RDONLY);
  struct stat status = {};
  if (::fstat(file.number(), &status) != 0) fail_system("read", path);
  // One byte more than the size, so that one call reads the file and the next finds its end; a pipe has no
  // size.
  std::string bytes(static_cast<std::size_t>(std::max<off_t>(status.st_size, 4095)) + 1, '\0');
  std::size_t used = 0;
  while (true) {
    const ssize_t count = ::read(file.number(), bytes.data() + used, bytes.size() - used);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_system("read", path);
    if (count == 0) break;
    used += static_cast<std::size_t>(count);
    if (used == bytes.size()) bytes.resize(2 * used);
  }
  bytes.resize(used);
  return bytes;
}

void write_file_synced(const std::filesystem::path& path, std::span<const std::string_view> pieces) {
  Descriptor file("write", path, O_WRONLY | O_CREAT | O_TRUNC);
  for (std::string_view piece : pieces) {
    while (!piece.empty()) {
      const ssize_t count = ::write(file.number(), piece.data(), piece.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail_system("write", path);
      piece.remove_prefix(static_cast<std::size_t>(count));
    }
  }
  sync(file, path);
  if (!file.close()) fail_system("write", path);
}

void write_file_synced(const std::filesystem::path& path, std::string_view bytes) {
  write_file_synced(path, std::span(&bytes, 1));
}

PendingFolder::PendingFolder(std::filesystem::path final_path) : final_(std::move(final_path)) {
  require(final_.has_filename(), "a folder to write needs a name, got \"", final_.string(), '"');
  std::error_code error;
  const auto existing = std::filesystem::status(final_, error);
  require(!std::filesystem::exists(existing) || std::filesystem::is_directory(existing), "cannot write ",
          final_.string(), ": it exists and is not a folder");
  const std::filesystem::path parent = parent_of(final_);
  partial_ = parent / ('.' + final_.filename().string() + std::string(kPartialSuffix));
  remove_leftovers(parent);
  std::filesystem::create_directories(partial_, error);
  require(!error, "cannot create ", partial_.string(), ": ", error.message());
}

PendingFolder::~PendingFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(partial_, ignored);
}

void PendingFolder::commit() {
  for (const auto& entry : std::filesystem::directory_iterator(partial_)) {
    if (entry.is_regular_file()) sync(Descriptor("sync", entry.path(), O_RDONLY), entry.path());
  }
  sync_folder(partial_);
  // Exchanged, not renamed over: a folder that holds files cannot be replaced otherwise without a moment at
  // which neither the old nor the new one is there. The old one, now the partial one, goes in the destructor.
  const bool replaces = std::filesystem::exists(final_);
  const auto move = [](const std::filesystem::path& from, const std::filesystem::path& to, unsigned flags) {
    return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0;
  };
  if (!move(partial_, final_, replaces ? RENAME_EXCHANGE : 0)) {
    if (!replaces || (errno != EINVAL && errno != ENOSYS)) fail_system("rename to", final_);
    // A file system that cannot exchange: for a moment the old folder stands under a name of its own.
    std::filesystem::path aside = partial_;
    aside += ".old";
    if (!move(final_, aside, 0) || !move(partial_, final_, 0)) fail_system("rename to", final_);
    std::error_code ignored;
    std::filesystem::remove_all(aside, ignored);
  }
  sync_folder(parent_of(final_));
}

FolderLock::FolderLock(const std::filesystem::path& folder)
    : number_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (number_ < 0) fail_system("open", folder);
  if (::flock(number_, LOCK_EX | LOCK_NB) != 0) {
    ::close(number_);
    fail(folder.string(), " is in use by another run");
  }
}

FolderLock::~FolderLock() {
  if (number_ >= 0) ::close(number_);
}

nlohmann::json parse_json(std::string_view text, std::string_view name) {
  using nlohmann::json;
  const int depth = nesting_depth(text);
  require(depth <= kMaxJsonDepth, name, ": JSON nested ", depth, " deep, at most ", kMaxJsonDepth,
          " is read");
  std::vector<std::set<std::string>> open_objects;
  const auto refuse_duplicates = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      require(open_objects.back().insert(key).second, name, ": key ", json(key).dump(), " stands twice");
    }
    return true;
  };
  try {
    return json::parse(text, refuse_duplicates);
  } catch (const json::exception& error) {
    fail(name, ": not valid JSON: ", complaint(error));
  }
}

}  // namespace needle
