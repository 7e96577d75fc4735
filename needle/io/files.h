// Whole files and folders on disk: reading, durable writing, folders that appear all at once, and JSON.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace needle {

/// All bytes of a file. Throws Error with the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

/// Writes `pieces` one after the other as the whole content of `path`, and returns once they are on the disk.
/// Throws Error with the path and the system's reason (a full disk, no permission, ...); the file may then be
/// incomplete.
void write_file_synced(const std::filesystem::path& path, std::span<const std::string_view> pieces);
void write_file_synced(const std::filesystem::path& path, std::string_view bytes);

/// A folder that appears under its final name complete or not at all, also when the process is killed or the
/// disk is full: it is filled as ".NAME.partial" beside its place and renamed by commit(). Only one can be
/// pending in the same parent folder, because a new one first removes what killed processes left there.
class PendingFolder {
 public:
  /// Creates the hidden folder, and parents that are missing. Throws Error with the path and the reason.
  explicit PendingFolder(std::filesystem::path final_path);
  PendingFolder(const PendingFolder&) = delete;
  PendingFolder& operator=(const PendingFolder&) = delete;
  /// Removes the folder unless it was committed.
  ~PendingFolder();

  /// Where files are to be written until commit().
  const std::filesystem::path& path() const { return partial_; }
  /// Makes every file durable and gives the folder its final name; a folder of that name is replaced in one
  /// step. Throws Error, and then the old folder is still whole.
  void commit();

 private:
  std::filesystem::path final_, partial_;
};

/// Keeps other processes out of a folder, as long as it lives.
class FolderLock {
 public:
  /// Throws Error when another process holds the folder, or it cannot be opened.
  explicit FolderLock(const std::filesystem::path& folder);
  FolderLock(FolderLock&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  int number_;
};

/// The JSON value in `text`; `name` (usually the file's path) starts every message. Throws Error on wrong
/// syntax, on a key that stands twice in an object, and on more than 100 nested brackets.
nlohmann::json parse_json(std::string_view text, std::string_view name);

}  // namespace needle
