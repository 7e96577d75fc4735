#include "apps/interrupt.h"

#include <unistd.h>

#include <csignal>

namespace needle {

namespace {

volatile std::sig_atomic_t asked = 0;
std::string_view said;  // by the handler, which can be given nothing

}  // namespace

void stop_at_interrupt(std::string_view notice) {
  said = notice;
  const auto handler = [](int signal) {
    asked = 1;
    std::signal(signal, SIG_DFL);
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, said.data(), said.size());
  };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, handler);
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
}

bool interrupted() { return asked != 0; }

}  // namespace needle
