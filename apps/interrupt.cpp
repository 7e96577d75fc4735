#include "apps/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

namespace needle {

namespace {

std::atomic<bool> asked = false;

}  // namespace

void stop_at_interrupt(std::string_view notice) {
  // A thread waits for the signals, and all others have them blocked: handlers that run in the middle of a
  // product of oneDNN damage the heap, since its code lets the stack pointer point elsewhere.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction present = {};
    sigaction(signal, nullptr, &present);
    if (present.sa_handler != SIG_IGN) sigaddset(&signals, signal);  // as nohup has it
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, said = std::string(notice)] {
    int signal = 0;
    sigwait(&signals, &signal);
    asked = true;
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, said.data(), said.size());
    sigwait(&signals, &signal);
    std::_Exit(128 + signal);
  }).detach();
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
}

bool interrupted() { return asked; }

}  // namespace needle
